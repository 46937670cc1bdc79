"""Recorded answers made by the server of known timing, without a socket: every time is exact."""

from __future__ import annotations

from typing import Any

from known_server import WAYS, Way, stream

from cluster.bench.loader import RequestRecord
from cluster.bench.read import RequestTrace, read_stream

TTFT_S, RATE = 0.067, 50.0
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
HEAD_CLOSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


def record(way: Way | str, tokens: int = 32, prompt: int = 512, t0_s: float = 0.0) -> RequestRecord:
    """What the load client would have recorded of one request at `t0_s`."""
    way = WAYS[way] if isinstance(way, str) else way
    body: dict[str, Any] = {"prompt": [0] * prompt, "max_tokens": tokens}
    chunks = [(t0_s + 0.001, HEAD_CLOSE if way.until_close else HEAD)]
    chunks += [(t0_s + t, data) for t, data, _ in stream(way, body, TTFT_S, RATE) if data]
    how = "closed" if way.until_close or way.cut_after else "done"
    return RequestRecord(t0_s, chunks[-1][0], how, "", tuple(chunks))


def trace(way: Way | str, tokens: int = 32, prompt: int = 512, t0_s: float = 0.0) -> RequestTrace:
    """The same, read."""
    return read_stream(record(way, tokens, prompt, t0_s))
