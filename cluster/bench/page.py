"""A report as one page: warnings, the numbers that matter, charts, tables, conditions. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cluster.bench.rows import Row, suffix
from cluster.bench.scaling import PP, TG, TTFR, ScalingRow, scaling_rows
from cluster.bench.series import Series
from cluster.bench.statistics import Stat, stat
from cluster.bench.svg import Bar, Bars, Chart, Dot, Figure, Level, Line, Page, nice_low, number, time_ticks
from cluster.bench.tables import (
    GIB,
    Entry,
    Table,
    against,
    bench_table,
    bests,
    compare,
    extreme,
    generation,
    hosts_of,
    interval,
    moments_table,
    prompt_table,
    server_table,
    show,
    steps_table,
    sweep_tables,
)
from cluster.bench.vary import short_key
from cluster.bench.warnings import warnings
from cluster.deploy.moments import moment_names

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
        entries,
        lambda row: row.tg_throughput if row.response_size == tg else None,
        f"tg{tg}",
        "Token generation over context depth",
        f"tg{tg}, {runs}; higher is better",
    )
    yield rate_chart(
        entries,
        lambda row: row.pp_throughput if row.prompt_size == pp else None,
        f"pp{pp}",
        "Prompt processing over context depth",
        f"pp{pp} and all of its context, {runs}; higher is better",
    )
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
    return Chart(
        title,
        subtitle,
        "context depth (tokens)",
        "tokens per second (t/s)",
        tuple(lines),
        depth_ticks(lines),
        levels,
        notes=notes,
    )


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
        "Time to first token over context depth",
        f"e2e_ttft of pp{pp}, {runs}; lower is better",
        "context depth (tokens)",
        f"time to first token ({unit})",
        tuple(lines),
        depth_ticks(lines),
    )


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
        "Throughput over concurrency",
        f"tg{tg}{suffix(depth, 1, 1)}; total: while all clients decode; bars: ± sample standard deviation",
        "clients at the same time",
        "tokens per second (t/s)",
        tuple(lines),
        tuple((count, str(count)) for count in counts),
        doubling=counts[-1] / counts[0] >= 8,
        notes=tuple(notes),
    )


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
        f"Token generation over {what}",
        "bars: ± sample standard deviation; higher is better",
        what,
        "tokens per second (t/s)",
        tuple(lines),
        tuple(ticks),
        notes=tuple(notes),
        doubling=bool(places) and min(places) > 0 and max(places) / min(places) >= 8,
    )


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


MOST_HOSTS = 8


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number that hosts tell: its key, what a chart of it is called, its axis; of several readings which one counts.

    `zero`: its axis begins at 0.
    """

    key: str
    title: str
    axis: str
    unit: float = 1.0
    lowest: bool = False
    zero: bool = True


QUANTITIES = (
    Quantity("gpu_memory_mib", "GPU memory per host", "memory of GPU processes (GiB)", 1024.0),
    Quantity("memory_available_mib", "Available memory per host", "MemAvailable (GiB)", 1024.0, lowest=True),
    Quantity("power_w", "GPU power per host", "power (W)"),
    Quantity("sm_clock_mhz", "SM clock per host", "SM clock (MHz)", lowest=True, zero=False),
    Quantity("temperature_c", "GPU temperature per host", "temperature (°C)", zero=False),
)


@dataclass(frozen=True, slots=True)
class Told:
    """What one host said at one time (seconds since the measurement began), and during which row."""

    at_s: float
    state: dict[str, Any]
    during: str


def timeline(entry: Entry) -> dict[str, list[Told]]:
    """What each host said, by time: every look, or where only the run's end is known, one for each run."""
    found: dict[str, list[Told]] = {}
    for row in entry.result.rows:
        for ended_s, sample in _timed(row):
            for host, told in (*_looks(sample, row.shape.name), *_ends(sample, row.shape.name, ended_s)):
                found.setdefault(host, []).append(told)
    began = min((one.at_s for readings in found.values() for one in readings), default=0.0)
    return {
        host: sorted((Told(one.at_s - began, one.state, one.during) for one in readings), key=lambda one: one.at_s)
        for host, readings in sorted(found.items())
    }


def _looks(sample: dict[str, Any], during: str) -> Iterator[tuple[str, Told]]:
    """Every look at every host during a run; what throttled it meanwhile is known of the whole run only."""
    for host, looks in (sample.get("series") or {}).items():
        times = looks.get("t", [])
        for at, t in enumerate(times):
            told = {one.key: looks[one.key][at] for one in QUANTITIES if one.key in looks}
            state = {key: value for key, value in told.items() if value is not None}
            last = at == len(times) - 1
            reasons = sample.get("most", {}).get(host, {}).get("throttle", []) if last else []
            yield host, Told(t, state | {"throttle": list(reasons)}, during)


