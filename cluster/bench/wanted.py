"""What is to be measured, as values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any, Literal

from cluster.bench.endpoint import COLD, INSTEAD, Served
from cluster.bench.result import Manifest
from cluster.bench.rows import Phase, Row, Shape
from cluster.bench.statistics import half_width
from cluster.bench.workload import CHAT, COMPLETIONS, Corpus, corpus_id, prompt_ids
from cluster.errors import UsageError

AUTO_LEAST, AUTO_MOST = 3, 10
PRECISE = 0.02
"""With `--runs auto` a row is done when the 95 % intervals of its rates are within ± this part of their means."""
FILE = resources.files("cluster.bench") / "suites.yaml"
PART: dict[str, Any] = {"pp": (128,), "tg": (128,), "depth": (0,), "concurrency": (1,), "runs": 3}
"""What a part of a suite measures by default."""


@dataclass(frozen=True, slots=True)
class BenchWanted:
    """What to measure. `model` is the name in the API; empty means the only one that is served.

    `runs`: a number, or "auto" for as many as the numbers need (`PRECISE`). `natural_stop`: outputs end where the model
    ends them, after `tg` tokens at most. `depth_mode` "prefix-caching": the context is loaded first and measured by
    itself. `chat`: /v1/chat/completions, where the model's template adds tokens of its own; `question` ends its text.
    `extra`: more fields of each request. `suite`: the name of the suite that this is a part of.
    `max_num_seqs`: how many requests the server computes at the same time, None where it is not known. `urls`: several
    servers share the requests.
    """

    urls: tuple[str, ...]
    model: str = ""
    pp: tuple[int, ...] = (2048,)
    tg: tuple[int, ...] = (32, 128)
    depth: tuple[int, ...] = (0, 4096, 8192, 16384)
    runs: int | Literal["auto"] = 3
    concurrency: tuple[int, ...] = (1,)
    seed: int = 1
    corpus: str = "prose"
    natural_stop: bool = False
    depth_mode: Literal["cold", "prefix-caching"] = "cold"
    chat: bool = False
    question: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    suite: str = ""
    max_num_seqs: int | None = None
    timeout_s: float = 600.0

    @property
    def path(self) -> str:
        return CHAT if self.chat else COMPLETIONS

    @property
    def least_runs(self) -> int:
        return AUTO_LEAST if self.runs == "auto" else self.runs

    @property
    def most_runs(self) -> int:
        return AUTO_MOST if self.runs == "auto" else self.runs

    def groups(self) -> tuple[tuple[Shape, ...], ...]:
        """The rows in llama-benchy's order, those that need each other together: a context, and what follows it.

        Raises UsageError for numbers that make none.
        """
        for name, values, least in (
            ("--pp", self.pp, 1),
            ("--tg", self.tg, 1),
            ("--depth", self.depth, 0),
            ("--concurrency", self.concurrency, 1),
            ("--runs", (self.least_runs,), 1),
        ):
            if not values or min(values) < least:
                given = " ".join(map(str, values)) or "nothing"
                raise UsageError(f"{name}: expected {least} or more, got {given}", code="number-too-small")
        warm: tuple[Phase, ...] = ("cold",) if self.depth_mode == "cold" else ("context", "cached")
        each = itertools.product(*map(dict.fromkeys, (self.depth, self.pp, self.tg, self.concurrency)))
        return tuple(
            tuple(Shape(pp, tg, depth, concurrency, phase) for phase in (warm if depth else ("cold",)))
            for depth, pp, tg, concurrency in each
        )

    def shapes(self) -> tuple[Shape, ...]:
        """All rows, in that order. Raises UsageError for numbers that make none."""
        return tuple(itertools.chain(*self.groups()))

    def is_enough(self, row: Row | None) -> bool:
        """Whether a row as it is now needs no further run."""
        if row is None or row.runs < self.least_runs:
            return False
        return row.runs >= self.most_runs or imprecise(row) is None


@dataclass(frozen=True, slots=True)
class BodyMaker:
    """Makes the bodies of requests: /v1/completions with token ids, or a chat with the text that they stand for.

    `salt` keeps the caches of earlier invocations out of this one: as `cache_salt` with vLLM, which uses it (up to 128
    characters without slashes), else in the prompts' beginnings. `engine`: a key of endpoint.TITLES. `left_out`: fields
    that the server refused or is known to ignore. `template_tokens`: what a chat's template adds to a text, so much
    less text is sent.
    """

    wanted: BenchWanted
    served: Served
    corpus: Corpus
    salt: str
    engine: str = ""
    left_out: tuple[str, ...] = ()
    template_tokens: int = 0

    def body(self, shape: Shape, run: str, index: int, tokens: int | None = None) -> dict[str, Any]:
        """The body of request `index` of a run. `tokens` to generate, the shape's when None.

        A context is the beginning of the prompt that follows it. A body of a chat or of words has ids too: the
        sender puts their text in their place.
        """
        wanted, corpus = self.wanted, self.corpus
        left_out = {*self.left_out, *(() if self.served.owner == "vllm" else ("cache_salt",))}
        left_out |= {"min_tokens", "ignore_eos"} if wanted.natural_stop else set()
        key = f"{wanted.seed}/pp{shape.pp}/tg{shape.tg}/d{shape.depth}/c{shape.concurrency}/{run}/{index}"
        begin_key = f"{self.salt} {key}" if "cache_salt" in left_out else ""
        length = max(1, round((shape.prompt_tokens - self.template_tokens) / corpus.per_word))
        count = shape.tg if tokens is None else tokens
        stream_options = {"include_usage": True, "continuous_usage_stats": True}
        body = {
            "model": self.served.model,
            "prompt": prompt_ids(corpus, length, key, begin_key),
            "max_tokens": count,
            "min_tokens": count,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {name: on for name, on in stream_options.items() if name not in left_out},
            "cache_salt": self.salt,
            **(COLD.get(self.engine, {}) if shape.phase == "cold" else {}),
            **INSTEAD.get(self.engine, {}),
            **wanted.extra,
        }
        left_out |= set() if body["stream_options"] else {"stream_options"}
        return {name: value for name, value in body.items() if name not in left_out}


def imprecise(row: Row) -> float | None:
    """The worst half width of the 95 % intervals of a row's rates (a part of the mean) where that is too wide.

    Infinite where it is unknown: a rate that only one of the runs gave.
    """
    widths = [half_width(rate) for rate in (row.pp_throughput, row.tg_throughput) if rate is not None]
    worst = max((math.inf if width is None else width for width in widths), default=0.0)
    return worst if worst >= PRECISE else None


def conditions(manifest: Manifest, wanted: BenchWanted) -> Manifest:
    """The manifest of a server with what is to be measured on it."""
    return replace(
        manifest,
        seed=wanted.seed,
        runs=wanted.runs,
        corpus=corpus_id(wanted.corpus),
        natural_stop=wanted.natural_stop,
        depth_mode=wanted.depth_mode,
        api=wanted.path,
        suite=wanted.suite,
        extra_fields=dict(wanted.extra) | ({"question": wanted.question} if wanted.question else {}),
    )


def fitting(wanted: BenchWanted, served: Served) -> BenchWanted:
    """A suite's part with the prompts that the model's context holds. Raises UsageError naming rows that do not fit."""
    limit = served.max_tokens
    if limit is None:
        return wanted
    if wanted.suite:
        room = limit - max(wanted.tg) - max(wanted.depth)
        wanted = replace(wanted, pp=tuple(pp for pp in wanted.pp if pp <= room) or wanted.pp[:1])
    over = [shape for shape in wanted.shapes() if shape.prompt_tokens + shape.tg > limit]
    if over:
        names = ", ".join(shape.name for shape in over[:4]) + (", …" if len(over) > 4 else "")
        most = limit - max(shape.pp + shape.tg for shape in over)
        what = f"{served.model} serves {limit} tokens of context; too long: {names}"
        remedy = f"--depth {most} at most with these --pp and --tg" if most >= 0 else "smaller --pp or --tg"
        raise UsageError(what, code="context-too-long", remedy=remedy)
    return wanted


def parts_of(suite: str, plain: BenchWanted) -> dict[str, BenchWanted]:
    """The measurements of a suite by title, all else as in `plain`. Raises TypeError for a key that no part has."""
    import yaml

    found = {}
    for part in yaml.safe_load(FILE.read_text("utf-8"))[suite]["parts"]:
        own = {key: tuple(value) if isinstance(value, list) else value for key, value in part.items() if key != "title"}
        found[part["title"]] = replace(plain, suite=suite, **PART | own)
    return found
