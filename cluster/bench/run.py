"""The benchmark itself: `run_bench` sends batches through a Loader and gives rows."""

from __future__ import annotations

import math
import secrets
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cluster.bench.endpoint import (
    NOT_SENT,
    Engine,
    Served,
    ask_loaded,
    check_answer,
    detokenise,
    find_engine,
    find_model,
    measure_latency,
    read_counters,
    remedy_of,
    tokenise,
    with_engine,
)
from cluster.bench.loader import Ask, Batch, Loader, OneOf
from cluster.bench.measure import BatchMeasure, measure_batch
from cluster.bench.metrics import Counts, ServerCounts, count_run, credit_hits
from cluster.bench.read import RequestTrace, read_stream
from cluster.bench.result import Manifest, Result, clocks
from cluster.bench.rows import Observed, Row, Sentinel, Shape, choose_sentinel, compare_runs, summarise
from cluster.bench.sampling import Watchers
from cluster.bench.wanted import BenchWanted, BodyMaker, fitting, imprecise
from cluster.bench.workload import chat_body, corpus_id, refused_field
from cluster.errors import ClusterError, ConnectionLostError, RefusedError

TOKENS_READ = 40
"""Prompt tokens that take a server about as long as one generated token; it only weighs rows not yet measured."""
WARM_UP_TOKENS = 8
FIRST_TRIES = 3
CATCH_UP_S = 0.25  # a server may count a request a moment after it has answered it


class Pace:
    """How far a measurement is: `runs` of each shape, or more where that is not enough."""

    def __init__(self, shapes: Sequence[Shape], runs: int) -> None:
        self._left = dict.fromkeys(shapes, runs)
        self._done: list[Shape] = []
        self._began = time.monotonic()

    def end(self, shape: Shape) -> None:
        self._left[shape] = max(0, self._left[shape] - 1)
        self._done.append(shape)

    def __str__(self) -> str:
        total = len(self._done) + sum(self._left.values())
        bar = f"{'▰' * (10 * len(self._done) // total):▱<10} {len(self._done)} of {total}"
        if not self._done:
            return bar
        each = (time.monotonic() - self._began) / sum(map(weight, self._done))
        minutes = round(each * sum(count * weight(shape) for shape, count in self._left.items()) / 60)
        return f"{bar}, about {minutes} min left"


def weight(shape: Shape) -> float:
    """What a batch costs, in generated tokens of one client."""
    return shape.tg + shape.concurrency * shape.prompt_tokens / TOKENS_READ


def none_served(error: str, where: str = "") -> ClusterError:
    what = f"the server served no request: {error}"
    return ClusterError(what, code="no-request-served", where=where, remedy=remedy_of(error))


