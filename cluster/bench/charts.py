"""Which charts a report has, as values: rates over depth and clients, what was varied, the machines. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.bench.compare import Entry, generation, known_moments, memory_gib
from cluster.bench.rows import Row, suffix
from cluster.bench.series import Series, short_key
from cluster.bench.statistics import Stat, stat
from cluster.bench.tables import hosts_of

MOST_LINES = 6
MOST_HOSTS = 8
FAR_ABOVE = 2.5
"""A ceiling so many times above the highest value is told in words: drawn, it would squeeze everything else."""

RATE = "tokens per second (t/s)"

Pick = Callable[[Row], Stat | None]


@dataclass(frozen=True, slots=True)
class Dot:
    """A value. `spread`: half the error bar; `alarm`: ringed."""

    x: float
    y: float
    spread: float = 0.0
    alarm: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """Dots of one name. `style`: line, dashed, dots (unconnected), or hollow (larger rings, drawn below the others)."""

    name: str
    dots: tuple[Dot, ...]
    color: int = 0
    style: str = "line"


@dataclass(frozen=True, slots=True)
class Level:
    """A horizontal line over the whole width, with its words on it."""

    y: float
    text: str
    color: int = 0


@dataclass(frozen=True, slots=True)
class Bars:
    """The bars of one name, one a tick of x: what is used, and above it what is available; None where not known."""

    name: str
    used: tuple[float | None, ...]
    available: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """What is drawn: lines, or bars. `x_ticks`: places with their words, round numbers when there are none.

    `doubling`: each doubling of x takes the same room; `from_zero`: the y axis begins at 0.
    """

    title: str
    subtitle: str
    x_title: str
    y_title: str
    lines: tuple[Line, ...] = ()
    x_ticks: tuple[tuple[float, str], ...] = ()
    levels: tuple[Level, ...] = ()
    doubling: bool = False
    from_zero: bool = True
    notes: tuple[str, ...] = ()
    bars: tuple[Bars, ...] = ()


def number(value: float) -> str:
    """A number with as many digits as can be told apart: 0.25, 6.5, 11.2, 873, 12,400."""
    if value == 0:
        return "0"
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 2 else f"{value:.2g}"


def depth_charts(entries: Sequence[Entry]) -> Iterator[Chart]:
    """Token generation, prompt processing and time to first token over depth, for the fewest clients.

    A line each; the published numbers hollow, and ceilings of token generation.
    """
    rows = [row for entry in entries for row in alone(entry)]
    if len(entries) > MOST_LINES or len({row.context_size for row in rows}) < 2:
        return
    tg, pp = max(row.response_size for row in rows), max(row.prompt_size for row in rows)
    slow = max((row.e2e_ttft.mean for row in rows if row.e2e_ttft), default=0.0) >= 5000
    most, counts = max(row.concurrency for row in rows), sorted({row.runs for row in rows})
    runs = "one client" if most == 1 else f"{most} clients"
    times = "–".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    runs += ", one run" if counts == [1] else f", bars: ± sample standard deviation of {times} runs"
    for title, test, subtitle, y_title, scale, pick in (
        (
            *("Token generation", f"tg{tg}", f"tg{tg}, {runs}; higher is better", RATE, 1.0),
            lambda row: row.tg_throughput if row.response_size == tg else None,
        ),
        (
            *("Prompt processing", f"pp{pp}", f"pp{pp} and all of its context, {runs}; higher is better", RATE, 1.0),
            lambda row: row.pp_throughput if row.prompt_size == pp else None,
        ),
        (
            *("Time to first token", "", f"e2e_ttft of pp{pp}, {runs}; lower is better"),
            *(("time to first token (s)", 1e3) if slow else ("time to first token (ms)", 1.0)),
            lambda row: row.e2e_ttft if row.prompt_size == pp else None,
        ),
    ):
        lines = [Line(one.label, tuple(depth_dots(one, pick, scale)), place) for place, one in enumerate(entries)]
        lines += [
            Line(f"published {entry.label}", dots, place, "hollow")
            for place, entry in enumerate(entries)
            if (dots := tuple(published_dots(entry, test)))
        ]
        levels, notes = ceilings(entries, lines) if title == "Token generation" else ((), ())
        depths = sorted({dot.x for line in lines for dot in line.dots})
        yield Chart(
            f"{title} over context depth",
            subtitle,
            "context depth (tokens)",
            y_title,
            tuple(lines),
            tuple((depth, tokens(int(depth))) for depth in depths),
            levels,
            notes=notes,
        )


def alone(entry: Entry) -> list[Row]:
    """The rows with the fewest clients, without those that only load a context."""
    rows = [row for row in entry.result.rows if not row.is_context_prefill_phase]
    fewest = min((row.concurrency for row in rows), default=1)
    return [row for row in rows if row.concurrency == fewest]


def depth_dots(entry: Entry, pick: Pick, scale: float) -> Iterator[Dot]:
    """A dot for each depth, over the values of all rows that `pick` takes."""
    found: dict[int, list[float]] = {}
    for row in alone(entry):
        if value := pick(row):
            found.setdefault(row.context_size, []).extend(one / scale for one in value.values)
    for depth, values in sorted(found.items()):
        if all_of_them := stat(values):
            yield dot_of(depth, all_of_them)


def dot_of(x: float, value: Stat) -> Dot:
    return Dot(x, value.mean, value.std or 0.0)


def published_dots(entry: Entry, test: str) -> Iterator[Dot]:
    """The recipe's numbers of this row and size, in the same depth mode; the first published one of a depth."""
    mode, seen = entry.result.manifest.depth_mode, set[int]()
    for row in (row for one in entry.references if one.depth_mode == mode for row in one.rows):
        name, _, depth = row.test.removesuffix(" (c1)").partition(" @ d")
        at = int(depth or 0) if depth.isdigit() or not depth else -1
        if name == test and row.tp == entry.tp and row.t_s and at >= 0 and at not in seen:
            seen.add(at)
            yield Dot(at, row.t_s, row.t_s_sd or 0.0)


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


