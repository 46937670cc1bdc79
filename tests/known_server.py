"""An OpenAI-like server of known timing: the truth that the bench client is measured against. Standard library only.

    python tests/known_server.py [--ttft-ms 67] [--rate 50] [--engine ollama]
    prints {"port": N}, runs until its stdin ends

The model's name chooses how it behaves (WAYS); with --engine it has that engine's routes and models (ENGINES). Every
request's first token is sent TTFT after its last byte has come, the others at the given rate; GET /log has their true
times. Loopback only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import selectors
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Send = tuple[float, bytes, int]  # seconds after the request, bytes, tokens in them


@dataclass(frozen=True)
class Way:
    """How one model answers."""

    chunk: int = 1  # tokens an event
    first: int = 0  # tokens of the first event, `chunk` when 0
    shape: str = "text"  # text | content | reasoning | reasoning_content | tools
    early_role: bool = False  # an empty event with the role long before the first token
    silent_every: int = 0  # every n-th token has no text
    usage: str = "each"  # each | last | none | zeros (in each but the last, as Ollama)
    newline: str = "\n"
    comments: bool = False
    split: bool = False  # every event in two portions, cut inside a character
    text: str = " word"
    start_s: float = 0.0  # more time before the first token
    stop_after: float = 1.0  # part of the tokens after which it ends by itself
    cut_after: float = 0.0  # part of the tokens after which the connection is closed
    fail_every: int = 0  # every n-th request is refused
    refuses: tuple[str, ...] = ()  # fields it refuses
    cached: int | None = None  # what it reports from its cache
    caches: bool = False  # has a prefix cache, which saves its part of the TTFT
    tells_cached: bool = True  # in the answer; its counters tell anyway
    error_event: bool = False
    until_close: bool = False
    all_at_once: bool = False
    limit: int = 32768
    owner: str = "vllm"
    tokenizes: bool = True
    context: int = 0  # a longer prompt is silently cut to half of this
    answers_as: str = ""  # another model's name in the answers
    other_every: int = 1  # in every n-th answer
    extra: dict[str, Any] = field(default_factory=dict)  # beside the final usage
    counts: Mapping[str, float] = field(default_factory=dict)  # added to its counters with each request


SPECULATING = {
    "spec_decode_num_drafts_total": 8,
    "spec_decode_num_draft_tokens_total": 24,
    "spec_decode_num_accepted_tokens_total": 12,
    'spec_decode_num_accepted_tokens_per_pos_total{position="0"}': 6,
    'spec_decode_num_accepted_tokens_per_pos_total{position="1"}': 4,
    'spec_decode_num_accepted_tokens_per_pos_total{position="2"}': 2,
}
PER_REQUEST = {"time_to_first_token_ms": 40.0, "queue_time_ms": 12.0, "generation_time_ms": 620.0, "mean_itl_ms": 20.0}

WAYS = {
    "plain": Way(),
    "chat": Way(shape="content"),
    "role": Way(shape="content", early_role=True),
    "four": Way(chunk=4),
    "drafted": Way(chunk=4, first=1, counts=SPECULATING),
    "four-last": Way(chunk=4, usage="last"),
    "silent": Way(silent_every=3),
    "silent-last": Way(silent_every=3, usage="last"),
    "reasoning": Way(shape="reasoning", early_role=True),
    "reasoning-content": Way(shape="reasoning_content", early_role=True),
    "tools": Way(shape="tools", early_role=True),
    "reasoning-last": Way(shape="reasoning", early_role=True, usage="last"),
    "usage-last": Way(usage="last"),
    "no-usage": Way(usage="none"),
    "comments": Way(comments=True),
    "crlf": Way(newline="\r\n", comments=True),
    "utf8": Way(split=True, text=" naïveté 日本"),
    "worst": Way(
        chunk=4,
        first=1,
        shape="reasoning_content",
        early_role=True,
        newline="\r\n",
        comments=True,
        split=True,
        text=" naïveté 日本",
    ),
    "refusing": Way(fail_every=4),
    "broken": Way(fail_every=1),
    "slow": Way(start_s=0.6),
    "half": Way(cut_after=0.5),
    "half-unframed": Way(cut_after=0.5, until_close=True),
    "stops": Way(stop_after=0.5),
    "strict": Way(refuses=("min_tokens", "cache_salt", "stream_options")),
    "cached": Way(cached=1024),
    "caching": Way(caches=True),
    "caching-untold": Way(caches=True, tells_cached=False),
    "claiming": Way(cached=16),  # a prefix cache that has lost the context
    "busy": Way(counts={"request_success_total": 2, "generation_tokens_total": 100, "num_preemptions_total": 1}),
    "error-event": Way(error_event=True),
    "until-close": Way(until_close=True),
    "at-once": Way(all_at_once=True),
    "small": Way(limit=1024),
    "plain-text": Way(owner="library", tokenizes=False),  # as Ollama
    "zeros": Way(usage="zeros"),
    "prefill-told": Way(usage="last", extra={"timings": {"prompt_ms": 40.0, "cache_n": 12}}),
    "metrics-told": Way(extra={"metrics": PER_REQUEST}),
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


def events(
    way: Way, model: str, prompt: int, count: int, ttft_s: float, rate: float, cached: int | None
) -> Iterator[tuple[float, Any, int]]:
    """All events of an answer as (seconds after the request, JSON value, tokens in it); None stands for a comment."""

    def usage(done: int) -> dict[str, Any]:
        details = None if cached is None else {"cached_tokens": cached}
        return {"prompt_tokens": prompt, "completion_tokens": done, "prompt_tokens_details": details}

    def during(done: int) -> dict[str, Any]:
        zeros = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        return {"usage": usage(done)} if way.usage == "each" else {"usage": zeros} if way.usage == "zeros" else {}

    def event(choices: list[Any], done: int) -> dict[str, Any]:
        return {"choices": choices, "model": model} | during(done)

    first = ttft_s + way.start_s
    if way.early_role:
        yield 0.002, event([{"index": 0, "delta": {"role": "assistant", "content": ""}}], 0), 0
    done, end, t = 0, round(count * way.stop_after), first
    opening = min(way.first or way.chunk, end)
    while done < end:
        step = min(way.chunk, end - done) if done else opening
        t = first if way.all_at_once else first + (done + step - opening) / rate  # when its last token is made
        if way.comments:
            yield t - 0.001, None, 0
        if way.error_event and done > end // 2:
            yield t, {"error": {"message": "the engine is dead", "code": 500}}, 0
            return
        done += step
        choice = delta(way, done - 1)
        if done == end:
            choice["finish_reason"] = "length" if end == count else "stop"
        yield t, event([choice], done), step
    if way.usage != "none":
        yield t, {"choices": [], "model": model, "usage": usage(done)} | way.extra, 0


def portions(way: Way, t: float, document: Any, tokens: int) -> Iterator[Send]:
    """One server-sent event in one portion, or in two with the cut inside a character."""
    text = document if isinstance(document, str) else json.dumps(document, ensure_ascii=False)
    line = ": still here" if document is None else f"data: {text}"
    data = f"{line}{way.newline}{way.newline}".encode()
    cut = next((at for at, byte in enumerate(data) if byte >= 0x80), 0) + 1
    if way.split and cut > 1:
        yield t - 0.001, data[:cut], 0
        data = data[cut:]
    yield t, data, tokens


def stream(way: Way, body: dict[str, Any], ttft_s: float, rate: float, cached: int | None = None) -> Iterator[Send]:
    """What is sent when, after the head; an empty portion closes the connection."""
    length, count = len(prompt_of(body)), body.get("max_tokens", 16)
    cached = way.cached if cached is None else cached
    wrap: Callable[[bytes], bytes] = (lambda b: b) if way.until_close else (lambda b: b"%x\r\n%s\r\n" % (len(b), b))
    t, sent = 0.0, 0
    for t, document, tokens in events(way, body.get("model", "known"), length, count, ttft_s, rate, cached):
        sent += bool(isinstance(document, dict) and document.get("choices"))
        if way.cut_after and sent > count * way.cut_after:
            yield t, b"", 0
            return
        for at, portion, inside in portions(way, t, document, tokens):
            yield at, wrap(portion), inside
    for at, portion, _ in portions(way, t, "[DONE]", 0):
        yield at, wrap(portion) + (b"" if way.until_close else b"0\r\n\r\n"), 0
    if way.until_close:
        yield t, b"", 0


def prompt_of(body: dict[str, Any]) -> list[int]:
    """The token ids of a request; a chat has four more, as a template would add them."""
    prompt = body.get("prompt")
    if prompt is None:
        return [2, 3, 4, 5, *tokenize(" ".join(message["content"] for message in body["messages"]), False)]
    return prompt if isinstance(prompt, list) else tokenize(prompt, True)


GB = 1_000_000_000
OLLAMA = Way(owner="library", tokenizes=False, usage="zeros")


@dataclass(frozen=True)
class Engine:
    """`loaded`: models in /api/ps once they were asked; `counts`: it has vLLM's /metrics."""

    ways: Mapping[str, Way] = field(default_factory=lambda: WAYS)
    routes: Mapping[str, Any] = field(default_factory=dict)
    loaded: Mapping[str, Mapping[str, Any]] | None = None
    counts: bool = False

    def route(self, path: str, asked: Collection[str]) -> Any:
        """The answer of a route, None where it is not there."""
        if path == "/api/ps" and self.loaded is not None:
            return {"models": [model for name, model in self.loaded.items() if name in asked]}
        return self.routes.get(path)


