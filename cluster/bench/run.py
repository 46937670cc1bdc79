"""The benchmark itself: `run_bench` sends rounds through a Loader and gives rows."""

from __future__ import annotations

import math
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from cluster.bench.endpoint import (
    Asked,
    CounterReader,
    ask_loaded,
    check_answer,
    detokenise,
    find_engine,
    find_model,
    ignored,
    measure_latency,
    remedy_of,
    same_name,
    tokenise,
    with_engine,
)
from cluster.bench.loader import Ask, ClientLoad, Loader, Round
from cluster.bench.measure import BatchMeasure, measure_batch
from cluster.bench.metrics import Watched, credit_hits, ours_of, watch
from cluster.bench.read import RequestTrace, read_stream
from cluster.bench.result import Manifest, Result, clocks
from cluster.bench.rows import Row, Sentinel, Shape, choose_sentinel, compare_runs, summarise
from cluster.bench.sampling import Machine, NoMachine
from cluster.bench.wanted import AUTO_LEAST, BenchWanted, check_limit, fitting, imprecise
from cluster.bench.workload import BodyMaker, corpus_id, refused_field, say
from cluster.errors import ClusterError, ConnectionLostError

BAR = 10
TOKENS_READ = 40
"""Prompt tokens that take a server about as long as one generated token; it only weighs rows not yet measured."""


class Pace:
    """The rounds of a measurement: `runs` of each shape, or more where that is not enough."""

    def __init__(self, shapes: Sequence[Shape], runs: int) -> None:
        self._left = dict.fromkeys(shapes, runs)
        self._took: dict[Shape, float] = {}
        self._done = 0

    def end(self, shape: Shape, seconds: float) -> None:
        self._took[shape] = seconds
        self._left[shape] = max(0, self._left[shape] - 1)
        self._done += 1

    @property
    def left_s(self) -> float | None:
        """Seconds that the rest takes by what each shape took last, or its like; None while nothing is known."""
        if not self._took:
            return None
        each = sum(self._took.values()) / sum(map(weight, self._took))
        return sum(count * self._took.get(shape, each * weight(shape)) for shape, count in self._left.items())

    def __str__(self) -> str:
        total = self._done + sum(self._left.values())
        full = BAR * self._done // max(1, total)
        left = "" if self.left_s is None else f", {about(self.left_s)} left"
        return f"{'▰' * full}{'▱' * (BAR - full)} {self._done} of {total}{left}"


def weight(shape: Shape) -> float:
    """What a round costs, in generated tokens of one client."""
    return shape.tg + shape.concurrency * shape.prompt_tokens / TOKENS_READ


