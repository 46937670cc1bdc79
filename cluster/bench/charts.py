"""Which charts a report has, as values: rates over depth and clients, what was varied, the machines. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.bench.compare import all_tests, generation, known_moments, memory_gib
from cluster.bench.rows import Row, suffix
from cluster.bench.scaling import Entry
from cluster.bench.series import Series, short_key
from cluster.bench.statistics import Stat, stat
from cluster.bench.tables import hosts_of, number

MOST_LINES = 6
MOST_HOSTS = 8
FAR_ABOVE = 2.5
"""A ceiling so many times above the highest value is left out: it would squeeze everything else."""

RATE = "tokens per second (t/s)"
SPREAD = "bars: ± sample standard deviation"


@dataclass(frozen=True, slots=True)
class Dot:
    """A value. `spread`: half the error bar; `alarm`: ringed."""

    x: float
    y: float
    spread: float = 0.0
    alarm: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """Dots of one name.

    `style`: line, dashed, dots (unconnected), hollow (larger rings, drawn below the others), or level (a horizontal
    line at the first dot over the full width, its name on it).
    """

    name: str
    dots: tuple[Dot, ...]
    color: int = 0
    style: str = "line"


@dataclass(frozen=True, slots=True)
class Chart:
    """What is drawn. `places`: the words of x = 0, 1, …; without any x has numbers. `from_zero`: y begins at 0."""

    title: str
    subtitle: str
    x_title: str
    y_title: str
    lines: tuple[Line, ...] = ()
    places: tuple[str, ...] = ()
    from_zero: bool = True
    notes: tuple[str, ...] = ()


def tokens(count: int) -> str:
    """`16K` for 16384, else with thousands."""
    return f"{count // 1024}K" if count and count % 1024 == 0 else f"{count:,}"


def line_of(name: str, values: Mapping[Any, Stat | None], places: Sequence[Any], color: int, style: str) -> Line:
    """A line with a dot at each place that has a value."""
    known = [(x, value) for x, place in enumerate(places) if (value := values.get(place))]
    return Line(name, tuple(Dot(x, value.mean, value.std or 0.0) for x, value in known), color, style)


def depth_charts(entries: Sequence[Entry]) -> Iterator[Chart]:
    """Token generation, prompt processing and time to first token over depth, for the fewest clients.

    A line each; the published numbers hollow, and ceilings of token generation.
    """
    rows = [row for entry in entries for row in alone(entry)]
    if len(entries) > MOST_LINES or len({row.context_size for row in rows}) < 2:
        return
    tg, pp, most = (max(getattr(row, key) for row in rows) for key in ("response_size", "prompt_size", "concurrency"))
    runs = f"clients: {most}; " + ("one run" if max(row.runs for row in rows) == 1 else SPREAD)
    for title, key, test, what, y_title in (
        ("Token generation", "tg_throughput", f"tg{tg}", "higher is better", RATE),
        ("Prompt processing", "pp_throughput", f"pp{pp}", "with all of its context; higher is better", RATE),
        ("Time to first token", "e2e_ttft", f"pp{pp}", "e2e_ttft; lower is better", "time to first token (ms)"),
    ):
        found = [(one.label, measured(one, key, test), place, "line") for place, one in enumerate(entries)]
        if key != "e2e_ttft":
            found += [(f"published {e.label}", published(e, test), at, "hollow") for at, e in enumerate(entries)]
        depths = sorted({depth for _, values, _, _ in found for depth in values})
        lines = [line_of(name, values, depths, place, style) for name, values, place, style in found if values]
        highest = max((dot.y for line in lines for dot in line.dots), default=0.0)
        for place, entry in enumerate(entries):
            ceiling = entry.reading.ceiling_t_s(entry.result.manifest.card, entry.tp)
            if key == "tg_throughput" and ceiling and ceiling <= FAR_ABOVE * highest:
                level = Dot(0, ceiling)
                lines.append(Line(f"ceiling {entry.label}: {number(ceiling)} t/s", (level,), place, "level"))
        places = tuple(map(tokens, depths))
        subtitle = f"{test}, {what}; {runs}"
        yield Chart(f"{title} over context depth", subtitle, "context depth (tokens)", y_title, tuple(lines), places)


def alone(entry: Entry) -> list[Row]:
    """The rows with the fewest clients, without those that only load a context."""
    rows = [row for row in entry.result.rows if not row.is_context_prefill_phase]
    fewest = min((row.concurrency for row in rows), default=1)
    return [row for row in rows if row.concurrency == fewest]


def measured(entry: Entry, key: str, test: str) -> dict[int, Stat | None]:
    """A number by depth, over the values of all rows of this prompt or output (`pp2048`, `tg128`)."""
    found: dict[int, list[float]] = {}
    for row in alone(entry):
        if test in row.shape.names and (value := getattr(row, key)):
            found.setdefault(row.context_size, []).extend(value.values)
    return {depth: stat(values) for depth, values in found.items()}


def published(entry: Entry, test: str) -> dict[int, Stat | None]:
    """The recipe's numbers of this row and size by depth, in the same depth mode; of several the first."""
    found: dict[int, Stat | None] = {}
    mode = entry.result.manifest.depth_mode
    references = () if entry.replicas else entry.references
    for row in (row for one in references if one.depth_mode == mode for row in one.rows):
        name, _, depth = row.test.removesuffix(" (c1)").partition(" @ d")
        if name == test and row.tp == entry.tp and row.t_s and "(" not in depth:
            found.setdefault(int(depth or 0), Stat(row.t_s, row.t_s_sd, ()))
    return found


