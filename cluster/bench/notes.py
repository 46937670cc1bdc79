"""What must be said of a row in words: why a number is missing, and what a reader must know of those that are there."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.bench.measure import BatchMeasure, RequestMeasure


def reasons(concurrency: int, batches: Sequence[BatchMeasure], requests: Sequence[RequestMeasure]) -> dict[str, str]:
    """Why a number is missing, for some of the runs at least."""
    each = [request.tg_why for request in requests if request.tg_why]
    steady = [batch.tg_steady_why for batch in batches if batch.tg_steady_why and batch.requests]
    peak = [batch.peak_why for batch in batches if batch.peak_why and batch.requests]
    total = each if concurrency == 1 else steady
    found = {"tg_req_throughput": each, "tg_throughput": total, "peak_throughput": peak}
    if concurrency > 1:
        found["pp_throughput"] = found["tg_wall_throughput"] = [b.total_why for b in batches if b.total_why]
    return {key: texts[0] for key, texts in found.items() if texts}


def prompt_notes(sent: int, requests: Sequence[RequestMeasure]) -> list[str]:
    """What became of prompts of `sent` tokens."""
    notes = []
    total = len(requests)
    cached = [request.cached_tokens for request in requests if request.cached_tokens]
    if cached:
        notes.append(f"{len(cached)} of {total} cold requests met a prefix cache (up to {max(cached)} tokens)")
    other = {request.prompt_tokens for request in requests if request.prompt_tokens != sent}
    if other:
        notes.append(f"the server counted {_list(other)} prompt tokens, {sent} were sent")
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
