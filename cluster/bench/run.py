"""The benchmark itself: `run_bench` sends rounds through a Loader and gives rows."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from cluster.bench.loader import Loader
from cluster.bench.measure import BatchMeasure, measure_batch
from cluster.bench.read import RequestTrace, read_stream
from cluster.bench.records import Ask, ClientLoad, Round
from cluster.bench.rows import Row, Shape, summarise
from cluster.bench.server import Served, find_model, measure_latency, tokenise
from cluster.bench.workload import OPTIONAL_FIELDS, BodyMaker, refused_field
from cluster.errors import ClusterError, UsageError

WARM_UP_TOKENS = 8
FIRST_TRIES = 3

Machine = Callable[[], dict[str, dict[str, Any]]]
"""What each host says now: by host `role`, `gpu_memory_mib`, `memory_available_mib`, `sm_clock_mhz`, `power_w`, …"""


@dataclass(frozen=True, slots=True)
class BenchWanted:
    """What to measure. `model` is the name in the API; empty means the only one that is served."""

    base_url: str
    model: str = ""
    pp: tuple[int, ...] = (2048,)
    tg: tuple[int, ...] = (32, 128)
    depth: tuple[int, ...] = (0, 4096, 8192, 16384)
    runs: int = 3
    concurrency: tuple[int, ...] = (1,)
    seed: int = 1
    timeout_s: float = 600.0
    api_key_env: str = ""
    api_key_file: str = ""

    def shapes(self) -> tuple[Shape, ...]:
        """The rows in llama-benchy's order. Raises UsageError for numbers that make none."""
        for name, values, least in (
            *(("--pp", self.pp, 1), ("--tg", self.tg, 1), ("--depth", self.depth, 0)),
            *(("--concurrency", self.concurrency, 1), ("--runs", (self.runs,), 1)),
        ):
            if not values or min(values) < least:
                raise UsageError(f"{name} must be {least} or more, found {' '.join(map(str, values)) or 'nothing'}")
        return tuple(
            Shape(pp, tg, depth, concurrency)
            for depth in dict.fromkeys(self.depth)
            for pp in dict.fromkeys(self.pp)
            for tg in dict.fromkeys(self.tg)
            for concurrency in dict.fromkeys(self.concurrency)
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """What a benchmark gave. `refused_fields`: request fields that the server would not have."""

    rows: tuple[Row, ...]
    model: str
    max_model_tokens: int | None
    latency_ms: float
    where: str
    refused_fields: tuple[str, ...] = ()
    request: dict[str, Any] = field(default_factory=dict)

    @property
    def failed(self) -> int:
        """Requests that failed, of all rows."""
        return sum(row.failed for row in self.rows)


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
            remedy=f"--depth {most} at most with these --pp and --tg" if most >= 0 else "smaller --pp or --tg",
        )


def no_machine() -> dict[str, dict[str, Any]]:
    """Nothing is known of the server's hosts (`--base-url`)."""
    return {}


def run_bench(
    loader: Loader,
    wanted: BenchWanted,
    on_row: Callable[[Row], None] = lambda row: None,
    machine: Machine = no_machine,
    on_step: Callable[[str], None] = lambda text: None,
) -> Measured:
    """Measure all rows, run by run over the rows so that a drift meets all alike.

    `on_row` is given the row as it stands after each of its runs; `on_step` says what happens now. Failed requests
    are counted in their row. Raises UsageError before anything is measured when a row does not fit the model's
    context, ClusterError when the server cannot be measured or served no request at all.
    """
    shapes = wanted.shapes()
    served = find_model(loader, wanted.model, wanted.base_url)
    check_limit(shapes, served)
    on_step("tokenise")
    corpus = tokenise(loader, served.model)
    maker = BodyMaker(served.model, corpus, wanted.seed, secrets.token_hex(16))
    latency_s = measure_latency(loader)
    bench = _Bench(loader, wanted, maker, latency_s, machine)
    bench.warm_up(shapes, on_step)
    rows = tuple(bench.measure(shapes, on_row, on_step))
    if all(row.failed == row.requests for row in rows):
        raise ClusterError(f"the server served no request: {rows[0].failures[0]}")
    return Measured(
        rows=rows,
        model=served.model,
        max_model_tokens=served.max_tokens,
        latency_ms=1e3 * latency_s,
        where=loader.where,
        refused_fields=bench.maker.refused,
        request=bench.maker.body(shapes[0], "run0", 0) | {"prompt": f"[{shapes[0].prompt_tokens} token ids]"},
    )


