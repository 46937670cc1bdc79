"""Stored measurements side by side: their names, what may be compared, the steps of a series, memory, the best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from cluster.bench.result import PARTIAL, Baseline, Difference, Result, differences, find_baseline, read_result
from cluster.bench.rows import Row, suffix
from cluster.bench.scaling import UNKNOWN, Ceiling, Reading, bytes_a_token, scaling_rows, scaling_table
from cluster.bench.series import ENDING, Point, Series, read_point, read_series, short_key
from cluster.bench.statistics import Ratio, Stat, half_width, ratio
from cluster.bench.tables import Column, Table, extreme, hosts_of, known_columns, show, table
from cluster.config.recipe import Recipe, Reference, load_recipe
from cluster.errors import ClusterError, UsageError
from cluster.spark.memory import GIB, moment_names


@dataclass(frozen=True, slots=True)
class Entry:
    """A measurement with what is known around it: its name here, its step of a series, the recipe's own numbers."""

    label: str
    result: Result
    path: Path | None = None
    point: Point | None = None
    reading: Reading = UNKNOWN
    references: tuple[Reference, ...] = ()

    @property
    def tp(self) -> int | None:
        """Its tensor-parallel size."""
        return self.result.manifest.tp


LABELS: tuple[Callable[[Result], str], ...] = (
    lambda result: result.manifest.recipe or result.manifest.model,
    lambda result: f"TP={result.manifest.tp}" if result.manifest.tp else result.manifest.base_url,
    lambda result: f"PP={result.manifest.pipeline}" if (result.manifest.pipeline or 1) > 1 else "",
    lambda result: result.manifest.backend,
    lambda result: result.manifest.depth_mode,
    lambda result: f"seed {result.manifest.seed}",
    lambda result: result.timestamp,
)
"""What may tell results apart, most telling first."""


def name_results(results: Sequence[Result]) -> list[str]:
    """A short name for each: only what tells them apart; their size when nothing else does."""
    chosen: list[Callable[[Result], str]] = []
    for pick in LABELS:
        names = {tuple(one(result) for one in chosen) for result in results}
        if len(names) == len(results) and chosen:
            break
        if len({pick(result) for result in results}) > 1:
            chosen.append(pick)
    chosen = chosen or [LABELS[1]]
    return [" ".join(filter(None, (pick(result) for pick in chosen))) or "server" for result in results]


def against(base: Entry, now: Entry, varied: Sequence[str] = ()) -> tuple[Difference, ...]:
    """What forbids to compare the two, but for what was varied on purpose."""
    found = differences(base.result.manifest, now.result.manifest)
    return tuple(item for item in found if item.must_agree and not _is_varied(item.key, varied))


CONSEQUENCES = {
    "image": ("image", "image_content", "versions"),
    "model": ("model", "revision", "weights"),
    "revision": ("revision",),
    "weights": ("weights",),
}
"""Conditions that follow from a recipe key by themselves."""


def _is_varied(key: str, varied: Sequence[str]) -> bool:
    """Whether a condition is one of the varied recipe keys, or follows from one."""
    plain = key.removeprefix("spec.").removeprefix("recipe.").replace("_", "-")
    for name in varied:
        roots = [name, f"vllm.{name}", *CONSEQUENCES.get(name.partition(".")[0], ())]
        for root in (root.replace("_", "-") for root in roots):
            if plain == root or plain.startswith(root + ".") or root.startswith(plain + "."):
                return True
    return False


def compare(base: Entry, now: Entry) -> list[Table]:
    """The scaling table of two sizes with the ceiling as a column; in its place what forbids it."""
    why_not = against(base, now)
    if why_not:
        text = f"{now.label} is not compared with {base.label}: " + "; ".join(map(str, why_not[:8]))
        return [Table("scaling", notes=(text,))]
    rows = scaling_rows(base.result, now.result, now.references)
    baseline = Baseline(base.result, base.path, differences(base.result.manifest, now.result.manifest))
    title = f"scaling: {now.label} beside {base.label}"
    return [scaling_table(rows, baseline, now.result, now.references, Ceiling(now.label, now.reading, now.tp), title)]


def steps_table(series: Series, results: Mapping[str, Result]) -> Table:
    """Each step: hosts, time to ready, what was measured, or why not."""
    columns = [
        Column("step", lambda point: point.label),
        Column("hosts", lambda point: ", ".join(point.hosts)),
        Column("ready (s)", ready),
        Column("rows", lambda point: len(results[point.label].rows) if point.label in results else ""),
    ]
    failed = Column("failed", lambda point: f"{point.stage} failed: {point.failed}" if point.failed else "")
    columns += known_columns([failed], series.points)
    return table("steps", columns, series.points, ("ready: from the first connection to the proven answer",), 2)


