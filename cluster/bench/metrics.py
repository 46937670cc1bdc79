"""What vLLM counts: /metrics before and after a run, and what the difference shows. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cluster.bench.measure import BatchMeasure, RequestMeasure
from cluster.bench.read import RequestTrace
from cluster.bench.statistics import Stat

Counts = Mapping[str, float]

NAMES = {
    "requests": "request_success_total",
    "prompt_tokens": "prompt_tokens_total",
    "generation_tokens": "generation_tokens_total",
    "preemptions": "num_preemptions_total",
    "prefix_queries": "prefix_cache_queries_total",
    "prefix_hits": "prefix_cache_hits_total",
    "queue_s": "request_queue_time_seconds_sum",
    "queue_n": "request_queue_time_seconds_count",
    "prefill_s": "request_prefill_time_seconds_sum",
    "prefill_n": "request_prefill_time_seconds_count",
    "ttft_s": "time_to_first_token_seconds_sum",
    "ttft_n": "time_to_first_token_seconds_count",
    "itl_s": "inter_token_latency_seconds_sum",
    "itl_n": "inter_token_latency_seconds_count",
    "drafts": "spec_decode_num_drafts_total",
    "draft_tokens": "spec_decode_num_draft_tokens_total",
    "accepted_tokens": "spec_decode_num_accepted_tokens_total",
}
"""What is read: our name, and vLLM's (without `vllm:`). All of them only grow."""

BY_POSITION = "spec_decode_num_accepted_tokens_per_pos_total"
LONG_QUEUE_MS = 10.0
NEARLY, HALF = 0.9, 0.5
_LINE = re.compile(r"^vllm:(\w+)(\{.*\})?[ \t]+([\d.eE+-]+)", re.MULTILINE)
_POSITION = re.compile(r'position="(\d+)"')


def parse_metrics(text: str) -> Counts | None:
    """Prometheus text → our names, summed over engines; None when it is not vLLM's. Names not found are left out."""
    counts: dict[str, float] = defaultdict(float)
    for name, labels, value in _LINE.findall(text):
        position = _POSITION.search(labels) if name == BY_POSITION else None
        counts[f"accepted_at_{position[1]}" if position else name] += float(value)
    if "generation_tokens_total" not in counts:
        return None
    found = {key: counts[name] for key, name in NAMES.items() if name in counts}
    found |= {name: value for name, value in counts.items() if name.startswith("accepted_at_")}
    return found | {"running": counts["num_requests_running"]}


@dataclass(frozen=True, slots=True)
class ServerCounts:
    """One run as the server counted it. `grown`: by how much each count grew, empty when it was `restarted`.

    `served`, `failed`, `generated`: our own requests, and their tokens (None when they are not all known).
    """

    grown: Counts
    served: int
    failed: int = 0
    generated: float | None = None
    running_before: float = 0.0
    restarted: bool = False

    @property
    def foreign_requests(self) -> int:
        """Requests of others that ended meanwhile, at least; a failed one of the benchmark may be among them."""
        return max(0, round(self.grown.get("requests", 0.0)) - self.served - self.failed)

    @property
    def foreign_tokens(self) -> int | None:
        """Tokens that were generated for others; None when it is not known how many were the benchmark's."""
        if self.generated is None:
            return None
        return max(0, round(self.grown["generation_tokens"] - self.generated))

    @property
    def is_alone(self) -> bool:
        """Whether nothing hints at anybody else's requests."""
        return not (self.restarted or self.foreign_requests or self.foreign_tokens or self.running_before)

    @property
    def lags(self) -> bool:
        """Whether the server had not yet counted all that it served."""
        return not self.restarted and self.grown.get("requests", self.served) < self.served