def tokens(count: int) -> str:
    """`16K` for 16384, else with thousands."""
    return f"{count // 1024}K" if count and count % 1024 == 0 else f"{count:,}"


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
        for what, key, style in (("total", "tg_throughput", "line"), ("each request", "tg_req_throughput", "dashed")):
            dots = [dot_of(row.concurrency, value) for row in own if (value := getattr(row, key)) is not None]
            lines += [Line(f"{entry.label} {what}", tuple(dots), place, style)] if dots else []
        if absent := [row for row in own if row.tg_throughput is None]:
            why = (absent[0].why or {}).get("tg_throughput", "")
            clients = ", ".join(str(row.concurrency) for row in absent)
            notes.append(f"{entry.label} total: n/a for {clients} clients" + (f": {why}" if why else ""))
    return Chart(
        "Throughput over concurrency",
        f"tg{tg}{suffix(depth, 1, 1)}; total: while all clients decode; bars: ± sample standard deviation",
        "clients at the same time",
        RATE,
        tuple(lines),
        tuple((count, str(count)) for count in counts),
        doubling=counts[-1] / counts[0] >= 8,
        notes=tuple(notes),
    )


def sweep_chart(series: Series, entries: Sequence[Entry]) -> Chart | None:
    """Token generation over what was varied, a line a test; None when fewer than two values were measured.

    Numbers stand at their place; words stand side by side, and nothing is drawn between them.
    """
    if series.kind != "sweep" or len(entries) < 2:
        return None
    names = [entry.label for entry in entries]
    if len(series.varied) == 1:
        values = [entry.point.values if entry.point else {} for entry in entries]
        names = [str(one.get(series.varied[0], label)) for one, label in zip(values, names, strict=True)]
    places = numeric(names)
    tests = list(dict.fromkeys(test for entry in entries for test in generation(entry)))
    lines = []
    for place, test in enumerate(tests[:MOST_LINES]):
        dots = [
            dot_of(places[at] if places else at, value)
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
        f"Token generation over {what}",
        "bars: ± sample standard deviation; higher is better",
        what,
        RATE,
        tuple(lines),
        tuple(ticks),
        notes=tuple(notes),
        doubling=bool(places) and min(places) > 0 and max(places) / min(places) >= 8,
    )