def ready(point: Point) -> str:
    """Whole seconds to ready, tenths below ten; empty when it was not started."""
    value = point.ready_s
    return "" if value is None else f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def moments_table(entries: Sequence[Entry]) -> Table | None:
    """GiB available and of GPU processes on each host, from idle to the extremes while measuring; None if not known."""
    known = [moment for entry in entries if entry.point for moment in entry.point.moments]
    names = moment_names(*(entry.result.manifest.backend for entry in entries))
    moments = [moment for moment in names if moment in known]
    lines = [(entry, host) for entry in entries for host in hosts_of(entry.result)]

    def role(line: tuple[Entry, str]) -> str:
        return next((host.role for host in line[0].result.manifest.hosts if host.name == line[1]), "")

    def published(line: tuple[Entry, str]) -> float | None:
        return published_gib(line[0], role(line))

    values = [
        *(Column(names[moment], partial(moment_cell, moment=moment)) for moment in moments),
        Column("measuring", measuring_cell),
    ]
    if not any(column.cell(line) for column in values for line in lines):
        return None
    columns = [
        Column("size", lambda line: line[0].label),
        Column("host", lambda line: line[1]),
        Column("role", role),
        *values,
        *known_columns([Column("published VRAM (GiB)", published, ",.1f", "")], lines),
    ]
    notes = ("GiB available / of GPU processes; measuring: least available, most of GPU processes over all rows",)
    return table("memory per host", columns, lines, notes, text_columns=3)


def moment_cell(line: tuple[Entry, str], moment: str) -> str:
    """`101.2 / 18.5` of one moment; empty when nothing is known of it."""
    entry, host = line
    held = (entry.point.moments if entry.point else {}).get(moment, {}).get(host) or {}
    return pair_cell(held.get("available"), held.get("gpu"), GIB)


def measuring_cell(line: tuple[Entry, str]) -> str:
    """The least available and the most of GPU processes over all rows."""
    entry, host = line
    least = extreme(entry.result, host, "memory_available_mib", most=False)
    return pair_cell(least, extreme(entry.result, host, "gpu_memory_mib", most=True), 1024)


def pair_cell(available: float | None, gpu: float | None, unit: int) -> str:
    """Two numbers in GiB, `?` for what is not known; empty when neither is."""
    if available is None and gpu is None:
        return ""
    return " / ".join("?" if value is None else f"{value / unit:.1f}" for value in (available, gpu))


def published_gib(entry: Entry, role: str) -> float | None:
    """The published GPU memory of a host of this role; it is that of the largest published size.

    nvidia-smi writes MiB, so the recipe's MB are taken as such.
    """
    for reference in entry.references:
        if role in reference.vram_mb and entry.tp == max((row.tp for row in reference.rows), default=0):
            return reference.vram_mb[role] / 1024
    return None


FEW = 4
"""Columns of t/s that a table has room for beside the others; more go into tables of their own."""


@dataclass(frozen=True, slots=True)
class Best:
    """The winner of one column. `interval` is the 95 % interval of its mean, None after a single run.

    `ties`: those that differ from it by no more than chance; `behind`: the next one that does differ, and by how much.
    """

    test: str
    label: str
    value: Stat
    interval: tuple[float, float] | None
    ties: tuple[str, ...]
    behind: tuple[str, Ratio] | None

    def __str__(self) -> str:
        mean = f"{self.value.mean:.2f} t/s"
        if self.interval is None:
            return f"{self.test}: most with {self.label}: {mean}; one run, so ties are unknown (--runs 3 or more)"
        mean += f" (95 %: {self.interval[0]:.2f}–{self.interval[1]:.2f})"
        if self.ties:
            return f"{self.test}: a tie of {self.label} and {', '.join(self.ties)}: the highest mean is {mean}"
        text = f"{self.test}: best with {self.label}: {mean}"
        if self.behind and self.behind[1].low is not None and self.behind[1].high is not None:
            name, gain = self.behind
            text += f", {gain.value:.2f}× of {name} ({gain.low:.2f}–{gain.high:.2f})"
        return text


def mean_interval(value: Stat) -> tuple[float, float] | None:
    """The 95 % interval of a mean that is not negative (Student's t); None for a single run."""
    half = half_width(value)
    return None if half is None else (max(0.0, value.mean * (1 - half)), value.mean * (1 + half))


