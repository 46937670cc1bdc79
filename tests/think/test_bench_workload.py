"""Prompts: exact, equal for equal seeds, and without a common beginning."""

from itertools import pairwise

import pytest
from known_server import tokenize

from cluster.bench.rows import Shape
from cluster.bench.run import Pace, about, weight
from cluster.bench.workload import (
    CORPORA,
    BodyMaker,
    Corpus,
    corpus_id,
    corpus_pieces,
    corpus_text,
    prompt_ids,
    refused_field,
)

CORPUS = Corpus(tuple(tokenize(corpus_text(), False)), begin=(1,))
SHAPE = Shape(2048, 128, 4096, 4)


def maker(seed: int = 1, salt: str = "s") -> BodyMaker:
    return BodyMaker("m", CORPUS, seed, salt)


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


@pytest.mark.parametrize("name", CORPORA)
def test_pieces_are_the_whole_corpus(name: str) -> None:
    pieces = corpus_pieces(name)
    assert "".join(pieces) == corpus_text(name)
    assert max(map(len, pieces)) <= 50_000
    assert len(pieces) >= 9


@pytest.mark.parametrize("length", [1, 2, 17, 128, 2048, 18432, 102400])
def test_length_is_exact(length: int) -> None:
    assert len(prompt_ids(CORPUS, length, "k")) == length


def test_prompt_begins_as_the_tokenizer_begins_a_text() -> None:
    assert prompt_ids(CORPUS, 100, "k")[0] == 1
    assert set(prompt_ids(CORPUS, 5000, "k")) <= {1, *CORPUS.ids}


def test_prompts_of_equal_seed_are_equal_and_all_others_begin_differently() -> None:
    def prompts(seed: int, salt: str) -> list:
        return [
            maker(seed, salt).body(Shape(512, tg, depth, 4), f"run{run}", index)["prompt"]
            for tg in (32, 128)
            for depth in (0, 4096)
            for run in range(3)
            for index in range(4)
        ]

    assert prompts(1, "tp1") == prompts(1, "tp2")
    beginnings = sorted(prompt[1:17] for seed in (1, 2) for prompt in prompts(seed, "s"))
    assert len(beginnings) == 96
    assert all(a != b for a, b in pairwise(beginnings))


def test_prompts_do_not_depend_on_what_else_is_measured() -> None:
    assert maker().body(SHAPE, "run2", 1)["prompt"] == maker().body(SHAPE, "run2", 1)["prompt"]
    assert maker().body(SHAPE, "run2", 1)["prompt"] != maker().body(SHAPE, "run1", 1)["prompt"]


def test_body_asks_for_exact_lengths_and_counts() -> None:
    body = maker().body(SHAPE, "run0", 0)
    assert len(body.pop("prompt")) == 6144
    assert body == {
        "model": "m",
        "max_tokens": 128,
        "min_tokens": 128,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "cache_salt": "s",
    }


def test_refused_fields_are_left_out() -> None:
    some = maker().without("continuous_usage_stats").without("min_tokens").body(SHAPE, "r", 0)
    assert "min_tokens" not in some
    assert some["stream_options"] == {"include_usage": True}
    assert "stream_options" not in maker().without("continuous_usage_stats").without("include_usage").body(
        SHAPE, "r", 0
    )


def test_natural_stop_leaves_the_end_to_the_model() -> None:
    body = BodyMaker("m", CORPUS, 1, "s", natural_stop=True).body(SHAPE, "run0", 0)
    assert "min_tokens" not in body
    assert "ignore_eos" not in body
    assert (body["max_tokens"], body["temperature"]) == (128, 0)
    assert body["prompt"] == maker().body(SHAPE, "run0", 0)["prompt"]


def test_where_no_salt_is_taken_the_beginning_is_new_at_each_invocation() -> None:
    first, second = (
        BodyMaker("m", CORPUS, 1, salt).without("cache_salt").body(SHAPE, "run0", 0)["prompt"] for salt in ("a", "b")
    )
    assert first[1:17] != second[1:17]
    assert first[17:] == second[17:]
    assert first[17:] == maker().body(SHAPE, "run0", 0)["prompt"][17:]


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


SHORT, LONG = Shape(400, 10, 0), Shape(400, 10, 3600)


def test_rest_is_guessed_by_what_was_measured() -> None:
    pace = Pace((SHORT, LONG), 3)
    assert str(pace) == "▱▱▱▱▱▱▱▱▱▱ 0 of 6"
    pace.end(SHORT, 20.0)
    assert pace.left_s == pytest.approx(2 * 20 + 3 * 20 * weight(LONG) / weight(SHORT))
    pace.end(LONG, 100.0)
    assert pace.left_s == pytest.approx(2 * 20 + 2 * 100)
    assert str(pace) == "▰▰▰▱▱▱▱▱▱▱ 2 of 6, about 4 min left"
    for shape in (SHORT, LONG) * 2:
        pace.end(shape, 30.0)
    assert str(pace) == "▰▰▰▰▰▰▰▰▰▰ 6 of 6, less than a minute left"


def test_more_rounds_than_planned_are_counted() -> None:
    pace = Pace((SHORT,), 1)
    pace.end(SHORT, 1.0)
    pace.end(SHORT, 1.0)
    assert str(pace).startswith("▰▰▰▰▰▰▰▰▰▰ 2 of 2")


@pytest.mark.parametrize(
    ("seconds", "words"), [(20, "less than a minute"), (200, "about 3 min"), (3700, "about 1 h 02 min")]
)
def test_durations(seconds: float, words: str) -> None:
    assert about(seconds) == words
