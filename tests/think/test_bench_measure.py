"""The definitions of docs/measuring.md, with the values a clock would give."""

import dataclasses

import pytest
from bench_tools import RATE, TTFT_S, trace

from cluster.bench.measure import (
    decode_rate,
    measure_batch,
    measure_request,
    peak_rate,
    steady_rate,
    token_gaps_ms,
    wall_rate,
)

LATENCY_S = 0.002


@pytest.mark.parametrize(
    ("way", "ttfr_ms"), [("plain", 67), ("role", 2), ("reasoning", 2), ("reasoning-content", 2), ("tools", 2)]
)
def test_early_role_event_does_not_end_the_prefill(way: str, ttfr_ms: float) -> None:
    one = measure_request(trace(way), LATENCY_S, 512)
    assert (one.ttfr_ms, one.e2e_ttft_ms, one.est_ppt_ms) == pytest.approx((ttfr_ms, 67, 65))
    assert one.est_ppt_from == "first token − latency"
    assert (one.pp_t_s, one.tg_t_s) == pytest.approx((512 / 0.065, RATE))
    assert one.output_tokens == 32


@pytest.mark.parametrize(
    "way", ["plain", "role", "four", "silent", "silent-last", "usage-last", "crlf", "utf8", "drafted", "tools"]
)
def test_generation_rate_is_the_servers(way: str) -> None:
    assert decode_rate(trace(way, tokens=129))[0] == pytest.approx(RATE)


def test_rate_of_a_total_spread_over_events_is_an_estimate() -> None:
    assert decode_rate(trace("four-last", tokens=128))[0] == pytest.approx(RATE)
    assert decode_rate(trace("four-last", tokens=129))[0] == pytest.approx(RATE, rel=0.001)


@pytest.mark.parametrize(
    ("way", "why"),
    [("no-usage", "the server does not count its tokens"), ("at-once", "all tokens came at once")],
)
def test_no_rate_has_a_reason(way: str, why: str) -> None:
    assert decode_rate(trace(way)) == (None, why)


def test_cached_tokens_were_not_computed() -> None:
    one = measure_request(trace("cached", prompt=2048), LATENCY_S, 2048)
    assert one.pp_t_s == pytest.approx((2048 - 1024) / 0.065)


def test_servers_own_prefill_time_is_preferred() -> None:
    one = measure_request(trace("prefill-told"), LATENCY_S, 512)
    assert (one.est_ppt_ms, one.est_ppt_from) == (pytest.approx(40), "server (timings.prompt_ms)")
    assert one.pp_t_s == pytest.approx((512 - 12) / 0.040)
    assert measure_request(trace("metrics-told"), LATENCY_S, 512).queue_ms == pytest.approx(12)


def test_what_is_not_counted() -> None:
    """The length sent stands in for the prompt's; there is no latency of tokens."""
    one = measure_request(trace("no-usage"), LATENCY_S, 600)
    assert (one.prompt_tokens, one.prompt_counted, one.itl_ms, one.tpot_ms) == (600, False, (), None)


def staggered(count: int = 4, tokens: int = 129, every_s: float = 0.5) -> list:
    """Clients whose prefills end one after the other, as a server does that computes one prompt at a time."""
    return [trace("plain", tokens, t0_s=every_s * index) for index in range(count)]


def test_steady_total_leaves_the_stagger_of_prefills_out() -> None:
    rate, why = steady_rate(staggered())
    assert rate == pytest.approx(4 * RATE, rel=0.01)
    assert why == ""
    assert wall_rate(staggered()) == pytest.approx(4 * 128 / (128 / RATE + 1.5))


def test_steady_total_with_four_tokens_an_event() -> None:
    traces = [trace("four", 400, t0_s=0.013 * index) for index in range(4)]
    assert steady_rate(traces)[0] == pytest.approx(4 * RATE, rel=0.01)


def test_steady_total_needs_a_second_together() -> None:
    rate, why = steady_rate(staggered(tokens=65))
    assert rate is None
    assert "0.00 s" in why
    rate, why = steady_rate([trace("plain", 32), trace("plain", 32, t0_s=0.1)])
    assert rate is None
    assert "0.52 s" in why


