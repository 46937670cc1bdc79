"""Tables of text: their one shape, and those of a measurement: llama-benchy's, hosts, server, suites. Pure."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cluster.bench.endpoint import engine_notes
from cluster.bench.result import Result, some_names
from cluster.bench.rows import Row, suffix
from cluster.bench.sampling import busy_clocks
from cluster.bench.statistics import PERCENTILES, Ratio, Stat, ratio

MISSING = "n/a"


@dataclass(frozen=True, slots=True)
class Table:
    """A table to print; the first `text_columns` columns are words, the others numbers."""

    title: str
    headers: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    text_columns: int = 1

    def document(self) -> dict[str, Any]:
        rows = [dict(zip(self.headers, row, strict=True)) for row in self.rows]
        return {"title": self.title, "rows": rows, "notes": list(self.notes)}


def table(
    title: str,
    lines: Sequence[Mapping[str, Any]],
    notes: Iterable[str] = (),
    text_columns: int = 1,
    optional: Collection[str] = (),
) -> Table:
    """A table of lines, each its values by column; `optional` columns are left out where no line has a value."""
    names = dict.fromkeys(name for line in lines for name in line)
    cells = {name: [cell(line.get(name, "")) for line in lines] for name in names}
    columns = {name: column for name, column in cells.items() if name not in optional or {*column} - {"", MISSING}}
    return Table(title, tuple(columns), tuple(zip(*columns.values(), strict=True)), tuple(notes), text_columns)


def cell(value: Any, form: str = "") -> str:
    """A value as text, a mean or ratio with what is known of its spread; `form` is for numbers."""
    match value:
        case None:
            return MISSING
        case Stat():
            return show(value)
        case Ratio(value, low, high):  # `8.20× (8.05–8.35)`: with the 95 % interval where there is one
            return f"{value:.2f}×" + (f" ({low:.2f}–{high:.2f})" if low is not None and high is not None else "")
        case _:
            return format(value, form)


def show(value: Stat) -> str:
    """`6.93 ± 0.01` as llama-benchy writes it; a single value has no spread."""
    return f"{value.mean:.2f}" if value.std is None else f"{value.mean:.2f} ± {value.std:.2f}"


def number(value: float) -> str:
    """A number with as many digits as can be distinguished: 0.25, 6.5, 11.2, 873, 12,400."""
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 2 else f"{value:.2g}"


def to_markdown(table: Table) -> str:
    """A table as Markdown, without its title."""
    align = tuple(":---" if column < table.text_columns else "---:" for column in range(len(table.headers)))
    grid = [table.headers, align, *table.rows]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in grid]
    return "\n\n".join(filter(None, ("\n".join(lines), "\n".join(f"- {note}" for note in table.notes))))


METRICS = (
    ("t/s (total)", "t_s", ("pp_throughput", "tg_throughput")),
    ("t/s (req)", "t_s_req", ("pp_req_throughput", "tg_req_throughput")),
    ("peak t/s", "peak_ts", ("", "peak_throughput")),
    ("peak t/s (req)", "peak_ts_req", ("", "peak_req_throughput")),
    ("ttfr (ms)", "ttfr", ("ttfr", "")),
    ("est_ppt (ms)", "est_ppt", ("est_ppt", "")),
    ("e2e_ttft (ms)", "e2e_ttft", ("e2e_ttft", "")),
    ("t/s (wall)", "t_s_wall", ("", "tg_wall_throughput")),
)
"""llama-benchy's numbers in its order, then ours: column, name in CSV, the row's fields for prompt and output."""

OF_SEVERAL = ("t/s (req)", "peak t/s (req)", "t/s (wall)")
"""Columns that only several clients have."""

LATENCIES = {"e2e_ttft_ms": "ttft", "tpot_ms": "tpot", "itl_ms": "itl"}


def halves(result: Result) -> Iterator[tuple[Row, str, int]]:
    """The two lines that llama-benchy has for a row: the row, the line's name, 0 for the prompt or 1 for the output."""
    for row in result.rows:
        for side, name in enumerate(row.shape.names):
            yield row, name + suffix(row.context_size, row.concurrency, result.most_concurrency), side


