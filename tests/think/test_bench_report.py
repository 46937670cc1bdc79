"""Tables: what a reader sees, and what must be said with it."""

import csv
import dataclasses
import io

import pytest
from bench_results import result, row
from bench_tools import trace

from cluster.bench.measure import measure_batch
from cluster.bench.result import Result, warnings
from cluster.bench.rows import Shape, summarise
from cluster.bench.scaling import PP, TG, TTFR, ScalingRow, interval, scaling_rows
from cluster.bench.tables import bench_table, to_csv
from cluster.cli.bench import max_num_seqs
from cluster.config.recipe import Reference, ReferenceRow

PUBLISHED = Reference(
    source="a write-up",
    depth_mode="cold",
    measured_with="llama-benchy 0.3.5",
    rows=[
        ReferenceRow(test="tg128 @ d4096", tp=1, t_s=6.5),
        ReferenceRow(test="tg128 @ d4096", tp=2, t_s=10.3),
        ReferenceRow(test="pp2048 (c1)", tp=1, t_s=1890, ttfr_ms=1300),
        ReferenceRow(test="pp2048", tp=2, t_s=2608, ttfr_ms=906),
    ],
)


def rows_of(now: Result, base: Result, *references: Reference) -> dict[tuple[str, str], ScalingRow]:
    return {(row.what, row.test): row for row in scaling_rows(base, now, references)}


def test_number_of_some_runs_only_is_said() -> None:
    shape = Shape(512, 32, 0)
    long = dataclasses.replace(trace("plain", 128, 512), t0_s=0.0)
    batches = [measure_batch([one], 0.0, 512) for one in (long, trace("plain", 32, 512), long)]
    notes = bench_table(dataclasses.replace(result(), rows=(summarise(shape, batches),))).notes
    assert "peak_throughput from 2 values only, n/a elsewhere: less than 2 s of tokens [pp512 tg32]" in notes


def test_failures_are_seen_in_their_row_and_aloud() -> None:
    shape = Shape(512, 32, 0)
    batches = [measure_batch([trace(way, 32, 512)], 0.0, 512) for way in ("plain", "half", "plain")]
    some = dataclasses.replace(result(), rows=(summarise(shape, batches),))
    assert bench_table(some).rows[0][-1] == "1/3"
    assert any(note.startswith("failed: 1 × the server closed") for note in bench_table(some).notes)
    assert warnings(some) == ("1 of 3 requests FAILED; the numbers are those of the others",)


def test_simulated_hosts_and_dummy_weights_are_said_aloud() -> None:
    host = dataclasses.replace(result().manifest.hosts[0], product="NVIDIA DGX Spark (simulated)")
    there = dataclasses.replace(result().manifest, hosts=(host,), weights="dummy", refused_fields=("min_tokens",))
    lines = warnings(dataclasses.replace(result(), manifest=there, complete=False))
    assert [line.split(":")[0].split(" (")[0] for line in lines] == [
        "SIMULATED HOSTS",
        "DUMMY WEIGHTS",
        "INTERRUPTED",
        "the server refused min_tokens",
    ]
    assert warnings(result()) == ()


def test_scaling_of_rates_and_of_times() -> None:
    rows = rows_of(result(2, (75.0, 75.0, 75.0)), result(1))
    assert [what for what, _ in rows] == [TG] * 4 + [PP] * 2 + [TTFR] * 2
    for key, one in rows.items():
        assert one.speed_up is not None, key
        assert one.speed_up.value == pytest.approx(1.5)
        assert one.efficiency == pytest.approx(0.75)
    assert rows[PP, "pp2048"].base is not None
    assert len(rows[PP, "pp2048"].base.values) == 6, "pooled over tg32 and tg128"


def test_slower_is_shown_as_slower() -> None:
    one = rows_of(result(2, (10.0, 10.1, 9.9)), result(1))[TG, "tg128"]
    assert one.speed_up is not None
    assert one.speed_up.value == pytest.approx(0.2)
    assert one.speed_up.significant