def count_run(before: Counts | None, after: Counts | None, traces: Sequence[RequestTrace]) -> ServerCounts | None:
    """What the server counted between two readings, beside our own requests; None when it counts nothing."""
    if before is None or after is None:
        return None
    served = [trace for trace in traces if not trace.error and trace.tokens]
    known = len(served) == len(traces) and all(trace.counted != "not" for trace in served)
    generated = sum(n for trace in served for _, n in trace.tokens) if known else None
    grown = {name: after[name] - before.get(name, 0.0) for name in after if name != "running"}
    restarted = any(value < 0 for value in grown.values())
    ours = (len(served), len(traces) - len(served), generated)
    return ServerCounts({} if restarted else grown, *ours, before["running"], restarted)


def server_document(runs: Sequence[ServerCounts]) -> dict[str, Any] | None:
    """What the server counted during a row, over all its runs; None when it counts nothing.

    Times in ms, means over requests (`itl_ms`: over tokens); rates as parts of 1. `acceptance_per_position`: of the
    drafts made, how many had the token at this position accepted.
    """
    good = [one for one in runs if not one.restarted]
    if not good:
        return None
    total = {name: sum(one.grown.get(name, 0.0) for one in good) for one in good for name in one.grown}
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
        found["acceptance_length"] = 1 + total["accepted_tokens"] / total["drafts"]
        places = sorted(int(name.rpartition("_")[2]) for name in total if name.startswith("accepted_at_"))
        found["acceptance_per_position"] = [total[f"accepted_at_{place}"] / total["drafts"] for place in places]
    tokens = [one.foreign_tokens for one in good]
    found["foreign_requests"] = sum(one.foreign_requests for one in good)
    found["foreign_tokens"] = None if None in tokens else sum(count or 0 for count in tokens)
    return found


def server_notes(runs: Sequence[ServerCounts], ttft: Stat | None = None) -> Iterator[str]:
    """What a reader must know of a row because of it. `ttft` (ms): what a queue is compared with."""
    counted = server_document(runs) or {}
    if any(one.restarted for one in runs):
        yield "the server's counters went back: it was restarted during the row"
    if counted.get("foreign_requests") or counted.get("foreign_tokens"):
        tokens = counted["foreign_tokens"]
        how_many = "tokens unknown" if tokens is None else f"{tokens} tokens"
        yield f"foreign traffic: {counted['foreign_requests']} requests ({how_many}) of others meanwhile"
    if running := max((one.running_before for one in runs), default=0):
        yield f"foreign traffic: {running:.0f} requests of others were running when a run began"
    if counted.get("preemptions"):
        yield f"{counted['preemptions']} preemptions: the KV cache did not hold all requests"
    queue = counted.get("queue_ms", 0.0)
    if queue > LONG_QUEUE_MS and queue > 0.05 * (ttft.mean if ttft else 0.0):
        yield f"requests waited {queue:.0f} ms on average before the server began with them"
    if any(one.lags for one in runs):
        yield "the server counts fewer requests than it served us: its counts are not complete"


def verify_hits(batch: BatchMeasure, depth: int) -> BatchMeasure:
    """The batch with each request's outcome: hit, partial, miss, or unknown when the server does not report it.

    A cache holds whole blocks, and a model with sliding windows keeps no more than it needs of the last ones, so nine
    tenths of the context are a hit, and from half on it is one in part: what was computed twice is counted with the
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


def credit_hits(traces: Sequence[RequestTrace], counted: ServerCounts | None) -> Sequence[RequestTrace]:
    """The traces with cached tokens from the server's counters where the answers do not have them.

    The counters have the sum, so each request is given an equal share. Nothing is given when somebody else's requests,
    or failed ones of the benchmark, may be in that sum.
    """
    if not counted or not counted.is_alone or counted.failed or counted.lags or "prefix_hits" not in counted.grown:
        return traces
    if any(trace.cached_tokens is not None for trace in traces):
        return traces
    share = round(counted.grown["prefix_hits"] / len(traces))
    return [replace(trace, cached_tokens=share, cached_from="counters") for trace in traces]
