"""From the recorded bytes of one request to what the server said, with times: pure, after the round."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import httptools
import orjson

from cluster.bench.loader import Record


class EventSplitter:
    """Gives the data of each event once its blank line is there.

    Lines end in LF, CR or CRLF, also when CR and LF come in different portions; comments and fields other than
    `data` are left out; several data lines are joined by LF. Bytes stay bytes until an event is complete, so a
    character split over two portions is whole again.
    """

    __slots__ = ("_rest", "_skip_lf", "_started")

    def __init__(self) -> None:
        self._rest, self._skip_lf, self._started = b"", False, False

    def feed(self, data: bytes) -> list[bytes]:
        """The events that these bytes complete."""
        if not data:
            return []
        if self._skip_lf:
            data = data.removeprefix(b"\n")
        self._skip_lf = data.endswith(b"\r")
        rest = self._rest + data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if not self._started and len(rest) >= 3:
            self._started = True
            rest = rest.removeprefix(b"\xef\xbb\xbf")
        *blocks, self._rest = rest.split(b"\n\n")
        return [event for block in blocks if (event := _event(block)) is not None]

    def finish(self) -> list[bytes]:
        """What is left at the end of the stream: servers exist that leave out the last blank line."""
        rest, self._rest = self._rest, b""
        event = _event(rest)
        return [] if event is None else [event]


def _event(block: bytes) -> bytes | None:
    """The data of one event; None when it has none."""
    if block.startswith(b"data: ") and b"\n" not in block:
        return block[6:]
    lines = [line for line in block.split(b"\n") if line.startswith(b"data:") or line == b"data"]
    if not lines:
        return None
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)


@dataclass(slots=True)
class HttpAnswer:
    """One HTTP/1.1 answer. `complete` says that its own framing ended, or that it had none and the server closed."""

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    complete: bool = False
    problem: str = ""

    @property
    def body(self) -> bytes:
        return b"".join(data for _, data in self.pieces)


class _Listener:
    """Collects what httptools tells; `now` is the time of the bytes that are being fed."""

    def __init__(self) -> None:
        self.answer = HttpAnswer()
        self.now = 0.0

    def on_header(self, name: bytes, value: bytes) -> None:
        self.answer.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        self.answer.pieces.append((self.now, data))

    def on_message_complete(self) -> None:
        self.answer.complete = True


def read_http(record: Record) -> HttpAnswer:
    """Parse a recorded answer. What is wrong with it is told in `problem`, never raised."""
    listener = _Listener()
    answer = listener.answer
    parser = httptools.HttpResponseParser(listener)
    try:
        for listener.now, data in record.chunks:
            parser.feed_data(data)
            if answer.complete:
                break
    except httptools.HttpParserError as error:
        answer.problem = f"the answer is not HTTP ({error})"
    packed = answer.headers.get("content-encoding", "identity")
    if packed.lower() != "identity" and not answer.problem:
        answer.problem = f"the answer is packed ({packed}), though none such was asked for: its times mean nothing"
    status = parser.get_status_code()
    answer.status = status or None
    framed = "content-length" in answer.headers or "chunked" in answer.headers.get("transfer-encoding", "").lower()
    if answer.status and record.how == "closed" and not framed and not answer.problem:
        answer.complete = True
    if not answer.complete and not answer.problem:
        size = sum(len(data) for _, data in record.chunks)
        text = {
            "refused": "no connection",
            "timeout": "time-out",
            "reset": f"connection reset after {size} bytes",
            "closed": f"the server closed the connection after {size} bytes, before the answer was complete",
        }.get(record.how, "the answer is not complete")
        answer.problem = f"{text}: {record.error}" if record.error else text
    return answer


def error_text(body: bytes, limit: int = 400) -> str:
    """The server's own words in an error body (OpenAI, vLLM, FastAPI and llama.cpp forms), else the body's begin."""
    said: Any = body.decode("utf-8", "replace").strip()
    with suppress(ValueError):
        said = orjson.loads(body)
    for key in ("error", "message", "detail"):
        if isinstance(said, dict) and said.get(key):
            said = said[key]
    return (said if isinstance(said, str) else orjson.dumps(said).decode())[:limit]


Counted = Literal["per event", "token ids", "one an event", "spread", "not"]


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """One request. Times are seconds on the round's clock; None where the server did not get that far.

    `tokens` are the events that carry generated tokens, as (time, how many). How their numbers are known is
    `counted`: "per event" (the server's running usage), "token ids" (listed in the event), "one an event" (as many
    events as the final usage counts), "spread" (the final usage, spread evenly: an estimate), "not" (no usage: the
    numbers are 0 and mean nothing). `error` is empty for a request that was served to its end. `cached_from` says who
    told `cached_tokens`: the answer, or the server's counters. `server_prefill_from`: the field that told it. `model`:
    who answered, by its own name.
    """

    t0_s: float
    end_s: float
    status: int | None = None
    error: str = ""
    first_response_s: float | None = None
    tokens: tuple[tuple[float, float], ...] = ()
    counted: Counted = "not"
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cached_from: str = "answer"
    finish_reason: str = ""
    server_prefill_s: float | None = None
    server_prefill_from: str = ""
    server_queue_s: float | None = None
    text: str = ""
    model: str = ""

    @property
    def first_token_s(self) -> float | None:
        """Time of the first event that carries a generated token."""
        return self.tokens[0][0] if self.tokens else None


@dataclass(frozen=True, slots=True)
class _Event:
    """An event with choices. `carries`: text, reasoning or a tool call is in it; `opens`: only the role is."""

    t: float
    carries: bool
    opens: bool
    ends: bool
    ids: int | None
    used: int | None


@dataclass(slots=True)
class _Stream:
    """What has been read of a stream so far; `ended` once the server has said [DONE]."""

    events: list[_Event] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    finish_reason: str = ""
    ended: bool = False
    error: str = ""
    prefill_s: float | None = None
    prefill_from: str = ""
    queue_s: float | None = None
    cached: int | None = None
    model: str = ""
    text: list[str] = field(default_factory=list)


def read_stream(record: Record) -> RequestTrace:
    """Read one streamed completion. Nothing raises: what went wrong is the trace's `error`."""
    answer = read_http(record)
    if answer.status is None or answer.status >= 300:
        said = error_text(answer.body)
        why = f"HTTP {answer.status}: {said}" if answer.status else answer.problem
        return RequestTrace(record.t0_s, record.end_s, answer.status, why)
    stream, splitter, t = _Stream(), EventSplitter(), 0.0
    for t, piece in answer.pieces:
        for data in splitter.feed(piece):
            _take(stream, t, data)
    for data in splitter.finish():
        _take(stream, t, data)
    total = stream.usage.get("completion_tokens")
    counted, tokens = count_tokens(stream.events, total)
    details = stream.usage.get("prompt_tokens_details") or {}
    return RequestTrace(
        t0_s=record.t0_s,
        end_s=record.end_s,
        status=answer.status,
        error=stream.error or answer.problem or _what_is_wrong(answer, stream, sum(n for _, n in tokens)),
        first_response_s=stream.events[0].t if stream.events else None,
        tokens=tuple(tokens),
        counted=counted,
        prompt_tokens=stream.usage.get("prompt_tokens"),
        completion_tokens=total,
        cached_tokens=details.get("cached_tokens", stream.cached),
        finish_reason=stream.finish_reason,
        server_prefill_s=stream.prefill_s,
        server_prefill_from=stream.prefill_from,
        server_queue_s=stream.queue_s,
        text="".join(stream.text),
        model=stream.model,
    )


