"""The table of a sweep: one line a value, the best named with its interval, ties called ties. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cluster.bench.compare import Entry, against
from cluster.bench.report import MISSING, Table, show
from cluster.bench.rows import Row, suffix
from cluster.bench.series import Series
from cluster.bench.series_tables import extreme, hosts_of, seconds
from cluster.bench.statistics import Ratio, Stat, ratio, t95
from cluster.bench.vary import short_key

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
            return f"{self.test}: most with {self.label}: {mean}; one run, so ties cannot be told (--runs 3 or more)"
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
    count = len(value.values)
    if value.std is None or count < 2:
        return None
    half = t95(count - 1) * value.std / math.sqrt(count)
    return max(0.0, value.mean - half), value.mean + half


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
    ]  # fmt: skip
    return [best for best in found if best], lines


def sweep_tables(series: Series, entries: Sequence[Entry]) -> list[Table]:
    """A line a step: what was varied, t/s of each test, acceptance, time to ready, memory of each host, or the reason.

    `*` stands at the best of a column, `=` at its ties.
    """
    winners, lines = bests(entries, series.varied)
    marks = {(best.test, best.label): " *" if not best.ties else " =" for best in winners if best.interval}
    marks |= {(best.test, label): " =" for best in winners for label in best.ties}
    tests = list(dict.fromkeys(test for entry in entries for test in generation(entry)))
    by_label = {entry.label: entry for entry in entries}
    grids = [_tests_grid(series, by_label, tests[:FEW], marks)]
    grids[0] = _beside(grids[0], _costs_grid(series, by_label))
    grids += [_tests_grid(series, by_label, tests[at : at + FEW], marks) for at in range(FEW, len(tests), FEW)]
    notes = [*map(str, winners), *lines]
    notes += ["* best, = no significant difference from the best (95 %)"] if marks else []
    notes.append("ready: from the first connection to the proven answer; GPU: most that its processes held")
    tables = [Table("sweep", tuple(grid[0]), tuple(map(tuple, grid[1:])), (), len(series.varied)) for grid in grids]
    return [*tables[:-1], replace(tables[-1], notes=tuple(notes))]


def _tests_grid(
    series: Series, entries: Mapping[str, Entry], tests: Sequence[str], marks: Mapping[tuple[str, str], str]
) -> list[list[str]]:
    """Header and lines: what was varied, t/s of some tests."""
    grid = [[*map(short_key, series.varied), *(f"{test} (t/s)" for test in tests)]]
    for point in series.points:
        varied = [str(point.values.get(key, "")) for key in series.varied]
        grid.append([*varied, *(_cell(entries.get(point.label), test, marks) for test in tests)])
    return grid


def _costs_grid(series: Series, entries: Mapping[str, Entry]) -> list[list[str]]:
    """Header and lines: acceptance, time to ready, memory of each host, the reason of a failure."""
    hosts = list(dict.fromkeys(host for entry in entries.values() for host in hosts_of(entry.result)))
    accepts = any(acceptance(entry) is not None for entry in entries.values())
    failed = any(point.failed for point in series.points)
    head = [*(["acceptance"] if accepts else []), "ready (s)", *(f"{host} GPU (GiB)" for host in hosts)]
    grid = [[*head, *(["failed"] if failed else [])]]
    for point in series.points:
        entry = entries.get(point.label)
        line = [_percent(entry)] if accepts else []
        line += [seconds(point.ready_s), *(_memory(entry, host) for host in hosts)]
        grid.append([*line, *([f"{point.stage}: {point.failed}" if point.failed else ""] if failed else [])])
    return grid


def _beside(left: list[list[str]], right: list[list[str]]) -> list[list[str]]:
    return [[*a, *b] for a, b in zip(left, right, strict=True)]


def _cell(entry: Entry | None, test: str, marks: Mapping[tuple[str, str], str]) -> str:
    value = generation(entry).get(test) if entry else None
    return f"{show(value)}{marks.get((test, entry.label), '')}" if value and entry else MISSING if entry else ""


def acceptance(entry: Entry) -> float | None:
    """Part of the drafted tokens that were accepted, over all rows; None without speculative decoding."""
    drafted = accepted = 0
    for row in entry.result.rows:
        told = row.server or {}
        drafted += told.get("draft_tokens", 0)
        accepted += told.get("accepted_tokens", 0)
    return accepted / drafted if drafted else None


def _percent(entry: Entry | None) -> str:
    part = acceptance(entry) if entry else None
    return "" if part is None else f"{part:.0%}"


def _memory(entry: Entry | None, host: str) -> str:
    most = extreme(entry.result, host, "gpu_memory_mib", most=True) if entry else None
    return "" if most is None else f"{most / 1024:,.1f}"


def prompt_table(entries: Sequence[Entry]) -> Table:
    """Prompt processing and time to first response of each step, in one line a row."""
    rows = []
    for entry in entries:
        seen: dict[str, Row] = {}
        for row in entry.result.rows:
            seen.setdefault(f"pp{row.prompt_size}{suffix(row.context_size, row.concurrency, row.concurrency)}", row)
        for name, row in seen.items():
            cells = [show(value) if value else MISSING for value in (row.pp_throughput, row.ttfr, row.e2e_ttft)]
            rows.append((entry.label, name, *cells))
    headers = ("step", "test", "t/s", "ttfr (ms)", "e2e_ttft (ms)")
    return Table("prompt processing", headers, tuple(rows), (), 2)
