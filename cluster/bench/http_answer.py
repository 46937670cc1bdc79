"""A recorded answer as HTTP: status, headers, and the body's portions with their times."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httptools
import orjson

from cluster.bench.records import Record


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
        """The whole body."""
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
        answer.problem = _why_incomplete(record, answer)
    return answer


def _why_incomplete(record: Record, answer: HttpAnswer) -> str:
    """What ended the request before its answer was complete."""
    size = sum(len(data) for _, data in record.chunks)
    text = {
        "refused": "no connection",
        "timeout": "time-out",
        "reset": f"connection reset after {size} bytes",
        "closed": f"the server closed the connection after {size} bytes, before the answer was complete",
    }.get(record.how, "the answer is not complete")
    return f"{text}: {record.error}" if record.error else text


def error_text(body: bytes, limit: int = 400) -> str:
    """The server's own words in an error body (OpenAI, vLLM, FastAPI and llama.cpp forms), else the body's begin."""
    said: Any = body.decode("utf-8", "replace").strip()
    with suppress(ValueError):
        said = orjson.loads(body)
    for key in ("error", "message", "detail"):
        if isinstance(said, dict) and said.get(key):
            said = said[key]
    return (said if isinstance(said, str) else orjson.dumps(said).decode())[:limit]