@dataclass(slots=True)
class _Kept:
    """What has been measured of one shape so far."""

    batches: list[BatchMeasure] = field(default_factory=list)
    client: list[dict[str, float]] = field(default_factory=list)
    machine: list[dict[str, Any]] = field(default_factory=list)


class _Bench:
    """One benchmark under way."""

    def __init__(
        self, loader: Loader, wanted: BenchWanted, maker: BodyMaker, latency_s: float, machine: Machine
    ) -> None:
        self.loader = loader
        self.wanted = wanted
        self.maker = maker
        self.latency_s = latency_s
        self.machine = machine

    def send(self, shape: Shape, run: str, tokens: int | None = None) -> tuple[list[RequestTrace], ClientLoad]:
        """One batch of requests at the same time."""
        bodies = [self.maker.body(shape, run, index, tokens) for index in range(shape.concurrency)]
        asks = tuple(Ask("/v1/completions", body) for body in bodies)
        wanted = Round(f"{shape.name} {run}", asks, shape.concurrency, self.wanted.timeout_s)
        record = self.loader.send(wanted)
        return [read_stream(one) for one in record.records], record.client

    def warm_up(self, shapes: tuple[Shape, ...], on_step: Callable[[str], None]) -> None:
        """A few tokens of each prompt length and concurrency; learns which fields the server refuses.

        Raises ClusterError with the server's words when the first ones all fail.
        """
        first = min(shapes, key=lambda shape: shape.prompt_tokens)
        on_step(f"warm-up {first.name}")
        self._settle(Shape(first.pp, first.tg, first.depth, 1))
        for shape in {(s.prompt_tokens, s.concurrency): s for s in shapes}.values():
            on_step(f"warm-up {shape.name}")
            self.send(shape, "warm-up", min(WARM_UP_TOKENS, shape.tg))

    def _settle(self, shape: Shape) -> None:
        """Send single requests until one is served, dropping refused fields one by one."""
        error = ""
        failed = 0
        for attempt in range(FIRST_TRIES + len(OPTIONAL_FIELDS)):
            [trace], _ = self.send(shape, f"first{attempt}", min(WARM_UP_TOKENS, shape.tg))
            if not trace.error:
                return
            error = trace.error
            name = refused_field(error, self.maker.refused) if trace.status in (400, 422) else None
            if name is None:
                failed += 1
                if failed == FIRST_TRIES:
                    break
            else:
                self.maker = self.maker.without(name)
        raise ClusterError(f"the server served no request: {error}", where=f"{self.wanted.base_url}/v1/completions")

    def measure(
        self, shapes: tuple[Shape, ...], on_row: Callable[[Row], None], on_step: Callable[[str], None]
    ) -> Iterator[Row]:
        """All runs of all rows, then the rows."""
        kept = {shape: _Kept() for shape in shapes}
        for run in range(self.wanted.runs):
            for shape, so_far in kept.items():
                on_step(f"run {run + 1} of {self.wanted.runs}: {shape.name}")
                self._measure_once(shape, run, so_far)
                on_row(_row(shape, so_far))
        return (_row(shape, so_far) for shape, so_far in kept.items())

    def _measure_once(self, shape: Shape, run: int, kept: _Kept) -> None:
        """One run of one row."""
        before = self.machine()
        traces, client = self.send(shape, f"run{run}")
        after = self.machine()
        kept.batches.append(measure_batch(traces, self.latency_s, shape.prompt_tokens))
        kept.client.append(asdict(client))
        if before or after:
            kept.machine.append({"run": run, "before": before, "after": after})


def _row(shape: Shape, kept: _Kept) -> Row:
    return summarise(shape, kept.batches, client=kept.client, machine=kept.machine)