def concurrency_chart(entries: Sequence[Entry]) -> Iterator[Chart]:
    """Total and per-request tokens a second over clients, at the least depth; none for one number of clients."""
    rows = [row for entry in entries for row in entry.result.rows if not row.is_context_prefill_phase]
    counts = sorted({row.concurrency for row in rows})
    if len(counts) < 2 or len(entries) > MOST_LINES:
        return
    depth = min(row.context_size for row in rows)
    tg = max(row.response_size for row in rows if row.context_size == depth)
    lines = []
    for place, entry in enumerate(entries):
        own = [row for row in entry.result.rows if (row.context_size, row.response_size) == (depth, tg)]
        for what, key, style in (("total", "tg_throughput", "line"), ("each request", "tg_req_throughput", "dashed")):
            values = {row.concurrency: getattr(row, key) for row in own}
            lines.append(line_of(f"{entry.label} {what}", values, counts, place, style))
    yield Chart(
        "Throughput over concurrency",
        f"tg{tg}{suffix(depth, 1, 1)}; total: while all clients decode; {SPREAD}",
        "clients at the same time",
        RATE,
        tuple(line for line in lines if line.dots),
        tuple(map(str, counts)),
    )


def sweep_chart(series: Series, entries: Sequence[Entry]) -> Iterator[Chart]:
    """Token generation over what was varied, a line a test; none when fewer than two values were measured."""
    if len(entries) < 2:
        return
    names = [entry.label for entry in entries]
    if len(series.varied) == 1:
        names = [name.removeprefix(f"{short_key(series.varied[0])}=") for name in names]
    style = "line" if all(re.fullmatch(r"[\d.]+", name) for name in names) else "dots"
    tests, what = all_tests(entries), ", ".join(map(short_key, series.varied))
    lines = []
    for color, test in enumerate(tests[:MOST_LINES]):
        values = {name: generation(entry).get(test) for name, entry in zip(names, entries, strict=True)}
        lines.append(line_of(test, values, names, color, style))
    yield Chart(
        f"Token generation over {what}",
        f"{SPREAD}; higher is better",
        what,
        RATE,
        tuple(line for line in lines if line.dots),
        tuple(names),
        notes=(f"in the table only: {', '.join(tests[MOST_LINES:])}",) if tests[MOST_LINES:] else (),
    )


