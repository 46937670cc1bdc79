"""Sends batches of one shape, and knows which fields the server will not have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from cluster.bench.belief import Asked, doubt, remedy_of, same_name
from cluster.bench.loader import Loader
from cluster.bench.read import RequestTrace, read_stream
from cluster.bench.records import Ask, ClientLoad, Round
from cluster.bench.rows import Shape
from cluster.bench.server import detokenise
from cluster.bench.wanted import BenchWanted
from cluster.bench.workload import OPTIONAL_FIELDS, BodyMaker, refused_field, say, write
from cluster.errors import ClusterError

WARM_UP_TOKENS = 8
FIRST_TRIES = 3


class Sender:
    """One benchmark's requests."""

    def __init__(self, loader: Loader, wanted: BenchWanted, maker: BodyMaker, asked: Asked) -> None:
        self.loader = loader
        self.wanted = wanted
        self.maker = maker
        self.asked = asked
        self.answers_as = ""

    def send(self, shape: Shape, run: str, tokens: int | None = None) -> tuple[list[RequestTrace], ClientLoad]:
        """One batch of requests at the same time."""
        bodies = [self.maker.body(shape, run, index, tokens) for index in range(shape.concurrency)]
        sent = [shape.prompt_tokens] * len(bodies)
        if self.maker.chat or self.maker.corpus.words:
            texts = self._texts(bodies)
            sent = [self.maker.corpus.weigh(text) for text in texts] if self.maker.corpus.words else sent
            bodies = [self._put(body, text) for body, text in zip(bodies, texts, strict=True)]
        asks = tuple(Ask(self.maker.path, body) for body in bodies)
        wanted = Round(f"{shape.name} {run}", asks, shape.concurrency, self.wanted.timeout_s)
        record = self.loader.send(wanted)
        traces = [doubt(read_stream(one), self.asked, n) for one, n in zip(record.records, sent, strict=True)]
        self._learn_name(traces)
        return traces, record.client

    def _learn_name(self, traces: Sequence[RequestTrace]) -> None:
        """The name under which the only model answers; once it is known no other will do."""
        given = next((trace.model for trace in traces if trace.model and not trace.error), "")
        names = (self.asked.model, *self.asked.names)
        if self.asked.alone and given and not any(same_name(name, given) for name in names):
            self.answers_as = given
        if given:
            self.asked = replace(self.asked, names=(*self.asked.names, given), alone=False)

    def _texts(self, bodies: Sequence[dict[str, Any]]) -> list[str]:
        """What the ids of bodies say."""
        ids, corpus = [body["prompt"] for body in bodies], self.maker.corpus
        return [corpus.text(one) for one in ids] if corpus.words else detokenise(self.loader, self.maker.model, ids)

    def _put(self, body: dict[str, Any], text: str) -> dict[str, Any]:
        """A body with its text: as a chat, or as it is."""
        return say(body, text, self.maker.question) if self.maker.chat else write(body, text)

    def warm_up(self, shapes: tuple[Shape, ...], on_step: Callable[[str], None]) -> None:
        """A few tokens of each prompt length and concurrency; learns which fields the server refuses.

        Raises ClusterError with the server's words when the first ones all fail.
        """
        first = min(shapes, key=lambda shape: shape.prompt_tokens)
        on_step(f"warm-up {first.name}")
        self._settle(replace(first, concurrency=1))
        for shape in {(s.prompt_tokens, s.concurrency, s.phase): s for s in shapes}.values():
            on_step(f"warm-up {shape.name}")
            self.send(shape, "warm-up", min(WARM_UP_TOKENS, shape.tg))

    def _settle(self, shape: Shape) -> None:
        """Send single requests until one is served, dropping refused fields one by one."""
        error = ""
        failed = 0
        for attempt in range(FIRST_TRIES + len(OPTIONAL_FIELDS)):
            [trace], _ = self.send(shape, f"first{attempt}", min(WARM_UP_TOKENS, shape.tg))
            if not trace.error:
                self._learn_template(shape, trace)
                return
            error = trace.error
            name = refused_field(error, self.maker.refused) if trace.status in (400, 422) else None
            if name is None:
                failed += 1
                if failed == FIRST_TRIES:
                    break
            else:
                self.maker = self.maker.without(name)
        where = self.wanted.base_url + self.maker.path
        raise ClusterError(f"the server served no request: {error}", where=where, remedy=remedy_of(error))

    def _learn_template(self, shape: Shape, trace: RequestTrace) -> None:
        """How many tokens a chat has beyond those of its text."""
        exact = self.maker.chat and not self.maker.question and not self.maker.corpus.words
        if exact and trace.prompt_tokens is not None:
            added = trace.prompt_tokens - shape.prompt_tokens
            self.maker = replace(self.maker, template_tokens=max(0, added))
