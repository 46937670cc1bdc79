"""What must be said of a row in words: why a number is missing, and what a reader must know of those that are there."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.bench.measure import BatchMeasure, RequestMeasure

MISSES = {
    "miss": "missed the prefix cache",
    "unknown": "cannot be verified, the server does not tell what each had",
}
"""What is said of requests that did not verifiably meet their context in the prefix cache."""


def reasons(concurrency: int, batches: Sequence[BatchMeasure], requests: Sequence[RequestMeasure]) -> dict[str, str]:
    """Why a number is missing, for some of the runs at least."""
    each = [request.tg_why for request in requests if request.tg_why]
    steady = [batch.tg_steady_why for batch in batches if batch.tg_steady_why and batch.requests]
    peak = [batch.peak_why for batch in batches if batch.peak_why and batch.requests]
    total = each if concurrency == 1 else steady
    found: dict[str, list[str]] = {"tg_req_throughput": each, "tg_throughput": total, "peak_throughput": peak}
    missed = [f"the context was not in the cache: {MISSES[r.cache]}" for r in requests if not r.is_as_claimed]
    found |= dict.fromkeys(("pp_throughput", "pp_req_throughput", "ttfr", "est_ppt", "e2e_ttft"), missed)
    if concurrency > 1:
        totals = [batch.total_why for batch in batches if batch.total_why]
        found |= {"pp_throughput": totals or missed, "tg_wall_throughput": totals}
    return {key: texts[0] for key, texts in found.items() if texts}


def cold_notes(requests: Sequence[RequestMeasure]) -> list[str]:
    """Whether requests that must not meet a prefix cache did."""
    cached = [request.cached_tokens for request in requests if request.cached_tokens]
    if not cached:
        return []
    return [f"{len(cached)} of {len(requests)} cold requests met a prefix cache (up to {max(cached)} tokens)"]


def cached_notes(depth: int, requests: Sequence[RequestMeasure]) -> list[str]:
    """Whether requests whose context of `depth` tokens must be in the prefix cache met it there."""
    notes = []
    for outcome, said in MISSES.items():
        some = [request.cached_tokens for request in requests if request.cache == outcome]
        had = "" if outcome == "unknown" else f" ({max(some, default=0)} of {depth} tokens were there)"
        if some:
            how_many = f"NO VERIFIED CACHE HIT: {len(some)} of {len(requests)} requests"
            notes.append(f"{how_many} {said}{had}; not in the prompt's numbers")
    partial = [request.cached_tokens for request in requests if request.cache == "partial"]
    if partial:
        some_of = f"{len(partial)} of {len(requests)} requests"
        notes.append(
            f"{some_of} had {min(partial)} of {depth} tokens of context in the cache; the rest was computed with the "
            f"prompt and is in its numbers"
        )
    return notes


def prompt_notes(sent: int, requests: Sequence[RequestMeasure]) -> list[str]:
    """What became of prompts of `sent` tokens."""
    notes = []
    other = {request.prompt_tokens for request in requests if request.prompt_tokens != sent}
    if other:
        notes.append(f"the server counted {_list(other)} prompt tokens, {sent} were wanted")
    if any(not request.prompt_counted for request in requests):
        notes.append("the server does not tell the prompt's length; the length sent is used")
    return notes


def output_notes(wanted: int, requests: Sequence[RequestMeasure], natural_stop: bool) -> list[str]:
    """How outputs of up to `wanted` tokens ended, and how well they were counted."""
    notes = []
    counted = [request for request in requests if request.counted != "not"]
    lengths = {request.output_tokens for request in counted if round(request.output_tokens) != wanted}
    if natural_stop and counted:
        some = sorted(request.output_tokens for request in counted)
        full = sum(request.finish_reason == "length" for request in counted)
        notes.append(
            f"outputs ended by themselves after {some[0]:g} to {some[-1]:g} tokens; {full} of {len(some)} reached the "
            f"limit of {wanted}"
        )
    elif lengths:
        ends = {request.finish_reason for request in requests if request.finish_reason} or {"unknown"}
        notes.append(
            f"outputs of {_list(lengths)} tokens instead of {wanted} (finish_reason {', '.join(sorted(ends))})"
        )
    if any(request.counted == "spread" for request in requests):
        notes.append("tokens per event are estimated: the server gives only their total")
    return notes


def _list(values: set[int] | set[float]) -> str:
    """A few numbers in words."""
    shown = sorted(values)
    return ", ".join(f"{value:g}" for value in shown[:3]) + (", …" if len(shown) > 3 else "")