def numeric(names: Sequence[str]) -> list[float]:
    """The names as numbers; empty unless all are, and differ."""
    try:
        found = [float(name) for name in names]
    except ValueError:
        return []
    return found if len(set(found)) == len(found) and all(map(math.isfinite, found)) else []


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number that hosts report: its key, the title and axis of its chart."""

    key: str
    title: str
    axis: str
    unit: float = 1.0
    from_zero: bool = True


QUANTITIES = (
    Quantity("gpu_memory_mib", "GPU memory per host", "memory of GPU processes (GiB)", 1024.0),
    Quantity("memory_available_mib", "Available memory per host", "MemAvailable (GiB)", 1024.0),
    Quantity("power_w", "GPU power per host", "power (W)"),
    Quantity("sm_clock_mhz", "SM clock per host", "SM clock (MHz)", from_zero=False),
    Quantity("temperature_c", "GPU temperature per host", "temperature (°C)", from_zero=False),
)


@dataclass(frozen=True, slots=True)
class TimedState:
    """What one host reported at one time (seconds since the measurement began)."""

    at_s: float
    state: dict[str, Any]


def timeline(entry: Entry) -> dict[str, list[TimedState]]:
    """Every look at every host, by time; what throttled it during a run is known of the complete run only."""
    found: dict[str, list[TimedState]] = {}
    for sample in (sample for row in entry.result.rows for sample in row.machine):
        for host, looks in (sample.get("series") or {}).items():
            times = looks.get("t", [])
            for at, t in enumerate(times):
                state = {one.key: looks[one.key][at] for one in QUANTITIES if one.key in looks}
                last = sample.get("most", {}).get(host, {}) if at == len(times) - 1 else {}
                found.setdefault(host, []).append(TimedState(t, state | {"throttle": last.get("throttle", [])}))
    start = min((one.at_s for readings in found.values() for one in readings), default=0.0)
    return {
        host: sorted((TimedState(one.at_s - start, one.state) for one in readings), key=lambda one: one.at_s)
        for host, readings in sorted(found.items())
    }


def moments_chart(entries: Sequence[Entry]) -> Chart | None:
    """Memory of each host from idle to measured; None when no start was watched."""
    moments = known_moments(entries)
    names = [(entry, host) for entry in entries for host in hosts_of(entry.result)]
    if len(moments) < 3 or len(names) > MOST_HOSTS:
        return None
    held = [[memory_gib(entry, host, moment) for moment in moments] for entry, host in names]
    return Chart(
        "Memory per host, from idle to measured",
        "full tone: GPU processes, light tone: still available; measuring: the most and the least of all rows",
        "",
        "memory (GiB)",
        x_ticks=tuple(enumerate(moments.values())),
        bars=tuple(
            Bars(f"{entry.label} {host}", tuple(gpu for _, gpu in pairs), tuple(available for available, _ in pairs))
            for (entry, host), pairs in zip(names, held, strict=True)
        ),
    )


def time_charts(entries: Sequence[Entry]) -> Iterator[Chart]:
    """Memory, power, clock and temperature over time; all measurements in one chart, or one each when they are many."""
    hosts = sum(len(timeline(entry)) for entry in entries)
    groups = [list(entries)] if hosts <= MOST_HOSTS else [[entry] for entry in entries]
    for quantity in QUANTITIES:
        for group in groups:
            chart = time_chart(group, quantity)
            if chart:
                yield chart


def time_chart(entries: Sequence[Entry], quantity: Quantity) -> Chart | None:
    """One quantity of every host; None when nobody reported it twice."""
    readings = [(entry, host, states) for entry in entries for host, states in timeline(entry).items()]
    last = max((one.at_s for _, _, states in readings for one in states), default=0.0)
    scale, clock = (60.0, "min") if last > 180 else (1.0, "s")
    lines: list[Line] = []
    notes: list[str] = []
    for entry, host, states in readings:
        name = f"{entry.label} {host}" if len(entries) > 1 else host
        known = [one for one in states if one.state.get(quantity.key) is not None]
        dots = [
            Dot(one.at_s / scale, one.state[quantity.key] / quantity.unit, alarm=bool(one.state["throttle"]))
            for one in known
        ]
        if len(dots) > 1:
            lines.append(Line(name, tuple(dots), len(lines)))
            reasons = dict.fromkeys(reason for one in known for reason in one.state["throttle"])
            notes += [f"{name}: throttled ({', '.join(reasons)})"] if reasons else []
    if not lines:
        return None
    subtitle = "every look during the runs"
    subtitle += "" if quantity.from_zero else "; the axis does not begin at 0"
    subtitle += "; ringed: throttled during the run" if notes else ""
    return Chart(
        quantity.title if len(entries) > 1 else f"{quantity.title}, {entries[0].label}",
        subtitle,
        f"time since the first look ({clock})",
        quantity.axis,
        tuple(lines),
        from_zero=quantity.from_zero,
        notes=tuple(notes),
    )