def bench_table(result: Result, title: str = "benchmark") -> Table:
    """llama-benchy's columns in its order, then ours."""
    many, lines = result.most_concurrency > 1, []
    for row, test, side in halves(result):
        line: dict[str, Any] = {"model": result.manifest.model, "test": test}
        for name, _, keys in METRICS:
            if many or name not in OF_SEVERAL:
                absent = None if keys[side] in (row.why or {}) else ""
                line[name if many else name.removesuffix(" (total)")] = getattr(row, keys[side], None) or absent
        line["failed"] = part_of(row.failed, row.requests)
        line["queued"] = part_of(row.queued, row.concurrency) if any(one.queued for one in result.rows) else ""
        lines.append(line)
    on = [f"GPUs of a host: {' / '.join(result.manifest.gpus)}"] if result.manifest.gpus else []
    return table(title, lines, [*on, *row_notes(result)], 2, optional=("queued",))


def part_of(count: int, total: int) -> str:
    return f"{count}/{total}" if count else "0"


def to_csv(result: Result, **known: object) -> str:
    """llama-benchy's CSV columns, then ours, last what is `known` of all lines."""
    marks = [(name, mark) for name in LATENCIES for mark in PERCENTILES]
    headers = ["model", "test_name", *(f"{name}_{part}" for _, name, _ in METRICS for part in ("mean", "std"))]
    headers += [*(f"{name}_{mark}" for name, mark in marks), "requests", "failed", "depth_mode"]
    out = io.StringIO()
    writer = csv.DictWriter(out, [*headers, *known], lineterminator="\n")
    writer.writeheader()
    for row, test, side in halves(result):
        line: dict[str, Any] = {"model": result.manifest.model, "test_name": test} | known
        line |= {"requests": row.requests, "failed": row.failed, "depth_mode": result.manifest.depth_mode}
        for _, name, keys in METRICS:
            if value := getattr(row, keys[side], None):
                line |= {f"{name}_mean": value.mean, f"{name}_std": value.std}
        of_side = [(name, mark) for name, mark in marks if (name == "e2e_ttft_ms") == (side == 0)]
        line |= {f"{name}_{mark}": (row.percentiles or {}).get(name, {}).get(mark) for name, mark in of_side}
        writer.writerow(line)
    return out.getvalue()


