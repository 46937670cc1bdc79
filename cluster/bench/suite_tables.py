"""What a suite's rows say together, in the form in which people publish it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cluster.bench.report import MISSING, Table, show
from cluster.bench.result import Result
from cluster.bench.rows import Row
from cluster.bench.statistics import Ratio, Stat, ratio


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
        ("tg t/s", *(_told(row.tg_throughput) for row in (without, using)),
         _change(without.tg_throughput, using.tg_throughput)),
        ("output (tokens)", *(_told(row.output_tokens) for row in (without, using)), ""),
        ("tool called", "", f"{using.tool_calls} of {using.requests}", ""),
    ]  # fmt: skip
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
