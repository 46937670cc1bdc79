"""Results as tables of text: llama-benchy's table, memory per host, scaling; as Markdown and CSV. Pure."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cluster.bench.foreign import notes as engine_notes
from cluster.bench.machine import busy_clocks
from cluster.bench.result import Baseline, Result
from cluster.bench.rows import Row, suffix
from cluster.bench.scaling import TTFR, ScalingRow
from cluster.bench.statistics import PERCENTILES, Stat
from cluster.bench.warnings import some_names
from cluster.config.recipe import Reference

MISSING = "n/a"


@dataclass(frozen=True, slots=True)
class Table:
    """A table to print; the first `text_columns` columns are words, the others numbers."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    text_columns: int = 1


def bench_table(result: Result) -> Table:
    """llama-benchy's columns in its order, then ours: the wall-clock total under concurrency, and failures."""
    many = result.most_concurrency > 1
    headers = ["model", "test", "t/s (total)" if many else "t/s"]
    headers += ["t/s (req)", "peak t/s", "peak t/s (req)"] if many else ["peak t/s"]
    headers += ["ttfr (ms)", "est_ppt (ms)", "e2e_ttft (ms)"]
    headers += ["t/s (wall)", "failed"] if many else ["failed"]
    headers += ["queued"] if any(row.queued for row in result.rows) else []
    rows = []
    for row in result.rows:
        for line in row_lines(row, result.manifest.model, result.most_concurrency):
            rows.append(tuple(line[header] for header in headers))
    return Table("benchmark", tuple(headers), tuple(rows), row_notes(result), text_columns=2)


def row_lines(row: Row, model: str, most_concurrency: int) -> list[dict[str, str]]:
    """The two lines of a row (pp and tg) as texts by column name; a column that does not apply is empty."""
    tail = suffix(row.context_size, row.concurrency, most_concurrency)
    why = row.why or {}

    def cell(key: str) -> str:
        value: Stat | None = getattr(row, key)
        return show(value) if value is not None else MISSING if key in why else ""

    failed = f"{row.failed}/{row.requests}" if row.failed else "0"
    queued = f"{row.queued}/{row.concurrency}" if row.queued else "0"
    empty = {"queued": queued} | dict.fromkeys(
        ("peak t/s", "peak t/s (req)", "ttfr (ms)", "est_ppt (ms)", "e2e_ttft (ms)", "t/s (wall)"), ""
    )
    total = "t/s (total)" if most_concurrency > 1 else "t/s"
    prompt, output = (name + tail for name in row.shape.names)
    pp = {"model": model, "test": prompt, total: cell("pp_throughput")}
    pp |= {"t/s (req)": cell("pp_req_throughput"), "ttfr (ms)": cell("ttfr"), "est_ppt (ms)": cell("est_ppt")}
    pp |= {"e2e_ttft (ms)": cell("e2e_ttft"), "failed": failed}
    tg = {"model": model, "test": output, total: cell("tg_throughput")}
    tg |= {"t/s (req)": cell("tg_req_throughput"), "peak t/s": cell("peak_throughput")}
    tg |= {"peak t/s (req)": cell("peak_req_throughput"), "t/s (wall)": cell("tg_wall_throughput"), "failed": failed}
    return [empty | pp, empty | tg]


def show(value: Stat) -> str:
    """`6.93 ± 0.01` as llama-benchy writes it; a single value has no spread."""
    return f"{value.mean:.2f}" if value.std is None else f"{value.mean:.2f} ± {value.std:.2f}"


def row_notes(result: Result) -> tuple[str, ...]:
    """Notes, failures and reasons of all rows, each text once with the rows it is about; drift, and who measured."""
    about: dict[str, list[str]] = {}
    for row in result.rows:
        for text in (*row.notes, *(f"failed: {failure}" for failure in row.failures), *_lacks(row)):
            about.setdefault(text, []).append(row.shape.name)
    cached = result.manifest.depth_mode == "prefix-caching"
    told = engine_notes(result.manifest.engine, concurrency=result.most_concurrency, prefix_caching=cached)
    notes = [*told, *(f"{text} [{some_names(names, len(result.rows))}]" for text, names in about.items())]
    notes += [f"sentinel: {result.sentinel}"] if result.sentinel else []
    where = result.manifest.client_where
    return (*notes, f"client: {where} (Python {result.manifest.client_python})") if where else tuple(notes)


def _lacks(row: Row) -> list[str]:
    """The numbers that are missing, or are not those of all runs, by reason."""
    found: dict[str, list[str]] = {}
    for key, reason in (row.why or {}).items():
        value: Stat | None = getattr(row, key)
        told = "n/a" if value is None else f"from {len(value.values)} values only, n/a elsewhere"
        found.setdefault(f"{told}: {reason}", []).append(key)
    return [f"{', '.join(keys)} {text}" for text, keys in found.items()]


