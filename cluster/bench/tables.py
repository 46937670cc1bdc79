"""Tables of text: their one shape, and those of a measurement: llama-benchy's, hosts, server, suites. Pure."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
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


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its title, the value of an item, and how it is written: `form` for numbers, `missing` for None."""

    title: str
    value: Callable[[Any], Any]
    form: str = ""
    missing: str = MISSING

    def cell(self, item: Any) -> str:
        """The value as text; a mean and a ratio with what is known of their spread."""
        match self.value(item):
            case None:
                return self.missing
            case Stat() as value:
                return show(value)
            case Ratio(value, low, high):  # `8.20× (8.05–8.35)`: with the 95 % interval where there is one
                return f"{value:.2f}×" + (f" ({low:.2f}–{high:.2f})" if low is not None and high is not None else "")
            case value:
                return format(value, self.form)


def table(
    title: str, columns: Sequence[Column], items: Sequence[Any], notes: Sequence[str] = (), text_columns: int = 1
) -> Table:
    rows = tuple(tuple(column.cell(item) for column in columns) for item in items)
    return Table(title, tuple(column.title for column in columns), rows, tuple(notes), text_columns)


def show(value: Stat) -> str:
    """`6.93 ± 0.01` as llama-benchy writes it; a single value has no spread."""
    return f"{value.mean:.2f}" if value.std is None else f"{value.mean:.2f} ± {value.std:.2f}"


def known_columns(columns: Sequence[Column], items: Sequence[Any]) -> list[Column]:
    """Those that have a value of any item."""
    return [column for column in columns if any(column.value(item) not in (None, "") for item in items)]


def to_markdown(table: Table) -> str:
    """A table as Markdown, without its title."""
    align = tuple(":---" if column < table.text_columns else "---:" for column in range(len(table.headers)))
    grid = [table.headers, align, *table.rows]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in grid]
    return "\n\n".join(filter(None, ("\n".join(lines), "\n".join(f"- {note}" for note in table.notes))))


@dataclass(frozen=True, slots=True)
class Half:
    """The prompt or the output of a row, which llama-benchy has in lines of their own."""

    row: Row
    test: str
    is_output: bool


