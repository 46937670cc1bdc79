"""The prefix cache, as the server told of it: in the answer itself, or in its counters. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cluster.bench.measure import BatchMeasure, RequestMeasure
from cluster.bench.metrics import Ours, Watched
from cluster.bench.read import RequestTrace

NEARLY, HALF = 0.9, 0.5


def is_served(trace: RequestTrace) -> bool:
    """Whether a request was answered to its end with at least one token."""
    return not trace.error and bool(trace.tokens)


def ours_of(traces: Sequence[RequestTrace]) -> Ours:
    """What a batch asked of the server; its tokens are not known when one failed or was not counted."""
    served = [trace for trace in traces if is_served(trace)]
    known = len(served) == len(traces) and all(trace.counted != "not" for trace in served)
    generated = sum(n for trace in served for _, n in trace.tokens) if known else None
    return Ours(len(served), len(traces) - len(served), generated)


def verify_hits(batch: BatchMeasure, depth: int) -> BatchMeasure:
    """The batch with each request's outcome: hit, partial, miss, or unknown when the server does not tell.

    A cache holds whole blocks, and a model with sliding windows keeps no more than it needs of the last ones, so nine
    tenths of the context are a hit, and from half on it is one in part: what was computed again is counted with the
    prompt. Where only the sum over several requests is known, half a context missing from it may be one request's. A
    batch with another outcome than these two has no total.
    """
    missing = sum(depth - request.cached_tokens for request in batch.requests)

    def outcome(request: RequestMeasure) -> str:
        shared = request.cached_from == "counters" and len(batch.requests) > 1
        if request.cached_from == "" or (shared and request.cached_tokens > 0 and missing >= HALF * depth):
            return "unknown"
        if request.cached_tokens >= NEARLY * depth:
            return "hit"
        return "partial" if request.cached_tokens >= HALF * depth else "miss"

    requests = tuple(replace(request, cache=outcome(request)) for request in batch.requests)
    if all(request.is_as_claimed for request in requests):
        return replace(batch, requests=requests)
    return replace(batch, requests=requests, pp_total_t_s=None)


def credit_hits(traces: Sequence[RequestTrace], watched: Watched | None) -> list[RequestTrace]:
    """The traces with cached tokens from the server's counters where the answers do not tell them.

    The counters tell the sum, so each request is given an equal share. Nothing is given when somebody else's requests,
    or failed ones of ours, may be in that sum.
    """
    unknown = all(trace.cached_tokens is None for trace in traces)
    if watched is None or not unknown or not watched.is_alone or watched.ours.failed:
        return list(traces)
    hits = watched.grown.get("prefix_hits")
    if hits is None or watched.lags:
        return list(traces)
    return [replace(trace, cached_tokens=round(hits / len(traces)), cached_from="counters") for trace in traces]