def latency_table(result: Result) -> Table:
    """Percentiles of TTFT, TPOT and ITL in ms."""
    names = {"e2e_ttft_ms": "ttft", "tpot_ms": "tpot", "itl_ms": "itl"}
    marks = ("p50", "p90", "p99")
    headers = ("test", *(f"{what} {mark}" for what in names.values() for mark in marks))
    rows = []
    for row in result.rows:
        tail = suffix(row.context_size, row.concurrency, result.most_concurrency)
        told = row.percentiles or {}
        cells = [told.get(name, {}).get(mark) for name in names for mark in marks]
        shown = (MISSING if cell is None else f"{cell:.2f}" for cell in cells)
        rows.append((" ".join(row.shape.names) + tail, *shown))
    notes = ("ms; ttft and tpot over requests, itl over tokens; n/a: too few for one of them to lie beyond it",)
    return Table("latency", headers, tuple(rows), notes)


def memory_table(result: Result) -> Table | None:
    """GPU memory and free memory of each host, the highest and lowest over all rows; None when no host told."""
    seen: dict[str, list[dict[str, Any]]] = {}
    for row in result.rows:
        for sample in row.machine:
            for moment in ("before", "after", "least", "most"):
                for host, state in sample.get(moment, {}).items():
                    seen.setdefault(host, []).append(state)
    if not seen:
        return None
    rows = []
    for host, states in seen.items():
        used, free = _all(states, "gpu_memory_mib"), _all(states, "memory_available_mib")
        role = next((str(state["role"]) for state in states if state.get("role")), "")
        rows.append((host, role, f"{max(used):,.0f}" if used else MISSING, f"{min(free):,.0f}" if free else MISSING))
    notes = ("the most GPU memory and the least available memory of all looks at the hosts while rows were measured",)
    headers = ("host", "role", "VRAM used (MiB)", "available (MiB)")
    return Table("memory per host", headers, tuple(rows), notes, text_columns=2)


def machine_table(result: Result) -> Table | None:
    """What each host ran at while rows were measured, and what went over its links; None when no host told."""
    hosts = list(dict.fromkeys(host for row in result.rows for run in row.machine for host in run.get("most", {})))
    rows = []
    for host in hosts:
        runs = [run for row in result.rows for run in row.machine if host in run.get("most", {})]
        most = [run["most"][host] for run in runs]
        clocks, reasons = busy_clocks(runs, host), [reason for state in most for reason in state.get("throttle", ())]
        clock = f"{min(clocks):.0f}–{max(clocks):.0f}" if clocks else MISSING
        moved: dict[str, tuple[int, int]] = {}
        for link in (link for run in runs for link in run["links"].get(host, ())):
            sent, received = moved.get(link["link"], (0, 0))
            moved[link["link"]] = (sent + link["sent_bytes"], received + link["received_bytes"])
        traffic = "; ".join(f"{link} {sent / 1e9:.2f}/{got / 1e9:.2f}" for link, (sent, got) in moved.items())
        cells = (_highest(most, "power_w"), _highest(most, "temperature_c"), ", ".join(dict.fromkeys(reasons)) or "no")
        rows.append((host, clock, *cells, traffic or MISSING))
    headers = ("host", "SM clock (MHz)", "power (W)", "°C", "throttled", "GB sent/received")
    notes: tuple[str, ...] = (
        "clocks while the GPU was at work, power and temperature at most, bytes over the links during rows only",
    )
    gaps = Counter(host for row in result.rows for run in row.machine for host in run.get("lost", ()))
    notes += tuple(f"{host}: without {count} runs, in which its connection was lost" for host, count in gaps.items())
    return Table("machines while measuring", headers, tuple(rows), notes) if rows else None


def _highest(states: Sequence[dict[str, Any]], key: str) -> str:
    values = _all(states, key)
    return f"{max(values):.0f}" if values else MISSING


def _all(states: Sequence[dict[str, Any]], key: str) -> list[float]:
    return [float(state[key]) for state in states if isinstance(state.get(key), (int, float))]


def scaling_table(
    rows: Sequence[ScalingRow], baseline: Baseline, now: Result, references: Sequence[Reference] = ()
) -> Table:
    """TP=1 beside TP=N: t/s (or ms), speed-up with its 95 % interval, efficiency, the published numbers."""
    base = baseline.result
    old, new = (f"TP={side.manifest.tp}" if side else "TP=?" for side in (base, now))
    published = [row for row in rows if row.published.base is not None or row.published.now is not None]
    headers = ["what", "test", old, new, "speed-up", "95 %", "efficiency"]
    headers += [f"published {old}", f"published {new}", "published speed-up"] if published else []
    lines = []
    for row in rows:
        line = [row.what, row.test, *(show(side) if side else MISSING for side in (row.base, row.now))]
        line += [f"{row.speed_up.value:.2f}×" if row.speed_up else MISSING, interval(row)]
        line += [f"{row.efficiency:.0%}" if row.efficiency is not None else MISSING]
        if published:
            line += [_number(row.published.base), _number(row.published.now)]
            line += [f"{row.published.speed_up:.2f}×" if row.published.speed_up else ""]
        lines.append(tuple(line))
    return Table("scaling", tuple(headers), tuple(lines), _scaling_notes(baseline, now, references, bool(published)), 2)


