"""What vLLM counts of itself: /metrics before and after a row, and what the difference says. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cluster.bench.measure import BatchMeasure, RequestMeasure
from cluster.bench.read import RequestTrace
from cluster.bench.statistics import Stat

Counts = Mapping[str, float]

NAMES = {
    "requests": ("request_success_total",),
    "prompt_tokens": ("prompt_tokens_total",),
    "generation_tokens": ("generation_tokens_total",),
    "preemptions": ("num_preemptions_total",),
    "prefix_queries": ("prefix_cache_queries_total", "gpu_prefix_cache_queries_total"),
    "prefix_hits": ("prefix_cache_hits_total", "gpu_prefix_cache_hits_total"),
    "queue_s": ("request_queue_time_seconds_sum",),
    "queue_n": ("request_queue_time_seconds_count",),
    "prefill_s": ("request_prefill_time_seconds_sum",),
    "prefill_n": ("request_prefill_time_seconds_count",),
    "ttft_s": ("time_to_first_token_seconds_sum",),
    "ttft_n": ("time_to_first_token_seconds_count",),
    "itl_s": ("inter_token_latency_seconds_sum", "time_per_output_token_seconds_sum"),
    "itl_n": ("inter_token_latency_seconds_count", "time_per_output_token_seconds_count"),
    "drafts": ("spec_decode_num_drafts_total",),
    "draft_tokens": ("spec_decode_num_draft_tokens_total",),
    "accepted_tokens": ("spec_decode_num_accepted_tokens_total",),
}
"""What is read: our name, and vLLM's (without `vllm:`) from newest to oldest. All of them only grow."""

RUNNING = "num_requests_running"
BY_POSITION = "spec_decode_num_accepted_tokens_per_pos_total"
LONG_QUEUE_MS = 10.0
_LINE = re.compile(r'^vllm:(\w+)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?[ \t]+(\S+)', re.MULTILINE)
_POSITION = re.compile(r'(?:^|,)\s*position="(\d{1,3})"')


def parse_metrics(text: str) -> Counts | None:
    """Prometheus text → our names, summed over engines; None when it is not vLLM's. A name not told is left out."""
    counts: dict[str, float] = {}
    for name, labels, value in _LINE.findall(text):
        try:
            number = float(value)
        except ValueError:
            continue
        if name == BY_POSITION and (position := _POSITION.search(labels)):
            name = f"accepted_at_{position[1]}"
        counts[name] = counts.get(name, 0.0) + number
    if "generation_tokens_total" not in counts:
        return None
    found = {ours: counts[name] for ours, names in NAMES.items() for name in names[::-1] if name in counts}
    found |= {name: value for name, value in counts.items() if name.startswith("accepted_at_")}
    return found | {"running": counts.get(RUNNING, 0.0)}


@dataclass(frozen=True, slots=True)
class Ours:
    """What a round asked of the server: requests served and failed, tokens (None when they are not all known)."""

    served: int
    failed: int = 0
    generated: float | None = None


@dataclass(frozen=True, slots=True)
class Watched:
    """One round as the server counted it. `grown`: by how much each count grew; `restarted`: one went back."""

    grown: Counts
    ours: Ours
    running_before: float = 0.0
    restarted: bool = False

    @property
    def foreign_requests(self) -> int:
        """Requests of others that ended meanwhile, at least; a failed one of ours may be among those counted."""
        return max(0, round(self.grown.get("requests", 0.0)) - self.ours.served - self.ours.failed)

    @property
    def foreign_tokens(self) -> int | None:
        """Tokens that were generated for others; None when it is not known how many were ours."""
        if self.ours.generated is None:
            return None
        return max(0, round(self.grown["generation_tokens"] - self.ours.generated))

    @property
    def is_alone(self) -> bool:
        """Whether nothing hints at anybody else's requests."""
        return not (self.restarted or self.foreign_requests or self.foreign_tokens or self.running_before)

    @property
    def lags(self) -> bool:
        """Whether the server had not yet counted all that it served."""
        return not self.restarted and self.grown.get("requests", self.ours.served) < self.ours.served


def watch(before: Counts | None, after: Counts | None, ours: Ours) -> Watched | None:
    """What happened between two readings; None when the server tells nothing."""
    if before is None or after is None:
        return None
    grown = {name: after[name] - before.get(name, 0.0) for name in after if name != "running"}
    restarted = any(value < 0 for value in grown.values())
    return Watched({} if restarted else grown, ours, before.get("running", 0.0), restarted)


