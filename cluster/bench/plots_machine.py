"""Charts of the machines: memory from idle to measured, and memory, power and clocks while measuring. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.bench.compare import Entry
from cluster.bench.rows import Row
from cluster.bench.scale import nice_low, number, time_ticks
from cluster.bench.series_tables import GIB, extreme, hosts_of
from cluster.bench.svg import Bar, Bars, Chart, Dot, Line
from cluster.deploy.moments import moment_names

MOST_LINES = 8


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
    if len(names) > MOST_LINES:
        return None
    sets = tuple(Bars(f"{entry.label} {host}", tuple(_moment_bars(entry, host, moments))) for entry, host in names)
    ticks = tuple(enumerate([*(called[moment] for moment in moments), "measuring"]))
    return Chart(
        "Memory per host, from idle to measured",
        "full tone: GPU processes, light tone: still available; measuring: the most and the least of all rows",
        "", "memory (GiB)", (), ticks, bars=sets, wide=len(names) > 2,
    )  # fmt: skip


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
    told = [f"{value:.1f} GiB {name}" for value, name in ((gpu, "GPU processes"), (available, "available"))
            if value is not None]  # fmt: skip
    return f"{what}: {', '.join(told)}"


def time_charts(entries: Sequence[Entry]) -> Iterator[Chart]:
    """Memory, power, clock and temperature over time; all measurements in one chart, or one each when they are many."""
    hosts = sum(len(timeline(entry)) for entry in entries)
    groups = [list(entries)] if hosts <= MOST_LINES else [[entry] for entry in entries]
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
        f"time since the first look ({clock})", quantity.axis, tuple(lines),
        tuple((at, f"{at:g}") for at in time_ticks(last / scale)),
        y_low=low,
    )  # fmt: skip


def _time_dots(told: Sequence[Told], quantity: Quantity, scale: float, name: str) -> Iterator[Dot]:
    for one in told:
        value = one.state.get(quantity.key)
        if value is not None:
            reasons = ", ".join(one.state["throttle"])
            tip = f"{name}, {one.during}: {number(value / quantity.unit)}" + (f" ({reasons})" if reasons else "")
            yield Dot(one.at_s / scale, value / quantity.unit, tip=tip, alarm=bool(reasons))
