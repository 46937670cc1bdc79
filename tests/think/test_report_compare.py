"""Results side by side: names, what forbids a comparison, the ceiling, memory at every moment."""

from __future__ import annotations

from typing import Any

import pytest
from bench_results import result
from report_tools import entry

from cluster.bench.compare import against, compare, moments_table, name_results
from cluster.bench.scaling import bytes_a_token
from cluster.config.recipe import Recipe

ONE, TWO = (6.4, 6.5, 6.6), (11.0, 11.2, 11.4)


def recipe(**given: Any) -> Recipe:
    return Recipe(**{"model": "google/gemma-4-31B-it", "image": "x:1", "parameters_b": 31, **given})


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
    reading = bytes_a_token(recipe(**given))
    assert reading.bytes == (None if bytes_ is None else pytest.approx(bytes_))
    assert why in reading.why


def test_ceiling_of_sizes_and_clients() -> None:
    reading = bytes_a_token(recipe(vllm={"quantization": "fp8"}))
    assert reading.ceiling_t_s(1) == pytest.approx(8.806, abs=1e-3)
    assert reading.ceiling_t_s(2) == pytest.approx(17.61, abs=1e-2)
    assert reading.ceiling_t_s(2, concurrency=4) == pytest.approx(70.45, abs=1e-2), "one reading serves all requests"
    assert reading.ceiling_t_s(None) is None


def test_comparison_has_ceiling_and_published_numbers() -> None:
    [table] = compare(entry(1, ONE), entry(2, TWO))
    lines = [dict(zip(table.headers, line, strict=True)) for line in table.rows]
    first = next(line for line in lines if line["test"] == "tg128")
    assert (first["speed-up"], first["efficiency"], first["ceiling TP=2"]) == ("1.72×", "86%", "17.6 (64%)")
    assert (first["published TP=1"], first["published TP=2"], first["published speed-up"]) == ("6.5", "11.2", "1.72×")
    waited = next(line for line in lines if line["what"] == "time to first response" and "@" not in line["test"])
    assert waited["ceiling TP=2"] == ""
    assert waited["published speed-up"] == "1.43×", "of times the smaller is the better"


def test_other_conditions_forbid_the_comparison_and_are_named() -> None:
    [table] = compare(entry(1, ONE), entry(2, TWO, seed=2, versions={"vllm": "0.20"}))
    assert table.rows == ()
    assert table.notes[0].startswith("TP=2 is not compared with TP=1: ")
    assert "seed: 1 → 2" in table.notes[0]
    assert "versions.vllm: 0.19.1 → 0.20" in table.notes[0]


def varied(tp: int = 1, **vllm: Any) -> Any:
    return entry(tp, ONE, spec={"tp": tp, "recipe": {"vllm": vllm}})


@pytest.mark.parametrize("key", ["vllm.max-num-seqs", "max_num_seqs", "vllm.max_num_seqs"])
def test_what_is_varied_on_purpose_may_differ(key: str) -> None:
    base, other = varied(**{"max-num-seqs": 4}), varied(**{"max-num-seqs": 8})
    assert against(base, other)
    assert against(base, other, (key,)) == ()
    assert against(base, varied(**{"max-num-seqs": 4, "dtype": "half"}), (key,)), "nothing else may"


def test_a_nested_key_that_one_side_lacks() -> None:
    key = "speculative_config.num_speculative_tokens"
    base = varied(**{"speculative-config": {"num_speculative_tokens": 2}})
    assert against(base, varied(**{"speculative-config": {"num_speculative_tokens": 4}}), (key,)) == ()
    assert against(base, varied(), (key,)) == ()


def test_names_say_what_differs_only() -> None:
    assert name_results([result(1), result(2)]) == ["TP=1", "TP=2"]
    assert name_results([result(2)]) == ["TP=2"]
    assert name_results([result(2), result(2, backend="mp")]) == ["ray", "mp"]
    assert name_results([result(1), result(2), result(2, recipe="other")]) == [
        "gemma-4-31b-fp8 TP=1",
        "gemma-4-31b-fp8 TP=2",
        "other TP=2",
    ]


def test_memory_at_every_moment() -> None:
    table = moments_table([entry(1, ONE), entry(2, TWO)])
    assert table is not None
    assert table.headers[3:] == ("idle", "loaded", "ready", "measuring", "published VRAM (GiB)")
    assert table.rows[0] == ("TP=1", "spark1", "head", "117.0 / 0.0", "52.0 / 64.0", "13.5 / 103.0", "13.9 / 101.0", "")
    assert table.rows[2][-2:] == ("13.8 / 102.0", "100.7"), "the published number is that of two Sparks"
