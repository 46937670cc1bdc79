"""An OpenAI-like server of known timing: the truth that the bench client is measured against. Standard library only.

    python -m cluster.bench.known_server [--ttft-ms 67] [--rate 50] [--engine ollama]
    prints {"port": N}, runs until its stdin ends

The model's name chooses how it behaves, see `known_ways`; with --engine it has that engine's routes and models, see
`known_engines`. Every request's first token is sent TTFT after its last byte has come, the others at the given rate;
GET /log tells when they really were. Loopback only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import selectors
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cluster.bench.known_engines import ENGINES, Engine
from cluster.bench.known_ways import WAYS, Send, Way, prompt_of, stream, tokenize

BLOCK = 16  # tokens that the prefix cache keeps together


@dataclass
class State:
    """What the server remembers: counters by vLLM's names, blocks in the prefix cache, when what was really sent."""

    ttft_s: float
    rate: float
    seen: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    blocks: set[int] = field(default_factory=set)
    log: list[dict[str, Any]] = field(default_factory=list)
    engine: Engine = field(default_factory=Engine)
    asked: set[str] = field(default_factory=set)

    def look_up(self, prompt: list[int], salt: str) -> int:
        """Leading tokens that were in the cache; now all of the prompt's full blocks are."""
        key, keys = hash(salt), []
        for at in range(0, len(prompt) - BLOCK, BLOCK):
            key = hash((key, tuple(prompt[at : at + BLOCK])))
            keys.append(key)
        hits = next((at for at, key in enumerate(keys) if key not in self.blocks), len(keys))
        self.blocks.update(keys)
        return hits * BLOCK

    def count(self, way: Way, prompt: int, cached: int, generated: int) -> None:
        """Count a request that has ended."""
        names = ("prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits", "request_success")
        values = (prompt, generated, prompt, cached, 1)
        self.counts.update({f"{name}_total": value for name, value in zip(names, values, strict=True)})
        self.counts.update({name: round(value) for name, value in way.counts.items()})

    def metrics(self) -> str:
        """/metrics as vLLM tells it."""
        told = {"num_requests_running": 0.0, "generation_tokens_total": 0.0} | dict(self.counts)
        return "".join(f"vllm:{name} {float(value)}\n" for name, value in told.items())


def describe(name: str, way: Way) -> dict[str, Any]:
    """A model as /v1/models tells it."""
    return {"id": name, "max_model_len": way.limit, "owned_by": way.owner}


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, state: State) -> None:
        self.state = state
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
        if found and len(rest) >= length:
            self.buffer = rest[length:]
            self.answer(head.split(b" ")[1].decode(), json.loads(rest[:length]) if length else {})

    def answer(self, path: str, body: dict[str, Any]) -> None:
        """One request."""
        if path.endswith("/v1/models"):
            self.plain(200, {"data": [describe(name, way) for name, way in self.state.engine.ways.items()]})
        elif (document := self.state.engine.tell(path, self.state.asked)) is not None:
            self.plain(200, document)
        elif path.endswith("/detokenize"):
            self.plain(200, {"prompt": " ".join(f"w{token}" for token in body["tokens"])})
        elif path.endswith("/tokenize") and self.state.engine.ways[body["model"]].tokenizes:
            self.plain(200, {"tokens": tokenize(body["prompt"], body["add_special_tokens"])})
        elif path.endswith("/completions"):
            self.complete(self.state.engine.ways.get(body.get("model", ""), WAYS["plain"]), body)
        elif path.endswith("/metrics") and self.state.engine.counts:
            self.plain(200, self.state.metrics())
        elif path.endswith("/log"):
            self.plain(200, self.state.log)
        else:
            self.plain(404, {"detail": "Not Found"})

    def complete(self, way: Way, body: dict[str, Any]) -> None:
        """A completion: refused, or streamed on time."""
        state, now, prompt = self.state, time.monotonic(), prompt_of(body)
        state.seen += 1
        state.asked.add(str(body.get("model")))
        if way.context and len(prompt) > way.context:
            prompt = prompt[: way.context // 2]
            body = {name: value for name, value in body.items() if name != "messages"} | {"prompt": prompt}
        if way.answers_as and state.seen % way.other_every == 0:
            body = body | {"model": way.answers_as}
        refused = next((name for name in way.refuses if name in body), None)
        if refused:
            return self.plain(400, {"error": {"message": f"extra field not permitted: {refused}", "code": 400}})
        if way.fail_every and state.seen % way.fail_every == 0:
            return self.plain(400, {"error": {"message": "no room for this request", "code": 400}})
        if not body.get("stream"):
            return self.plain(200, {"choices": [{"text": way.text}], "usage": {"prompt_tokens": len(prompt)}})
        hits = state.look_up(prompt, str(body.get("cache_salt"))) if way.caches else 0
        framing = "Connection: close" if way.until_close else "Transfer-Encoding: chunked"
        self.transport.write(f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{framing}\r\n\r\n".encode())
        state.log.append({"user": body.get("user"), "received": now, "sent": []})
        ttft_s = state.ttft_s * (1 - hits / max(1, len(prompt)))
        sends = stream(way, body, ttft_s, state.rate, hits if way.caches and way.tells_cached else None)
        state.count(way, len(prompt), hits, round(body.get("max_tokens", 16) * way.stop_after))
        return self.play(sends, now, state.log[-1]["sent"])

    def play(self, sends: Iterator[Send], begin: float, sent: list[Any]) -> None:
        """Send what is due, and come back for the next."""
        for t, data, tokens in sends:
            if self.transport.is_closing():
                return
            if begin + t > time.monotonic():
                asyncio.get_running_loop().call_at(begin + t, self.play_one, data, tokens, sends, begin, sent)
                return
            self.put(data, tokens, sent)

    def play_one(self, data: bytes, tokens: int, sends: Iterator[Send], begin: float, sent: list[Any]) -> None:
        self.put(data, tokens, sent)
        self.play(sends, begin, sent)

    def put(self, data: bytes, tokens: int, sent: list[Any]) -> None:
        if tokens:
            sent.append([time.monotonic(), tokens])
        if data:
            self.transport.write(data)
        else:
            self.transport.close()

    def plain(self, status: int, document: Any) -> None:
        """An answer that is not a stream."""
        body = (document if isinstance(document, str) else json.dumps(document)).encode()
        self.transport.write(b"HTTP/1.1 %d Said\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))


async def serve(ttft_s: float, rate: float, engine: Engine) -> None:
    """Serve until stdin ends."""
    loop, state = asyncio.get_running_loop(), State(ttft_s, rate, engine=engine)
    server = await loop.create_server(lambda: Connection(state), "127.0.0.1", 0)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ttft-ms", type=float, default=67.0)
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--engine", choices=ENGINES, default="")
    given = parser.parse_args()
    # select() waits in microseconds where epoll rounds up to the next millisecond
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    loop.run_until_complete(serve(given.ttft_ms / 1e3, given.rate, ENGINES[given.engine]))


if __name__ == "__main__":
    main()