def run_bench(
    loader: Loader,
    wanted: BenchWanted,
    on_row: Callable[[Row], None] = lambda row: None,
    machine: Watchers | None = None,
    on_step: Callable[[str], None] = lambda text: None,
    manifest: Manifest = Manifest(""),
) -> Result:
    """Measure all rows, run by run over the rows so that a drift meets all alike; `manifest`: what is known before.

    `on_row` is given the row as it is after each of its runs; `on_step` gets what happens now, in words. Failed
    requests are counted in their row. Raises UsageError before anything is measured when a row does not fit the model's
    context, ClusterError when the server cannot be measured or served no request at all.
    """
    wanted.shapes()
    names = manifest.replicas or wanted.urls
    servers = [loader] if len(names) == 1 else [OneOf(loader, place) for place in range(len(names))]
    models = [find_model(one, wanted.model, url) for one, url in zip(servers, wanted.urls, strict=True)]
    served = models[0]
    fitting(wanted, served)
    on_step("tokenise")
    corpus = tokenise(loader, served.model, wanted.corpus, chat=wanted.chat)
    # after a first request: Ollama reports models in memory only
    engines = [find_engine(one, model) for one, model in zip(servers, models, strict=True)]
    check_alike(names, models, engines)
    engine = engines[0]
    served = with_engine(served, engine)
    left_out = NOT_SENT.get(engine.name, ())
    salt = secrets.token_hex(16)
    maker = BodyMaker(fitting(wanted, served), served, corpus, salt, engine.name, left_out, corpus.overhead)
    bench = Bench(loader, maker, machine, on_step, dict(zip(names, servers, strict=True)))
    bench.warm_up()
    engine = ask_loaded(loader, served, engine)
    rows = bench.measure(on_row)
    if all(row.failed == row.requests for row in rows):
        raise none_served(rows[0].failures[0].partition(" × ")[2])
    sentinel = bench.watch_drift()
    seen = {"ignored": list(engine.ignored), "answers_as": bench.answers_as}
    found = engine.document() | {key: value for key, value in seen.items() if value}
    manifest = replace(
        manifest,
        model=served.model,
        corpus=corpus_id(wanted.corpus) + (" as words" if corpus.words else ""),
        refused_fields=bench.refused,
        engine={} if manifest.deployment else found,
        client_where=loader.where,
        est_ppt_from=clocks(rows),
    )
    first = bench.shapes[0]
    request = bench.maker.body(first, "run0", 0) | {"prompt": f"[{first.prompt_tokens} tokens]"}
    return Result(manifest, rows, 1e3 * statistics.mean(bench.latencies_s.values()), request=request, sentinel=sentinel)


def check_alike(names: Sequence[str], models: Sequence[Served], engines: Sequence[Engine]) -> None:
    """Raise RefusedError unless replicas serve the same model with the same context, by the same engine."""
    found = [
        f"{model.model}, {model.max_tokens or 'unknown'} tokens of context, {engine.name or model.owner} "
        f"{engine.version}"
        for model, engine in zip(models, engines, strict=True)
    ]
    if len({*found}) > 1:
        each = "; ".join(f"{name}: {one}" for name, one in zip(names, found, strict=True))
        what = f"the servers are not replicas: {each}"
        raise RefusedError(what, code="replicas-differ", remedy="measure each by itself")


