"""Results as tables of text: llama-benchy's table, memory per host, scaling, suites, series; Markdown and CSV. Pure."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cluster.bench.ceiling import UNKNOWN, Reading
from cluster.bench.endpoint import engine_notes
from cluster.bench.result import Baseline, Difference, Result, differences
from cluster.bench.rows import Row, suffix
from cluster.bench.sampling import busy_clocks
from cluster.bench.scaling import TG, TTFR, ScalingRow, scaling_rows
from cluster.bench.series import Point, Series
from cluster.bench.statistics import PERCENTILES, Ratio, Stat, ratio, t95
from cluster.bench.vary import short_key
from cluster.bench.warnings import some_names
from cluster.config.recipe import Reference
from cluster.deploy.moments import moment_names

MISSING = "n/a"


@dataclass(frozen=True, slots=True)
class Table:
    """A table to print; the first `text_columns` columns are words, the others numbers."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    text_columns: int = 1


def table_document(table: Table) -> dict[str, Any]:
    """A table of texts as JSON."""
    rows = [dict(zip(table.headers, row, strict=True)) for row in table.rows]
    return {"title": table.title, "rows": rows, "notes": list(table.notes)}


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


_CLIENTS = re.compile(r" \(c(\d+)\)$")


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
        """Its tensor-parallel size."""
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


def against(base: Entry, now: Entry, varied: Sequence[str] = ()) -> tuple[Difference, ...]:
    """What forbids to compare the two, but for what was varied on purpose."""
    found = differences(base.result.manifest, now.result.manifest)
    return tuple(item for item in found if item.must_agree and not _is_varied(item.key, varied))


CONSEQUENCES = {
    "image": ("image", "image_content", "versions"),
    "model": ("model", "revision", "weights"),
    "revision": ("revision",),
    "weights": ("weights",),
}
"""Conditions that follow from a recipe key by themselves."""


def _is_varied(key: str, varied: Sequence[str]) -> bool:
    """Whether a condition is one of the varied recipe keys, or follows from one."""
    plain = key.removeprefix("spec.").removeprefix("recipe.").replace("_", "-")
    for name in varied:
        roots = [name, f"vllm.{name}", *CONSEQUENCES.get(name.partition(".")[0], ())]
        for root in (root.replace("_", "-") for root in roots):
            if plain == root or plain.startswith(root + ".") or root.startswith(plain + "."):
                return True
    return False


def compare(base: Entry, now: Entry) -> list[Table]:
    """The scaling table of two sizes with the ceiling as a column; in its place what forbids it."""
    why_not = against(base, now)
    if why_not:
        text = f"{now.label} is not compared with {base.label}: " + "; ".join(map(str, why_not[:8]))
        return [Table("scaling", (), (), (text,))]
    rows = scaling_rows(base.result, now.result, now.references)
    told = Baseline(base.result, base.path, differences(base.result.manifest, now.result.manifest))
    table = with_ceiling(scaling_table(rows, told, now.result, now.references), rows, now)
    return [replace(table, title=f"scaling: {now.label} beside {base.label}")]


def with_ceiling(table: Table, rows: Sequence[ScalingRow], now: Entry) -> Table:
    """A scaling table with a column: what the memory of that many Sparks allows, and how much of it was reached."""
    if now.reading.bytes is None:
        return replace(table, notes=(*table.notes, f"ceiling n/a: {now.reading.why}"))
    cells = [_ceiling_cell(row, now) for row in rows]
    at = next((number for number, name in enumerate(table.headers) if name == "efficiency"), len(table.headers) - 1) + 1
    headers = (*table.headers[:at], f"ceiling {now.label}", *table.headers[at:])
    lines = tuple((*line[:at], cell, *line[at:]) for line, cell in zip(table.rows, cells, strict=True))
    note = (
        f"ceiling (part of it reached): 273 GB/s × {now.tp} ÷ {now.reading.bytes / 1e9:,.3g} GB a token "
        f"({now.reading.why}); the cache read at depth is not counted"
    )
    return replace(table, headers=headers, rows=lines, notes=(*table.notes, note))


def _ceiling_cell(row: ScalingRow, now: Entry) -> str:
    if row.what != TG:
        return ""
    found = _CLIENTS.search(row.test)
    ceiling = now.reading.ceiling_t_s(now.tp, int(found[1]) if found else 1)
    if ceiling is None:
        return "n/a"
    part = f" ({row.now.mean / ceiling:.0%})" if row.now else ""
    return f"{ceiling:,.1f}{part}"


TIMES = {"ttft_ms": "ttft (ms)", "itl_ms": "itl (ms)", "prefill_ms": "prefill (ms)", "queue_ms": "queue (ms)"}


def server_table(result: Result) -> Table | None:
    """The server's own times and counts beside ours; columns that no row tells are left out. None without any."""
    told = [(row.shape, cells(row.server)) for row in result.rows if row.server]
    if not told:
        return None
    names = list(dict.fromkeys(name for _, found in told for name in found))
    lines = []
    for shape, found in told:
        test = " ".join(shape.names) + suffix(shape.depth, shape.concurrency, result.most_concurrency)
        lines.append((test, *(found.get(name, MISSING) for name in names)))
    notes = ("means of its own counters over all runs of a row; ttft and itl are to be near ours",)
    return Table("what the server counted", ("test", *names), tuple(lines), notes)