def about(seconds: float) -> str:
    """A duration in words, no finer than it can be known."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return "less than a minute"
    return f"about {minutes} min" if minutes < 60 else f"about {minutes // 60} h {minutes % 60:02} min"


WARM_UP_TOKENS = 8
FIRST_TRIES = 3


class Sender:
    def __init__(self, loader: Loader, wanted: BenchWanted, maker: BodyMaker, asked: Asked) -> None:
        self.loader, self.wanted, self.maker, self.asked = loader, wanted, maker, asked
        self.answers_as = ""

    def send(self, shape: Shape, run: str, tokens: int | None = None) -> tuple[list[RequestTrace], ClientLoad]:
        """One batch of requests at the same time. Under whichever name the only model answers, no other will do."""
        maker, corpus = self.maker, self.maker.corpus
        bodies = [maker.body(shape, run, index, tokens) for index in range(shape.concurrency)]
        sent = [shape.prompt_tokens] * len(bodies)
        texts: Sequence[str] = ()
        if corpus.words:
            texts = ["".join(corpus.words[one] for one in body["prompt"]) for body in bodies]
            sent = [corpus.overhead + round(corpus.per_byte * len(text.encode())) for text in texts]
        elif maker.chat:
            texts = detokenise(self.loader, maker.model, [body["prompt"] for body in bodies])
        for at, text in enumerate(texts):
            bodies[at] = say(bodies[at], text, maker.question) if maker.chat else bodies[at] | {"prompt": text}
        asks = tuple(Ask(maker.path, body) for body in bodies)
        record = self.loader.send(Round(f"{shape.name} {run}", asks, shape.concurrency, self.wanted.timeout_s))
        traces = [check_answer(read_stream(one), self.asked, n) for one, n in zip(record.records, sent, strict=True)]
        given = next((trace.model for trace in traces if trace.model and not trace.error), "")
        if given:
            names = (self.asked.model, *self.asked.names)
            if self.asked.alone and not any(same_name(name, given) for name in names):
                self.answers_as = given
            self.asked = replace(self.asked, names=(*self.asked.names, given), alone=False)
        return traces, record.client

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
        error, failed = "", 0
        while failed < FIRST_TRIES:
            maker, attempt = self.maker, failed + len(self.maker.refused)
            [trace], _ = self.send(shape, f"first{attempt}", min(WARM_UP_TOKENS, shape.tg))
            if not trace.error:
                if maker.chat and not maker.question and not maker.corpus.words and trace.prompt_tokens is not None:
                    added = trace.prompt_tokens - shape.prompt_tokens  # beyond the text's, by the chat's template
                    self.maker = replace(maker, template_tokens=max(0, added))
                return
            error = trace.error
            if trace.status in (400, 422) and (name := refused_field(error, maker.refused)):
                self.maker = replace(maker, refused=(*maker.refused, name))
            else:
                failed += 1
        where = self.wanted.base_url + self.maker.path
        raise ClusterError(
            f"the server served no request: {error}", code="no-request-served", where=where, remedy=remedy_of(error)
        )


NO_MACHINE = NoMachine()
CATCH_UP_S = 0.25  # a server may count a request a moment after it has answered it


def run_bench(
    loader: Loader,
    wanted: BenchWanted,
    on_row: Callable[[Row], None] = lambda row: None,
    machine: Machine = NO_MACHINE,
    on_step: Callable[[str], None] = lambda text: None,
    manifest: Manifest = Manifest(""),
) -> Result:
    """Measure all rows, run by run over the rows so that a drift meets all alike; `manifest`: what is known before.

    `on_row` is given the row as it stands after each of its runs; `on_step` says what happens now. Failed requests
    are counted in their row. Raises UsageError before anything is measured when a row does not fit the model's
    context, ClusterError when the server cannot be measured or served no request at all.
    """
    wanted.shapes()
    served = find_model(loader, wanted.model, wanted.base_url)
    wanted = fitting(wanted, served)
    check_limit(wanted.shapes(), served)
    on_step("tokenise")
    corpus = tokenise(loader, served.model, wanted.corpus, chat=wanted.chat)
    engine = find_engine(loader, served)  # after a first request: Ollama tells of models in memory only
    served = with_engine(served, engine)
    wanted = fitting(wanted, served)
    shapes = wanted.shapes()
    check_limit(shapes, served)
    maker = wanted.maker(served, corpus, secrets.token_hex(16), engine.name)
    latency_s = measure_latency(loader)
    exact = not corpus.words and not wanted.chat
    sender = Sender(loader, wanted, maker, Asked(served.model, served.names, served.alone and not engine.router, exact))
    sender.warm_up(shapes, on_step)
    engine = ask_loaded(loader, served, engine)
    bench = _Bench(sender, latency_s, machine)
    rows = bench.measure(on_row, on_step)
    if all(row.failed == row.requests for row in rows):
        error = rows[0].failures[0].partition(" × ")[2]
        raise ClusterError(f"the server served no request: {error}", code="no-request-served", remedy=remedy_of(error))
    sentinel = bench.watch_drift(shapes, on_step)
    seen = {"ignored": list(ignored(engine.name)), "answers_as": sender.answers_as}
    found = engine.document() | {key: value for key, value in seen.items() if value}
    manifest = replace(
        manifest,
        model=served.model,
        corpus=corpus_id(wanted.corpus) + (" as words" if corpus.words else ""),
        refused_fields=sender.maker.refused,
        engine={} if manifest.deployment else found,
        client_where=loader.where,
        est_ppt_from=clocks(rows),
    )
    request = sender.maker.body(shapes[0], "run0", 0) | {"prompt": f"[{shapes[0].prompt_tokens} tokens]"}
    return Result(manifest, rows, 1e3 * latency_s, request=request, sentinel=sentinel)


@dataclass(slots=True)
class _Kept:
    batches: list[BatchMeasure] = field(default_factory=list)
    client: list[dict[str, float]] = field(default_factory=list)
    machine: list[dict[str, Any]] = field(default_factory=list)
    server: list[Watched] = field(default_factory=list)
    repeated: list[int] = field(default_factory=list)


class _Bench:
    def __init__(self, sender: Sender, latency_s: float, machine: Machine) -> None:
        self.sender, self.wanted, self.latency_s, self.machine = sender, sender.wanted, latency_s, machine
        self.counters = CounterReader(sender.loader)
        self.kept: dict[Shape, _Kept] = defaultdict(_Kept)
        self.rows: dict[Shape, Row] = {}

    def measure(self, on_row: Callable[[Row], None], on_step: Callable[[str], None]) -> tuple[Row, ...]:
        """All runs of all rows, then the rows."""
        pace = Pace(self.wanted.shapes(), AUTO_LEAST if self.wanted.runs == "auto" else self.wanted.runs)
        for run in range(self.wanted.most_runs):
            for group in self.wanted.groups():
                if all(self.wanted.is_enough(self.rows.get(shape)) for shape in group):
                    continue
                for shape in group:
                    on_step(f"{pace}; run {run + 1} of {self.wanted.runs}: {shape.name}")
                    start = time.monotonic()
                    self._measure_once(shape, run, self.kept[shape])
                    pace.end(shape, time.monotonic() - start)
                    self.rows[shape] = self._row(shape, self.kept[shape])
                    on_row(self.rows[shape])
        return tuple(self.rows[shape] for shape in self.wanted.shapes())

    def watch_drift(self, shapes: tuple[Shape, ...], on_step: Callable[[str], None]) -> Sentinel | None:
        """One row once more, against its first run; the only row's own last run is the latest there can be."""
        shape = choose_sentinel([shape for shape in shapes if shape.phase != "cached"])
        kept = last = self.kept[shape]
        if len(shapes) > 1:
            on_step(f"once more: {shape.name}")
            last = _Kept()
            self._measure_once(shape, self.wanted.most_runs, last)
        elif len(kept.batches) < 2:
            return None
        first, end = (summarise(shape, [batch]) for batch in (kept.batches[0], last.batches[-1]))
        return compare_runs(first, end, self.rows[shape], extra=len(shapes) > 1)

    def _measure_once(self, shape: Shape, run: int, kept: _Kept) -> None:
        """One run of one row; once more, with prompts that no cache has seen, when its load client was lost."""
        try:
            self._attempt(shape, run, f"run{run}", kept)
        except ConnectionLostError:
            name = f"run{run} repeated"
            if shape.phase == "cached":
                self.sender.send(replace(shape, phase="context"), name)
            self._attempt(shape, run, name, kept)
            kept.repeated.append(run)

    def _attempt(self, shape: Shape, run: int, name: str, kept: _Kept) -> None:
        """One run of one row. Raises ConnectionLostError, and keeps nothing of it then."""
        counts = self.counters.read()
        self.machine.begin()
        try:
            traces, client = self.sender.send(shape, name)
        except ConnectionLostError:
            self.machine.end()
            raise
        machine, ours = self.machine.end(), ours_of(traces)
        watched = watch(counts, self.counters.read(), ours)
        if watched and watched.lags:
            time.sleep(CATCH_UP_S)
            watched = watch(counts, self.counters.read(), ours)
        traces = credit_hits(traces, watched)
        kept.server += [watched] if watched else []
        kept.batches.append(measure_batch(traces, self.latency_s, shape.prompt_tokens))
        kept.client.append(asdict(client))
        if machine:
            kept.machine.append({"run": run} | machine)

    def _row(self, shape: Shape, kept: _Kept) -> Row:
        places = shape.concurrency if self.wanted.max_num_seqs is None else self.wanted.max_num_seqs
        row = summarise(
            shape,
            kept.batches,
            client=kept.client,
            machine=kept.machine,
            server=kept.server,
            natural_stop=self.wanted.natural_stop,
            queued=max(0, shape.concurrency - places),
            repeated=kept.repeated,
        )
        width = imprecise(row) if self.wanted.runs == "auto" and row.runs == self.wanted.most_runs else None
        if width is None:
            return row
        still = f"still ± {width:.1%}" if math.isfinite(width) else "not known: a rate has one value only"
        return replace(row, notes=(*row.notes, f"after {row.runs} runs the 95 % interval is {still}"))