def _take(stream: _Stream, t: float, data: bytes) -> None:
    if data.strip() == b"[DONE]":
        stream.ended = True
        return
    try:
        document = orjson.loads(data)
    except ValueError:
        stream.error = stream.error or f"an event is not JSON: {data[:120]!r}"
        return
    if not isinstance(document, dict):
        return
    if document.get("error") or document.get("object") == "error":
        stream.error = stream.error or error_text(data) or "the server reported an error"
        return
    usage = document.get("usage")
    if isinstance(usage, dict):
        stream.usage.update({key: value for key, value in usage.items() if value is not None})
    if isinstance(document.get("model"), str):
        stream.model = document["model"] or stream.model
    _take_times(stream, document)
    choices = document.get("choices")
    if isinstance(choices, list) and choices:
        stream.events.append(_read_choices(stream, t, choices, _used(document)))


def _take_times(stream: _Stream, document: dict[str, Any]) -> None:
    """Read the server's own times: llama.cpp's `timings`, vLLM's `metrics` (--enable-per-request-metrics).

    vLLM's time to first token begins when the request is scheduled: the time in the queue is not in it.
    """
    for group, name in (("timings", "prompt_ms"), ("metrics", "time_to_first_token_ms")):
        section = found if isinstance(found := document.get(group), dict) else {}
        if isinstance(section.get(name), (int, float)):
            stream.prefill_s, stream.prefill_from = section[name] / 1e3, f"{group}.{name}"
        if isinstance(section.get("queue_time_ms"), (int, float)):
            stream.queue_s = section["queue_time_ms"] / 1e3
        if isinstance(section.get("cache_n"), int):
            stream.cached = section["cache_n"]