def find_best(test: str, values: Mapping[str, Stat]) -> Best | None:
    """The label with the highest mean, and who is not significantly below it; None without any to compare."""
    if len(values) < 2:
        return None
    order = sorted(values, key=lambda label: -values[label].mean)
    first, interval = order[0], mean_interval(values[order[0]])
    gains = {label: ratio(values[first], values[label]) for label in order[1:]}
    known = {label: gain for label, gain in gains.items() if gain is not None}
    ties = tuple(label for label, gain in known.items() if is_tie(gain)) if interval else ()
    behind = next(((label, gain) for label, gain in known.items() if label not in ties), None)
    return Best(test, first, values[first], interval, ties, behind)


def is_tie(gain: Ratio) -> bool:
    """Whether two means differ by no more than chance; a side measured once is no tie, it is unknown."""
    return gain.value == 1 or (gain.low is not None and not gain.significant)


def generation(entry: Entry) -> dict[str, Stat | None]:
    """Token generation by row name, None where it is n/a; equal names (other prompt lengths) are told apart."""
    prompts = {row.prompt_size for row in entry.result.rows}
    return {
        tg_name(row, len(prompts) > 1): row.tg_throughput
        for row in entry.result.rows
        if not row.is_context_prefill_phase
    }


def tg_name(row: Row, several_prompts: bool) -> str:
    """`tg128 @ d4096`, with the prompt in front when there are several."""
    name = f"tg{row.response_size}{suffix(row.context_size, row.concurrency, row.concurrency)}"
    return f"pp{row.prompt_size} {name}" if several_prompts else name


def comparable(entries: Sequence[Entry], varied: Sequence[str]) -> tuple[list[Entry], list[str]]:
    """The measurements whose conditions are those of the first but for what was varied; a line for each other."""
    kept, lines = list(entries[:1]), []
    for entry in entries[1:]:
        other = against(entries[0], entry, varied)
        if other:
            lines.append(f"{entry.label} is not compared: {'; '.join(map(str, other[:5]))}")
        else:
            kept.append(entry)
    return kept, lines


def bests(entries: Sequence[Entry], varied: Sequence[str]) -> tuple[list[Best], list[str]]:
    """The best of each test that more than one step measured, and why some steps were left out."""
    kept, lines = comparable(entries, varied)
    columns = {entry.label: generation(entry) for entry in kept}
    tests = dict.fromkeys(test for column in columns.values() for test in column)
    found = [
        find_best(test, {label: value for label, column in columns.items() if (value := column.get(test))})
        for test in tests
    ]
    return [best for best in found if best], lines


def sweep_tables(series: Series, entries: Sequence[Entry]) -> list[Table]:
    """A line a step: what was varied, t/s of each test, acceptance, time to ready, memory of each host, or the reason.

    `*` stands at the best of a column, `=` at its ties.
    """
    winners, lines = bests(entries, series.varied)
    marks = {(best.test, best.label): " *" if not best.ties else " =" for best in winners if best.interval}
    marks |= {(best.test, label): " =" for best in winners for label in best.ties}
    tests = list(dict.fromkeys(test for entry in entries for test in generation(entry)))
    measured = {entry.label: entry for entry in entries}
    varied = [Column(short_key(key), partial(_varied_value, key=key), missing="") for key in series.varied]
    rates = [Column(f"{test} (t/s)", partial(_rate, test=test, measured=measured, marks=marks)) for test in tests]
    columns = [[*varied, *rates[:FEW], *_costs(series, measured)]]
    columns += [[*varied, *rates[at : at + FEW]] for at in range(FEW, len(rates), FEW)]
    notes = [*map(str, winners), *lines]
    notes += ["* best, = no significant difference from the best (95 %)"] if marks else []
    notes.append("ready: from the first connection to the proven answer; GPU: most that its processes held")
    return [
        table("sweep", own, series.points, notes if own is columns[-1] else (), text_columns=len(varied))
        for own in columns
    ]


def _varied_value(point: Point, key: str) -> Any:
    value = point.values.get(key)
    return None if value is None else str(value)


def _rate(point: Point, test: str, measured: Mapping[str, Entry], marks: Mapping[tuple[str, str], str]) -> str | None:
    """A step's rate with its mark; empty for a step that was not measured."""
    if point.label not in measured:
        return ""
    value = generation(measured[point.label]).get(test)
    return None if value is None else f"{show(value)}{marks.get((test, point.label), '')}"


def _costs(series: Series, measured: Mapping[str, Entry]) -> list[Column]:
    """Acceptance, time to ready, memory of each host, the reason of a failure."""

    def most(point: Point, host: str) -> float | None:
        entry = measured.get(point.label)
        held = extreme(entry.result, host, "gpu_memory_mib", most=True) if entry else None
        return None if held is None else held / 1024

    def accepted(point: Point) -> float | None:
        return acceptance(measured[point.label]) if point.label in measured else None

    hosts = dict.fromkeys(host for entry in measured.values() for host in hosts_of(entry.result))
    failed = Column("failed", lambda point: f"{point.stage}: {point.failed}" if point.failed else "")
    return [
        *known_columns([Column("acceptance", accepted, ".0%", "")], series.points),
        Column("ready (s)", ready),
        *(Column(f"{host} GPU (GiB)", partial(most, host=host), ",.1f", "") for host in hosts),
        *known_columns([failed], series.points),
    ]