@pytest.mark.parametrize(
    ("tokens", "rate"),
    [
        ([(index / 6.9, 1.0) for index in range(128)], 6.9),
        ([(index / 50, 1.0) for index in range(200)], RATE),
        ([(index / 12.5, 4.0) for index in range(50)], RATE),
        ([(index / 10, 1.0) for index in range(20)] + [(2 + index / 40, 1.0) for index in range(60)], 40),
        (sorted((index / 50, 1.0) for index in range(200) for _ in range(4)), 4 * RATE),
    ],
    ids=["steady", "one token an event", "four", "fastest second", "at the same instant"],
)
def test_peak(tokens: list, rate: float) -> None:
    assert peak_rate(tokens)[0] == pytest.approx(rate)


def test_peak_over_clients_that_step_together() -> None:
    traces = [trace("plain", 200, t0_s=30e-6 * index) for index in range(4)]
    assert measure_batch(traces, LATENCY_S, 512).peak_t_s == pytest.approx(4 * RATE, rel=0.01)


def test_peak_of_a_burst_shorter_than_the_window() -> None:
    burst = [(0.0, 1.0), *((2.5 + index / 100, 1.0) for index in range(1, 41))]
    assert peak_rate(burst)[0] == pytest.approx(40, rel=0.02)


def test_peak_needs_a_window() -> None:
    rate, why = peak_rate(trace("plain", 32).tokens)
    assert rate is None
    assert why == "less than 1 s of tokens"
    fast = [(index / 82.4, 1.0) for index in range(128)]  # tg128 at 82.4 t/s, 1.54 s
    assert peak_rate(fast)[0] == pytest.approx(82.4)
    assert peak_rate([])[0] is None


def test_one_failure_takes_the_totals_away_and_not_the_others() -> None:
    batch = measure_batch([trace("plain", 128), trace("half", 128), trace("plain", 128)], LATENCY_S, 512)
    assert len(batch.requests) == 2
    assert len(batch.failures) == 1
    assert "closed the connection" in batch.failures[0]
    assert (batch.tg_steady_t_s, batch.pp_total_t_s, batch.tg_wall_t_s) == (None, None, None)
    assert batch.why["tg_throughput"] == "1 of 3 requests failed"
    assert all(one.tg_t_s == pytest.approx(RATE) for one in batch.requests)
    none = measure_batch([trace("half"), trace("half")], LATENCY_S, 512)
    assert (none.requests, len(none.failures)) == ((), 2)


def test_prompt_total_is_all_prompts_over_the_time_to_the_last_first_token() -> None:
    batch = measure_batch(staggered(), LATENCY_S, 512)
    assert batch.pp_total_t_s == pytest.approx(4 * 512 / (1.5 + TTFT_S))


def test_prefill_shorter_than_the_latency_gives_no_rate() -> None:
    one = measure_request(trace("plain"), 0.1, 512)
    assert (one.est_ppt_ms, one.pp_t_s) == (0, None)


def test_response_before_any_event_with_choices() -> None:
    bare = dataclasses.replace(trace("plain"), first_response_s=None)
    assert measure_request(bare, 0, 512).ttfr_ms == pytest.approx(67)


@pytest.mark.parametrize("way", ["plain", "four", "silent", "drafted", "crlf"])
def test_latency_between_tokens_is_the_models_whatever_a_chunk_holds(way: str) -> None:
    one = measure_request(trace(way, tokens=129), LATENCY_S, 512)
    assert len(one.itl_ms) == (125 if way == "four" else 128)
    assert one.itl_ms == pytest.approx([1e3 / RATE] * len(one.itl_ms))
    assert one.tpot_ms == pytest.approx(1e3 / RATE, rel=0.001)


def test_tokens_that_come_together_share_the_time_since_those_before() -> None:
    assert list(token_gaps_ms([(1.0, 1), (1.2, 2), (1.2, 2), (1.3, 1)])) == pytest.approx([50] * 4 + [100])
    assert list(token_gaps_ms([(1.0, 8)])) == []
