"""What is to be measured, as values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any, Literal

from cluster.bench.endpoint import COLD, IGNORED, INSTEAD, Served
from cluster.bench.result import Manifest
from cluster.bench.rows import Phase, Row, Shape
from cluster.bench.statistics import half_width
from cluster.bench.workload import CHAT, COMPLETIONS, BodyMaker, Corpus, corpus_id
from cluster.errors import UsageError

AUTO_LEAST, AUTO_MOST = 3, 10
PRECISE = 0.02
"""With `--runs auto` a row is done when the 95 % intervals of its rates are within ± this part of their means."""


@dataclass(frozen=True, slots=True)
class BenchWanted:
    """What to measure. `model` is the name in the API; empty means the only one that is served.

    `runs`: a number, or "auto" for as many as the numbers need (`PRECISE`). `natural_stop`: outputs end where the model
    ends them, after `tg` tokens at most. `depth_mode` "prefix-caching": the context is loaded first and measured by
    itself. `chat`: /v1/chat/completions, where the model's template adds tokens of its own; `question` ends its text.
    `extra`: more fields of each request. `suite`: the name of the suite that this is a part of.
    `max_num_seqs`: how many requests the server computes at the same time, None where it is not known.
    """

    base_url: str
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

    def groups(self) -> tuple[tuple[Shape, ...], ...]:
        """The rows in llama-benchy's order, those that need each other together: a context, and what stands on it.

        Raises UsageError for numbers that make none.
        """
        runs = 1 if self.runs == "auto" else self.runs
        for name, values, least in (
            *(("--pp", self.pp, 1), ("--tg", self.tg, 1), ("--depth", self.depth, 0)),
            *(("--concurrency", self.concurrency, 1), ("--runs", (runs,), 1)),
        ):
            if not values or min(values) < least:
                given = " ".join(map(str, values)) or "nothing"
                raise UsageError(f"{name}: expected {least} or more, got {given}", code="number-too-small")
        warm: tuple[Phase, ...] = ("cold",) if self.depth_mode == "cold" else ("context", "cached")
        return tuple(
            tuple(Shape(pp, tg, depth, concurrency, phase) for phase in (warm if depth else ("cold",)))
            for depth, pp, tg, concurrency in itertools.product(
                *map(dict.fromkeys, (self.depth, self.pp, self.tg, self.concurrency))
            )
        )

    def shapes(self) -> tuple[Shape, ...]:
        """All rows, in that order. Raises UsageError for numbers that make none."""
        return tuple(itertools.chain(*self.groups()))

    def maker(self, served: Served, corpus: Corpus, salt: str, engine: str = "") -> BodyMaker:
        """What makes the requests; a chat's template puts the begin of a text itself."""
        own = replace(corpus, begin=()) if self.chat else corpus
        return BodyMaker(
            served.model,
            own,
            self.seed,
            salt,
            template_tokens=corpus.overhead,
            salted=served.heeds_salt,
            natural_stop=self.natural_stop,
            chat=self.chat,
            question=self.question,
            extra=dict(INSTEAD.get(engine, {})) | dict(self.extra),
            unheeded=IGNORED.get(engine, ()),
            cold=COLD.get(engine, {}),
        )

    @property
    def most_runs(self) -> int:
        return AUTO_MOST if self.runs == "auto" else self.runs

    def is_enough(self, row: Row | None) -> bool:
        """Whether a row as it stands needs no further run."""
        if row is None or self.runs != "auto":
            return row is not None and row.runs >= self.most_runs
        return row.runs >= AUTO_LEAST and imprecise(row) is None


def imprecise(row: Row) -> float | None:
    """The worst half width of the 95 % intervals of a row's rates (a part of the mean) where that is too wide.

    Infinite where it cannot be told: a rate that only one of the runs gave.
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
        api=CHAT if wanted.chat else COMPLETIONS,
        suite=wanted.suite,
        extra_fields=dict(wanted.extra) | ({"question": wanted.question} if wanted.question else {}),
    )


def fitting(wanted: BenchWanted, served: Served) -> BenchWanted:
    """A suite's part with the prompts that the model's context holds; anything else as it is."""
    if not wanted.suite or served.max_tokens is None:
        return wanted
    room = served.max_tokens - max(wanted.tg) - max(wanted.depth)
    return replace(wanted, pp=tuple(pp for pp in wanted.pp if pp <= room) or wanted.pp[:1])


def check_limit(shapes: tuple[Shape, ...], served: Served) -> None:
    """Raises UsageError naming the rows that do not fit the model's context."""
    if served.max_tokens is None:
        return
    over = [shape for shape in shapes if shape.prompt_tokens + shape.tg > served.max_tokens]
    if over:
        names = ", ".join(shape.name for shape in over[:4]) + (", …" if len(over) > 4 else "")
        most = served.max_tokens - max(shape.pp + shape.tg for shape in over)
        raise UsageError(
            f"{served.model} serves {served.max_tokens} tokens of context; too long: {names}",
            code="context-too-long",
            remedy=f"--depth {most} at most with these --pp and --tg" if most >= 0 else "smaller --pp or --tg",
        )


FILE = resources.files("cluster.bench") / "suites.yaml"
PART: dict[str, Any] = {"pp": (128,), "tg": (128,), "depth": (0,), "concurrency": (1,), "runs": 3}
"""What a part of a suite measures where it says nothing."""


def parts_of(suite: str, plain: BenchWanted) -> dict[str, BenchWanted]:
    """The measurements of a suite by title, all else as in `plain`. Raises TypeError for a key that no part has."""
    import yaml

    found = {}
    for part in yaml.safe_load(FILE.read_text("utf-8"))[suite]["parts"]:
        own = {key: tuple(value) if isinstance(value, list) else value for key, value in part.items() if key != "title"}
        found[part["title"]] = replace(plain, suite=suite, **PART | own)
    return found