def in_memory(name: str, size: int, on_gpu: int, context: int | None) -> dict[str, Any]:
    """A model in Ollama's /api/ps; before 0.10 without its context."""
    found = {"name": name, "model": name, "size": size, "size_vram": on_gpu, "expires_at": "2026-11-28T12:05:00Z"}
    return found | ({"context_length": context} if context else {})


ENGINES = {
    "": Engine(counts=True),
    "vllm": Engine({"plain": WAYS["plain"]}, {"/version": {"version": "0.32.0"}}, counts=True),
    "ollama": Engine(
        {
            "whole:26b": OLLAMA,
            "split:26b": OLLAMA,
            "short:26b": OLLAMA,
            "cutting:26b": Way(owner="library", tokenizes=False, usage="zeros", context=1024),
        },
        {"/api/version": {"version": "0.33.0"}},
        {
            "whole:26b": in_memory("whole:26b", 19 * GB, 19 * GB, 32768),
            "split:26b": in_memory("split:26b", 19 * GB, 6 * GB, 32768),
            "short:26b": in_memory("short:26b", 19 * GB, 19 * GB, 4096),
            "cutting:26b": in_memory("cutting:26b", 19 * GB, 19 * GB, None),
        },
    ),
    "llamacpp": Engine(
        {"toy.gguf": Way(owner="llamacpp", caches=True, usage="last")},
        {
            "/props": {
                "default_generation_settings": {"n_ctx": 4096},
                "total_slots": 2,
                "model_alias": "toy.gguf",
                "build_info": "b11434-0badcafe",
            }
        },
    ),
    "unknown": Engine(
        {
            "steady": Way(owner="openai", tokenizes=False),
            "daily": Way(owner="openai", tokenizes=False, answers_as="spare", other_every=4),
        },
    ),
}
"""Routes and models by engine: shapes as seen from llama.cpp b11434, and as in the source of Ollama 0.33; values are
ours."""

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
        """/metrics as vLLM prints it."""
        counts = {"num_requests_running": 0.0, "generation_tokens_total": 0.0} | dict(self.counts)
        return "".join(f"vllm:{name} {float(value)}\n" for name, value in counts.items())


def describe(name: str, way: Way) -> dict[str, Any]:
    """A model in /v1/models."""
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
        elif (document := self.state.engine.route(path, self.state.asked)) is not None:
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
