"""Stored measurements side by side: their names, what may be compared, the steps of a series, memory, the best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from cluster.bench.result import (
    PARTIAL,
    Baseline,
    Difference,
    Result,
    differences,
    find_baseline,
    read_result,
    warnings,
)
from cluster.bench.rows import Row, suffix
from cluster.bench.scaling import UNKNOWN, Ceiling, Reading, bytes_a_token, scaling_rows, scaling_table
from cluster.bench.series import ENDING, Point, Series, read_point, read_series, short_key
from cluster.bench.statistics import Ratio, Stat, half_width, ratio
from cluster.bench.tables import Column, Table, extreme, hosts_of, known_columns, show, table
from cluster.config.recipe import Reference, load_recipe
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


CONSEQUENCES = {
    "image": ("image", "image_content", "versions"),
    "model": ("model", "revision", "weights"),
    "revision": ("revision",),
    "weights": ("weights",),
}
"""Conditions that follow from a recipe key by themselves."""


def against(base: Entry, now: Entry, varied: Sequence[str] = ()) -> tuple[Difference, ...]:
    """What forbids to compare the two, but for what was varied on purpose."""
    roots = [
        f"{root}.".replace("_", "-")
        for name in varied
        for root in (name, f"vllm.{name}", *CONSEQUENCES.get(name.partition(".")[0], ()))
    ]

    def is_varied(key: str) -> bool:
        plain = key.removeprefix("spec.").removeprefix("recipe.").replace("_", "-") + "."
        return any(plain.startswith(root) or root.startswith(plain) for root in roots)

    found = differences(base.result.manifest, now.result.manifest)
    return tuple(item for item in found if item.must_agree and not is_varied(item.key))


def all_warnings(entries: Sequence[Entry]) -> list[str]:
    """What must be said aloud with these numbers, wherever they go; once when it is true of all."""
    said: dict[str, list[str]] = {}
    for entry in entries:
        for line in warnings(entry.result):
            said.setdefault(line, []).append(entry.label)
    return [line if len(who) == len(entries) else f"{', '.join(who)}: {line}" for line, who in said.items()]


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
    """Whole seconds to ready, tenths below ten; empty when it ran already, or was not started."""
    stages = point.up.get("stages_s")
    value = sum(stages.values()) if stages and point.up.get("changed") else None
    return "" if value is None else f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def known_moments(entries: Sequence[Entry]) -> dict[str, str]:
    """The moments of a start at which memory was seen, with their words; last the measurement, as `""`."""
    known = {moment for entry in entries if entry.point for moment in entry.point.moments}
    names = moment_names(*(entry.result.manifest.backend for entry in entries))
    return {moment: name for moment, name in names.items() if moment in known} | {"": "measuring"}


def memory_gib(entry: Entry, host: str, moment: str) -> tuple[float | None, float | None]:
    """GiB available and of GPU processes at a moment; while measuring the least and the most over all rows."""
    held: dict[str, float | None]
    if moment:
        held, unit = {**((entry.point.moments if entry.point else {}).get(moment, {}).get(host) or {})}, GIB
    else:
        held = {"available": extreme(entry.result, host, "memory_available_mib", most=False)}
        held, unit = held | {"gpu": extreme(entry.result, host, "gpu_memory_mib", most=True)}, 1024
    least, most = held.get("available"), held.get("gpu")
    return None if least is None else least / unit, None if most is None else most / unit


def moments_table(entries: Sequence[Entry]) -> Table | None:
    """GiB available and of GPU processes on each host, from idle to the extremes while measuring; None if not known."""
    lines = [(entry, host) for entry in entries for host in hosts_of(entry.result)]

    def role(line: tuple[Entry, str]) -> str:
        return next((host.role for host in line[0].result.manifest.hosts if host.name == line[1]), "")

    def pair(moment: str, line: tuple[Entry, str]) -> str:
        held = memory_gib(*line, moment)
        return "" if held == (None, None) else " / ".join("?" if gib is None else f"{gib:.1f}" for gib in held)

    values = [Column(name, partial(pair, moment)) for moment, name in known_moments(entries).items()]
    if not any(column.cell(line) for column in values for line in lines):
        return None
    published = Column("published VRAM (GiB)", lambda line: published_gib(line[0], role(line)), ",.1f", "")
    columns = [
        Column("size", lambda line: line[0].label),
        Column("host", lambda line: line[1]),
        Column("role", role),
        *values,
        *known_columns([published], lines),
    ]
    notes = ("GiB available / of GPU processes; measuring: least available, most of GPU processes over all rows",)
    return table("memory per host", columns, lines, notes, text_columns=3)


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
    same = (
        label for label, gain in known.items() if gain.value == 1 or (gain.low is not None and not gain.significant)
    )
    ties = tuple(same) if interval else ()  # a side measured once is no tie, it is unknown
    behind = next(((label, gain) for label, gain in known.items() if label not in ties), None)
    return Best(test, first, values[first], interval, ties, behind)


def generation(entry: Entry) -> dict[str, Stat | None]:
    """Token generation by row name, `tg128 @ d4096`, None where it is n/a; several prompt lengths are told apart."""
    several = len({row.prompt_size for row in entry.result.rows}) > 1
    return {
        (f"pp{row.prompt_size} " if several else "")
        + f"tg{row.response_size}{suffix(row.context_size, row.concurrency, row.concurrency)}": row.tg_throughput
        for row in entry.result.rows
        if not row.is_context_prefill_phase
    }


def bests(entries: Sequence[Entry], varied: Sequence[str]) -> tuple[list[Best], list[str]]:
    """The best of each test that more than one step measured; a line for each step with other conditions than these."""
    columns: dict[str, dict[str, Stat | None]] = {}
    lines = []
    for entry in entries:
        if other := against(entries[0], entry, varied):
            lines.append(f"{entry.label} is not compared: {'; '.join(map(str, other[:5]))}")
        else:
            columns[entry.label] = generation(entry)
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

    def varied(key: str, point: Point) -> str | None:
        return None if (value := point.values.get(key)) is None else str(value)

    def rate(test: str, point: Point) -> str | None:
        if point.label not in measured:
            return ""
        value = generation(measured[point.label]).get(test)
        return None if value is None else f"{show(value)}{marks.get((test, point.label), '')}"

    def most(host: str, point: Point) -> float | None:
        return memory_gib(measured[point.label], host, "")[1] if point.label in measured else None

    def accepted(point: Point) -> float | None:
        return acceptance(measured[point.label]) if point.label in measured else None

    keys = [Column(short_key(key), partial(varied, key), missing="") for key in series.varied]
    rates = [Column(f"{test} (t/s)", partial(rate, test)) for test in tests]
    failed = Column("failed", lambda point: f"{point.stage}: {point.failed}" if point.failed else "")
    costs = [
        *known_columns([Column("acceptance", accepted, ".0%", "")], series.points),
        Column("ready (s)", ready),
        *(
            Column(f"{host} GPU (GiB)", partial(most, host), ",.1f", "")
            for host in dict.fromkeys(host for entry in entries for host in hosts_of(entry.result))
        ),
        *known_columns([failed], series.points),
    ]
    columns = [[*keys, *rates[:FEW], *costs]]
    columns += [[*keys, *rates[at : at + FEW]] for at in range(FEW, len(rates), FEW)]
    notes = [*map(str, winners), *lines]
    notes += ["* best, = no significant difference from the best (95 %)"] if marks else []
    notes.append("ready: from the first connection to the proven answer; GPU: most that its processes held")
    return [
        table("sweep", own, series.points, notes if own is columns[-1] else (), text_columns=len(keys))
        for own in columns
    ]


def acceptance(entry: Entry) -> float | None:
    """Part of the drafted tokens that were accepted, over all rows; None without speculative decoding."""
    counted = [row.server or {} for row in entry.result.rows]
    drafted = sum(one.get("draft_tokens", 0) for one in counted)
    return sum(one.get("accepted_tokens", 0) for one in counted) / drafted if drafted else None


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
            for point in series[-1].points:
                if result := read_point(point, path.parent):
                    entries.append(with_recipe(Entry(point.label, result, path.parent / point.result, point)))
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


def with_recipe(entry: Entry) -> Entry:
    """The same with what the recipe says of it, with the flags that the result's deployment had; as far as the recipe
    is still found and serves the same model."""
    manifest = entry.result.manifest
    try:
        recipe = load_recipe(manifest.recipe).recipe if manifest.recipe else None
    except UsageError:
        recipe = None
    spec = manifest.spec.get("recipe")
    if recipe and isinstance(spec, dict):
        same = spec.get("model", recipe.model) == recipe.model
        recipe = recipe.model_copy(update={"vllm": dict(spec.get("vllm", recipe.vllm))}) if same else None
    if recipe is None:
        return replace(entry, reading=Reading(None, "the recipe of this result is not found here"))
    return replace(entry, reading=bytes_a_token(recipe), references=tuple(recipe.reference))


def newest(directory: Path) -> list[Path]:
    """What `cluster report` takes by itself: the newest result, with the series it is of or its stored baseline.

    Raises UsageError when nothing is stored.
    """
    kept: dict[str, Path] = {}
    for path in sorted(directory.glob(f"*{ENDING}")):
        with suppress(ClusterError):
            kept |= dict.fromkeys((point.result for point in read_series(path).points), path)
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