def server_document(rounds: Sequence[Watched]) -> dict[str, Any] | None:
    """What the server counted during a row, over all its runs; None when it told nothing.

    Times in ms, means over requests (`itl_ms`: over tokens); rates as parts of 1. `acceptance_per_position`: of the
    drafts made, how many had the token at this position accepted.
    """
    good = [one for one in rounds if not one.restarted]
    if not good:
        return None
    total: dict[str, float] = {}
    for one in good:
        for name, value in one.grown.items():
            total[name] = total.get(name, 0.0) + value
    plain = ("requests", "prompt_tokens", "generation_tokens", "preemptions", "prefix_queries", "prefix_hits")
    found: dict[str, Any] = {name: round(total[name]) for name in plain if name in total}
    for name in ("queue", "prefill", "ttft", "itl"):
        if total.get(f"{name}_n"):
            found[f"{name}_ms"] = 1e3 * total[f"{name}_s"] / total[f"{name}_n"]
    if total.get("prefix_queries"):
        found["prefix_cache_hit_rate"] = total.get("prefix_hits", 0.0) / total["prefix_queries"]
    if total.get("draft_tokens"):
        found |= {name: round(total[name]) for name in ("drafts", "draft_tokens", "accepted_tokens")}
        found["acceptance_rate"] = total["accepted_tokens"] / total["draft_tokens"]
        if total["drafts"]:
            found["acceptance_length"] = 1 + total["accepted_tokens"] / total["drafts"]
            places = sorted(int(name.rpartition("_")[2]) for name in total if name.startswith("accepted_at_"))
            found["acceptance_per_position"] = [total[f"accepted_at_{place}"] / total["drafts"] for place in places]
    tokens = [one.foreign_tokens for one in good]
    found["foreign_requests"] = sum(one.foreign_requests for one in good)
    found["foreign_tokens"] = None if None in tokens else sum(count or 0 for count in tokens)
    return found


def server_notes(rounds: Sequence[Watched], ttft: Stat | None = None) -> Iterator[str]:
    """What a reader must know of a row because of it. `ttft`: ours (ms), which a queue is measured against."""
    counted = server_document(rounds) or {}
    if any(one.restarted for one in rounds):
        yield "the server's counters went back: it was restarted during the row"
    if counted.get("foreign_requests") or counted.get("foreign_tokens"):
        tokens = counted["foreign_tokens"]
        how_many = "tokens unknown" if tokens is None else f"{tokens} tokens"
        yield f"foreign traffic: {counted['foreign_requests']} requests ({how_many}) of others meanwhile"
    if running := max((one.running_before for one in rounds), default=0):
        yield f"foreign traffic: {running:.0f} requests of others were running when a run began"
    if counted.get("preemptions"):
        yield f"{counted['preemptions']} preemptions: the KV cache did not hold all requests"
    queue = counted.get("queue_ms", 0.0)
    if queue > LONG_QUEUE_MS and queue > 0.05 * (ttft.mean if ttft else 0.0):
        yield f"requests waited {queue:.0f} ms on average before the server began with them"
    if any(one.lags for one in rounds):
        yield "the server counts fewer requests than it served us: its counts are not complete"


NEARLY, HALF = 0.9, 0.5


def ours_of(traces: Sequence[RequestTrace]) -> Ours:
    """What a batch asked of the server; its tokens are not known when one failed or was not counted."""
    served = [trace for trace in traces if not trace.error and trace.tokens]
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
    total = batch.pp_total_t_s if all(request.is_as_claimed for request in requests) else None
    return replace(batch, requests=requests, pp_total_t_s=total)


def credit_hits(traces: Sequence[RequestTrace], watched: Watched | None) -> list[RequestTrace]:
    """The traces with cached tokens from the server's counters where the answers do not tell them.

    The counters tell the sum, so each request is given an equal share. Nothing is given when somebody else's requests,
    or failed ones of ours, may be in that sum.
    """
    unknown = all(trace.cached_tokens is None for trace in traces)
    hits = watched.grown.get("prefix_hits") if watched and watched.is_alone and not watched.ours.failed else None
    if not watched or hits is None or not unknown or watched.lags:
        return list(traces)
    return [replace(trace, cached_tokens=round(hits / len(traces)), cached_from="counters") for trace in traces]