class Bench:
    """A measurement under way. `refused`: fields that the server refused, left out since; `answers_as`: another name
    of the model, in a server that offers one model only. `servers`: by their names in the result, each with the client
    that asks it alone; requests go to them in turn."""

    def __init__(
        self,
        loader: Loader,
        maker: BodyMaker,
        machine: Watchers | None,
        on_step: Callable[[str], None],
        servers: Mapping[str, Loader],
    ) -> None:
        self.loader, self.maker, self.machine, self.on_step, self.servers = loader, maker, machine, on_step, servers
        self.wanted, self.served, self.shapes = maker.wanted, maker.served, maker.wanted.shapes()
        self.latencies_s = {name: measure_latency(one) for name, one in servers.items()}
        self.refused: tuple[str, ...] = ()
        self.answers_as = ""
        self.counting = dict(servers)  # without those that turned out to count nothing
        self.batches: dict[Shape, list[BatchMeasure]] = defaultdict(list)
        self.observed: dict[Shape, Observed] = defaultdict(Observed)
        self.rows: dict[Shape, Row] = {}

    def server_of(self, turn: int, index: int) -> int:
        """Which server is sent request `index` of run `turn`: one after the other, so single clients meet all of them
        in their runs, and a prompt the server that has its context."""
        return (turn + index) % len(self.servers)

    def send(
        self, shape: Shape, run: str, tokens: int | None = None, turn: int = 0
    ) -> tuple[Sequence[RequestTrace], dict[str, float]]:
        """One batch, read, and the load client's own numbers. The first name that the only model answers as stays."""
        wanted, corpus = self.wanted, self.maker.corpus
        bodies = [self.maker.body(shape, run, index, tokens) for index in range(shape.concurrency)]
        sent = [shape.prompt_tokens] * len(bodies)
        texts: Sequence[str] = ()
        if corpus.words:
            texts = ["".join(corpus.words[one] for one in body["prompt"]) for body in bodies]
            sent = [corpus.overhead + round(corpus.per_byte * len(text.encode())) for text in texts]
        elif wanted.chat:
            texts = detokenise(self.loader, self.served.model, [body["prompt"] for body in bodies])
        for at, text in enumerate(texts):
            bodies[at] = chat_body(bodies[at], text, wanted.question) if wanted.chat else bodies[at] | {"prompt": text}
        asks = tuple(Ask(wanted.path, body, self.server_of(turn, index)) for index, body in enumerate(bodies))
        record = self.loader.send(Batch(f"{shape.name} {run}", asks, shape.concurrency, wanted.timeout_s))
        traces = [
            check_answer(read_stream(one), self.served, length, exact=not texts)
            for one, length in zip(record.records, sent, strict=True)
        ]
        if len(self.servers) > 1:
            names = [*self.servers]
            traces = [
                replace(trace, error=f"{trace.error} ({names[ask.server]})") if trace.error else trace
                for trace, ask in zip(traces, asks, strict=True)
            ]
        given = next((trace.model for trace in traces if trace.model and not trace.error), "")
        if given:
            if self.served.alone and not self.served.answers_to(given):
                self.answers_as = given
            self.served = replace(self.served, names=(*self.served.names, given), alone=False)
        return traces, record.client

    def warm_up(self) -> None:
        """A few tokens of each prompt length and concurrency; learns which fields the server refuses.

        Raises ClusterError with the server's words when the first ones all fail.
        """
        first = min(self.shapes, key=lambda shape: shape.prompt_tokens)
        self.on_step(f"warm-up {first.name}")
        self._settle(replace(first, concurrency=1))
        for shape in {(s.prompt_tokens, s.concurrency, s.phase): s for s in self.shapes}.values():
            self.on_step(f"warm-up {shape.name}")
            for turn in range(1 if shape.concurrency >= len(self.servers) else len(self.servers)):
                self.send(shape, "warm-up", min(WARM_UP_TOKENS, shape.tg), turn)

    def _settle(self, shape: Shape) -> None:
        """Send single requests until one is served, dropping refused fields one by one."""
        wanted, error, failed = self.wanted, "", 0
        while failed < FIRST_TRIES:
            maker = self.maker
            [trace], _ = self.send(shape, f"first{failed + len(self.refused)}", min(WARM_UP_TOKENS, shape.tg))
            if not trace.error:
                if wanted.chat and not wanted.question and not maker.corpus.words and trace.prompt_tokens is not None:
                    added = trace.prompt_tokens - shape.prompt_tokens  # beyond the text's, by the chat's template
                    self.maker = replace(maker, template_tokens=max(0, added))
                return
            error = trace.error
            if trace.status in (400, 422) and (name := refused_field(error, maker.left_out)):
                self.refused += (name,)
                self.maker = replace(maker, left_out=(*maker.left_out, name))
            else:
                failed += 1
        raise none_served(error, wanted.urls[0] + wanted.path)

    def measure(self, on_row: Callable[[Row], None]) -> tuple[Row, ...]:
        wanted, pace = self.wanted, Pace(self.shapes, self.wanted.least_runs)
        for run in range(wanted.most_runs):
            for group in wanted.groups():
                if all(wanted.is_enough(self.rows.get(shape)) for shape in group):
                    continue
                for shape in group:
                    self.on_step(f"{pace}; run {run + 1} of {wanted.runs}: {shape.name}")
                    self.batches[shape].append(self._measure_once(shape, run, self.observed[shape]))
                    pace.end(shape)
                    self.rows[shape] = self._row(shape)
                    on_row(self.rows[shape])
        return tuple(self.rows[shape] for shape in self.shapes)

    def watch_drift(self) -> Sentinel | None:
        """One row once more, against its first run; the only row's own last run is the latest there can be."""
        shape = choose_sentinel([shape for shape in self.shapes if shape.phase != "cached"])
        first, *more = self.batches[shape][:: len(self.servers)]  # the runs that asked the same servers
        if len(self.shapes) > 1:
            self.on_step(f"once more: {shape.name}")
            more = [self._measure_once(shape, self.wanted.most_runs, Observed(), turn=0)]
        if not more:
            return None
        one, other = (summarise(shape, [batch]) for batch in (first, more[-1]))
        return compare_runs(one, other, self.rows[shape], extra=len(self.shapes) > 1)

    def _measure_once(self, shape: Shape, run: int, observed: Observed, turn: int | None = None) -> BatchMeasure:
        """One run of one row; once more, with prompts that no cache has seen, when its load client was lost."""
        turn = run if turn is None else turn
        try:
            return self._attempt(shape, run, f"run{run}", observed, turn)
        except ConnectionLostError:
            name = f"run{run} repeated"
            if shape.phase == "cached":
                self.send(replace(shape, phase="context"), name, turn=turn)
            batch = self._attempt(shape, run, name, observed, turn)
            observed.repeated.append(run)
            return batch

    def _attempt(self, shape: Shape, run: int, name: str, observed: Observed, turn: int) -> BatchMeasure:
        """One run of one row. Raises ConnectionLostError, and nothing of it is observed then."""
        before = self._counters()
        if self.machine:
            self.machine.begin()
        try:
            traces, client = self.send(shape, name, turn=turn)
        except ConnectionLostError:
            if self.machine:
                self.machine.end()
            raise
        state = self.machine.end() if self.machine else {}
        names = [*self.servers]
        asked = [names[self.server_of(turn, index)] for index in range(len(traces))]
        own = {name: [one for one, to in zip(traces, asked, strict=True) if to == name] for name in names}
        counted = self._count(before, own)
        if any(one.lags for one in counted.values()):
            time.sleep(CATCH_UP_S)
            counted = self._count(before, own)
        observed.server += counted.values()
        observed.machine += [{"run": run} | state] if state else []
        observed.client.append(client)
        if len(self.servers) > 1:
            for server, some in own.items():
                observed.replicas.setdefault(server, []).append(counted.get(server))
                lost = bool(some) and all(trace.error for trace in some)
                observed.lost += [server] if lost else []
        credited = {name: iter(credit_hits(some, counted.get(name))) for name, some in own.items() if some}
        latencies = [self.latencies_s[name] for name in asked]
        return measure_batch([next(credited[name]) for name in asked], latencies, shape.prompt_tokens)

    def _counters(self) -> dict[str, Counts]:
        """What each server counts, as far as it does."""
        found = {name: counts for name, one in self.counting.items() if (counts := read_counters(one)) is not None}
        self.counting = {name: self.counting[name] for name in found}
        return found

    def _count(
        self, before: Mapping[str, Counts], own: Mapping[str, Sequence[RequestTrace]]
    ) -> dict[str, ServerCounts]:
        """What each server counted beside the requests that it was sent; without those that count nothing."""
        after = self._counters()
        each = {name: count_run(before.get(name), after.get(name), traces) for name, traces in own.items()}
        return {name: counted for name, counted in each.items() if counted}

    def _row(self, shape: Shape) -> Row:
        wanted = self.wanted
        queued = max(0, shape.concurrency - (wanted.max_num_seqs or shape.concurrency) * len(self.servers))
        observed = self.observed[shape]
        row = summarise(shape, self.batches[shape], observed, natural_stop=wanted.natural_stop, queued=queued)
        width = imprecise(row) if wanted.runs == "auto" and row.runs == wanted.most_runs else None
        if width is None:
            return row
        still = f"still ± {width:.1%}" if math.isfinite(width) else "not known: a rate has one value only"
        return replace(row, notes=(*row.notes, f"after {row.runs} runs the 95 % interval is {still}"))
