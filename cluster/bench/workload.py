"""Prompts of exact length as token ids: seeded, the same for every server with the same tokenizer.

The text is prose or code in the public domain (corpus/README.md). It is tokenised once by the server's own /tokenize;
each request takes its blocks in an order of its own behind a beginning of its own.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import resources
from typing import Any

from cluster.bench.rows import Shape

BLOCK_TOKENS = 256
PREFIX_TOKENS = 16
PIECE_LENGTH = 50_000
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
CORPORA = ("prose", "code")

# What a server may refuse: the measurement can do without, and the result says that it did.
OPTIONAL_FIELDS = (
    "continuous_usage_stats",
    "include_usage",
    "cache_salt",
    "min_tokens",
    "ignore_eos",
    "temperature",
    "cache_prompt",
    "timings_per_token",
)


@cache
def corpus_text(name: str = "prose") -> str:
    """The text that prompts are made of: all files of this name, in their order."""
    files = {file.name: file for file in (resources.files("cluster.bench") / "corpus").iterdir()}
    return "\n".join(files[key].read_text("utf-8") for key in sorted(files) if key.startswith(f"{name}-"))


@cache
def corpus_id(name: str = "prose") -> str:
    """Name and hash of the text, for the manifest."""
    return f"{name} {hashlib.sha256(corpus_text(name).encode()).hexdigest()[:16]}"


def corpus_pieces(name: str) -> list[str]:
    """The text in portions that a server with a short context takes too, cut at line ends."""
    pieces, piece = [], ""
    for line in corpus_text(name).splitlines(keepends=True):
        if piece and len(piece) + len(line) > PIECE_LENGTH:
            pieces.append(piece)
            piece = ""
        piece += line
    return [*pieces, piece]


@dataclass(frozen=True)
class Corpus:
    """The text as this server's token ids; `begin` is what its tokenizer puts before every text (BOS, if any).

    Where the server has no tokenizer to ask, ids are places in `words`; `per_word` and `overhead` are the tokens that
    it counts for a word, and for any prompt beside its words; `per_byte` is a surer measure of a text that is known.
    """

    ids: tuple[int, ...]
    begin: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    per_word: float = 1.0
    overhead: int = 0
    per_byte: float = 0.0

    @cached_property
    def distinct(self) -> list[int]:
        return sorted(set(self.ids))


def prompt_ids(corpus: Corpus, length: int, key: str, begin_key: str = "") -> list[int]:
    """`length` token ids that depend on `key` and the corpus only (the beginning on `begin_key`, where given).

    After BOS come random ids of the text, different for each key, so that no two prompts share a prefix that a
    cache could use; then blocks of the text in a random order.
    """
    chance = random.Random(key)
    ids = [*corpus.begin, *random.Random(begin_key or f"begin {key}").choices(corpus.distinct, k=PREFIX_TOKENS)]
    starts = list(range(0, len(corpus.ids), BLOCK_TOKENS))
    while len(ids) < length:
        chance.shuffle(starts)
        for start in starts:
            ids += corpus.ids[start : start + BLOCK_TOKENS]
            if len(ids) >= length:
                break
    return ids[:length]


@dataclass(frozen=True, slots=True)
class BodyMaker:
    """Makes the bodies of requests: /v1/completions with token ids, or a chat with the text that they stand for.

    `salt` keeps the caches of earlier invocations out of this one: as `cache_salt` where the server is known to heed it
    (`salted`; vLLM: up to 128 characters without slashes), else in the prompts' beginnings. With `natural_stop` the
    number of tokens is a limit, and an output ends where the model ends it. `template_tokens`: what a chat's template
    adds to a text, so much less text is sent. `question` ends a chat's text and counts beyond its length. `unheeded`:
    fields that this engine is known not to look at; `cold`: what keeps a prompt out of its cache, in cold rows.
    """

    model: str
    corpus: Corpus
    seed: int
    salt: str
    refused: tuple[str, ...] = ()
    natural_stop: bool = False
    chat: bool = False
    question: str = ""
    template_tokens: int = 0
    salted: bool = True
    extra: dict[str, Any] = field(default_factory=dict)
    unheeded: tuple[str, ...] = ()
    cold: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return CHAT if self.chat else COMPLETIONS

    def prompt(self, shape: Shape, run: str, index: int) -> list[int]:
        """The token ids of request `index` of a run. A context is the begin of the prompt that stands on it."""
        key = f"{self.seed}/pp{shape.pp}/tg{shape.tg}/d{shape.depth}/c{shape.concurrency}/{run}/{index}"
        begin_key = "" if self.salted and "cache_salt" not in self.refused else f"{self.salt} {key}"
        length = max(1, round((shape.prompt_tokens - self.template_tokens) / self.corpus.per_word))
        return prompt_ids(self.corpus, length, key, begin_key)

    def body(self, shape: Shape, run: str, index: int, tokens: int | None = None) -> dict[str, Any]:
        """The body of request `index` of a run. `tokens` to generate, the shape's when None.

        A chat's body has the ids too, as has one of words: `say` and `write` put their text in their place.
        """
        count = shape.tg if tokens is None else tokens
        options = {"include_usage": True, "continuous_usage_stats": True}
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": self.prompt(shape, run, index),
            "max_tokens": count,
            "min_tokens": count,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {name: on for name, on in options.items() if name not in (*self.refused, *self.unheeded)},
            "cache_salt": self.salt,
        }
        left_out = {*self.refused, *self.unheeded, "" if self.salted else "cache_salt"}
        left_out |= {"min_tokens", "ignore_eos"} if self.natural_stop else set()
        left_out |= set() if body["stream_options"] else {"stream_options"}
        cold = {} if shape.phase != "cold" else {key: on for key, on in self.cold.items() if key not in self.refused}
        return {name: value for name, value in body.items() if name not in left_out} | cold | self.extra


def say(body: dict[str, Any], text: str, question: str = "") -> dict[str, Any]:
    """A chat's body with the text as the user's words, and a question behind them."""
    words = {name: value for name, value in body.items() if name != "prompt"}
    content = f"{text}\n\n{question}" if question else text
    return words | {"messages": [{"role": "user", "content": content}]}


def refused_field(error: str, already: Sequence[str]) -> str | None:
    """The optional field that a server's HTTP 400 names, if any that has not been dropped yet."""
    if "stream_options" in error and not any(name in error for name in OPTIONAL_FIELDS[:2]):
        error += " " + next((name for name in OPTIONAL_FIELDS[:2] if name not in already), "")
    return next((name for name in OPTIONAL_FIELDS if name in error and name not in already), None)
