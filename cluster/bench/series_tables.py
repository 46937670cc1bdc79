"""Tables about the steps of a series: time to ready, and memory by host from idle to measured. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cluster.bench.compare import Entry
from cluster.bench.report import Table
from cluster.bench.result import Result
from cluster.bench.rows import Row
from cluster.bench.series import Point, Series
from cluster.deploy.moments import moment_names

GIB = 1 << 30


def states(row: Row, host: str = "") -> Iterator[dict[str, Any]]:
    """What a host (or every host) said during a row, at whatever moments of its runs."""
    for sample in row.machine:
        for told in sample.values():
            for name, state in told.items() if isinstance(told, dict) else ():
                if isinstance(state, dict) and host in ("", name):
                    yield state


def extreme(result: Result, host: str, key: str, most: bool) -> float | None:
    """The highest or lowest of a number that a host told during all rows; None when it did not tell it."""
    found = [state.get(key) for row in result.rows for state in states(row, host)]
    numbers = [float(value) for value in found if isinstance(value, (int, float))]
    return (max if most else min)(numbers) if numbers else None


def hosts_of(result: Result) -> list[str]:
    """The hosts that told anything, else those of the manifest."""
    told = {
        name
        for row in result.rows
        for sample in row.machine
        for moment in sample.values()
        if isinstance(moment, dict)
        for name, state in moment.items()
        if isinstance(state, dict)
    }
    listed = [host.name for host in result.manifest.hosts]
    return listed or sorted(told)


def steps_table(series: Series, results: Mapping[str, Result]) -> Table:
    """Each step: hosts, time to ready, what was measured, or why not."""
    rows: list[tuple[str, ...]] = []
    for point in series.points:
        result = results.get(point.label)
        done = str(len(result.rows)) if result else ""
        why = f"{point.stage} failed: {point.failed}" if point.failed else ""
        rows.append((point.label, ", ".join(point.hosts), seconds(point.ready_s), done, why))
    headers = ["step", "hosts", "ready (s)", "rows", "failed"]
    if not any(row[-1] for row in rows):
        headers, rows = headers[:-1], [row[:-1] for row in rows]
    return Table("steps", tuple(headers), tuple(rows), ("ready: from the first connection to the proven answer",), 2)


def seconds(value: float | None) -> str:
    """Whole seconds, tenths below ten; empty for None."""
    return "" if value is None else f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def moments_table(entries: Sequence[Entry]) -> Table | None:
    """GiB available and of GPU processes on each host, from idle to the extremes while measuring; None if not told."""
    told = [moment for entry in entries if entry.point for moment in entry.point.moments]
    names = moment_names(*(entry.result.manifest.backend for entry in entries))
    moments = [moment for moment in names if moment in told]
    rows = [line for entry in entries for line in _host_lines(entry, moments)]
    if not any("/" in cell for line in rows for cell in line[3:]):
        return None
    published = any(line[-1] for line in rows)
    headers = ["size", "host", "role", *(names[moment] for moment in moments), "measuring", "published VRAM (GiB)"]
    if not published:
        headers, rows = headers[:-1], [line[:-1] for line in rows]
    notes = ("GiB available / of GPU processes; measuring: least available, most of GPU processes over all rows",)
    return Table("memory per host", tuple(headers), tuple(rows), notes, 3)


def _host_lines(entry: Entry, moments: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """A line for each host of a measurement."""
    roles = {host.name: host.role for host in entry.result.manifest.hosts}
    for host in hosts_of(entry.result):
        cells = [moment_cell(entry.point, moment, host) for moment in moments]
        least = extreme(entry.result, host, "memory_available_mib", most=False)
        most = extreme(entry.result, host, "gpu_memory_mib", most=True)
        cells.append(pair_cell(*(None if value is None else value / 1024 for value in (least, most))))
        yield (entry.label, host, roles.get(host, ""), *cells, _published(entry, roles.get(host, "")))


def moment_cell(point: Point | None, moment: str, host: str) -> str:
    """`101.2 / 18.5` of one moment; empty when nothing is known of it."""
    held = (point.moments if point else {}).get(moment, {}).get(host)
    if held is None:
        return ""
    return pair_cell(*(None if held.get(key) is None else (held[key] or 0) / GIB for key in ("available", "gpu")))


def pair_cell(available: float | None, gpu: float | None) -> str:
    """Two numbers in GiB, `?` for what was not told; empty when neither was."""
    if available is None and gpu is None:
        return ""
    return " / ".join("?" if value is None else f"{value:.1f}" for value in (available, gpu))


def _published(entry: Entry, role: str) -> str:
    """The published GPU memory of a host of this role; it is that of the largest published size.

    nvidia-smi writes MiB, so the recipe's MB are taken as such.
    """
    for reference in entry.references:
        if role in reference.vram_mb and entry.tp == max((row.tp for row in reference.rows), default=0):
            return f"{reference.vram_mb[role] / 1024:,.1f}"
    return ""
