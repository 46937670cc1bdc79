"""Prompts of exact length as token ids: seeded, the same for every server with the same tokenizer.

The text is prose or code in the public domain (corpus/README.md). It is tokenised once by the server's own /tokenize;
each request takes its blocks in an order of its own behind a beginning of its own.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import Any

BLOCK_TOKENS = 256
PREFIX_TOKENS = 16
PIECE_LENGTH = 50_000
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"

# What a server may refuse: the measurement can do without, and the result names what was left out.
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
    """The text in portions that a server with a short context accepts too, cut at line ends."""
    pieces = [""]
    for line in corpus_text(name).splitlines(keepends=True):
        if len(pieces[-1]) + len(line) > PIECE_LENGTH:
            pieces.append("")
        pieces[-1] += line
    return pieces


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


def chat_body(body: Mapping[str, Any], text: str, question: str = "") -> dict[str, Any]:
    """A chat's body with the text as the user's message, and a question behind it."""
    content = f"{text}\n\n{question}" if question else text
    fields = {name: value for name, value in body.items() if name != "prompt"}
    return fields | {"messages": [{"role": "user", "content": content}]}


def refused_field(error: str, already: Sequence[str]) -> str | None:
    """The optional field that a server's HTTP 400 names, if any that has not been dropped yet."""
    if "stream_options" in error and not any(name in error for name in OPTIONAL_FIELDS[:2]):
        error += " " + next((name for name in OPTIONAL_FIELDS[:2] if name not in already), "")
    return next((name for name in OPTIONAL_FIELDS if name in error and name not in already), None)
