"""From the recorded bytes of one request to what the server sent, with times: pure, after the batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import httptools
import orjson

from cluster.bench.loader import RequestRecord


@dataclass(slots=True)
class HttpAnswer:
    """One HTTP/1.1 answer. `complete`: its own framing ended, or it had none and the server closed the connection.

    httptools calls the methods; `now` is the time of the bytes that are being parsed.
    """

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    complete: bool = False
    problem: str = ""
    now: float = 0.0

    @property
    def body(self) -> bytes:
        return b"".join(data for _, data in self.pieces)

    def events(self) -> Iterator[tuple[float, bytes]]:
        """The data of each server-sent event, when its line was there: every server has one `data` line an event.

        Lines end in LF or CRLF; servers exist that leave out the last line end. Bytes stay bytes until a line is
        complete, so a character split over two portions is complete again.
        """
        rest = b""
        for t, data in (*self.pieces, *((t, b"\n") for t, _ in self.pieces[-1:])):
            *lines, rest = (rest + data).split(b"\n")
            yield from ((t, line[5:].strip()) for line in lines if line.startswith(b"data:"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        self.pieces.append((self.now, data))

    def on_message_complete(self) -> None:
        self.complete = True


def read_http(record: RequestRecord) -> HttpAnswer:
    """Parse a recorded answer. What is wrong with it is in `problem`, never raised."""
    answer = HttpAnswer()
    parser = httptools.HttpResponseParser(answer)
    try:
        for answer.now, data in record.chunks:
            parser.feed_data(data)
            if answer.complete:
                break
    except httptools.HttpParserError as error:
        answer.problem = f"the answer is not HTTP ({error})"
    answer.status = parser.get_status_code() or None
    delimited = "content-length" in answer.headers or "chunked" in answer.headers.get("transfer-encoding", "").lower()
    if answer.status and record.how == "closed" and not delimited and not answer.problem:
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
    """The message of an error body (OpenAI, vLLM, FastAPI and llama.cpp forms), else the first part of the body."""
    found: Any = body.decode("utf-8", "replace").strip()
    with suppress(ValueError):
        found = orjson.loads(body)
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(key):
            found = found[key]
    return (found if isinstance(found, str) else orjson.dumps(found).decode())[:limit]


Counted = Literal["per event", "one an event", "spread", "not"]


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """One request. Times are seconds on the batch's clock; None where the server did not get that far.

    `tokens` are the events that hold generated tokens, as (time, how many). How their numbers are known is
    `counted`: "per event" (the server's running usage), "one an event" (as many events as the final usage counts),
    "spread" (the final usage, spread evenly: an estimate), "not" (no usage: the numbers are 0 and mean nothing).
    `error` is empty for a request that was served to its end. `cached_from`: whether the answer or the server's
    counters gave `cached_tokens`. `server_prefill_from`: the field that gave it. `model`: who answered, by its name.
    """

    t0_s: float
    status: int | None = None
    error: str = ""
    first_response_s: float | None = None
    tokens: tuple[tuple[float, float], ...] = ()
    counted: Counted = "not"
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    cached_from: str = "answer"
    finish_reason: str = ""
    server_prefill_s: float | None = None
    server_prefill_from: str = ""
    server_queue_s: float | None = None
    model: str = ""

    @property
    def first_token_s(self) -> float | None:
        """Time of the first event that holds a generated token."""
        return self.tokens[0][0] if self.tokens else None


@dataclass(frozen=True, slots=True)
class _Event:
    """An event with choices. `filled`: text, reasoning or a tool call is in it; `opens`: only the role is.

    `used`: tokens generated so far, by the running usage.
    """

    t: float
    filled: bool
    opens: bool
    ends: bool
    used: int | None


class _Stream:
    """What has been read of a stream so far. `found`: fields of RequestTrace; `ended`: the server has sent [DONE]."""

    def __init__(self) -> None:
        self.events: list[_Event] = []
        self.usage: dict[str, Any] = {}
        self.found: dict[str, Any] = {}
        self.error, self.ended = "", False

    def add(self, t: float, data: bytes) -> None:
        """Read the data of one event, that of a server which may send anything."""
        if data == b"[DONE]":
            self.ended = True
            return
        try:
            document = orjson.loads(data)
            if document.get("error") or document.get("object") == "error":
                self.error = self.error or error_text(data)
            else:
                self._read(t, document)
        except (ValueError, TypeError, AttributeError):
            self.error = self.error or f"an event cannot be read: {data[:120]!r}"

    def _read(self, t: float, document: dict[str, Any]) -> None:
        found, usage = self.found, document.get("usage") or {}
        self.usage |= {key: value for key, value in usage.items() if value is not None}
        if document.get("model"):
            found["model"] = document["model"]
        timings, metrics = document.get("timings") or {}, document.get("metrics") or {}
        if "prompt_ms" in timings:  # llama.cpp
            found |= {"server_prefill_s": timings["prompt_ms"] / 1e3, "server_prefill_from": "timings.prompt_ms"}
            found["cached_tokens"] = timings.get("cache_n")
        if (first_ms := metrics.get("time_to_first_token_ms")) is not None:
            # vLLM with --enable-per-request-metrics; it begins when the request is scheduled, after the queue
            found |= {"server_prefill_s": first_ms / 1e3, "server_prefill_from": "metrics.time_to_first_token_ms"}
        if metrics.get("queue_time_ms") is not None:
            found["server_queue_s"] = metrics["queue_time_ms"] / 1e3
        filled = opens = ends = False
        choices = document.get("choices") or ()
        for choice in choices:
            delta = choice.get("delta") or {}
            text = choice.get("text") or delta.get("content") or ""
            reasoning = delta.get("reasoning") or delta.get("reasoning_content")
            filled = filled or bool(text or reasoning or delta.get("tool_calls"))
            opens = opens or "role" in delta
            if choice.get("finish_reason"):
                found["finish_reason"], ends = choice["finish_reason"], True
        if choices:
            used = usage.get("completion_tokens", timings.get("predicted_n"))
            self.events.append(_Event(t, filled, opens and not filled, ends, used))


def read_stream(record: RequestRecord) -> RequestTrace:
    """Read one streamed completion. Nothing raises: what went wrong is the trace's `error`."""
    answer = read_http(record)
    if answer.status is None or answer.status >= 300:
        why = f"HTTP {answer.status}: {error_text(answer.body)}" if answer.status else answer.problem
        return RequestTrace(record.t0_s, answer.status, why)
    stream = _Stream()
    for t, data in answer.events():
        stream.add(t, data)
    usage, found = stream.usage, stream.found
    counted, tokens = count_tokens(stream.events, usage.get("completion_tokens"))
    details = usage.get("prompt_tokens_details") or {}
    found |= {"cached_tokens": details["cached_tokens"]} if "cached_tokens" in details else {}
    return RequestTrace(
        record.t0_s,
        answer.status,
        stream.error or answer.problem or _what_is_wrong(answer, stream, sum(n for _, n in tokens)),
        stream.events[0].t if stream.events else None,
        tuple(tokens),
        counted,
        usage.get("prompt_tokens"),
        **found,
    )


def _what_is_wrong(answer: HttpAnswer, stream: _Stream, tokens: float) -> str:
    """Why a stream without an error in it has failed; empty when it has not."""
    total, kind = stream.usage.get("completion_tokens"), answer.headers.get("content-type", "of no type")
    if not stream.events:
        return f"the answer holds no token; it is {kind}"
    if not stream.ended and "finish_reason" not in stream.found:
        return "the stream stopped in the middle: no finish_reason, no [DONE]"
    if total is not None and tokens > total + 0.5:
        return f"the server counted {tokens:g} tokens while it sent them and {total} at the end"
    return "" if any(event.filled for event in stream.events) or tokens else "the answer holds no token"


def count_tokens(events: list[_Event], total: int | None) -> tuple[Counted, list[tuple[float, float]]]:
    """How many tokens each event holds, by the best count that the server gives, never by counting chunks.

    `total` is the final usage. Events without text can hold tokens (special ones, halves of a character).
    """
    filled = [event for event in events if event.filled]
    if any(event.used for event in events) and all(event.used is not None for event in filled):
        tokens: list[tuple[float, float]] = []
        before = 0
        # what only the final usage counts belongs to the last event with choices
        for t, used in (*((event.t, event.used) for event in events), (events[-1].t, total)):
            if used is not None and used > before:
                tokens.append((t, used - before))
                before = used
        return "per event", tokens
    if not total:
        return "not", [(event.t, 0) for event in filled]
    unopened = [event for event in events if not event.opens]
    silent = [event for event in unopened if event.filled or not event.ends]
    for some in (filled, silent, unopened):
        if len(some) == total:
            return "one an event", [(event.t, 1) for event in some]
    return "spread", [(event.t, total / len(filled)) for event in filled]
