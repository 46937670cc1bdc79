"""The prefix cache, as the server told of it: in the answer itself, or in its counters. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cluster.bench.measure import BatchMeasure, RequestMeasure
from cluster.bench.metrics import Ours, Watched
from cluster.bench.read import RequestTrace

PART = 0.9


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

    A cache holds whole blocks, so nine tenths of the context are a hit. Where only the sum over the batch is known,
    less than half a context may be missing from it. A batch with another outcome than hits has no total.
    """
    slack = min(1 - PART, 0.5 / max(1, len(batch.requests)))

    def outcome(request: RequestMeasure) -> str:
        if request.cached_from == "":
            return "unknown"
        least = depth * (PART if request.cached_from == "answer" else 1 - slack)
        return "hit" if request.cached_tokens >= least else "partial" if request.cached_tokens else "miss"

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