def cells(server: Mapping[str, Any]) -> dict[str, str]:
    """The columns of one row; `accepted` is of the drafted tokens, in brackets by position in the draft."""
    found = {name: f"{server[key]:.2f}" for key, name in TIMES.items() if key in server}
    found["requests"] = str(server.get("requests", MISSING))
    if "preemptions" in server:
        found["preempted"] = str(server["preemptions"])
    if "prefix_cache_hit_rate" in server:
        found["cache hits"] = f"{server['prefix_cache_hit_rate']:.0%}"
    if "acceptance_rate" in server:
        each = ", ".join(f"{part:.0%}" for part in server.get("acceptance_per_position", ()))
        found["accepted"] = f"{server['acceptance_rate']:.0%}" + (f" ({each})" if each else "")
    if "acceptance_length" in server:
        found["tokens a step"] = f"{server['acceptance_length']:.2f}"
    return found


def suite_tables(suite: str, results: Sequence[Result]) -> list[Table]:
    """The tables of a suite's results, in the order of its parts; none for a suite whose rows say it all."""
    make = TABLES.get(suite)
    return make(results) if make else []


def _concurrency(results: Sequence[Result]) -> list[Table]:
    """All clients together against one alone."""
    rows = results[0].rows
    alone = next((row for row in rows if row.concurrency == 1), None)
    lines = []
    for row in rows:
        gain = _ratio(row.tg_throughput, alone.tg_throughput if alone else None)
        each = _ratio(row.tg_req_throughput, alone.tg_req_throughput if alone else None)
        told = (_told(row.tg_throughput), _times(gain), _told(row.tg_req_throughput), _times(each), _told(row.e2e_ttft))
        lines.append((f"{row.concurrency}", *told))
    headers = ("clients", "all together (t/s)", "× one client", "each (t/s)", "× alone", "e2e_ttft (ms)")
    return [Table("clients at the same time", headers, tuple(lines), text_columns=0)]


def _prefix(results: Sequence[Result]) -> list[Table]:
    """The time to first token of a prefix that is computed, and of one that is in the cache."""
    rows = results[0].rows
    lines, notes = [], []
    for cached in (row for row in rows if row.phase == "cached"):
        context = next((row for row in rows if row.shape.phase == "context" and _same(row, cached)), None)
        if context is None:
            continue
        gain = _ratio(context.e2e_ttft, cached.e2e_ttft)
        lines.append((f"{cached.context_size}", _told(context.e2e_ttft), _told(cached.e2e_ttft), _times(gain)))
        if cached.e2e_ttft is None:
            notes.append("no verified cache hit, so there is no speed-up: see the notes of the rows")
    headers = ("prefix (tokens)", "cold e2e_ttft (ms)", "cached e2e_ttft (ms)", "speed-up")
    return [Table("prefix cache", headers, tuple(lines), tuple(notes), text_columns=0)]


def _same(context: Row, cached: Row) -> bool:
    return (context.context_size, context.prompt_size, context.response_size, context.concurrency) == (
        *(cached.context_size, cached.prompt_size, cached.response_size, cached.concurrency),
    )


def _tools(results: Sequence[Result]) -> list[Table]:
    """A chat with a tool beside the same without."""
    if len(results) < 2:
        return []
    (without,), (using,) = results[0].rows, results[1].rows
    lines = [
        ("e2e_ttft (ms)", _told(without.e2e_ttft), _told(using.e2e_ttft), _change(without.e2e_ttft, using.e2e_ttft)),
        (
            "tg t/s",
            *(_told(row.tg_throughput) for row in (without, using)),
            _change(without.tg_throughput, using.tg_throughput),
        ),
        ("output (tokens)", *(_told(row.output_tokens) for row in (without, using)), ""),
        ("tool called", "", f"{using.tool_calls} of {using.requests}", ""),
    ]
    return [Table("a tool that the chat should call", ("", "without", "with", "change"), tuple(lines))]


def _sequential(results: Sequence[Result]) -> list[Table]:
    """Each output: tokens, seconds from the request to the last token, tokens a second over all of that."""
    row = results[0].rows[0]
    lines = []
    if row.e2e_ttft and row.tg_throughput and row.output_tokens:
        measured = zip(row.e2e_ttft.values, row.tg_throughput.values, row.output_tokens.values, strict=False)
        for number, (ttft_ms, rate, tokens) in enumerate(measured, 1):
            seconds = ttft_ms / 1e3 + (tokens - 1) / rate
            lines.append((f"{number}", f"{tokens:.0f}", f"{seconds:.2f}", f"{tokens / seconds:.1f}", f"{rate:.1f}"))
    notes = ("t/s: tokens ÷ all of the time; tg t/s: without the time to the first token",)
    return [Table("one after the other", ("run", "tokens", "time (s)", "t/s", "tg t/s"), tuple(lines), notes, 0)]


TABLES: dict[str, Callable[[Sequence[Result]], list[Table]]] = {
    "concurrency": _concurrency,
    "prefix-cache": _prefix,
    "tool-calls": _tools,
    "sequential": _sequential,
}


def _ratio(upper: Stat | None, lower: Stat | None) -> Ratio | None:
    return ratio(upper, lower) if upper and lower else None


def _told(value: Stat | None) -> str:
    return show(value) if value else MISSING


def _times(gain: Ratio | None) -> str:
    """`8.20× (8.05–8.35)`: with the 95 % interval where there is one."""
    if gain is None:
        return MISSING
    known = gain.low is not None and gain.high is not None
    return f"{gain.value:.2f}×" + (f" ({gain.low:.2f}–{gain.high:.2f})" if known else "")


def _change(before: Stat | None, after: Stat | None) -> str:
    """By how much, and whether the interval leaves out none at all."""
    gain = _ratio(after, before)
    if gain is None:
        return MISSING
    return f"{gain.value - 1:+.1%}" + ("" if gain.significant else " (not significant)")


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
