"""Prompts of exact length as token ids: seeded, the same for every server with the same tokenizer.

The text is `corpus/alice.txt` (Lewis Carroll, 1865, public domain; see corpus/README.md). It is tokenised once by the
server's own /tokenize; each request takes its blocks in an order of its own behind a beginning of its own.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any

from cluster.bench.rows import Shape

BLOCK_TOKENS = 256
PREFIX_TOKENS = 16

# What a server may refuse: the measurement can do without, and the result says that it did.
OPTIONAL_FIELDS = ("continuous_usage_stats", "include_usage", "cache_salt", "min_tokens", "ignore_eos", "temperature")


@cache
def corpus_text() -> str:
    """The text that prompts are made of."""
    return (resources.files("cluster.bench") / "corpus" / "alice.txt").read_text("utf-8")


def corpus_hash() -> str:
    """Hash of the text, for the manifest."""
    return hashlib.sha256(corpus_text().encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Corpus:
    """The text as this server's token ids; `begin` is what its tokenizer puts before every text (BOS, if any)."""

    ids: tuple[int, ...]
    begin: tuple[int, ...] = ()


def prompt_ids(corpus: Corpus, length: int, key: str, begin_key: str = "") -> list[int]:
    """`length` token ids that depend on `key` and the corpus only (the beginning on `begin_key`, where given).

    After BOS come random ids of the text, different for each key, so that no two prompts share a prefix that a
    cache could use; then blocks of the text in a random order.
    """
    chance = random.Random(key)
    distinct = sorted(set(corpus.ids))
    ids = [*corpus.begin, *random.Random(begin_key or f"begin {key}").choices(distinct, k=PREFIX_TOKENS)]
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
    """Makes the bodies of /v1/completions requests.

    `salt` keeps the caches of earlier invocations out of this one: as `cache_salt` (vLLM: up to 128 characters
    without slashes), or in the prompts' beginnings where the server refuses the field.
    """

    model: str
    corpus: Corpus
    seed: int
    salt: str
    refused: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)

    def without(self, name: str) -> BodyMaker:
        """The same without a field that the server refused."""
        return replace(self, refused=(*self.refused, name))

    def body(self, shape: Shape, run: str, index: int, tokens: int | None = None) -> dict[str, Any]:
        """The body of request `index` of a run. `tokens` to generate, the shape's when None."""
        key = f"{self.seed}/pp{shape.pp}/tg{shape.tg}/d{shape.depth}/c{shape.concurrency}/{run}/{index}"
        count = shape.tg if tokens is None else tokens
        begin_key = f"{self.salt} {key}" if "cache_salt" in self.refused else ""
        options = {"include_usage": True, "continuous_usage_stats": True}
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": prompt_ids(self.corpus, shape.prompt_tokens, key, begin_key),
            "max_tokens": count,
            "min_tokens": count,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {name: on for name, on in options.items() if name not in self.refused},
            "cache_salt": self.salt,
        }
        if not body["stream_options"]:
            del body["stream_options"]
        return {name: value for name, value in body.items() if name not in self.refused} | self.extra


def refused_field(error: str, already: Sequence[str]) -> str | None:
    """The optional field that a server's HTTP 400 names, if any that has not been dropped yet."""
    if "stream_options" in error and not any(name in error for name in OPTIONAL_FIELDS[:2]):
        error += " " + next((name for name in OPTIONAL_FIELDS[:2] if name not in already), "")
    return next((name for name in OPTIONAL_FIELDS if name in error and name not in already), None)
