"""An OpenAI-like server of known timing: the truth that the bench client is measured against.

    python tests/bench_server.py [--ttft-ms 67] [--rate 50]      prints {"port": N}, runs until its stdin ends

The model's name chooses how it behaves, see `WAYS`. Every request's first token is sent TTFT after its last byte has
come, the others at the given rate. Loopback only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import selectors
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Send = tuple[float, bytes]


@dataclass
class Way:
    """How one model answers."""

    chunk: int = 1  # tokens an event
    first: int = 0  # tokens of the first event, `chunk` when 0
    shape: str = "text"  # text | content | reasoning | reasoning_content | tools
    early_role: bool = False  # an empty event with the role long before the first token
    silent_every: int = 0  # every n-th token has no text
    usage: str = "each"  # each | last | none
    newline: str = "\n"
    comments: bool = False
    split: bool = False  # every event in two portions, cut inside a character
    text: str = " word"
    start_s: float = 0.0  # more time before the first token
    stop_after: float = 1.0  # part of the tokens after which it ends by itself
    cut_after: float = 0.0  # part of the tokens after which the connection is closed
    fail_every: int = 0  # every n-th request is refused
    refuses: tuple[str, ...] = ()  # fields it will not have
    cached: int = 0
    error_event: bool = False
    until_close: bool = False
    all_at_once: bool = False
    limit: int = 32768
    extra: dict[str, Any] = field(default_factory=dict)


WAYS = {
    "plain": Way(),
    "chat": Way(shape="content"),
    "role": Way(shape="content", early_role=True),
    "four": Way(chunk=4),
    "drafted": Way(chunk=4, first=1),
    "four-last": Way(chunk=4, usage="last"),
    "silent": Way(silent_every=3),
    "silent-last": Way(silent_every=3, usage="last"),
    "reasoning": Way(shape="reasoning", early_role=True),
    "reasoning-content": Way(shape="reasoning_content", early_role=True),
    "tools": Way(shape="tools", early_role=True),
    "reasoning-last": Way(shape="reasoning", early_role=True, usage="last"),
    "reasoning-content-last": Way(shape="reasoning_content", early_role=True, usage="last"),
    "tools-last": Way(shape="tools", early_role=True, usage="last"),
    "usage-last": Way(usage="last"),
    "no-usage": Way(usage="none"),
    "comments": Way(comments=True),
    "crlf": Way(newline="\r\n", comments=True),
    "cr": Way(newline="\r"),
    "utf8": Way(split=True, text=" naïveté 日本"),
    "refusing": Way(fail_every=4),
    "broken": Way(fail_every=1),
    "slow": Way(start_s=0.6),
    "half": Way(cut_after=0.5),
    "stops": Way(stop_after=0.5),
    "strict": Way(refuses=("min_tokens", "cache_salt", "stream_options")),
    "cached": Way(cached=1024),
    "error-event": Way(error_event=True),
    "until-close": Way(until_close=True),
    "at-once": Way(all_at_once=True),
    "small": Way(limit=1024),
    "prefill-told": Way(usage="last", extra={"timings": {"prompt_ms": 40.0, "cache_n": 12}}),
}


def tokenize(text: str, special: bool) -> list[int]:
    """A token a word; 1 is the begin of a text."""
    return [1] * special + [10 + zlib.crc32(word.encode()) % 30000 for word in text.split()]


def delta(way: Way, token: int) -> dict[str, Any]:
    """The choice of one event; its last token may have no text."""
    silent = way.silent_every and token % way.silent_every == way.silent_every - 1
    text = "" if silent else way.text
    if way.shape == "text":
        return {"index": 0, "text": text, "finish_reason": None}
    if way.shape == "tools":
        call = {"index": 0, "function": {"arguments": text}}
        return {"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}
    return {"index": 0, "delta": {way.shape: text}, "finish_reason": None}


def events(way: Way, prompt: int, count: int, ttft_s: float, rate: float) -> Iterator[tuple[float, Any]]:
    """All events of an answer as (seconds after the request, JSON value); None stands for a comment."""

    def usage(done: int) -> dict[str, Any]:
        details = {"cached_tokens": way.cached} if way.cached else None
        return {"prompt_tokens": prompt, "completion_tokens": done, "prompt_tokens_details": details}

    def event(choices: list[Any], done: int) -> dict[str, Any]:
        return {"choices": choices, "model": "known"} | ({"usage": usage(done)} if way.usage == "each" else {})

    first = ttft_s + way.start_s
    if way.early_role:
        yield 0.002, event([{"index": 0, "delta": {"role": "assistant", "content": ""}}], 0)
    done, end, t = 0, round(count * way.stop_after), first
    opening = min(way.first or way.chunk, end)
    while done < end:
        step = min(way.chunk, end - done) if done else opening
        t = first if way.all_at_once else first + (done + step - opening) / rate  # when its last token is made
        if way.comments:
            yield t - 0.001, None
        if way.error_event and done > end // 2:
            yield t, {"error": {"message": "the engine is dead", "code": 500}}
            return
        done += step
        choice = delta(way, done - 1)
        if done == end:
            choice["finish_reason"] = "length" if end == count else "stop"
        yield t, event([choice], done)
    if way.usage != "none":
        yield t, {"choices": [], "usage": usage(done)} | way.extra


def frame(way: Way, document: Any) -> bytes:
    """One server-sent event."""
    if document is None:
        return f": still here{way.newline}{way.newline}".encode()
    data = document if isinstance(document, str) else json.dumps(document, ensure_ascii=False)
    return f"data: {data}{way.newline}{way.newline}".encode()


def portions(way: Way, t: float, data: bytes) -> Iterator[Send]:
    """An event in one portion, or in two with the cut inside a character."""
    cut = next((at for at, byte in enumerate(data) if byte >= 0x80), 0) + 1
    if way.split and cut > 1:
        yield t - 0.001, data[:cut]
        data = data[cut:]
    yield t, data


def stream(way: Way, body: dict[str, Any], ttft_s: float, rate: float) -> Iterator[Send]:
    """What is sent when, after the head; an empty portion closes the connection."""
    prompt = body.get("prompt") or str(body.get("messages"))
    length = len(prompt) if isinstance(prompt, list) else len(prompt.split())
    count = body.get("max_tokens", 16)
    wrap: Callable[[bytes], bytes] = (lambda b: b) if way.until_close else (lambda b: b"%x\r\n%s\r\n" % (len(b), b))
    t, sent = 0.0, 0
    for t, document in events(way, length, count, ttft_s, rate):
        sent += bool(isinstance(document, dict) and document.get("choices"))
        if way.cut_after and sent > count * way.cut_after:
            yield t, b""
            return
        for at, portion in portions(way, t, frame(way, document)):
            yield at, wrap(portion)
    yield t, wrap(frame(way, "[DONE]")) + (b"" if way.until_close else b"0\r\n\r\n")
    if way.until_close:
        yield t, b""


class Connection(asyncio.Protocol):
    """One client."""

    served = 0

    def __init__(self, ttft_s: float, rate: float) -> None:
        self.ttft_s, self.rate = ttft_s, rate
        self.buffer = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, found, rest = self.buffer.partition(b"\r\n\r\n")
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        length = int(lengths[0].split(b":")[1]) if lengths else 0
        if not found or len(rest) < length:
            return
        self.buffer = rest[length:]
        path = head.split(b" ")[1].decode()
        self.answer(path, json.loads(rest[:length]) if length else {})

    def answer(self, path: str, body: dict[str, Any]) -> None:
        """One request."""
        way = WAYS.get(body.get("model", ""), WAYS["plain"])
        if path.endswith("/v1/models"):
            self.plain(200, {"data": [{"id": name, "max_model_len": way.limit} for name, way in WAYS.items()]})
        elif path.endswith("/tokenize"):
            ids = tokenize(body["prompt"], body["add_special_tokens"])
            self.plain(200, {"count": len(ids), "tokens": ids})
        elif path.endswith("/completions"):
            self.complete(way, body)
        elif path.endswith("/health"):
            self.plain(200, {})
        else:
            self.plain(404, {"detail": "Not Found"})

    def complete(self, way: Way, body: dict[str, Any]) -> None:
        """A completion: refused, or streamed on time."""
        Connection.served += 1
        refused = next((name for name in way.refuses if name in body), None)
        if refused:
            self.plain(400, {"error": {"message": f"extra field not permitted: {refused}", "code": 400}})
        elif way.fail_every and Connection.served % way.fail_every == 0:
            self.plain(400, {"error": {"message": "no room for this request", "code": 400}})
        else:
            loop = asyncio.get_running_loop()
            now = loop.time()
            framing = "Connection: close" if way.until_close else "Transfer-Encoding: chunked"
            self.transport.write(f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{framing}\r\n\r\n".encode())
            self.play(stream(way, body, self.ttft_s, self.rate), now)

    def play(self, sends: Iterator[Send], begin: float) -> None:
        """Send what is due, and come back for the next."""
        loop = asyncio.get_running_loop()
        for t, data in sends:
            if self.transport.is_closing():
                return
            if begin + t > loop.time():
                loop.call_at(begin + t, self.play_one, data, sends, begin)
                return
            self.put(data)

    def play_one(self, data: bytes, sends: Iterator[Send], begin: float) -> None:
        self.put(data)
        self.play(sends, begin)

    def put(self, data: bytes) -> None:
        if data:
            self.transport.write(data)
        else:
            self.transport.close()

    def plain(self, status: int, document: Any) -> None:
        """An answer that is not a stream."""
        body = json.dumps(document).encode()
        self.transport.write(b"HTTP/1.1 %d Said\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))


async def serve(ttft_s: float, rate: float) -> None:
    """Serve until stdin ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(ttft_s, rate), "127.0.0.1", 0)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ttft-ms", type=float, default=67.0)
    parser.add_argument("--rate", type=float, default=50.0)
    given = parser.parse_args()
    # select() waits in microseconds where epoll rounds up to the next millisecond
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    loop.run_until_complete(serve(given.ttft_ms / 1e3, given.rate))


if __name__ == "__main__":
    main()
