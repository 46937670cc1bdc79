"""Rows: llama-benchy's names, what is noted when a number is missing or must be read with care."""

import dataclasses

import pytest
from bench_results import result, row
from bench_tools import WAYS, trace

from cluster.bench.measure import BatchMeasure, measure_batch
from cluster.bench.result import warnings
from cluster.bench.rows import (
    Change,
    Row,
    Sentinel,
    Shape,
    choose_sentinel,
    compare_runs,
    parse_row,
    parse_sentinel,
    suffix,
    summarise,
)
from cluster.bench.statistics import Stat
from cluster.bench.tables import bench_table

SHORT = Shape(512, 32, 0)
CONTEXT = Shape(512, 32, 2048, 1, "context")
CACHED = Shape(512, 32, 2048, 1, "cached")


def batch(way: str, shape: Shape = SHORT) -> BatchMeasure:
    traces = [trace(way, shape.tg, shape.prompt_tokens) for _ in range(shape.concurrency)]
    return measure_batch(traces, 0.0, shape.prompt_tokens)


def of(way: str, shape: Shape = SHORT) -> Row:
    return summarise(shape, [batch(way, shape)] * 3)


def values(found: Stat | None) -> tuple[float, ...]:
    return found.values if found else ()


@pytest.mark.parametrize(
    ("depth", "concurrency", "most", "name"),
    [(0, 1, 1, ""), (4096, 1, 1, " @ d4096"), (0, 1, 4, " (c1)"), (4096, 4, 4, " @ d4096 (c4)")],
)
def test_names_are_llama_benchys(depth: int, concurrency: int, most: int, name: str) -> None:
    assert suffix(depth, concurrency, most) == name
    assert (CONTEXT.name, CONTEXT.prompt_tokens) == ("ctx_pp ctx_tg @ d2048", 2048)
    assert (CACHED.name, CACHED.prompt_tokens) == ("pp512 tg32 @ d2048", 2560)


def test_row_has_llama_benchys_fields() -> None:
    BenchmarkRun = pytest.importorskip("llama_benchy.results").BenchmarkRun

    document = row(Shape(2048, 128, 4096)).document()
    assert BenchmarkRun.model_fields.keys() - document.keys() == {
        "throughput_over_time",
        "requests_throughput_over_time",
    }
    read = BenchmarkRun.model_validate(document)
    assert read.tg_throughput.mean == pytest.approx(50)
    assert read.context_size == 4096


def test_a_row_survives_its_document() -> None:
    there = row(Shape(2048, 128, 0, 4), machine=[{"run": 0, "before": {"a": {"gpu_memory_mib": 1}}, "after": {}}])
    assert parse_row(there.document() | {"key_of_a_later_version": 1}) == there
    context = summarise(CONTEXT, [measure_batch([trace("plain", 32, 2048)], 0.0, 2048)])
    assert context.is_context_prefill_phase
    assert parse_row(context.document()).shape == CONTEXT


def test_rates_of_one_client_are_its_own() -> None:
    one = row(SHORT, rates=(49.0, 50.0, 51.0))
    assert one.tg_throughput == one.tg_req_throughput
    assert values(one.tg_throughput) == pytest.approx((49, 50, 51))
    assert one.tg_wall_throughput is None


def test_totals_of_many_clients_are_over_batches_and_rates_over_requests() -> None:
    many = row(Shape(512, 128, 0, 4))
    assert values(many.tg_throughput) == pytest.approx((200,) * 3)
    assert values(many.tg_req_throughput) == pytest.approx((50,) * 12)
    assert (many.requests, many.failed) == (12, 0)
    assert values(many.output_tokens) == (128,) * 12
    ttft, itl = many.percentiles["e2e_ttft_ms"], many.percentiles["itl_ms"]
    assert (ttft["n"], ttft["p90"], ttft["p99"]) == (12, pytest.approx(67), None)
    assert (itl["n"], itl["p99"]) == (12 * 127, pytest.approx(20, rel=1e-6))
    assert many.percentiles["tpot_ms"]["p50"] == pytest.approx(20)


