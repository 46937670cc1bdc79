"""Prompts: exact, equal for equal seeds, and without a common beginning."""

from itertools import pairwise
from typing import Any

import pytest
from known_server import tokenize

from cluster.bench.endpoint import Served
from cluster.bench.rows import Shape
from cluster.bench.run import Pace, weight
from cluster.bench.wanted import BenchWanted, BodyMaker
from cluster.bench.workload import (
    Corpus,
    corpus_id,
    corpus_pieces,
    corpus_text,
    prompt_ids,
    refused_field,
)

CORPUS = Corpus(tuple(tokenize(corpus_text(), False)), begin=(1,))
SHAPE = Shape(2048, 128, 4096, 4)


def maker(salt: str = "s", left_out: tuple[str, ...] = (), **wanted: Any) -> BodyMaker:
    return BodyMaker(BenchWanted(("http://x",), **wanted), Served("m", None, "vllm"), CORPUS, salt, left_out=left_out)


@pytest.mark.parametrize(
    ("name", "begin", "identity"),
    [
        ("prose", "ALICE'S ADVENTURES IN WONDERLAND", "prose cd6226fa963c560e"),
        ("code", "# $Id", "code f4ac9709004e769a"),
    ],
)
def test_corpus_is_the_one_that_results_name(name: str, begin: str, identity: str) -> None:
    assert corpus_text(name).startswith(begin)
    assert 450_000 < len(corpus_text(name)) < 550_000
    assert corpus_id(name) == identity
    pieces = corpus_pieces(name)
    assert "".join(pieces) == corpus_text(name)
    assert max(map(len, pieces)) <= 50_000


@pytest.mark.parametrize("length", [1, 2, 17, 128, 2048, 18432, 102400])
def test_length_is_exact(length: int) -> None:
    ids = prompt_ids(CORPUS, length, "k")
    assert (len(ids), ids[0]) == (length, 1), "it begins as the tokenizer begins a text"
    assert set(ids) <= {1, *CORPUS.ids}


def test_prompts_of_equal_seed_are_equal_and_all_others_begin_differently() -> None:
    def prompts(seed: int, salt: str) -> list:
        return [
            maker(salt, seed=seed).body(Shape(512, tg, depth, 4), f"run{run}", index)["prompt"]
            for tg in (32, 128)
            for depth in (0, 4096)
            for run in range(3)
            for index in range(4)
        ]

    assert prompts(1, "tp1") == prompts(1, "tp2")
    beginnings = sorted(prompt[1:17] for seed in (1, 2) for prompt in prompts(seed, "s"))
    assert len(beginnings) == 96
    assert all(a != b for a, b in pairwise(beginnings))


PLAIN = {
    "model": "m",
    "max_tokens": 128,
    "min_tokens": 128,
    "ignore_eos": True,
    "temperature": 0,
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "cache_salt": "s",
}


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({}, {}),
        (
            {"left_out": ("continuous_usage_stats", "min_tokens")},
            {"min_tokens": None, "stream_options": {"include_usage": True}},
        ),
        ({"left_out": ("continuous_usage_stats", "include_usage")}, {"stream_options": None}),
        ({"natural_stop": True}, {"min_tokens": None, "ignore_eos": None}),
    ],
)
def test_body_asks_for_exact_lengths_and_counts_without_what_was_refused(given: dict, changed: dict) -> None:
    found = maker(**given).body(SHAPE, "run0", 0)
    assert len(found.pop("prompt")) == 6144
    assert found == {key: value for key, value in (PLAIN | changed).items() if value is not None}


def test_where_no_salt_is_taken_the_beginning_is_new_at_each_invocation() -> None:
    first, second = (maker(salt, ("cache_salt",)).body(SHAPE, "run0", 0)["prompt"] for salt in "ab")
    assert first[1:17] != second[1:17]
    assert first[17:] == second[17:] == maker().body(SHAPE, "run0", 0)["prompt"][17:]


@pytest.mark.parametrize(
    ("error", "already", "name"),
    [
        ("HTTP 400: [{'loc': ('body', 'min_tokens'), 'msg': 'Extra inputs are not permitted'}]", (), "min_tokens"),
        ("HTTP 400: Unrecognized request argument supplied: ignore_eos", (), "ignore_eos"),
        ("HTTP 400: min_tokens and ignore_eos are unknown", ("min_tokens",), "ignore_eos"),
        ("HTTP 422: stream_options is not supported", (), "continuous_usage_stats"),
        ("HTTP 422: stream_options is not supported", ("continuous_usage_stats",), "include_usage"),
        ("HTTP 422: stream_options is not supported", ("continuous_usage_stats", "include_usage"), None),
        ("HTTP 400: this model's maximum context length is 1024 tokens", (), None),
    ],
)
def test_refused_field_is_the_one_that_is_named(error: str, already: tuple, name: str | None) -> None:
    assert refused_field(error, already) == name


def test_time_left_is_estimated_from_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("cluster.bench.run.time.monotonic", lambda: now[0])
    short, long = Shape(400, 10, 0), Shape(400, 10, 3600)
    pace = Pace((short, long), 3)
    assert str(pace) == "▱▱▱▱▱▱▱▱▱▱ 0 of 6"
    now[0] = 120.0
    pace.end(short)
    left = round(2 * (2 + 3 * weight(long) / weight(short)))
    assert str(pace) == f"▰▱▱▱▱▱▱▱▱▱ 1 of 6, about {left} min left"
    for shape in (short, short, long, long, long):
        pace.end(shape)
    assert str(pace) == "▰▰▰▰▰▰▰▰▰▰ 6 of 6, about 0 min left"
    pace.end(short)
    assert str(pace).startswith("▰▰▰▰▰▰▰▰▰▰ 7 of 7"), "more batches than planned"
