"""Measurements side by side: names, what forbids a comparison, speed-ups, the ceiling, the best of a sweep."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from bench_results import manifest, result, row
from report_tools import ONE, TWO, entry, stats, sweep_series, sweep_step

from cluster.bench.compare import against, bests, find_best, name_results, overview
from cluster.bench.result import Journal, Result, find_baseline
from cluster.bench.rows import Shape
from cluster.bench.scaling import (
    PP,
    TG,
    TTFR,
    Entry,
    Reading,
    ScalingRow,
    bytes_a_token,
    interval,
    scaling_rows,
    scaling_table,
)
from cluster.bench.series import combinations, label_of, parse_series, parse_vary
from cluster.bench.statistics import Ratio
from cluster.config.recipe import Recipe, Reference, ReferenceRow
from cluster.errors import ClusterError, UsageError
from cluster.spark.gpu import card_of

PUBLISHED = Reference(
    source="a write-up",
    depth_mode="cold",
    measured_with="llama-benchy 0.3.5",
    rows=[
        ReferenceRow(test="tg128 @ d4096", tp=1, t_s=6.5),
        ReferenceRow(test="tg128 @ d4096", tp=2, t_s=10.4),
        ReferenceRow(test="tg128", tp=2, t_s=11),
        ReferenceRow(test="pp2048 (c1)", tp=1, t_s=1890, ttfr_ms=1300),
        ReferenceRow(test="pp2048", tp=2, t_s=1890, ttfr_ms=650),
    ],
)


def rows_of(now: Result, base: Result, *references: Reference) -> dict[tuple[str, str], ScalingRow]:
    return {(row.what, row.test): row for row in scaling_rows(base, now, references)}


def test_speed_ups_of_rates_and_of_times() -> None:
    rows = rows_of(result(2, (75.0, 75.0, 75.0)), result(1))
    assert [what for what, _ in rows] == [TG] * 4 + [PP] * 2 + [TTFR] * 2
    gains = [(one.speed_up.value, one.efficiency) for one in rows.values() if one.speed_up]
    assert gains == [(pytest.approx(1.5), pytest.approx(0.75))] * 8
    pooled = rows[PP, "pp2048"].base
    assert pooled
    assert len(pooled.values) == 6, "over tg32 and tg128"
    short = replace(result(1), rows=result(1).rows[:1])
    assert [key[1] for key in rows_of(result(), short)] == ["tg32", "pp2048", "pp2048"], "rows of both"


def test_published_numbers_are_shown_when_the_mode_agrees() -> None:
    rows = rows_of(result(), result(1), PUBLISHED)
    assert rows[TG, "tg128 @ d4096"].published == (6.5, 10.4, pytest.approx(1.6))
    assert rows[TTFR, "pp2048"].published == (1300, 650, 2), "of times the smaller is the better"
    assert rows[TG, "tg32"].published == (None, None, None)
    other = PUBLISHED.model_copy(update={"depth_mode": "prefix-caching"})
    assert rows_of(result(), result(1), other)[TG, "tg128 @ d4096"].published == (None, None, None)
    notes = scaling_table(entry(1, ONE), replace(entry(2, TWO), references=(PUBLISHED, other))).notes
    assert notes[2:4] == (
        "published: a write-up (llama-benchy 0.3.5)",
        "not shown, measured in mode 'prefix-caching', this in 'cold': a write-up",
    )


REPLICAS = ("a on spark1", "b on spark2")


def of_clients(tp: int, rates: dict[int, float], **given: Any) -> Entry:
    """A measurement at these rates of each request, by clients; runs differ by a part in a thousand."""
    found = manifest(tp, **given)
    rows = tuple(row(Shape(512, 128, 0, n), (rate, 1.001 * rate, rate)) for n, rate in rates.items())
    return Entry(found.size, Result(found, rows, timestamp="2026-11-28 00:00:00Z"))


def test_two_uses_of_the_same_hosts() -> None:
    """At one client TP=2 is better, at four nobody is, at 16 replicas are; a size is compared with one host first."""
    one = of_clients(1, {1: 30, 4: 25, 16: 10})
    two = of_clients(2, {1: 50, 4: 30, 16: 12})
    both = of_clients(1, {1: 30, 4: 30, 16: 20}, nodes=2, replicas=REPLICAS)
    assert [entry.label for entry in (one, two, both)] == ["TP=1", "TP=2", "2 × TP=1"]
    tables = {made.title: made for made in overview([both, two, one], [])}
    assert list(tables) == [
        "scaling: TP=2 beside TP=1",
        "scaling: 2 × TP=1 beside TP=1",
        "2 × TP=1 or TP=2: the same hosts",
    ]
    made = tables["2 × TP=1 or TP=2: the same hosts"]
    rows = [line for line in made.document()["rows"] if line["what"] == TG]
    assert [(line["clients"], line["2 × TP=1 ÷ TP=2"], line["better"]) for line in rows] == [
        ("1", "0.60×", "TP=2"),
        ("4", "1.00×", "no difference"),
        ("16", "1.67×", "2 × TP=1"),
    ]
    assert "token generation, better by clients: TP=2 at 1; no difference at 4; 2 × TP=1 at 16" in made.notes
    gains = [line for line in tables["scaling: 2 × TP=1 beside TP=1"].document()["rows"] if line["what"] == TG]
    assert [line["efficiency"] for line in gains] == ["50%", "60%", "100%"], "of two hosts"
    without = {made.title for made in overview([both, two], [])}
    assert without == {"2 × TP=1 or TP=2: the same hosts"}
    other = of_clients(1, {1: 30}, nodes=2, replicas=REPLICAS, seed=2)
    assert not any("same hosts" in made.title for made in overview([two, other], []))


def test_replicas_are_no_baseline_and_have_no_published_numbers(tmp_path: Path) -> None:
    both = of_clients(1, {1: 30}, nodes=2, replicas=REPLICAS)
    journal = Journal(tmp_path, both.result.manifest)
    assert journal.finish(replace(both.result, timestamp=journal.timestamp)).name.endswith("-2xtp1.json")
    assert find_baseline(tmp_path, of_clients(2, {1: 50}).result) == (None, [])
    published = Reference(source="a write-up", rows=[ReferenceRow(test="tg128 (c1)", tp=1, t_s=6.5)], depth_mode="cold")
    [found, *_] = scaling_rows(of_clients(2, {1: 50}).result, both.result, (published,))
    assert found.published == (None, None, None)


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        (Ratio(0.2, 0.19, 0.21), "0.19–0.21"),
        (Ratio(1.0, 0.8, 1.2), "0.80–1.20 (not significant)"),
        (Ratio(1.2), "one run"),
        (None, "n/a"),
    ],
)
def test_interval_words(gain: Ratio | None, words: str) -> None:
    assert interval(gain) == words


@pytest.mark.parametrize(
    ("given", "bytes_", "why"),
    [
        ({"vllm": {"quantization": "fp8"}}, 31e9, "31 billion parameters × 1 bytes (fp8)"),
        ({"vllm": {"quantization": "modelopt_fp4"}}, 31e9 * 0.5625, "0.5625"),
        ({"weights_gib": 59}, 59 * 2**30, "weight files of 59 GiB"),
        ({}, None, "does not say weights_gib"),
        ({"vllm": {"quantization": "mystery"}}, None, "does not say weights_gib"),
        ({"vllm": {"quantization": "fp8"}, "parameters_b": None}, None, "does not say parameters_b"),
        ({"vllm": {"quantization": "fp8", "speculative-config": {"a": 1}}}, None, "more than one token"),
        ({"vllm": {"quantization": "fp8"}, "model": "google/gemma-4-26B-A4B-it"}, None, "mixture of experts"),
        ({"weights_gib": 15, "vllm": {"moe-backend": "marlin"}}, None, "mixture of experts"),
    ],
)
def test_bytes_read_for_a_token(given: dict[str, Any], bytes_: float | None, why: str) -> None:
    reading = bytes_a_token(
        Recipe(**{"model": "google/gemma-4-31B-it", "image": "x:1", "parameters_b": 31, "vllm": {}, **given})
    )
    assert reading.bytes == (None if bytes_ is None else pytest.approx(bytes_))
    assert why in reading.why


def test_ceiling_of_sizes_and_clients() -> None:
    reading = entry(1, ONE).reading
    assert reading
    spark = card_of("NVIDIA GB10")
    assert [reading.ceiling_t_s(spark, tp) for tp in (1, 2)] == pytest.approx([8.806, 17.613], 1e-4)
    assert reading.ceiling_t_s(spark, 2, concurrency=4) == pytest.approx(70.452, 1e-4), (
        "one reading serves all requests"
    )
    assert reading.ceiling_t_s(spark, None) is None
    assert reading.ceiling_t_s(card_of("NVIDIA H200"), 1) == pytest.approx(154.84, 1e-4)
    assert reading.ceiling_t_s(card_of("NVIDIA GB20"), 1) is None


@pytest.mark.parametrize(
    ("gpu", "note"),
    [
        ("NVIDIA GB10", "ceiling (part of it reached): 273 GB/s × 2"),
        ("NVIDIA H200", "ceiling (part of it reached): 4,800 GB/s × 2"),
        ("NVIDIA GB20", "ceiling n/a: the memory bandwidth of NVIDIA GB20 is not known here"),
    ],
)
def test_ceiling_is_the_cards(gpu: str, note: str) -> None:
    now = entry(2, TWO)
    hosts = tuple(replace(host, gpus=(gpu,), gpu=gpu) for host in now.result.manifest.hosts)
    now = replace(now, result=replace(now.result, manifest=replace(now.result.manifest, hosts=hosts)))
    assert any(line.startswith(note) for line in scaling_table(entry(1, ONE), now).notes)


def test_what_passes_its_ceiling_is_named() -> None:
    """The recipe or the GPU is not what is assumed."""
    now = replace(entry(2, TWO), reading=Reading(100e9, "made up"))
    assert any(line.startswith("ABOVE THE CEILING in tg") for line in scaling_table(entry(1, ONE), now).notes)


@pytest.mark.parametrize("key", ["vllm.max-num-seqs", "max_num_seqs", "vllm.max_num_seqs"])
def test_what_is_varied_on_purpose_may_differ(key: str) -> None:
    def varied(**vllm: Any) -> Any:
        return entry(1, ONE, spec={"tp": 1, "recipe": {"vllm": vllm}})

    base, other = varied(**{"max-num-seqs": 4}), varied(**{"max-num-seqs": 8})
    assert against(base, other)
    assert against(base, other, (key,)) == ()
    assert against(base, varied(**{"max-num-seqs": 4, "dtype": "half"}), (key,)), "nothing else may"
    nested = "speculative_config.num_speculative_tokens"
    base = varied(**{"speculative-config": {"num_speculative_tokens": 2}})
    assert against(base, varied(), (nested,)) == (), "one side lacks it"


def test_names_say_what_differs_only() -> None:
    assert name_results([result(1), result(2)]) == ["TP=1", "TP=2"]
    assert name_results([result(2)]) == ["TP=2"]
    assert name_results([result(2), result(2, backend="mp")]) == ["ray", "mp"]
    assert name_results([result(1), result(2, recipe="other")]) == ["gemma-4-31b-fp8", "other"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"a": stats(79.9, 80.0, 80.1), "b": stats(76.8, 76.9, 77.0)},
            "t: best with a: 80.00 t/s (95 %: 79.75–80.25), 1.04× of b (1.04–1.04)",
        ),
        (
            {"a": stats(79.0, 80.0, 81.0), "b": stats(78.5, 79.5, 80.5), "c": stats(60.0, 60.1, 60.2)},
            "t: a tie of a and b: the highest mean is 80.00 t/s (95 %: 77.52–82.48)",
        ),
        (
            {"a": stats(80.0, 80.0), "b": stats(80.0, 80.0), "c": stats(79.0, 79.0)},
            "t: a tie of a and b: the highest mean is 80.00 t/s (95 %: 80.00–80.00)",
        ),
        ({"a": stats(1.0, 2.0, 3.0), "b": stats(0.1)}, "t: best with a: 2.00 t/s (95 %: 0.00–4.48)"),
        (
            {"a": stats(80.0), "b": stats(79.9)},
            "t: most with a: 80.00 t/s; one run, so ties are unknown (--runs 3 or more)",
        ),
        ({"a": stats(80.0)}, "None"),
    ],
)
def test_the_best_and_its_ties(values: dict[str, Any], words: str) -> None:
    assert str(find_best("t", values)) == words


def test_a_step_under_other_conditions_is_not_ranked() -> None:
    steps = (sweep_step(2, 67.4, 67.5), sweep_step(4, 79.9, 80.0), sweep_step(9, 99.0, 99.1, seed=7))
    winners, lines = bests(steps, sweep_series(*steps).varied)
    assert [one.label for one in winners] == ["num_speculative_tokens=4"]
    assert lines == ["num_speculative_tokens=9 is not compared: seed: 1 → 7"]


def test_vary_reads_yaml_values_as_written() -> None:
    varied = parse_vary(["vllm.a=1,'x, y',{b: [1, 2]},null", "backend=ray,mp"])
    assert varied["vllm.a"] == ["1", "'x, y'", "{b: [1, 2]}", "null"]
    assert list(map(label_of, combinations(varied)))[1:3] == ["a=1 backend=mp", "a='x, y' backend=ray"]


@pytest.mark.parametrize(
    "words", ["vllm.a", "=1", "a=", "a=[", "a=1,1", "a=1 a=2", "backend=ray,tcp", "tp=1,two", "pp=0"]
)
def test_vary_that_cannot_be_read(words: str) -> None:
    with pytest.raises(UsageError):
        parse_vary(words.split())


def test_a_series_is_read_back() -> None:
    one = sweep_series(sweep_step(2, 67.4))
    assert parse_series(orjson.loads(orjson.dumps(one.document() | {"later": 1}))) == one
    for other, code in ((one.document() | {"series": 2}, "series-too-new"), ({"schema": 1}, "series-invalid")):
        with pytest.raises(ClusterError) as caught:
            parse_series(other)
        assert caught.value.code == code