def acceptance(entry: Entry) -> float | None:
    """Part of the drafted tokens that were accepted, over all rows; None without speculative decoding."""
    drafted = accepted = 0
    for row in entry.result.rows:
        counted = row.server or {}
        drafted += counted.get("draft_tokens", 0)
        accepted += counted.get("accepted_tokens", 0)
    return accepted / drafted if drafted else None


def prompt_table(entries: Sequence[Entry]) -> Table:
    """Prompt processing and time to first response of each step, in one line a row."""
    lines: dict[tuple[str, str], Row] = {}
    for entry in entries:
        for row in entry.result.rows:
            test = f"pp{row.prompt_size}{suffix(row.context_size, row.concurrency, row.concurrency)}"
            lines.setdefault((entry.label, test), row)
    columns = [
        Column("step", lambda line: line[0][0]),
        Column("test", lambda line: line[0][1]),
        Column("t/s", lambda line: line[1].pp_throughput),
        Column("ttfr (ms)", lambda line: line[1].ttfr),
        Column("e2e_ttft (ms)", lambda line: line[1].e2e_ttft),
    ]
    return table("prompt processing", columns, list(lines.items()), text_columns=2)


def read_files(paths: Sequence[Path]) -> tuple[list[Entry], list[Series]]:
    """What the files hold: results, and series with their results. Raises ClusterError naming the file."""
    entries: list[Entry] = []
    series: list[Series] = []
    loose: list[tuple[Path, Result]] = []
    for path in paths:
        if path.name.endswith(ENDING):
            series.append(read_series(path))
            entries += series_entries(series[-1], path.parent)
        else:
            loose.append((path, read_result(path)))
    names = name_results([result for _, result in loose])
    known = {entry.path.resolve() for entry in entries if entry.path}
    entries += [
        with_recipe(Entry(name, result, path))
        for name, (path, result) in zip(names, loose, strict=True)
        if path.resolve() not in known
    ]
    return entries, series


def series_entries(series: Series, directory: Path) -> list[Entry]:
    """The measurements of a series, in its order."""
    found = []
    for point in series.points:
        result = read_point(point, directory)
        if result is not None:
            found.append(with_recipe(Entry(point.label, result, directory / point.result, point)))
    return found


def with_recipe(entry: Entry) -> Entry:
    """The same with what the recipe says of it, as far as the recipe is still found and serves the same model."""
    recipe = served_recipe(entry.result)
    if recipe is None:
        return replace(entry, reading=Reading(None, "the recipe of this result is not found here"))
    return replace(entry, reading=bytes_a_token(recipe), references=tuple(recipe.reference))


def served_recipe(result: Result) -> Recipe | None:
    """The recipe as it was served: the file of that name, with the flags that the result's deployment had."""
    spec = result.manifest.spec.get("recipe")
    if not result.manifest.recipe:
        return None
    try:
        recipe = load_recipe(result.manifest.recipe).recipe
    except UsageError:
        return None
    if not isinstance(spec, dict) or spec.get("model", recipe.model) != recipe.model:
        return None if isinstance(spec, dict) else recipe
    return recipe.model_copy(update={"vllm": dict(spec.get("vllm", recipe.vllm))})


def newest(directory: Path) -> list[Path]:
    """What `cluster report` takes by itself: the newest result, with the series it is of or its stored baseline.

    Raises UsageError when nothing is stored.
    """
    kept = {name: path for path in sorted(directory.glob(f"*{ENDING}")) for name in names_of(path)}
    results = [path for path in directory.glob("*.json") if not path.name.endswith(ENDING)]
    for path in sorted((*results, *directory.glob(f"*{PARTIAL}")), reverse=True):
        try:
            result = read_result(path)
        except ClusterError:
            continue
        if path.name in kept:
            return [kept[path.name]]
        baseline = find_baseline(directory, result.manifest, 1, [row.shape for row in result.rows])
        return [baseline.path, path] if (result.manifest.tp or 1) > 1 and baseline.path else [path]
    raise UsageError(
        f"no results found in {directory}",
        code="no-results",
        remedy="run `cluster bench`, or name other files: cluster report FILE…",
    )


def names_of(path: Path) -> list[str]:
    """The results that a series names; none when it cannot be read."""
    try:
        return [point.result for point in read_series(path).points if point.result]
    except ClusterError:
        return []