QUANTITIES = {
    "gpu_memory_mib": ("GPU memory", "memory of GPU processes (GiB)", 1024.0, True),
    "memory_available_mib": ("Available memory", "MemAvailable (GiB)", 1024.0, True),
    "power_w": ("GPU power", "power (W)", 1.0, True),
    "sm_clock_mhz": ("SM clock", "SM clock (MHz)", 1.0, False),
    "temperature_c": ("GPU temperature", "temperature (°C)", 1.0, False),
}
"""Numbers that hosts report: title and axis of the chart, the unit to divide by, whether the axis begins at 0."""


def timeline(entry: Entry) -> dict[str, list[tuple[float, dict[str, Any]]]]:
    """Every reading of every host, by seconds since the first; reasons for throttling are of a run, at its last one."""
    found: dict[str, list[tuple[float, dict[str, Any]]]] = {}
    for sample in (sample for row in entry.result.rows for sample in row.machine):
        for host, looks in sample.get("series", {}).items():
            for at, t in enumerate(looks["t"]):
                state = {key: looks[key][at] for key in QUANTITIES if key in looks}
                found.setdefault(host, []).append((t, state | {"throttle": []}))
            found[host][-1][1]["throttle"] = sample["most"].get(host, {}).get("throttle", [])
    start = min((t for readings in found.values() for t, _ in readings), default=0.0)
    return {
        host: [(t - start, state) for t, state in sorted(readings, key=lambda one: one[0])]
        for host, readings in sorted(found.items())
    }


def moments_chart(entries: Sequence[Entry]) -> Iterator[Chart]:
    """Memory of each host from idle to measured; none when no start was watched."""
    moments = known_moments(entries)
    names = [(entry, host) for entry in entries for host in hosts_of(entry.result)]
    if len(moments) < 3 or len(names) > MOST_HOSTS:
        return
    lines = []
    for place, (entry, host) in enumerate(names):
        pairs = [memory_gib(entry, host, moment) for moment in moments]
        for what, at, style in (("", 1, "line"), (" available", 0, "dashed")):
            dots = [Dot(x, gib) for x, pair in enumerate(pairs) if (gib := pair[at]) is not None]
            lines.append(Line(f"{entry.label} {host}{what}", tuple(dots), place, style))
    yield Chart(
        "Memory per host, from idle to measured",
        "memory of GPU processes; dashed: still available; measuring: the most and the least of all rows",
        "",
        "memory (GiB)",
        tuple(lines),
        tuple(moments.values()),
    )


def time_charts(entries: Sequence[Entry]) -> Iterator[Chart]:
    """Memory, power, clock and temperature over time; all measurements in one chart, or one each when they are many."""
    timelines = [(entry, timeline(entry)) for entry in entries]
    hosts = sum(len(one) for _, one in timelines)
    groups = [timelines] if hosts <= MOST_HOSTS else [[one] for one in timelines]
    for key, (title, axis, unit, from_zero) in QUANTITIES.items():
        for group in groups:
            lines: list[Line] = []
            notes: list[str] = []
            for entry, readings in group:
                for host, states in readings.items():
                    name = f"{entry.label} {host}" if len(group) > 1 else host
                    known = [(t, state) for t, state in states if state.get(key) is not None]
                    dots = [Dot(t, state[key] / unit, alarm=bool(state["throttle"])) for t, state in known]
                    reasons = dict.fromkeys(reason for _, state in known for reason in state["throttle"])
                    if len(dots) > 1:
                        lines.append(Line(name, tuple(dots), len(lines)))
                        notes += [f"{name}: throttled ({', '.join(reasons)})"] if reasons else []
            if lines:
                yield Chart(
                    f"{title} per host" + ("" if len(group) > 1 else f", {group[0][0].label}"),
                    "every reading during the runs"
                    + ("" if from_zero else "; the axis does not begin at 0")
                    + ("; ringed: throttled during the run" if notes else ""),
                    "time since the first reading (s)",
                    axis,
                    tuple(lines),
                    from_zero=from_zero,
                    notes=tuple(notes),
                )
