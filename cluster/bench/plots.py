"""Which charts a report has: rates over depth, over concurrency, over what was varied. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from cluster.bench.compare import Entry
from cluster.bench.rows import Row, suffix
from cluster.bench.scale import number
from cluster.bench.series import Series
from cluster.bench.statistics import Stat, stat
from cluster.bench.svg import Chart, Dot, Level, Line
from cluster.bench.sweep_table import generation
from cluster.bench.vary import short_key

MOST_LINES = 6
FAR_ABOVE = 2.5
"""A ceiling so many times above the highest value is told in words: drawn, it would squeeze everything else."""

Pick = Callable[[Row], Stat | None]


def depth_charts(entries: Sequence[Entry]) -> Iterator[Chart]:
    """Token generation, prompt processing and time to first token over depth, for one client."""
    if len(entries) > MOST_LINES or len({row.context_size for entry in entries for row in alone(entry)}) < 2:
        return
    tg = max(row.response_size for entry in entries for row in alone(entry))
    pp = max(row.prompt_size for entry in entries for row in alone(entry))
    runs = runs_of(entries)
    yield rate_chart(
        entries, lambda row: row.tg_throughput if row.response_size == tg else None, f"tg{tg}",
        "Token generation over context depth", f"tg{tg}, {runs}; higher is better",
    )  # fmt: skip
    yield rate_chart(
        entries, lambda row: row.pp_throughput if row.prompt_size == pp else None, f"pp{pp}",
        "Prompt processing over context depth", f"pp{pp} and all of its context, {runs}; higher is better",
    )  # fmt: skip
    yield ttft_chart(entries, pp, runs)


def alone(entry: Entry) -> list[Row]:
    """The rows with the fewest clients, without those that only load a context."""
    rows = [row for row in entry.result.rows if not row.is_context_prefill_phase]
    fewest = min((row.concurrency for row in rows), default=1)
    return [row for row in rows if row.concurrency == fewest]


def runs_of(entries: Sequence[Entry]) -> str:
    """`one client, bars: ± sample standard deviation of 3 runs`."""
    rows = [row for entry in entries for row in alone(entry)]
    clients = {row.concurrency for row in rows}
    who = "one client" if clients == {1} else f"{max(clients, default=1)} clients"
    counts = sorted({row.runs for row in rows})
    times = "–".join(str(count) for count in (counts[:1] + counts[-1:] if len(counts) > 1 else counts))
    return f"{who}, one run" if counts == [1] else f"{who}, bars: ± sample standard deviation of {times} runs"


def rate_chart(entries: Sequence[Entry], pick: Pick, test: str, title: str, subtitle: str) -> Chart:
    """Tokens a second over depth: a line each, the published numbers hollow, ceilings of token generation."""
    lines = [Line(entry.label, tuple(depth_dots(entry, pick, "t/s")), place) for place, entry in enumerate(entries)]
    lines += [
        Line(f"published {entry.label}", dots, place, "hollow")
        for place, entry in enumerate(entries)
        if (dots := tuple(published_dots(entry, test)))
    ]
    levels, notes = ceilings(entries, lines) if test.startswith("tg") else ((), ())
    return Chart(title, subtitle, "context depth (tokens)", "tokens per second (t/s)", tuple(lines),
                 depth_ticks(lines), levels, notes=notes)  # fmt: skip


def depth_dots(entry: Entry, pick: Pick, unit: str, scale: float = 1.0) -> Iterator[Dot]:
    """A dot for each depth, over the values of all rows that `pick` takes."""
    found: dict[int, list[float]] = {}
    for row in alone(entry):
        value = pick(row)
        if value is not None:
            found.setdefault(row.context_size, []).extend(value.values)
    for depth, values in sorted(found.items()):
        all_of_them = stat([value / scale for value in values])
        if all_of_them:
            yield dot_of(depth, all_of_them, f"{entry.label}, depth {depth:,}", unit)


def dot_of(x: float, value: Stat, what: str, unit: str) -> Dot:
    """A mean with its spread."""
    spread = value.std or 0.0
    told = f" ± {number(spread)}" if value.std is not None else ""
    tip = f"{what}: {number(value.mean)}{told} {unit} (n = {len(value.values)})"
    return Dot(x, value.mean, spread, number(value.mean), tip)


def published_dots(entry: Entry, test: str) -> Iterator[Dot]:
    """The recipe's numbers of this row and size, in the same depth mode; the first published one of a depth."""
    seen: set[int] = set()
    for reference in entry.references:
        if reference.depth_mode != entry.result.manifest.depth_mode:
            continue
        for row in reference.rows:
            name, _, depth = row.test.removesuffix(" (c1)").partition(" @ d")
            at = int(depth or 0) if depth.isdigit() or not depth else -1
            if name == test and row.tp == entry.tp and row.t_s and at >= 0 and at not in seen:
                seen.add(at)
                tip = f"published {entry.label}, depth {at:,}: {row.t_s:g} t/s ({reference.source})"
                yield Dot(at, row.t_s, row.t_s_sd or 0.0, "", tip)