def _used(document: dict[str, Any]) -> int | None:
    """Tokens generated so far, by the running usage, or llama.cpp's running `timings`."""
    for group, name in (("usage", "completion_tokens"), ("timings", "predicted_n")):
        section = document.get(group)
        if isinstance(section, dict) and isinstance(section.get(name), int):
            return int(section[name])
    return None


def _read_choices(stream: _Stream, t: float, choices: list[Any], used: int | None) -> _Event:
    carries = opens = ends = False
    ids: int | None = None
    for choice in (choice for choice in choices if isinstance(choice, dict)):
        delta = choice.get("delta") or {}
        text = choice.get("text") or delta.get("content") or ""
        reasoning = delta.get("reasoning") or delta.get("reasoning_content")
        calls = delta.get("tool_calls") or delta.get("function_call")
        carries = carries or bool(text or reasoning or calls)
        opens = opens or "role" in delta
        if choice.get("finish_reason"):
            stream.finish_reason, ends = str(choice["finish_reason"]), True
        if isinstance(choice.get("token_ids"), list):
            ids = (ids or 0) + len(choice["token_ids"])
        if isinstance(text, str) and text:
            stream.text.append(text)
    return _Event(t, carries, opens and not carries, ends, ids, used)


def _what_is_wrong(answer: HttpAnswer, stream: _Stream, tokens: float) -> str:
    """Why a stream without an error in it cannot be believed; empty when it can."""
    total, kind = stream.usage.get("completion_tokens"), answer.headers.get("content-type", "of no type")
    if not stream.events:
        return f"the answer holds no token; it is {kind}"
    if not stream.ended and not stream.finish_reason:
        return "the stream stopped in the middle: no finish_reason, no [DONE]"
    if isinstance(total, int) and tokens > total + 0.5:
        return f"the server counted {tokens:g} tokens while it sent them and {total} at the end"
    return "" if any(event.carries for event in stream.events) or tokens else "the answer holds no token"


def count_tokens(events: list[_Event], total: int | None) -> tuple[Counted, list[tuple[float, float]]]:
    """How many tokens each event carries, by the best count that the server gives, never by counting chunks.

    `total` is the final usage. Events without text can carry tokens (special ones, halves of a character).
    """
    carrying = [event for event in events if event.carries]
    if any(event.used for event in events) and all(event.used is not None for event in carrying):
        return "per event", _by_usage(events, total)
    if carrying and all(event.ids is not None for event in carrying):
        return "token ids", [(event.t, event.ids) for event in events if event.ids]
    if not total:
        return "not", [(event.t, 0) for event in carrying]
    unopened = [event for event in events if not event.opens]
    silent = [event for event in unopened if event.carries or not event.ends]
    for some in (carrying, silent, unopened):
        if len(some) == total:
            return "one an event", [(event.t, 1) for event in some]
    return "spread", [(event.t, total / len(carrying)) for event in carrying]


def _by_usage(events: Iterable[_Event], total: int | None) -> list[tuple[float, float]]:
    """Differences of the running count; what only the final usage counts belongs to the last event with choices."""
    tokens: list[tuple[float, float]] = []
    before, t = 0, 0.0
    counts = [(event.t, event.used) for event in events]
    for t, used in (*counts, *([(counts[-1][0], total)] if counts else [])):
        if used is not None and used > before:
            tokens.append((t, used - before))
            before = used
    return tokens