def row_notes(result: Result) -> list[str]:
    """Notes, failures and reasons of all rows, each text once with the rows it is about; drift, and who measured."""
    about: dict[str, list[str]] = {}
    for row in result.rows:
        lacks: dict[str, list[str]] = {}
        for key, reason in (row.why or {}).items():
            value: Stat | None = getattr(row, key)
            state = "n/a" if value is None else f"from {len(value.values)} values only, n/a elsewhere"
            lacks.setdefault(f"{state}: {reason}", []).append(key)
        texts = [*row.notes, *(f"failed: {failure}" for failure in row.failures)]
        for text in (*texts, *(f"{', '.join(keys)} {text}" for text, keys in lacks.items())):
            about.setdefault(text, []).append(row.shape.name)
    manifest, cached = result.manifest, result.manifest.depth_mode == "prefix-caching"
    each = -(-result.most_concurrency // max(1, len(manifest.replicas)))  # of one server
    notes = [*engine_notes(manifest.engine, concurrency=each, prefix_caching=cached)]
    if manifest.replicas:
        notes.append(f"requests go in turn to {len(manifest.replicas)} servers: {', '.join(manifest.replicas)}")
    notes += [f"{text} [{some_names(names, len(result.rows))}]" for text, names in about.items()]
    notes += [f"sentinel: {result.sentinel}"] if result.sentinel else []
    notes += [f"client: {manifest.client_where} (Python {manifest.client_python})"] if manifest.client_where else []
    return notes


def latency_table(result: Result) -> Table:
    """Percentiles of TTFT, TPOT and ITL in ms."""
    lines = []
    for row in result.rows:
        line = {"test": both_names(row, result)}
        for name, title in LATENCIES.items():
            known = (row.percentiles or {}).get(name, {})
            line |= {f"{title} {mark}": cell(known.get(mark), ".2f") for mark in ("p50", "p90", "p99")}
        lines.append(line)
    notes = ("ms; ttft and tpot over requests, itl over tokens; n/a: too few for one of them to lie beyond it",)
    return table("latency", lines, notes)


def both_names(row: Row, result: Result) -> str:
    return " ".join(row.shape.names) + suffix(row.context_size, row.concurrency, result.most_concurrency)


def host_states(result: Result) -> dict[str, list[dict[str, Any]]]:
    """What each host reported during all rows, at whatever moments of their runs."""
    found: dict[str, list[dict[str, Any]]] = {}
    for sample in (sample for row in result.rows for sample in row.machine):
        for moment in ("before", "after", "least", "most"):
            for host, state in sample.get(moment, {}).items():
                found.setdefault(host, []).append(state)
    return found


def extreme(result: Result, host: str, key: str, pick: Callable[[list[float]], float]) -> float | None:
    """The highest or lowest of a number that a host reported during all rows (`pick`: max or min); None without any."""
    values = [state[key] for state in host_states(result).get(host, ()) if state.get(key) is not None]
    return pick(values) if values else None


def hosts_of(result: Result) -> list[str]:
    """The hosts of the manifest, else those that reported anything."""
    return [host.name for host in result.manifest.hosts] or sorted(host_states(result))


def memory_table(result: Result) -> Table | None:
    """GPU memory and free memory of each host, the highest and lowest over all rows; None when no host reported."""
    lines = [
        {
            "host": host,
            "role": next((state["role"] for state in states if state.get("role")), ""),
            "VRAM used (MiB)": cell(extreme(result, host, "gpu_memory_mib", max), ",.0f"),
            "available (MiB)": cell(extreme(result, host, "memory_available_mib", min), ",.0f"),
        }
        for host, states in host_states(result).items()
    ]
    notes = ("the most GPU memory and the least available memory of all looks at the hosts while rows were measured",)
    return table("memory per host", lines, notes, 2) if lines else None


def machine_table(result: Result) -> Table | None:
    """What each host ran at while rows were measured, and what went over its links; None when no host reported."""
    runs = [run for row in result.rows for run in row.machine]
    lines = []
    for host in dict.fromkeys(host for run in runs for host in run.get("most", {})):
        own = [run for run in runs if host in run.get("most", {})]
        clocks = busy_clocks(own, host)
        reasons = dict.fromkeys(reason for run in own for reason in run["most"][host].get("throttle", ()))
        moved: dict[str, Counter[str]] = {}
        for link in (link for run in own for link in run["links"].get(host, ())):
            moved.setdefault(link["link"], Counter()).update(sent=link["sent_bytes"], received=link["received_bytes"])
        traffic = (f"{link} {of['sent'] / 1e9:.2f}/{of['received'] / 1e9:.2f}" for link, of in moved.items())
        lines.append(
            {
                "host": host,
                "SM clock (MHz)": f"{min(clocks):.0f}–{max(clocks):.0f}" if clocks else None,
                "power (W)": cell(extreme(result, host, "power_w", max), ".0f"),
                "°C": cell(extreme(result, host, "temperature_c", max), ".0f"),
                "throttled": ", ".join(reasons) or "no",
                "GB sent/received": "; ".join(traffic) or None,
            }
        )
    notes = ["clocks while the GPU was at work, power and temperature at most, bytes over the links during rows only"]
    gaps = Counter(host for run in runs for host in run.get("lost", ()))
    notes += [f"{host}: without {count} runs, in which its connection was lost" for host, count in gaps.items()]
    return table("machines while measuring", lines, notes) if lines else None


SERVER = {
    "ttft (ms)": ("ttft_ms", ".2f"),
    "itl (ms)": ("itl_ms", ".2f"),
    "prefill (ms)": ("prefill_ms", ".2f"),
    "queue (ms)": ("queue_ms", ".2f"),
    "requests": ("requests", ""),
    "preempted": ("preemptions", ""),
    "cache hits": ("prefix_cache_hit_rate", ".0%"),
    "accepted": ("acceptance_rate", ".0%"),
    "tokens a step": ("acceptance_length", ".2f"),
}
"""Columns of what the server counted: its name in a row's `server`, and how it is written."""


def server_table(result: Result, title: str = "what the server counted") -> Table | None:
    """The server's own times and counts beside ours; columns that no row has are left out. None without any."""
    lines = []
    for row in result.rows:
        if row.server:
            line = {name: cell(row.server.get(key), form) for name, (key, form) in SERVER.items()}
            if each := row.server.get("acceptance_per_position"):
                line["accepted"] += f" ({', '.join(f'{part:.0%}' for part in each)})"
            lines.append({"test": both_names(row, result)} | line)
        for name, own in (row.replicas or {}).items():
            values = {title: cell((own or {}).get(key), form) for title, (key, form) in SERVER.items()}
            lines.append({"test": f"  {name}"} | values)
    notes = ("means of its own counters over all runs of a row; ttft and itl are to be near ours",)
    return table(title, lines, notes, optional=SERVER.keys() - {"requests"}) if lines else None


def suite_tables(suite: str, results: Sequence[Result]) -> list[Table]:
    """The tables of a suite's results, in the order of its parts; none for a suite whose rows say it all."""
    made = SUITES[suite](results) if suite in SUITES else None
    return [made] if made else []


def _concurrency(results: Sequence[Result]) -> Table:
    """All clients together against one alone."""
    alone = next((row for row in results[0].rows if row.concurrency == 1), None)
    lines = [
        {
            "clients": row.concurrency,
            "all together (t/s)": row.tg_throughput,
            "× one client": alone and ratio(row.tg_throughput, alone.tg_throughput),
            "each (t/s)": row.tg_req_throughput,
            "× alone": alone and ratio(row.tg_req_throughput, alone.tg_req_throughput),
            "e2e_ttft (ms)": row.e2e_ttft,
        }
        for row in results[0].rows
    ]
    return table("clients at the same time", lines, text_columns=0)


def _prefix(results: Sequence[Result]) -> Table:
    """The time to first token of a prefix that is computed, and of one that is in the cache."""
    rows = {row.shape: row for row in reversed(results[0].rows)}
    pairs = [
        (context, row)
        for row in results[0].rows
        if row.phase == "cached" and (context := rows.get(replace(row.shape, phase="context")))
    ]
    lines = [
        {
            "prefix (tokens)": cached.context_size,
            "cold e2e_ttft (ms)": context.e2e_ttft,
            "cached e2e_ttft (ms)": cached.e2e_ttft,
            "speed-up": ratio(context.e2e_ttft, cached.e2e_ttft),
        }
        for context, cached in pairs
    ]
    unverified = any(cached.e2e_ttft is None for _, cached in pairs)
    notes = ("no verified cache hit, so there is no speed-up: see the notes of the rows",) if unverified else ()
    return table("prefix cache", lines, notes, text_columns=0)


def _tools(results: Sequence[Result]) -> Table | None:
    """A chat with a tool beside the same without; None when one of the two was not measured."""
    if len(results) < 2:
        return None
    (without,), (using,) = results[0].rows, results[1].rows
    lines: list[dict[str, Any]] = []
    for name, key in (("e2e_ttft (ms)", "e2e_ttft"), ("tg t/s", "tg_throughput"), ("output (tokens)", "output_tokens")):
        before, after = getattr(without, key), getattr(using, key)
        line = {"": name, "without": before, "with": after, "change": ""}
        if key != "output_tokens":
            gain = ratio(after, before)
            sure = "" if gain is None or gain.significant else " (not significant)"
            line["change"] = gain and f"{gain.value - 1:+.1%}{sure}"
        lines.append(line)
    lines.append({"": "tool called", "with": f"{using.tool_calls} of {using.requests}"})
    return table("a tool that the chat should call", lines)


def _sequential(results: Sequence[Result]) -> Table:
    """Each output: tokens, seconds from the request to the last token, tokens a second over all of that.

    A request that lacks one of its numbers is missing from that list alone, so only complete lists belong together.
    """
    row = results[0].rows[0]
    lists = [value.values if value else () for value in (row.e2e_ttft, row.tg_throughput, row.output_tokens)]
    if {len(values) for values in lists} != {row.requests - row.failed}:
        missing = "n/a: not every output has its time to first token, its rate and its count of tokens"
        return table("one after the other", (), (missing,), text_columns=0)
    lines = []
    for number, (ttft_ms, rate, tokens) in enumerate(zip(*lists, strict=True), 1):
        seconds = ttft_ms / 1e3 + (tokens - 1) / rate
        values = {"time (s)": f"{seconds:.2f}", "t/s": f"{tokens / seconds:.1f}", "tg t/s": f"{rate:.1f}"}
        lines.append({"run": number, "tokens": f"{tokens:.0f}"} | values)
    notes = ("t/s: tokens ÷ all of the time; tg t/s: without the time to the first token",)
    return table("one after the other", lines, notes, text_columns=0)


SUITES: dict[str, Callable[[Sequence[Result]], Table | None]] = {
    "concurrency": _concurrency,
    "prefix-cache": _prefix,
    "tool-calls": _tools,
    "sequential": _sequential,
}
