"""The definitions of docs/measuring.md: traces in, numbers out. Pure.

A number that the server's answer does not support is None, with the reason in words beside it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from cluster.bench.read import Counted, RequestTrace

STEADY_LEAST_S = 1.0
PEAK_WINDOW_S = 1.0
NOT_COUNTED = "the server does not count its tokens"

Tokens = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class RequestMeasure:
    """The numbers of one served request. Times in ms, rates in tokens a second; `itl_ms` has one value a token.

    `cached_from`: where `cached_tokens` is from (answer, counters), empty if unknown. `cache`: `metrics.verify_hits`.
    """

    ttfr_ms: float
    e2e_ttft_ms: float
    est_ppt_ms: float
    est_ppt_from: str
    pp_t_s: float | None
    tg_t_s: float | None
    tg_why: str
    itl_ms: tuple[float, ...]
    prompt_tokens: int
    prompt_counted: bool
    cached_tokens: int
    output_tokens: float
    counted: Counted
    finish_reason: str
    cached_from: str = ""
    cache: str = ""
    queue_ms: float | None = None

    @property
    def is_as_claimed(self) -> bool:
        """Whether the prompt met the cache that its row is about; in cold rows there is none to meet."""
        return self.cache in ("", "hit", "partial")

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token: from the first event with tokens to the last, for each token after it."""
        return 1e3 / self.tg_t_s if self.tg_t_s else None


@dataclass(frozen=True, slots=True)
class BatchMeasure:
    """The numbers of requests sent at the same time; totals are over all of them together. `why`: the reason for a
    total that is None, by the field of `rows.Row`."""

    requests: tuple[RequestMeasure, ...]
    failures: tuple[str, ...] = ()
    pp_total_t_s: float | None = None
    tg_steady_t_s: float | None = None
    tg_wall_t_s: float | None = None
    peak_t_s: float | None = None
    peaks_each_t_s: tuple[float, ...] = ()
    why: Mapping[str, str] = field(default_factory=dict)


def measure_request(trace: RequestTrace, latency_s: float, sent_tokens: int) -> RequestMeasure:
    """The numbers of one served request; `trace` has no error and a token.

    `latency_s`: what an empty question to this server takes; `sent_tokens`: the prompt's length, used when the
    server does not report it. The prefill ends with the first event that holds a token: an empty event with the
    role can come long before it.
    """
    assert trace.first_token_s is not None
    first_response = trace.first_token_s if trace.first_response_s is None else trace.first_response_s
    if trace.server_prefill_s is not None:
        prefill, source = trace.server_prefill_s, f"server ({trace.server_prefill_from})"
    else:
        prefill, source = trace.first_token_s - trace.t0_s - latency_s, "first token − latency"
    prompt = sent_tokens if trace.prompt_tokens is None else trace.prompt_tokens
    cached = trace.cached_tokens or 0
    rate, why = decode_rate(trace)
    return RequestMeasure(
        ttfr_ms=1e3 * (first_response - trace.t0_s),
        e2e_ttft_ms=1e3 * (trace.first_token_s - trace.t0_s),
        est_ppt_ms=1e3 * max(0.0, prefill),
        est_ppt_from=source,
        pp_t_s=(prompt - cached) / prefill if prefill > 0 and prompt > cached else None,
        tg_t_s=rate,
        tg_why=why,
        itl_ms=() if trace.counted == "not" else tuple(token_gaps_ms(trace.tokens)),
        prompt_tokens=prompt,
        prompt_counted=trace.prompt_tokens is not None,
        cached_tokens=cached,
        output_tokens=sum(n for _, n in trace.tokens),
        counted=trace.counted,
        finish_reason=trace.finish_reason,
        cached_from="" if trace.cached_tokens is None else trace.cached_from,
        queue_ms=None if trace.server_queue_s is None else 1e3 * trace.server_queue_s,
    )


def decode_rate(trace: RequestTrace) -> tuple[float | None, str]:
    """Tokens after the first event ÷ (last − first), or None and why."""
    if trace.counted == "not":
        return None, NOT_COUNTED
    first, last = trace.tokens[0][0], trace.tokens[-1][0]
    after = sum(n for t, n in trace.tokens if t > first)
    return (after / (last - first), "") if after else (None, "all tokens came at once")


def token_gaps_ms(tokens: Tokens) -> Iterator[float]:
    """Inter-token latencies, one for each token after the first event.

    The tokens of an event were made since the event before it, so each has an equal part of that time: the time between
    chunks is no latency of a token when a chunk holds four.
    """
    before: float | None = None
    for t, n in _at_once(tokens).items():
        if before is not None and n > 0:
            yield from [1e3 * (t - before) / n] * max(1, round(n))
        before = t


