"""What the server of known timing sends when: the ways in which servers stream, each with a name. Pure."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
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
    refuses: tuple[str, ...] = ()  # fields it will not have
    cached: int | None = None  # what it says it had in its cache
    caches: bool = False  # has a prefix cache, which saves its part of the TTFT
    tells_cached: bool = True  # in the answer; its counters tell anyway
    error_event: bool = False
    until_close: bool = False
    all_at_once: bool = False
    limit: int = 32768
    owner: str = "vllm"
    tokenizes: bool = True
    context: int = 0  # a longer prompt is cut to half of this, without a word
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
    "reasoning-content-last": Way(shape="reasoning_content", early_role=True, usage="last"),
    "tools-last": Way(shape="tools", early_role=True, usage="last"),
    "usage-last": Way(usage="last"),
    "no-usage": Way(usage="none"),
    "comments": Way(comments=True),
    "crlf": Way(newline="\r\n", comments=True),
    "cr": Way(newline="\r"),
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