def ceilings(entries: Sequence[Entry], lines: Sequence[Line]) -> tuple[tuple[Level, ...], tuple[str, ...]]:
    """The most that the memory of that many Sparks allows; in words when it is far above, or not known."""
    highest = max((dot.y for line in lines for dot in line.dots), default=0.0)
    levels, notes = [], []
    for place, entry in enumerate(entries):
        ceiling = entry.reading.ceiling_t_s(entry.tp)
        if ceiling is None:
            notes.append(f"ceiling of {entry.label}: n/a, {entry.reading.why}")
        elif ceiling > FAR_ABOVE * highest:
            notes.append(f"ceiling of {entry.label}: {number(ceiling)} t/s, far above this plot ({entry.reading.why})")
        else:
            levels.append(Level(ceiling, f"ceiling {entry.label}: {number(ceiling)} t/s", place))
    if levels:
        why = next(entry.reading.why for entry in entries if entry.reading.bytes)
        notes.append(f"ceiling: 273 GB/s of each Spark ÷ bytes read a token ({why})")
    return tuple(levels), tuple(dict.fromkeys(notes))


def depth_ticks(lines: Sequence[Line]) -> tuple[tuple[float, str], ...]:
    """The measured depths, as people write them."""
    depths = sorted({dot.x for line in lines for dot in line.dots})
    return tuple((depth, tokens(int(depth))) for depth in depths)


def tokens(count: int) -> str:
    """`16K` for 16384, else with thousands."""
    return f"{count // 1024}K" if count and count % 1024 == 0 else f"{count:,}"


def ttft_chart(entries: Sequence[Entry], pp: int, runs: str) -> Chart:
    """Time to the first token over depth, in ms or s."""
    most = max((row.e2e_ttft.mean for entry in entries for row in alone(entry) if row.e2e_ttft), default=0.0)
    unit, scale = ("s", 1e3) if most >= 5000 else ("ms", 1.0)
    pick: Pick = lambda row: row.e2e_ttft if row.prompt_size == pp else None  # noqa: E731
    lines = [
        Line(entry.label, tuple(depth_dots(entry, pick, unit, scale)), place) for place, entry in enumerate(entries)
    ]
    return Chart(
        "Time to first token over context depth", f"e2e_ttft of pp{pp}, {runs}; lower is better",
        "context depth (tokens)", f"time to first token ({unit})", tuple(lines), depth_ticks(lines),
    )  # fmt: skip