def _at_once(tokens: Tokens) -> dict[float, float]:
    """Tokens by time; events that came together are one."""
    found: dict[float, float] = defaultdict(float)
    for t, n in tokens:
        found[t] += n
    return found


def measure_batch(traces: Sequence[RequestTrace], latency_s: float | Sequence[float], sent_tokens: int) -> BatchMeasure:
    """The numbers of requests that were sent at the same time. Failed ones are counted and left out of the rest.
    `latency_s`: of the server, or of each request's own.

    Totals are None when one failed: the others had the server to themselves.
    """
    latencies = [latency_s] * len(traces) if isinstance(latency_s, float) else latency_s
    pairs = [pair for pair in zip(traces, latencies, strict=True) if not pair[0].error and pair[0].tokens]
    served = [trace for trace, _ in pairs]
    failures = tuple(trace.error or "the answer holds no token" for trace in traces if trace.error or not trace.tokens)
    requests = tuple(measure_request(trace, latency, sent_tokens) for trace, latency in pairs)
    if failures:
        why = f"{len(failures)} of {len(traces)} requests failed"
        totals = ("pp_throughput", "tg_throughput", "tg_wall_throughput", "peak_throughput")
        return BatchMeasure(requests, failures, why=dict.fromkeys(totals, why))
    # all prompt tokens that were computed ÷ (last first token − first t0), as llama-benchy defines the total
    seconds = max(trace.first_token_s or 0.0 for trace in served) - min(trace.t0_s for trace in served)
    tokens = sum(request.prompt_tokens - request.cached_tokens for request in requests)
    prompts = tokens / seconds if seconds > 0 and tokens > 0 else None
    if any(trace.counted == "not" for trace in served):
        uncounted = dict.fromkeys(("tg_throughput", "peak_throughput"), NOT_COUNTED)
        return BatchMeasure(requests, pp_total_t_s=prompts, why=uncounted)
    steady, steady_why = steady_rate(served)
    peak, peak_why = peak_rate(sorted(event for trace in served for event in trace.tokens))
    return BatchMeasure(
        requests,
        pp_total_t_s=prompts,
        tg_steady_t_s=steady,
        tg_wall_t_s=wall_rate(served),
        peak_t_s=peak,
        peaks_each_t_s=tuple(rate for trace in served if (rate := peak_rate(trace.tokens)[0]) is not None),
        why={"tg_throughput": steady_why, "peak_throughput": peak_why},
    )


def steady_rate(served: Sequence[RequestTrace]) -> tuple[float | None, str]:
    """Tokens a second while all clients decode: from the last first token to the first last token.

    The window is open at its start and closed at its end, so no client's rate is counted with one token too many.
    """
    begin = max(trace.tokens[0][0] for trace in served)
    end = min(trace.tokens[-1][0] for trace in served)
    if end - begin < STEADY_LEAST_S:
        return None, f"all clients decoded together for {max(0.0, end - begin):.2f} s, less than {STEADY_LEAST_S:g} s"
    return sum(n for trace in served for t, n in trace.tokens if begin < t <= end) / (end - begin), ""


def wall_rate(served: Sequence[RequestTrace]) -> float | None:
    """llama-benchy's total: tokens after each first event ÷ (last token − first token of all)."""
    seconds = max(trace.tokens[-1][0] for trace in served) - min(trace.tokens[0][0] for trace in served)
    tokens = sum(n for trace in served for t, n in trace.tokens if t > trace.tokens[0][0])
    return tokens / seconds if seconds > 0 and tokens > 0 else None


def peak_rate(tokens: Tokens) -> tuple[float | None, str]:
    """The highest number of tokens within one second, where an event's tokens were made since the event before.

    So a window that cuts between two events counts a part of a token, and a steady stream's peak is its rate;
    counting complete events within a second gives one too many.
    """
    span = tokens[-1][0] - tokens[0][0] if tokens else 0.0
    if span < PEAK_WINDOW_S:
        return None, f"less than {PEAK_WINDOW_S:g} s of tokens"
    at_once = _at_once(tokens)
    times = list(at_once)
    made = [0.0, *accumulate(list(at_once.values())[1:])]

    def made_by(t: float) -> float:
        after = min(bisect_right(times, t), len(times) - 1)
        begin, end = times[after - 1], times[after]
        return made[after - 1] + min((t - begin) / (end - begin), 1.0) * (made[after] - made[after - 1])

    ends = [t for t in times if t - PEAK_WINDOW_S >= times[0]]
    ends += [t + PEAK_WINDOW_S for t in times if t + PEAK_WINDOW_S <= times[-1]]
    return max(made_by(end) - made_by(end - PEAK_WINDOW_S) for end in ends) / PEAK_WINDOW_S, ""