def interval(row: ScalingRow) -> str:
    """The interval of a speed-up in words."""
    gain = row.speed_up
    if gain is None:
        return MISSING
    if gain.low is None or gain.high is None:
        return "one run"
    text = f"{gain.low:.2f}–{gain.high:.2f}"
    return text if gain.significant else f"{text} (not significant)"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _scaling_notes(
    baseline: Baseline, now: Result, references: Sequence[Reference], published: bool
) -> tuple[str, ...]:
    """Units, conditions, sources."""
    notes = [f"t/s; {TTFR} in ms; a speed-up above 1 is better; ± is the sample standard deviation"]
    if baseline.path:
        notes.append(f"baseline: {baseline.path.name}")
    told = [str(item) for item in baseline.differences if not item.must_agree]
    if told:
        notes.append("also different: " + "; ".join(told))
    for reference in references:
        if reference.depth_mode != now.manifest.depth_mode:
            mode = now.manifest.depth_mode
            notes.append(f"not shown, measured in mode {reference.depth_mode!r}, this in {mode!r}: {reference.source}")
        elif published:
            with_what = f" ({reference.measured_with})" if reference.measured_with else ""
            notes.append(f"published: {reference.source}{with_what}")
    return tuple(notes)


def to_markdown(tables: Sequence[Table], lines: Sequence[str] = ()) -> str:
    """Tables as Markdown, below the lines that must be read first."""
    parts = [f"> **{line}**" for line in lines]
    for table in tables:
        align = [":---" if column < table.text_columns else "---:" for column in range(len(table.headers))]
        grid = [table.headers, tuple(align), *table.rows]
        parts.append("\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in grid))
        parts += ["\n".join(f"- {note}" for note in table.notes)] if table.notes else []
    return "\n\n".join(parts) + "\n"


def to_csv(result: Result) -> str:
    """llama-benchy's CSV columns, then ours."""
    pairs = {"t_s": "throughput", "t_s_req": "req_throughput", "peak_ts": "peak", "peak_ts_req": "peak_req"}
    times = ("ttfr", "est_ppt", "e2e_ttft")
    headers = ["model", "test_name"]
    headers += [f"{name}_{part}" for name in (*pairs, *times, "t_s_wall") for part in ("mean", "std")]
    headers += [f"{name}_{mark}" for name in ("e2e_ttft_ms", "tpot_ms", "itl_ms") for mark in PERCENTILES]
    headers += ["requests", "failed", "depth_mode"]
    out = io.StringIO()
    writer = csv.DictWriter(out, headers, lineterminator="\n")
    writer.writeheader()
    for row in result.rows:
        tail = suffix(row.context_size, row.concurrency, result.most_concurrency)
        common: dict[str, Any] = {"model": result.manifest.model, "requests": row.requests, "failed": row.failed}
        common["depth_mode"] = result.manifest.depth_mode
        pp = {"t_s": row.pp_throughput, "t_s_req": row.pp_req_throughput}
        pp |= {"ttfr": row.ttfr, "est_ppt": row.est_ppt, "e2e_ttft": row.e2e_ttft}
        tg = {"t_s": row.tg_throughput, "t_s_req": row.tg_req_throughput, "peak_ts": row.peak_throughput}
        tg |= {"peak_ts_req": row.peak_req_throughput, "t_s_wall": row.tg_wall_throughput}
        writer.writerow(common | {"test_name": row.shape.names[0] + tail} | _flat(pp) | _marks(row, "e2e_ttft_ms"))
        marks = _marks(row, "tpot_ms", "itl_ms")
        writer.writerow(common | {"test_name": row.shape.names[1] + tail} | _flat(tg) | marks)
    return out.getvalue()


def _marks(row: Row, *names: str) -> dict[str, Any]:
    """Percentiles as columns."""
    told = row.percentiles or {}
    return {f"{name}_{mark}": told.get(name, {}).get(mark) for name in names for mark in PERCENTILES}


def _flat(stats: dict[str, Stat | None]) -> dict[str, Any]:
    """mean and std of each as two columns."""
    means = {f"{name}_mean": value.mean if value else None for name, value in stats.items()}
    return means | {f"{name}_std": value.std if value else None for name, value in stats.items()}