def test_failures_are_counted_and_named() -> None:
    some = summarise(SHORT, [batch("plain"), batch("half"), batch("half")])
    assert (some.requests, some.failed) == (3, 2)
    assert some.failures[0].startswith("2 × the server closed")
    assert some.tg_throughput
    none = of("half")
    assert none.tg_throughput is None
    assert none.why["tg_throughput"] == "no request was served"


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("plain", ""),
        ("cached", "3 of 3 cold requests met a prefix cache (up to 1024 tokens)"),
        ("stops", "outputs of 16 tokens instead of 32 (finish_reason stop)"),
        ("four-last", "tokens per event are estimated"),
        ("no-usage", "the server does not report the prompt's length"),
    ],
)
def test_notes(way: str, words: str) -> None:
    notes = of(way, Shape(2048, 32, 0)).notes
    assert any(words in note for note in notes) if words else notes == ()


def test_prompt_of_another_length_is_noted() -> None:
    other = summarise(SHORT, [measure_batch([trace("plain", 32, 513)], 0.0, 512)])
    assert other.notes == ("the server counted 513 prompt tokens, 512 were wanted",)


@pytest.mark.parametrize("way", [name for name, way in WAYS.items() if not way.fail_every])
def test_no_way_raises(way: str) -> None:
    of(way)


def test_missing_numbers_have_a_reason() -> None:
    short, uncounted = row(Shape(512, 32, 0, 4)), of("no-usage")
    assert short.tg_throughput is None
    assert "less than 1 s" in short.why["tg_throughput"]
    assert "less than 1 s" in short.why["peak_throughput"]
    assert uncounted.why["tg_throughput"] == "the server does not count its tokens"


def test_outputs_that_may_end_by_themselves_are_described_and_not_blamed() -> None:
    assert summarise(SHORT, [batch("stops"), batch("plain")], natural_stop=True).notes == (
        "outputs ended by themselves after 16 to 32 tokens; 1 of 2 reached the limit of 32",
    )


def cached_row(cached: list[int | None], source: str = "answer") -> Row:
    """A row of one batch whose requests had so many tokens of their context in the cache."""
    one = trace("plain", 32, CACHED.prompt_tokens)
    traces = [dataclasses.replace(one, cached_tokens=count, cached_from=source) for count in cached]
    shape = dataclasses.replace(CACHED, concurrency=len(cached))
    return summarise(shape, [measure_batch(traces, 0.0, CACHED.prompt_tokens)])


@pytest.mark.parametrize(
    ("cached", "source", "outcome"),
    [
        (0, "answer", "miss"),
        (16, "answer", "miss"),
        (1023, "answer", "miss"),
        (1024, "answer", "partial"),
        (1800, "answer", "partial"),
        (1900, "answer", "hit"),
        (2048, "answer", "hit"),
        (None, "answer", "unknown"),
        (0, "counters", "miss"),
        (2040, "counters", "hit"),
    ],
)
def test_miss_has_no_number_of_a_prompt(cached: int | None, source: str, outcome: str) -> None:
    row = cached_row([cached], source)
    assert row.cache == {outcome: 1}
    prompt = (row.pp_throughput, row.pp_req_throughput, row.ttfr, row.est_ppt, row.e2e_ttft)
    assert row.tg_throughput
    assert row.why is not None
    assert row.percentiles
    if outcome in ("hit", "partial"):
        assert None not in prompt
        assert values(row.pp_throughput) == pytest.approx(((2560 - (cached or 0)) / 0.067,)), "what was computed"
        assert bool(row.notes) == (outcome == "partial")
        return
    assert prompt == (None,) * 5
    assert {"pp_throughput", "ttfr", "est_ppt", "e2e_ttft"} <= set(row.why)
    assert row.notes[0].startswith("NO VERIFIED CACHE HIT: 1 of 1 requests ")
    assert "e2e_ttft_ms" not in row.percentiles