def _ends(sample: dict[str, Any], during: str, ended_s: float | None) -> Iterator[tuple[str, Told]]:
    """One reading a host at the run's end, of samples without looks."""
    if sample.get("series") or ended_s is None:
        return
    for host in {name for moment in _meanwhile(sample) for name in moment}:
        states = [moment[host] for moment in _meanwhile(sample) if isinstance(moment.get(host), dict)]
        yield host, Told(ended_s, worst(states), during)


def _meanwhile(sample: dict[str, Any]) -> list[dict[str, Any]]:
    """The moments of a run from its beginning on; what was read before it says how the machine idled."""
    return [told for moment, told in sample.items() if isinstance(told, dict) and moment != "before"]


def worst(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Several readings of one run as one."""
    found: dict[str, Any] = {}
    for quantity in QUANTITIES:
        values = [state[quantity.key] for state in states if isinstance(state.get(quantity.key), (int, float))]
        if values:
            found[quantity.key] = min(values) if quantity.lowest else max(values)
    reasons = [str(reason) for state in states for reason in state.get("throttle") or ()]
    return found | {"throttle": list(dict.fromkeys(reasons))}


def _timed(row: Row) -> Iterator[tuple[float | None, dict[str, Any]]]:
    """A row's samples with when their run ended (unix seconds), None where that is not known."""
    for sample in row.machine:
        run = sample.get("run", -1)
        client = row.client[run] if isinstance(run, int) and 0 <= run < len(row.client) else {}
        began = client.get("started_unix_s")
        yield None if began is None else began + client.get("wall_s", 0.0), sample


def moments_chart(entries: Sequence[Entry]) -> Chart | None:
    """Memory of each host from idle to measured; None when no start was watched."""
    told = {moment for entry in entries if entry.point for moment in entry.point.moments}
    called = moment_names(*(entry.result.manifest.backend for entry in entries))
    moments = [moment for moment in called if moment in told]
    if len(moments) < 2:
        return None
    names = [(entry, host) for entry in entries for host in hosts_of(entry.result)]
    if len(names) > MOST_HOSTS:
        return None
    sets = tuple(Bars(f"{entry.label} {host}", tuple(_moment_bars(entry, host, moments))) for entry, host in names)
    ticks = tuple(enumerate([*(called[moment] for moment in moments), "measuring"]))
    return Chart(
        "Memory per host, from idle to measured",
        "full tone: GPU processes, light tone: still available; measuring: the most and the least of all rows",
        "",
        "memory (GiB)",
        (),
        ticks,
        bars=sets,
        wide=len(names) > 2,
    )


def _moment_bars(entry: Entry, host: str, moments: Sequence[str]) -> Iterator[Bar]:
    held, called = entry.point.moments if entry.point else {}, moment_names(entry.result.manifest.backend)
    for moment in moments:
        state = held.get(moment, {}).get(host, {})
        gpu, available = (None if (value := state.get(key)) is None else value / GIB for key in ("gpu", "available"))
        yield Bar(
            gpu,
            available,
            _tip(f"{entry.label} {host}, {called[moment]}", gpu, available),
        )
    most = extreme(entry.result, host, "gpu_memory_mib", most=True)
    least = extreme(entry.result, host, "memory_available_mib", most=False)
    gpu, available = (None if value is None else value / 1024 for value in (most, least))
    yield Bar(gpu, available, _tip(f"{entry.label} {host}, measuring", gpu, available))


def _tip(what: str, gpu: float | None, available: float | None) -> str:
    told = [
        f"{value:.1f} GiB {name}"
        for value, name in ((gpu, "GPU processes"), (available, "available"))
        if value is not None
    ]
    return f"{what}: {', '.join(told)}"


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
    """One quantity of every host; None when nobody told it twice."""
    readings = [(entry, host, told) for entry in entries for host, told in timeline(entry).items()]
    last = max((one.at_s for _, _, told in readings for one in told), default=0.0)
    scale, clock = (60.0, "min") if last > 180 else (1.0, "s")
    lines: list[Line] = []
    for entry, host, told in readings:
        name = f"{entry.label} {host}" if len(entries) > 1 else host
        dots = tuple(_time_dots(told, quantity, scale, name))
        if len(dots) > 1:
            lines.append(Line(name, dots, len(lines)))
    if not lines:
        return None
    values = [dot.y for line in lines for dot in line.dots]
    low = 0.0 if quantity.zero else nice_low(min(values), max(values))
    looked = any(sample.get("series") for entry in entries for row in entry.result.rows for sample in row.machine)
    subtitle = "every look during the runs" if looked else f"{'low' if quantity.lowest else 'high'}est of each run"
    subtitle += f"; the axis begins at {low:,g}" if low else ""
    subtitle += "; ringed: throttled during the run" if any(dot.alarm for line in lines for dot in line.dots) else ""
    return Chart(
        quantity.title if len(entries) > 1 else f"{quantity.title}, {entries[0].label}",
        subtitle,
        f"time since the first look ({clock})",
        quantity.axis,
        tuple(lines),
        tuple((at, f"{at:g}") for at in time_ticks(last / scale)),
        y_low=low,
    )


def _time_dots(told: Sequence[Told], quantity: Quantity, scale: float, name: str) -> Iterator[Dot]:
    for one in told:
        value = one.state.get(quantity.key)
        if value is not None:
            reasons = ", ".join(one.state["throttle"])
            tip = f"{name}, {one.during}: {number(value / quantity.unit)}" + (f" ({reasons})" if reasons else "")
            yield Dot(one.at_s / scale, value / quantity.unit, tip=tip, alarm=bool(reasons))


MOST_FIGURES = 4


def page_of(entries: Sequence[Entry], series: Sequence[Series], version: str) -> Page:
    """The whole report."""
    sweep = next((one for one in series if one.kind == "sweep"), None)
    found = [sweep_chart(sweep, entries) if sweep else None, *depth_charts(entries), concurrency_chart(entries)]
    charts = [chart for chart in found if chart and any(line.dots for line in chart.lines)]
    starts = moments_chart(entries)
    return Page(
        title=title_of(entries, sweep),
        subtitle=subtitle_of(entries),
        banners=banners(entries, sweep),
        figures=tuple(figures(entries, sweep)),
        charts=fill(charts),
        machine_charts=fill([*([starts] if starts else []), *time_charts(entries)]),
        tables=tuple(tables(entries, series)),
        footer=f"written by {version} from {', '.join(entry.path.name for entry in entries if entry.path)}",
    )


def fill(charts: Sequence[Chart]) -> tuple[Chart, ...]:
    """Two stand side by side; of an odd number the first takes the whole width, so that no place stays empty."""
    narrow = [chart for chart in charts if not chart.wide]
    if len(narrow) % 2 == 0:
        return tuple(charts)
    return tuple(replace(chart, wide=True) if chart is narrow[0] else chart for chart in charts)


def title_of(entries: Sequence[Entry], sweep: Series | None) -> str:
    """What was measured, in a few words."""
    names = list(dict.fromkeys(entry.result.manifest.recipe or entry.result.manifest.model for entry in entries))
    what = " and ".join(names[:3])
    if sweep:
        return f"{what}: {', '.join(sweep.varied)} varied"
    return f"{what}: {' and '.join(entry.label for entry in entries)}" if len(entries) <= MOST_FIGURES else what


def subtitle_of(entries: Sequence[Entry]) -> str:
    """Model, engine, machines, when."""
    manifests = [entry.result.manifest for entry in entries]
    parts = [" and ".join(dict.fromkeys(one.model for one in manifests))]
    parts += dict.fromkeys(f"vLLM {one.versions['vllm']}" for one in manifests if one.versions.get("vllm"))
    parts += dict.fromkeys(product for one in manifests for product in one.products)
    parts += [f"{min(entry.result.timestamp for entry in entries)[:16]} UTC"] if entries else []
    return " · ".join(parts)


def banners(entries: Sequence[Entry], sweep: Series | None) -> tuple[str, ...]:
    """What must be read before any number; said once when it is true of all."""
    said: dict[str, list[str]] = {}
    for entry in entries:
        for line in warnings(entry.result):
            said.setdefault(line, []).append(entry.label)
    lines = [line if len(who) == len(entries) else f"{', '.join(who)}: {line}" for line, who in said.items()]
    for entry in entries[1:]:
        other = against(entries[0], entry, sweep.varied if sweep else ())
        if other:
            what = "; ".join(map(str, other[:6]))
            lines.append(f"NOT COMPARABLE: {entry.label} and {entries[0].label} differ in {what}")
    return tuple(lines)


def figures(entries: Sequence[Entry], sweep: Series | None) -> Iterator[Figure]:
    """The numbers that matter: speed-ups of the largest size, else the best of a sweep, else the rates."""
    if sweep:
        for best in bests(entries, sweep.varied)[0][:MOST_FIGURES]:
            what = f"{best.test} with {best.label}" + (f", a tie with {', '.join(best.ties)}" if best.ties else "")
            low, high = best.interval or (best.value.mean, best.value.mean)
            yield Figure(f"{best.value.mean:.1f} t/s", what, f"95 %: {low:.2f}–{high:.2f}", bool(best.ties))
        return
    pair = largest_pair(entries)
    if pair:
        rows = scaling_rows(pair[0].result, pair[1].result, pair[1].references)
        yield from (speed_up_figure(row, pair) for row in telling(rows))
        return
    for entry in entries[:MOST_FIGURES]:
        for row in alone(entry)[:1]:
            tail = suffix(row.context_size, row.concurrency, row.concurrency)
            if row.tg_throughput:
                yield Figure(
                    f"{row.tg_throughput.mean:.1f} t/s",
                    f"{entry.label} tg{row.response_size}{tail}",
                    show(row.tg_throughput),
                )
            if row.pp_throughput:
                yield Figure(
                    f"{row.pp_throughput.mean:,.0f} t/s",
                    f"{entry.label} pp{row.prompt_size}{tail}",
                    show(row.pp_throughput),
                )


def largest_pair(entries: Sequence[Entry]) -> tuple[Entry, Entry] | None:
    """The smallest and the largest size, when they may be compared."""
    sized = sorted((entry for entry in entries if entry.tp), key=lambda entry: entry.tp or 0)
    if len(sized) < 2 or sized[0].tp == sized[-1].tp or against(sized[0], sized[-1]):
        return None
    return sized[0], sized[-1]


def telling(rows: Sequence[ScalingRow]) -> list[ScalingRow]:
    """Generation at the least and at the most depth, prompt processing and first response at the most."""
    found: list[ScalingRow] = []
    for what, ends in ((TG, (min, max)), (PP, (max,)), (TTFR, (max,))):
        own = [row for row in rows if row.what == what and row.speed_up and "(c" not in row.test]
        own = own or [row for row in rows if row.what == what and row.speed_up]
        for end in ends if own else ():
            longest = [row for row in own if row.depth == end(one.depth for one in own)]
            found.append(longest[-1])
    return list(dict.fromkeys(found))


def speed_up_figure(row: ScalingRow, pair: tuple[Entry, Entry]) -> Figure:
    """`1.70×` with what it is of, its interval and its efficiency."""
    gain = row.speed_up
    assert gain is not None
    detail = f"95 %: {interval(row)}" + (f" · efficiency {row.efficiency:.0%}" if row.efficiency is not None else "")
    test = row.test.partition(" @")[0]
    where = f" at depth {tokens(row.depth)}" if row.depth else ""
    what = f"{row.what} ({test}){where}, {pair[1].label} beside {pair[0].label}"
    return Figure(f"{gain.value:.2f}×", what, detail, faint=not gain.significant)


def tables(entries: Sequence[Entry], series: Sequence[Series]) -> list[Table]:
    """Everything in numbers: comparisons first, then each measurement, memory, conditions."""
    found: list[Table] = []
    for one in series:
        own = [entry for entry in entries if entry.point in one.points]
        if one.kind == "sweep":
            found += [*sweep_tables(one, own), *([prompt_table(own)] if own else [])]
        else:
            found.append(steps_table(one, {entry.label: entry.result for entry in own}))
    if not any(one.kind == "sweep" for one in series):
        by_size = sorted(entries, key=lambda entry: entry.tp or 0)
        found += [table for entry in by_size[1:] for table in compare(by_size[0], entry) if entry.tp]
    found += [replace(bench_table(entry.result), title=entry.label) for entry in entries]
    counted = [(entry.label, server_table(entry.result)) for entry in entries]
    found += [replace(table, title=f"{label}: {table.title}") for label, table in counted if table]
    memory = moments_table(entries)
    return [*found, *([memory] if memory else []), conditions(entries)]


CONDITIONS = (
    "recipe",
    "model",
    "revision",
    "weights",
    "tp",
    "pipeline",
    "nodes",
    "backend",
    "image",
    "image_content",
    "versions",
    "products",
    "drivers",
    "simulated",
    "depth_mode",
    "corpus",
    "api",
    "seed",
    "runs",
    "refused_fields",
    "client_on",
    "client_where",
    "client_python",
    "deployment",
    "argv",
    "command",
)


def conditions(entries: Sequence[Entry]) -> Table:
    """The manifest of each measurement, a column each."""
    documents = [entry.result.manifest.document() for entry in entries]
    rows = [(key, *(plain(document.get(key)) for document in documents)) for key in CONDITIONS]
    rows = [row for row in rows if any(row[1:])]
    headers = ("condition", *(entry.label for entry in entries))
    return Table(
        "conditions", headers, tuple(rows), ("all of it is in the result's JSON, under manifest",), len(headers)
    )


def plain(value: Any) -> str:
    """A condition on one line."""
    if isinstance(value, dict):
        return "; ".join(f"{key}: {plain(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return "" if value is None else str(value)


def table_document(table: Table) -> dict[str, Any]:
    """A table of texts as JSON."""
    rows = [dict(zip(table.headers, row, strict=True)) for row in table.rows]
    return {"title": table.title, "rows": rows, "notes": list(table.notes)}
