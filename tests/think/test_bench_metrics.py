"""What vLLM counts of itself: read, subtracted, and noted when something is off."""

from typing import Any

import pytest

from cluster.bench.metrics import (
    ServerCounts,
    count_run,
    credit_hits,
    parse_metrics,
    server_document,
    server_notes,
)
from cluster.bench.read import RequestTrace
from cluster.bench.statistics import stat

# As vLLM 0.32 prints it: HELP and TYPE lines, an engine label, `_created` series, buckets, two engines.
TEXT = r"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="/models/a b}\"c"} 1.0
vllm:num_requests_running{engine="1",model_name="/models/a b}\"c"} 0.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 4096.0
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.7e+09
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 1024.0
vllm:num_preemptions_total{engine="0",model_name="m"} 2.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 4096.0
vllm:generation_tokens_total{engine="0",model_name="m"} 100.0
vllm:generation_tokens_total{engine="1",model_name="m"} 28.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 1.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 3.0
vllm:request_queue_time_seconds_bucket{engine="0",le="0.3",model_name="m"} 3.0
vllm:request_queue_time_seconds_sum{engine="0",model_name="m"} 0.2
vllm:request_queue_time_seconds_count{engine="0",model_name="m"} 4.0
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 40.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 120.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 60.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 36.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 16.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="2"} 8.0
process_cpu_seconds_total 12.5
"""


def counts(**given: float) -> dict[str, float]:
    return {"generation_tokens": 64.0, "requests": 2.0, **given}


def counted(served: int = 2, generated: float | None = 64, failed: int = 0, **grown: float) -> ServerCounts:
    return ServerCounts(counts(**grown), served, failed, generated)


def served(**given: Any) -> Any:
    values = {"tokens": ((1.0, 1.0), (2.0, 31.0)), "counted": "per event"}
    return RequestTrace(0.0, **values | given)


def test_counters_are_summed_over_engines_and_reasons() -> None:
    found = parse_metrics(TEXT)
    assert (found["generation_tokens"], found["requests"], found["running"]) == (128, 4, 1)
    assert (found["prefix_queries"], found["prefix_hits"], found["preemptions"]) == (4096, 1024, 2)
    assert (found["queue_s"], found["queue_n"]) == (0.2, 4)
    assert [found[f"accepted_at_{place}"] for place in range(3)] == [36, 16, 8]


@pytest.mark.parametrize(
    "text",
    ["", "<html>404</html>", "llamacpp:prompt_tokens_total 5\n", "sglang:generation_tokens_total 5\n", "vllm:x nan?\n"],
)
def test_servers_of_another_kind_have_none(text: str) -> None:
    assert parse_metrics(text) is None
    assert count_run(None, None, []) is None
    assert server_document([]) is None
    assert list(server_notes([])) == []


def test_what_a_row_holds() -> None:
    before = dict.fromkeys(parse_metrics(TEXT) or {}, 0.0) | {"running": 0.0}
    after = parse_metrics(TEXT)
    seen = count_run(before, after, [served()] * 4)
    assert seen is not None
    found = server_document([seen, seen])
    assert found["generation_tokens"] == 256
    assert found["queue_ms"] == pytest.approx(50)
    assert found["prefix_cache_hit_rate"] == 0.25
    assert (found["drafts"], found["acceptance_rate"], found["acceptance_length"]) == (80, 0.5, 2.5)
    assert found["acceptance_per_position"] == pytest.approx([0.9, 0.4, 0.2])
    assert (found["foreign_requests"], found["foreign_tokens"]) == (0, 0)
    assert list(server_notes([seen])) == [
        "2 preemptions: the KV cache did not hold all requests",
        "requests waited 50 ms on average before the server began with them",
    ]


def test_no_speculation_is_no_acceptance() -> None:
    found = server_document([counted()])
    assert found is not None
    assert not [name for name in found if "accept" in name or "draft" in name]


@pytest.mark.parametrize(
    ("seen", "notes"),
    [
        (counted(requests=5, generation_tokens=164), ["foreign traffic: 3 requests (100 tokens) of others meanwhile"]),
        (counted(generation_tokens=90), ["foreign traffic: 0 requests (26 tokens) of others meanwhile"]),
        (counted(served=2, failed=1, generated=None, requests=3, generation_tokens=80), []),
        (
            count_run(counts(running=3.0), counts(generation_tokens=128.0, requests=4.0, running=0), [served()] * 2),
            ["foreign traffic: 3 requests of others were running when a run began"],
        ),
        (
            count_run(counts(running=0), counts(requests=1.0, running=0), [served()]),
            ["the server's counters went back: it was restarted during the row"],
        ),
        (counted(requests=1), ["the server counts fewer requests than it served us: its counts are not complete"]),
    ],
)
def test_what_is_off_is_noted(seen: ServerCounts, notes: list[str]) -> None:
    assert list(server_notes([seen])) == notes
    assert seen.is_alone == (not notes or seen.lags)
    assert (server_document([seen]) is None) == seen.restarted


@pytest.mark.parametrize(("ttft_ms", "noted"), [(None, True), (100.0, True), (2000.0, False)])
def test_queue_is_measured_against_the_time_to_first_token(ttft_ms: float | None, noted: bool) -> None:
    notes = server_notes([counted(queue_s=0.1, queue_n=2)], stat([ttft_ms]) if ttft_ms else None)
    assert bool(list(notes)) == noted


@pytest.mark.parametrize(
    ("traces", "ours"),
    [
        ([served(), served()], (2, 0, 64)),
        ([served(), served(error="cut")], (1, 1, None)),
        ([served(), served(counted="not")], (2, 0, None)),
    ],
)
def test_what_was_ours(traces: list, ours: tuple) -> None:
    found = count_run(counts(running=0), counts(running=0), traces)
    assert (found.served, found.failed, found.generated) == ours


def test_hits_that_only_the_counters_have_are_shared_out() -> None:
    given = credit_hits([served(), served()], counted(prefix_hits=2048))
    assert [(one.cached_tokens, one.cached_from) for one in given] == [(1024, "counters")] * 2


@pytest.mark.parametrize(
    ("traces", "seen"),
    [
        ([served(), served()], None),
        ([served(), served()], counted()),
        ([served(), served()], counted(prefix_hits=2048, requests=3)),
        ([served(), served()], counted(prefix_hits=2048, requests=1)),
        ([served(), served(error="cut")], counted(served=1, failed=1, generated=None, prefix_hits=2048)),
        ([served(cached_tokens=0), served(cached_tokens=0)], counted(prefix_hits=2048)),
    ],
)
def test_hits_that_may_be_anybodys_are_not(traces: list, seen: ServerCounts | None) -> None:
    assert credit_hits(traces, seen) == traces