def concurrency_chart(entries: Sequence[Entry]) -> Chart | None:
    """Total and per-request tokens a second over clients, at the least depth; None for one number of clients."""
    rows = [row for entry in entries for row in entry.result.rows if not row.is_context_prefill_phase]
    counts = sorted({row.concurrency for row in rows})
    if len(counts) < 2 or len(entries) > MOST_LINES:
        return None
    depth = min(row.context_size for row in rows)
    tg = max(row.response_size for row in rows if row.context_size == depth)
    lines, notes = [], []
    for place, entry in enumerate(entries):
        own = [row for row in entry.result.rows if (row.context_size, row.response_size) == (depth, tg)]
        own.sort(key=lambda row: row.concurrency)
        total = client_dots(own, "tg_throughput", f"{entry.label} total")
        each = client_dots(own, "tg_req_throughput", f"{entry.label} each request")
        each = [replace(dot, text="") if 0 < at < len(each) - 1 else dot for at, dot in enumerate(each)]
        lines += [Line(f"{entry.label} total", tuple(total), place)] if total else []
        lines += [Line(f"{entry.label} each request", tuple(each), place, "dashed")] if each else []
        notes += missing(own, f"{entry.label} total")
    return Chart(
        "Throughput over concurrency", f"tg{tg}{suffix(depth, 1, 1)}; total: while all clients decode; bars: ± sample "
        "standard deviation", "clients at the same time", "tokens per second (t/s)", tuple(lines),
        tuple((count, str(count)) for count in counts), doubling=counts[-1] / counts[0] >= 8, notes=tuple(notes),
    )  # fmt: skip


def client_dots(rows: Sequence[Row], field: str, what: str) -> list[Dot]:
    """A dot for each number of clients, where the number is known."""
    found = ((row.concurrency, getattr(row, field)) for row in rows)
    return [dot_of(count, value, f"{what}, {count} clients", "t/s") for count, value in found if value is not None]


def missing(rows: Sequence[Row], what: str) -> list[str]:
    """Why a total is not drawn for some numbers of clients."""
    absent = [row for row in rows if row.tg_throughput is None]
    if not absent:
        return []
    why = (absent[0].why or {}).get("tg_throughput", "")
    counts = ", ".join(str(row.concurrency) for row in absent)
    return [f"{what}: n/a for {counts} clients" + (f": {why}" if why else "")]


def sweep_chart(series: Series, entries: Sequence[Entry]) -> Chart | None:
    """Token generation over what was varied, a line a test; None when fewer than two values were measured.

    Numbers stand at their place; words stand side by side, and nothing is drawn between them.
    """
    if series.kind != "sweep" or len(entries) < 2:
        return None
    names = [value_of(series, entry) for entry in entries]
    places = numeric(names)
    tests = list(dict.fromkeys(test for entry in entries for test in generation(entry)))
    lines = []
    for place, test in enumerate(tests[:MOST_LINES]):
        dots = [
            dot_of(places[at] if places else at, value, f"{test}, {entry.label}", "t/s")
            for at, entry in enumerate(entries)
            if (value := generation(entry).get(test)) is not None
        ]
        if dots:
            lines.append(Line(test, tuple(sorted(dots, key=lambda dot: dot.x)), place, "line" if places else "dots"))
    what = ", ".join(map(short_key, series.varied))
    notes = [f"{point.label}: {point.stage} failed: {point.failed}" for point in series.points if point.failed]
    notes += [f"in the table only: {', '.join(tests[MOST_LINES:])}"] if tests[MOST_LINES:] else []
    ticks = sorted(zip(places or range(len(names)), names, strict=True))
    return Chart(
        f"Token generation over {what}", "bars: ± sample standard deviation; higher is better", what,
        "tokens per second (t/s)", tuple(lines), tuple(ticks), notes=tuple(notes),
        doubling=bool(places) and min(places) > 0 and max(places) / min(places) >= 8,
    )  # fmt: skip


def value_of(series: Series, entry: Entry) -> str:
    """What was varied in this step, in the fewest words."""
    if len(series.varied) == 1 and entry.point:
        return str(entry.point.values.get(series.varied[0], entry.label))
    return entry.label


def numeric(names: Sequence[str]) -> list[float]:
    """The names as numbers; empty unless all are, and differ."""
    try:
        found = [float(name) for name in names]
    except ValueError:
        return []
    return found if len(set(found)) == len(found) and all(map(math.isfinite, found)) else []