def test_some_misses_are_counted_and_left_out() -> None:
    row = cached_row([2048, 0, 2048, None])
    assert row.cache == {"hit": 2, "miss": 1, "unknown": 1}
    assert row.pp_throughput is None, "no total with a miss in it"
    assert len(values(row.ttfr)) == 2
    assert [note.split(" (")[0] for note in row.notes[:2]] == [
        "NO VERIFIED CACHE HIT: 1 of 4 requests missed the prefix cache",
        "NO VERIFIED CACHE HIT: 1 of 4 requests cannot be verified, the server does not report cached tokens of each; "
        "not in the prompt's numbers",
    ]


@pytest.mark.parametrize(
    ("cached", "source", "outcome"),
    [
        ([1920] * 16, "counters", "unknown"),  # one of 16 missed: each is credited 15/16 of a context
        ([1920] * 16, "answer", "hit"),
        ([2040] * 16, "counters", "hit"),
        ([1536] * 2, "counters", "unknown"),
        ([1536], "counters", "partial"),
        ([0] * 4, "counters", "miss"),
    ],
)
def test_sum_of_the_counters_hides_no_miss(cached: list, source: str, outcome: str) -> None:
    assert cached_row(cached, source).cache == {outcome: len(cached)}


def sentinel(first: float, last: float, *rates: float) -> Sentinel:
    one, other, every = (row(Shape(2048, 128, 0), found) for found in ((first,), (last,), rates or (first,)))
    found = compare_runs(one, other, every, extra=True)
    assert found
    return found


def test_cheapest_row_is_repeated_with_its_longest_output() -> None:
    shapes = [Shape(pp, tg, depth, c) for depth in (4096, 0) for pp in (2048, 512) for tg in (32, 128) for c in (4, 1)]
    assert choose_sentinel(shapes) == Shape(512, 128, 0, 1)


def test_change_is_the_last_run_against_the_first() -> None:
    found = sentinel(50, 45, 50.0, 50.05, 49.95)
    assert [change.what for change in found.changes] == ["pp t/s", "tg t/s", "e2e_ttft"]
    tg = found.changes[1]
    assert (tg.begin, tg.end, tg.change) == (pytest.approx(50), pytest.approx(45), pytest.approx(-0.1))
    # std 0.05 of 50, two degrees of freedom: 4.303 × √2 × 0.001
    assert tg.noise == pytest.approx(4.303 * 2**0.5 * 0.001, rel=1e-3)
    assert tg.is_drift


@pytest.mark.parametrize(
    ("change", "noise", "drift"),
    [
        (-0.019, 0.001, False),
        (-0.021, 0.001, True),
        (0.021, 0.001, True),
        (0.1, 0.2, False),
        (0.04, None, False),
        (0.06, None, True),
    ],
)
def test_drift_is_more_than_runs_differ_by(change: float, noise: float | None, drift: bool) -> None:
    assert Change("tg t/s", 1, 1 + change, change, noise).is_drift is drift


def test_drift_is_warned_of_and_steadiness_noted() -> None:
    drifting = dataclasses.replace(result(), sentinel=sentinel(50, 45, 50.0, 50.05, 49.95))
    assert any(line.startswith("THE MACHINE DRIFTED: pp2048 tg128") and "-10.0%" in line for line in warnings(drifting))
    steady = dataclasses.replace(result(), sentinel=sentinel(50, 50.1, 50.0, 50.05, 49.95))
    assert warnings(steady) == ()
    assert "tg t/s +0.2%" in bench_table(steady).notes[-1]


def test_a_sentinel_survives_its_document() -> None:
    there = sentinel(50, 45)
    document = there.document()
    assert parse_sentinel(document) == there
    assert [change["drift"] for change in document["changes"]] == [True, True, True]
