"""Stored measurements side by side: their names, what may be compared, the steps of a series, memory, the best."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cluster.bench.result import (
    PARTIAL,
    Difference,
    Result,
    differences,
    find_baseline,
    read_result,
    warnings,
)
from cluster.bench.rows import suffix
from cluster.bench.scaling import Entry, Reading, bytes_a_token, scaling_table, uses_table
from cluster.bench.series import ENDING, Point, Series, read_point, read_series, short_key
from cluster.bench.statistics import Ratio, Stat, half_width, ratio
from cluster.bench.tables import Table, bench_table, cell, extreme, hosts_of, server_table, table
from cluster.config.recipe import load_recipe
from cluster.errors import ClusterError, UsageError
from cluster.spark.memory import GIB, moment_names

LABELS: tuple[Callable[[Result], str], ...] = (
    lambda result: result.manifest.recipe or result.manifest.model,
    lambda result: result.manifest.size or result.manifest.base_url,
    lambda result: f"PP={result.manifest.pipeline}" if (result.manifest.pipeline or 1) > 1 else "",
    lambda result: result.manifest.backend,
    lambda result: result.manifest.depth_mode,
    lambda result: f"seed {result.manifest.seed}",
    lambda result: result.timestamp,
)
"""What distinguishes results, the most important first."""


def name_results(results: Sequence[Result]) -> list[str]:
    """A short name for each: only what distinguishes them; their size when nothing else does."""
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
    """What must be read before these numbers; once when it is true of all."""
    found: dict[str, list[str]] = {}
    for entry in entries:
        for line in warnings(entry.result):
            found.setdefault(line, []).append(entry.label)
    return [line if len(who) == len(entries) else f"{', '.join(who)}: {line}" for line, who in found.items()]


def overview(entries: Sequence[Entry], series: Sequence[Series]) -> list[Table]:
    """What the series did, and each larger size beside the smallest."""
    found: list[Table] = []
    for one in series:
        own = [entry for entry in entries if entry.point in one.points]
        if one.kind == "sweep":
            found += [*sweep_tables(one, own), *([prompt_table(own)] if own else [])]
        else:
            found.append(steps_table(one, own))
    if not any(one.kind == "sweep" for one in series):
        by_size = sorted(entries, key=lambda entry: (entry.replicas, entry.tp or 0))
        for now in (entry for entry in by_size[1:] if entry.tp):
            base = by_size[0]
            if now.replicas and now.result.manifest.nodes == base.result.manifest.nodes:
                continue
            if why_not := against(base, now):
                text = f"{now.label} is not compared with {base.label}: " + "; ".join(map(str, why_not[:8]))
                found.append(Table("scaling", notes=(text,)))
            else:
                found.append(scaling_table(base, now))
        for now, other in itertools.product(by_size, by_size):
            same = now.result.manifest.nodes == other.result.manifest.nodes
            if other.replicas and not now.replicas and same and not against(now, other):
                found.append(uses_table(now, other))
    return found


def details(entries: Sequence[Entry]) -> list[Table]:
    """Each measurement by itself: its rows, and what its server counted."""
    counted = [server_table(entry.result, f"{entry.label}: what the server counted") for entry in entries]
    return [*(bench_table(entry.result, entry.label) for entry in entries), *(one for one in counted if one)]


READY = "ready: from the first connection to the proven answer"


def steps_table(series: Series, entries: Sequence[Entry]) -> Table:
    """Each step: hosts, time to ready, what was measured, or why not."""
    rows = {entry.point.label: len(entry.result.rows) for entry in entries if entry.point}
    lines = [
        {
            "step": point.label,
            "hosts": ", ".join(point.hosts),
            "ready (s)": ready(point),
            "rows": rows.get(point.label, ""),
            "failed": f"{point.stage} failed: {point.failed}" if point.failed else "",
        }
        for point in series.points
    ]
    return table("steps", lines, (READY,), 2, optional=("failed",))


def ready(point: Point) -> str:
    """Seconds to ready; empty when it ran already, or was not started."""
    return f"{sum(point.up.get('stages_s', {}).values()):,.0f}" if point.up.get("changed") else ""


def known_moments(entries: Sequence[Entry]) -> dict[str, str]:
    """The moments of a start at which memory was seen, with their words; last the measurement, as `""`."""
    known = {moment for entry in entries if entry.point for moment in entry.point.moments}
    names = moment_names(*(entry.result.manifest.backend for entry in entries))
    return {moment: name for moment, name in names.items() if moment in known} | {"": "measuring"}


def memory_gib(entry: Entry, host: str, moment: str) -> tuple[float | None, float | None]:
    """GiB available and of GPU processes at a moment; while measuring the least and the most over all rows."""
    available: float | None
    gpu: float | None
    if moment:
        held = (entry.point.moments if entry.point else {}).get(moment, {}).get(host) or {}
        available, gpu, unit = held.get("available"), held.get("gpu"), GIB
    else:
        available, unit = extreme(entry.result, host, "memory_available_mib", min), 1024
        gpu = extreme(entry.result, host, "gpu_memory_mib", max)
    return None if available is None else available / unit, None if gpu is None else gpu / unit


def moments_table(entries: Sequence[Entry]) -> list[Table]:
    """GiB available and of GPU processes on each host, from idle to measured; nothing where none is known."""
    moments, lines = known_moments(entries), []
    for entry in entries:
        published: dict[str, int] = {}  # of the largest published size, in MB; nvidia-smi writes MiB, so they are that
        for one in reversed(entry.references):
            if one.vram_mb and not entry.replicas and entry.tp == max((row.tp for row in one.rows), default=0):
                published |= one.vram_mb
        roles = {host.name: host.role for host in entry.result.manifest.hosts}
        for host in hosts_of(entry.result):
            line = {"size": entry.label, "host": host, "role": roles.get(host, "")}
            for moment, name in moments.items():
                held = memory_gib(entry, host, moment)
                texts = ("?" if gib is None else f"{gib:.1f}" for gib in held)
                line[name] = "" if held == (None, None) else " / ".join(texts)
            mib = published.get(roles.get(host, ""))
            line["published VRAM (GiB)"] = f"{mib / 1024:,.1f}" if mib else ""
            lines.append(line)
    if not any(line[name] for line in lines for name in moments.values()):
        return []
    note = "GiB available / of GPU processes; measuring: least available, most of GPU processes over all rows"
    return [table("memory per host", lines, (note,), 3, optional=("published VRAM (GiB)",))]


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
        if self.behind and self.behind[1].low is not None:
            name, gain = self.behind
            text += f", {gain.value:.2f}× of {name} ({gain.low:.2f}–{gain.high:.2f})"
        return text


def find_best(test: str, values: Mapping[str, Stat]) -> Best | None:
    """The label with the highest mean, and who is not significantly below it; None without any to compare."""
    if len(values) < 2:
        return None
    first, *others = sorted(values, key=lambda label: -values[label].mean)
    value, half = values[first], half_width(values[first])  # by Student's t; no rate is negative
    interval = None if half is None else (max(0.0, value.mean * (1 - half)), value.mean * (1 + half))
    gains = {label: gain for label in others if (gain := ratio(value, values[label]))}
    same = (label for label, gain in gains.items() if gain.value == 1 or (gain.low and not gain.significant))
    ties = tuple(same) if interval else ()  # a side measured once is no tie, it is unknown
    behind = next(((label, gain) for label, gain in gains.items() if label not in ties), None)
    return Best(test, first, value, interval, ties, behind)


def generation(entry: Entry) -> dict[str, Stat | None]:
    """Token generation by row name, `tg128 @ d4096`; with several prompt lengths each has its own in front."""
    several = len({row.prompt_size for row in entry.result.rows}) > 1
    return {
        (f"pp{row.prompt_size} " if several else "")
        + f"tg{row.response_size}{suffix(row.context_size, row.concurrency, row.concurrency)}": row.tg_throughput
        for row in entry.result.rows
        if not row.is_context_prefill_phase
    }


def all_tests(entries: Iterable[Entry]) -> list[str]:
    """The names of all rows of token generation, in order."""
    return list(dict.fromkeys(test for entry in entries for test in generation(entry)))


def bests(entries: Sequence[Entry], varied: Sequence[str]) -> tuple[list[Best], list[str]]:
    """The best of each test that more than one step measured; a line for each step with other conditions than these."""
    others = {entry.label: against(entries[0], entry, varied) for entry in entries}
    ranked = [entry for entry in entries if not others[entry.label]]
    found = []
    for test in all_tests(ranked):
        values = {entry.label: value for entry in ranked if (value := generation(entry).get(test))}
        found += [best] if (best := find_best(test, values)) else []
    lines = [f"{label} is not compared: {'; '.join(map(str, other[:5]))}" for label, other in others.items() if other]
    return found, lines


FEW = 4
"""Columns of t/s that a table has room for beside the others; more go into tables of their own."""


def sweep_tables(series: Series, entries: Sequence[Entry]) -> list[Table]:
    """A line a step: what was varied, t/s of each test, acceptance, time to ready, memory of each host, or the reason.

    `*` marks the best of a column, `=` its ties.
    """
    winners, notes = bests(entries, series.varied)
    marks = {(best.test, best.label): " *" if not best.ties else " =" for best in winners if best.interval}
    marks |= {(best.test, label): " =" for best in winners for label in best.ties}
    measured = {entry.point.label: entry for entry in entries if entry.point}
    tests, hosts = all_tests(entries), dict.fromkeys(host for entry in entries for host in hosts_of(entry.result))
    titles = {short_key(key): key for key in series.varied}
    titles = titles if len(titles) == len(series.varied) else {key: key for key in series.varied}

    def costs(point: Point) -> dict[str, Any]:
        entry = measured.get(point.label)
        counted = [row.server or {} for row in entry.result.rows] if entry else []
        drafted, accepted = (sum(one.get(key, 0) for one in counted) for key in ("draft_tokens", "accepted_tokens"))
        line = {"acceptance": f"{accepted / drafted:.0%}" if drafted else "", "ready (s)": ready(point)}
        for host in hosts:
            gib = memory_gib(entry, host, "")[1] if entry else None
            line[f"{host} GPU (GiB)"] = "" if gib is None else f"{gib:,.1f}"
        return line | {"failed": f"{point.stage}: {point.failed}" if point.failed else ""}

    found, notes = [], [*map(str, winners), *notes]
    notes += ["* best, = no significant difference from the best (95 %)"] if marks else []
    notes.append(f"{READY}; GPU: most that its processes held")
    for at in range(0, len(tests) or 1, FEW):
        lines = []
        for point in series.points:
            line = {title: str(point.values.get(key, "")) for title, key in titles.items()}
            entry = measured.get(point.label)
            rates = generation(entry) if entry else dict.fromkeys(tests, "")
            for test in tests[at : at + FEW]:
                mark = marks.get((test, entry.label), "") if entry else ""
                line[f"{test} (t/s)"] = cell(rates.get(test)) + mark
            lines.append(line if at else line | costs(point))
        last = notes if at + FEW >= len(tests) else ()
        found.append(table("sweep", lines, last, len(titles), optional=("acceptance", "failed")))
    return found


def prompt_table(entries: Sequence[Entry]) -> Table:
    """Prompt processing and time to first response of each step, in one line a row."""
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    for entry in entries:
        for row in entry.result.rows:
            test = f"pp{row.prompt_size}{suffix(row.context_size, row.concurrency, row.concurrency)}"
            line = {"step": entry.label, "test": test, "t/s": row.pp_throughput}
            line |= {"ttfr (ms)": row.ttfr, "e2e_ttft (ms)": row.e2e_ttft}
            lines.setdefault((entry.label, test), line)
    return table("prompt processing", list(lines.values()), text_columns=2)


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
                    entries.append(Entry(point.label, result, path.parent / point.result, point))
        else:
            loose.append((path, read_result(path)))
    names = name_results([result for _, result in loose])
    known = {entry.path.resolve() for entry in entries if entry.path}
    for name, (path, result) in zip(names, loose, strict=True):
        if path.resolve() not in known:
            entries.append(Entry(name, result, path))
    labels = Counter(entry.label for entry in entries)
    entries = [
        replace(one, label=f"{one.label} ({one.path.name})") if one.path and labels[one.label] > 1 else one
        for one in entries
    ]
    return [with_recipe(entry) for entry in entries], series


def with_recipe(entry: Entry) -> Entry:
    """The same with what the recipe says of it, with the flags that the result's deployment had; as far as the recipe
    is still found and serves the same model."""
    manifest = entry.result.manifest
    spec = manifest.spec.get("recipe", {})
    with suppress(UsageError):
        recipe = load_recipe(manifest.recipe).recipe if manifest.recipe else None
        if recipe and spec.get("model", recipe.model) == recipe.model:
            own = recipe.model_copy(update={"vllm": dict(spec.get("vllm", recipe.vllm))})
            return replace(entry, reading=bytes_a_token(own), references=tuple(recipe.reference))
    return replace(entry, reading=Reading(None, "the recipe of this result is not found here"))


def newest(directory: Path, tell: Callable[[str], object]) -> list[Path]:
    """What `cluster report` takes by itself: the newest result, with the series it is of or its stored baseline.
    Newer ones that cannot be read are told.

    Raises UsageError when nothing is stored.
    """
    kept: dict[str, Path] = {}
    for path in sorted(directory.glob(f"*{ENDING}")):
        with suppress(ClusterError):
            kept |= dict.fromkeys((point.result for point in read_series(path).points), path)
    for path in sorted((*directory.glob("*.json"), *directory.glob(f"*{PARTIAL}")), reverse=True):
        try:
            result = read_result(path)
        except ClusterError as error:
            if re.match(r"\d{8}T\d{6}", path.name) and not path.name.endswith(ENDING):
                tell(f"passed over: {error.what}")
            continue
        if path.name in kept:
            return [kept[path.name]]
        several = (result.manifest.tp or 1) > 1 or result.manifest.replicas
        baseline, _ = find_baseline(directory, result) if several else (None, ())
        return [baseline[0], path] if baseline else [path]
    remedy = "run `cluster bench`, or name other files: cluster report FILE…"
    raise UsageError(f"no results found in {directory}", code="no-results", remedy=remedy)