def test_only_rows_of_both_are_compared() -> None:
    short = dataclasses.replace(result(1), rows=result(1).rows[:1])
    assert [key[1] for key in rows_of(result(), short)] == ["tg32", "pp2048", "pp2048"]


def test_published_numbers_stand_beside_when_the_mode_agrees() -> None:
    rows = rows_of(result(), result(1), PUBLISHED)
    assert rows[TG, "tg128 @ d4096"].published.speed_up == pytest.approx(10.3 / 6.5)
    assert (rows[TTFR, "pp2048"].published.base, rows[TTFR, "pp2048"].published.now) == (1300, 906)
    assert rows[PP, "pp2048"].published.base == 1890
    assert rows[TG, "tg32"].published.base is None
    other = PUBLISHED.model_copy(update={"depth_mode": "prefix-caching"})
    assert rows_of(result(), result(1), other)[TG, "tg128 @ d4096"].published.base is None


def test_interval_words() -> None:
    noisy = rows_of(result(2, (40.0, 50.0, 62.0)), result(1))[TG, "tg128"]
    assert interval(noisy).endswith("(not significant)")
    single = rows_of(result(2, (60.0,)), result(1))[TG, "tg128"]
    assert interval(single) == "one run"


def test_csv_has_llama_benchys_columns_first() -> None:
    lines = list(csv.DictReader(io.StringIO(to_csv(result()))))
    theirs = [f"{name}_{part}" for name in ("t_s", "t_s_req", "peak_ts", "peak_ts_req") for part in ("mean", "std")]
    theirs += [f"{name}_{part}" for name in ("ttfr", "est_ppt", "e2e_ttft") for part in ("mean", "std")]
    assert list(lines[0])[:16] == ["model", "test_name", *theirs]
    assert float(lines[1]["t_s_mean"]) == pytest.approx(50)
    assert float(lines[0]["ttfr_mean"]) == pytest.approx(67)
    assert lines[1]["ttfr_mean"] == ""


def test_rows_without_their_cache_are_said_first() -> None:
    missed = dataclasses.replace(result().rows[2], cache={"hit": 2, "miss": 1}, phase="cached")
    hit = dataclasses.replace(result().rows[3], cache={"hit": 3}, phase="cached")
    lines = warnings(dataclasses.replace(result(), rows=(missed, hit)))
    assert lines == ("NO VERIFIED CACHE HIT in pp2048 tg32 @ d4096: see the notes",)


def test_context_rows_have_llama_benchys_names() -> None:
    context = row(Shape(2048, 128, 4096, 1, "context"))
    assert [line[1] for line in bench_table(dataclasses.replace(result(), rows=(context,))).rows] == [
        "ctx_pp @ d4096",
        "ctx_tg @ d4096",
    ]


def test_rows_with_more_clients_than_the_server_computes_are_marked() -> None:
    rows = tuple(row(Shape(512, 128, 0, count), queued=queued) for count, queued in ((4, 0), (8, 4)))
    found = dataclasses.replace(result(), rows=rows)
    [line] = warnings(found)
    assert line.startswith("QUEUED in pp512 tg128 (c8)")
    assert warnings(dataclasses.replace(found, rows=rows[:1])) == ()


@pytest.mark.parametrize(
    ("spec", "most"),
    [
        ({}, None),
        ({"recipe": {"vllm": {}}}, None),
        ({"recipe": {"vllm": {"max-num-seqs": 4}}}, 4),
        ({"recipe": {"vllm": {"max-num-seqs": 4}}, "words": ["--max-num-seqs", "16"]}, 16),
    ],
)
def test_what_the_server_computes_at_the_same_time_is_the_recipes_or_the_words(spec: dict, most: int | None) -> None:
    assert max_num_seqs(spec) == most