def halves(result: Result) -> list[Half]:
    """Both of every row, in order."""
    return [
        Half(row, name + suffix(row.context_size, row.concurrency, result.most_concurrency), is_output)
        for row in result.rows
        for name, is_output in zip(row.shape.names, (False, True), strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Metric:
    """A number of llama-benchy's table: its title there and in CSV, its fields of prompt and of output ("" for none).

    `shared`: known with several clients only.
    """

    title: str
    csv: str
    prompt: str
    output: str
    shared: bool = False

    def stat(self, half: Half) -> Stat | None:
        """The number of one line; None when it is not known, or does not apply."""
        key = self.output if half.is_output else self.prompt
        value: Stat | None = getattr(half.row, key) if key else None
        return value

    def value(self, half: Half) -> Stat | str | None:
        """The same, empty where it does not apply."""
        key = self.output if half.is_output else self.prompt
        return self.stat(half) or (None if key in (half.row.why or {}) else "")


METRICS = (
    Metric("t/s (total)", "t_s", "pp_throughput", "tg_throughput"),
    Metric("t/s (req)", "t_s_req", "pp_req_throughput", "tg_req_throughput", shared=True),
    Metric("peak t/s", "peak_ts", "", "peak_throughput"),
    Metric("peak t/s (req)", "peak_ts_req", "", "peak_req_throughput", shared=True),
    Metric("ttfr (ms)", "ttfr", "ttfr", ""),
    Metric("est_ppt (ms)", "est_ppt", "est_ppt", ""),
    Metric("e2e_ttft (ms)", "e2e_ttft", "e2e_ttft", ""),
    Metric("t/s (wall)", "t_s_wall", "", "tg_wall_throughput", shared=True),
)
"""llama-benchy's numbers in its order, then ours: the wall-clock total of several clients."""


def bench_table(result: Result) -> Table:
    """llama-benchy's columns in its order, then ours."""
    many = result.most_concurrency > 1
    columns = [Column("model", lambda half: result.manifest.model), Column("test", lambda half: half.test)]
    for metric in METRICS:
        if many or not metric.shared:
            columns.append(Column(metric.title if many else metric.title.removesuffix(" (total)"), metric.value))
    columns.append(Column("failed", lambda half: part_of(half.row.failed, half.row.requests)))
    if any(row.queued for row in result.rows):
        columns.append(Column("queued", lambda half: part_of(half.row.queued, half.row.concurrency)))
    return table("benchmark", columns, halves(result), row_notes(result), text_columns=2)


def part_of(count: int, total: int) -> str:
    return f"{count}/{total}" if count else "0"


def to_csv(result: Result, **known: object) -> str:
    """llama-benchy's CSV columns, then ours, last what is `known` of all lines."""
    parts = [f"{metric.csv}_{part}" for metric in METRICS for part in ("mean", "std")]
    marks = [(name, mark) for name in ("e2e_ttft_ms", "tpot_ms", "itl_ms") for mark in PERCENTILES]
    headers = ["model", "test_name", *parts, *(f"{name}_{mark}" for name, mark in marks)]
    out = io.StringIO()
    writer = csv.DictWriter(out, [*headers, "requests", "failed", "depth_mode", *known], lineterminator="\n")
    writer.writeheader()
    for half in halves(result):
        line: dict[str, Any] = {"model": result.manifest.model, "test_name": half.test} | known
        line |= {"requests": half.row.requests, "failed": half.row.failed, "depth_mode": result.manifest.depth_mode}
        for metric in METRICS:
            if value := metric.stat(half):
                line |= {f"{metric.csv}_mean": value.mean, f"{metric.csv}_std": value.std}
        for name, mark in marks:
            if half.is_output == (name != "e2e_ttft_ms"):
                line[f"{name}_{mark}"] = percentile(name, mark, half.row)
        writer.writerow(line)
    return out.getvalue()


def row_notes(result: Result) -> list[str]:
    """Notes, failures and reasons of all rows, each text once with the rows it is about; drift, and who measured."""
    about: dict[str, list[str]] = {}
    for row in result.rows:
        for text in (*row.notes, *(f"failed: {failure}" for failure in row.failures), *_lacks(row)):
            about.setdefault(text, []).append(row.shape.name)
    manifest, cached = result.manifest, result.manifest.depth_mode == "prefix-caching"
    notes = [*engine_notes(manifest.engine, concurrency=result.most_concurrency, prefix_caching=cached)]
    notes += [f"{text} [{some_names(names, len(result.rows))}]" for text, names in about.items()]
    notes += [f"sentinel: {result.sentinel}"] if result.sentinel else []
    notes += [f"client: {manifest.client_where} (Python {manifest.client_python})"] if manifest.client_where else []
    return notes


def _lacks(row: Row) -> list[str]:
    """The numbers that are missing, or are not those of all runs, by reason."""
    found: dict[str, list[str]] = {}
    for key, reason in (row.why or {}).items():
        value: Stat | None = getattr(row, key)
        state = "n/a" if value is None else f"from {len(value.values)} values only, n/a elsewhere"
        found.setdefault(f"{state}: {reason}", []).append(key)
    return [f"{', '.join(keys)} {text}" for text, keys in found.items()]


def latency_table(result: Result) -> Table:
    """Percentiles of TTFT, TPOT and ITL in ms."""
    columns = [Column("test", lambda row: both_names(row, result))]
    for name, title in (("e2e_ttft_ms", "ttft"), ("tpot_ms", "tpot"), ("itl_ms", "itl")):
        for mark in ("p50", "p90", "p99"):
            columns.append(Column(f"{title} {mark}", partial(percentile, name, mark), ".2f"))
    notes = ("ms; ttft and tpot over requests, itl over tokens; n/a: too few for one of them to lie beyond it",)
    return table("latency", columns, result.rows, notes)


def both_names(row: Row, result: Result) -> str:
    return " ".join(row.shape.names) + suffix(row.context_size, row.concurrency, result.most_concurrency)


def percentile(name: str, mark: str, row: Row) -> float | None:
    """`mark` (p50 …) of one of a row's latencies; None when too few were measured."""
    return (row.percentiles or {}).get(name, {}).get(mark)


def host_states(result: Result) -> dict[str, list[dict[str, Any]]]:
    """What each host reported during all rows, at whatever moments of their runs."""
    found: dict[str, list[dict[str, Any]]] = {}
    moments = [moment for row in result.rows for sample in row.machine for moment in sample.values()]
    for host, state in (pair for moment in moments if isinstance(moment, dict) for pair in moment.items()):
        if isinstance(state, dict):
            found.setdefault(host, []).append(state)
    return found


def extreme(result: Result, host: str, key: str, most: bool) -> float | None:
    """The highest or lowest of a number that a host reported during all rows; None when it did not."""
    values = [state.get(key) for state in host_states(result).get(host, ())]
    numbers = [float(value) for value in values if isinstance(value, (int, float))]
    return (max if most else min)(numbers) if numbers else None


def hosts_of(result: Result) -> list[str]:
    """The hosts of the manifest, else those that reported anything."""
    return [host.name for host in result.manifest.hosts] or sorted(host_states(result))


def memory_table(result: Result) -> Table | None:
    """GPU memory and free memory of each host, the highest and lowest over all rows; None when no host reported."""
    states = host_states(result)
    columns = [
        Column("host", str),
        Column("role", lambda host: next((str(one["role"]) for one in states[host] if one.get("role")), "")),
        Column("VRAM used (MiB)", lambda host: extreme(result, host, "gpu_memory_mib", most=True), ",.0f"),
        Column("available (MiB)", lambda host: extreme(result, host, "memory_available_mib", most=False), ",.0f"),
    ]
    notes = ("the most GPU memory and the least available memory of all looks at the hosts while rows were measured",)
    return table("memory per host", columns, list(states), notes, text_columns=2) if states else None


def machine_table(result: Result) -> Table | None:
    """What each host ran at while rows were measured, and what went over its links; None when no host reported."""
    runs = [run for row in result.rows for run in row.machine]
    of_host: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        for host in run.get("most", {}):
            of_host.setdefault(host, []).append(run)

    def clock(host: str) -> str | None:
        clocks = busy_clocks(of_host[host], host)
        return f"{min(clocks):.0f}–{max(clocks):.0f}" if clocks else None

    def throttled(host: str) -> str:
        reasons = [reason for run in of_host[host] for reason in run["most"][host].get("throttle", ())]
        return ", ".join(dict.fromkeys(reasons)) or "no"

    def traffic(host: str) -> str | None:
        moved: Counter[tuple[str, str]] = Counter()
        links = [link for run in of_host[host] for link in run["links"].get(host, ())]
        for link in links:
            moved[link["link"], "sent"] += link["sent_bytes"]
            moved[link["link"], "received"] += link["received_bytes"]
        names = dict.fromkeys(link["link"] for link in links)
        parts = (f"{name} {moved[name, 'sent'] / 1e9:.2f}/{moved[name, 'received'] / 1e9:.2f}" for name in names)
        return "; ".join(parts) or None

    columns = [
        Column("host", str),
        Column("SM clock (MHz)", clock),
        Column("power (W)", lambda host: extreme(result, host, "power_w", most=True), ".0f"),
        Column("°C", lambda host: extreme(result, host, "temperature_c", most=True), ".0f"),
        Column("throttled", throttled),
        Column("GB sent/received", traffic),
    ]
    notes = ["clocks while the GPU was at work, power and temperature at most, bytes over the links during rows only"]
    gaps = Counter(host for run in runs for host in run.get("lost", ()))
    notes += [f"{host}: without {count} runs, in which its connection was lost" for host, count in gaps.items()]
    return table("machines while measuring", columns, list(of_host), notes) if of_host else None


def server_table(result: Result) -> Table | None:
    """The server's own times and counts beside ours; columns that no row has are left out. None without any."""

    def counted(key: str) -> Callable[[Row], Any]:
        return lambda row: (row.server or {}).get(key)

    rows = [row for row in result.rows if row.server]
    columns = [
        Column("ttft (ms)", counted("ttft_ms"), ".2f"),
        Column("itl (ms)", counted("itl_ms"), ".2f"),
        Column("prefill (ms)", counted("prefill_ms"), ".2f"),
        Column("queue (ms)", counted("queue_ms"), ".2f"),
        Column("requests", lambda row: row.server.get("requests", MISSING)),
        Column("preempted", counted("preemptions")),
        Column("cache hits", counted("prefix_cache_hit_rate"), ".0%"),
        Column("accepted", accepted),
        Column("tokens a step", counted("acceptance_length"), ".2f"),
    ]
    columns = [Column("test", lambda row: both_names(row, result)), *known_columns(columns, rows)]
    notes = ("means of its own counters over all runs of a row; ttft and itl are to be near ours",)
    return table("what the server counted", columns, rows, notes) if rows else None


def accepted(row: Row) -> str | None:
    """The accepted part of the drafted tokens, in brackets by position in the draft."""
    server = row.server or {}
    if "acceptance_rate" not in server:
        return None
    each = ", ".join(f"{part:.0%}" for part in server.get("acceptance_per_position", ()))
    return f"{server['acceptance_rate']:.0%}" + (f" ({each})" if each else "")


def suite_tables(suite: str, results: Sequence[Result]) -> list[Table]:
    """The tables of a suite's results, in the order of its parts; none for a suite whose rows say it all."""
    made = SUITES[suite](results) if suite in SUITES else None
    return [made] if made else []


def _concurrency(results: Sequence[Result]) -> Table:
    """All clients together against one alone."""
    rows = results[0].rows
    alone = next((row for row in rows if row.concurrency == 1), None)
    columns = [
        Column("clients", lambda row: row.concurrency),
        Column("all together (t/s)", lambda row: row.tg_throughput),
        Column("× one client", lambda row: alone and ratio_of(row.tg_throughput, alone.tg_throughput)),
        Column("each (t/s)", lambda row: row.tg_req_throughput),
        Column("× alone", lambda row: alone and ratio_of(row.tg_req_throughput, alone.tg_req_throughput)),
        Column("e2e_ttft (ms)", lambda row: row.e2e_ttft),
    ]
    return table("clients at the same time", columns, rows, text_columns=0)


def _prefix(results: Sequence[Result]) -> Table:
    """The time to first token of a prefix that is computed, and of one that is in the cache."""

    def size(row: Row) -> tuple[int, ...]:
        return (row.context_size, row.prompt_size, row.response_size, row.concurrency)

    contexts = {size(row): row for row in reversed(results[0].rows) if row.shape.phase == "context"}
    pairs = [(contexts[size(row)], row) for row in results[0].rows if row.phase == "cached" and size(row) in contexts]
    columns = [
        Column("prefix (tokens)", lambda pair: pair[1].context_size),
        Column("cold e2e_ttft (ms)", lambda pair: pair[0].e2e_ttft),
        Column("cached e2e_ttft (ms)", lambda pair: pair[1].e2e_ttft),
        Column("speed-up", lambda pair: ratio_of(pair[0].e2e_ttft, pair[1].e2e_ttft)),
    ]
    unverified = [cached for _, cached in pairs if cached.e2e_ttft is None]
    notes = ["no verified cache hit, so there is no speed-up: see the notes of the rows"] * len(unverified)
    return table("prefix cache", columns, pairs, notes, text_columns=0)


def _tools(results: Sequence[Result]) -> Table | None:
    """A chat with a tool beside the same without; None when one of the two was not measured."""
    if len(results) < 2:
        return None
    (without,), (using,) = results[0].rows, results[1].rows
    lines = [
        ("e2e_ttft (ms)", without.e2e_ttft, using.e2e_ttft, _change(without.e2e_ttft, using.e2e_ttft)),
        ("tg t/s", without.tg_throughput, using.tg_throughput, _change(without.tg_throughput, using.tg_throughput)),
        ("output (tokens)", without.output_tokens, using.output_tokens, ""),
        ("tool called", "", f"{using.tool_calls} of {using.requests}", ""),
    ]
    titles = ("", "without", "with", "change")
    return table("a tool that the chat should call", columns_of(titles), lines)


def _sequential(results: Sequence[Result]) -> Table:
    """Each output: tokens, seconds from the request to the last token, tokens a second over all of that.

    A request that lacks one of its numbers is missing from that list alone, so only complete lists belong together.
    """
    row = results[0].rows[0]
    lists = [value.values if value else () for value in (row.e2e_ttft, row.tg_throughput, row.output_tokens)]
    complete = {len(values) for values in lists} == {row.requests - row.failed}
    lines = []
    for number, (ttft_ms, rate, tokens) in enumerate(zip(*lists, strict=True) if complete else (), 1):
        seconds = ttft_ms / 1e3 + (tokens - 1) / rate
        lines.append((number, tokens, seconds, tokens / seconds, rate))
    columns = columns_of(("run", "tokens", "time (s)", "t/s", "tg t/s"), ("", ".0f", ".2f", ".1f", ".1f"))
    notes = ("t/s: tokens ÷ all of the time; tg t/s: without the time to the first token",)
    missing = ("n/a: not every output has its time to first token, its rate and its count of tokens",)
    return table("one after the other", columns, lines, notes if complete else missing, text_columns=0)


SUITES: dict[str, Callable[[Sequence[Result]], Table | None]] = {
    "concurrency": _concurrency,
    "prefix-cache": _prefix,
    "tool-calls": _tools,
    "sequential": _sequential,
}


def columns_of(titles: Sequence[str], forms: Sequence[str] = ()) -> list[Column]:
    """The columns of items that are lines of values already."""

    def at(place: int) -> Callable[[Sequence[Any]], Any]:
        return lambda line: line[place]

    return [Column(title, at(place), forms[place] if place < len(forms) else "") for place, title in enumerate(titles)]


def ratio_of(upper: Stat | None, lower: Stat | None) -> Ratio | None:
    """How many times the one is the other; None when one of them is not known."""
    return ratio(upper, lower) if upper and lower else None


def _change(before: Stat | None, after: Stat | None) -> str | None:
    """By how much, and whether the interval leaves out none at all."""
    gain = ratio_of(after, before)
    if gain is None:
        return None
    return f"{gain.value - 1:+.1%}" + ("" if gain.significant else " (not significant)")
