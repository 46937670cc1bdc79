"""Results made by hand, for tests of what is done with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bench_tools import trace

from cluster.bench.measure import measure_batch
from cluster.bench.result import HostState, Manifest, Result
from cluster.bench.rows import Observed, Row, Shape, summarise

SPARK = "NVIDIA DGX Spark"


def manifest(tp: int = 2, **changes: Any) -> Manifest:
    """What a measurement on `tp` Sparks says of itself."""
    hosts = tuple(HostState(f"spark{n}", "worker" if n > 1 else "head", SPARK, "580.95.05") for n in range(1, tp + 1))
    spec = {"tp": tp, "pp": 1, "hosts": [host.name for host in hosts], "recipe": {"port": 8000, "vllm": {"a": 1}}}
    values: dict[str, Any] = {
        "model": "google/gemma-4-31B-it",
        "recipe": "gemma-4-31b-fp8",
        "weights": "real",
        "tp": tp,
        "nodes": tp,
        "backend": "ray" if tp > 1 else "none",
        "spec": spec,
        "versions": {"vllm": "0.19.1"} | ({"ray": "2.56.0"} if tp > 1 else {}),
        "hosts": hosts,
        "client_on": "container",
        "est_ppt_from": ("first token − latency",),
    }
    return Manifest(**values | changes)


def row(
    shape: Shape, rates: tuple[float, ...] = (50.0, 50.0, 50.0), machine: Sequence[dict[str, Any]] = (), queued: int = 0
) -> Row:
    """A row over runs of these generation rates."""
    batches = []
    for rate in rates:
        one, factor = trace("plain", shape.tg, shape.prompt_tokens), 50.0 / rate  # played at another speed
        tokens = tuple((t * factor, n) for t, n in one.tokens)
        one = replace(one, tokens=tokens, first_response_s=one.tokens[0][0] * factor)
        batches.append(measure_batch([one] * shape.concurrency, 0.0, shape.prompt_tokens))
    return summarise(shape, batches, Observed(machine=[*machine]), queued=queued)


def result(tp: int = 2, rates: tuple[float, ...] = (50.0, 50.0, 50.0), **given: Any) -> Result:
    """A result with rows at two depths."""
    rows = tuple(row(Shape(2048, tg, depth), rates) for depth in (0, 4096) for tg in (32, 128))
    return Result(manifest(tp, **given), rows, timestamp="2026-11-28 00:00:00Z")
