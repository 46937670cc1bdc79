"""What serves is read from recorded answers: shapes of llama.cpp b11434 as they were seen, of Ollama 0.33 by its source
(api/types.go); values are ours."""

import dataclasses
import json

import pytest
from bench_tools import trace

from cluster.bench.endpoint import (
    Asked,
    Engine,
    Served,
    check_answer,
    engine_notes,
    engine_warnings,
    ignored,
    lacking,
    other_names,
    read_engine,
    remedy_of,
    same_name,
    with_engine,
)
from cluster.bench.read import HttpAnswer, RequestTrace
from cluster.spark.processes import Loaded

GONE = HttpAnswer(404, {}, [(0.0, b'{"detail":"Not Found"}')], True)
VERSION = {"version": "0.33.0"}
PS = {
    "models": [
        {"name": "other:8b", "model": "other:8b", "size": 6_000, "size_vram": 6_000, "context_length": 4096},
        {"name": "toy:latest", "model": "toy:latest", "size": 19_000, "size_vram": 6_460, "context_length": 8192},
    ]
}
PROPS = {"default_generation_settings": {"n_ctx": 4096}, "total_slots": 2, "build_info": "b11434-0badcafe"}
TOY = Served("toy", None)


def answer(document: object, **headers: str) -> HttpAnswer:
    return HttpAnswer(200, {**headers}, [(0.0, json.dumps(document).encode())], True)


@pytest.mark.parametrize(
    ("owner", "answers", "engine"),
    [
        ("vllm", {"/version": answer({"version": "0.32.0"})}, Engine("vllm", "0.32.0")),
        ("vllm", {"/version": GONE}, Engine("vllm")),
        ("llamacpp", {"/props": answer(PROPS)}, Engine("llamacpp", "b11434-0badcafe", "", 4096, 2, True)),
        ("", {"/props": answer(PROPS)}, Engine("llamacpp", "b11434-0badcafe", "", 4096, 2, True)),
        ("another_engine", {}, Engine()),
        ("somebody", {"/version": GONE, "/props": answer([1]), "/api/ps": answer({"error": "unexpected"})}, Engine()),
    ],
)
def test_engines(owner: str, answers: dict, engine: Engine) -> None:
    assert read_engine(Served("toy", None, owner), answers) == engine


def test_llamacpps_router_chooses_the_model_and_tells_no_context() -> None:
    props = {"role": "router", "default_generation_settings": {"n_ctx": 0}, "build_info": "b11434"}
    engine = read_engine(Served("toy", None, "llamacpp"), {"/props": answer(props)})
    assert (engine.router, engine.context) == ("llama.cpp's router", None)


def test_ollamas_model_is_found_among_those_in_memory() -> None:
    engine = read_engine(TOY, {"/api/version": answer(VERSION), "/api/ps": answer(PS)})
    assert (engine.name, engine.version, engine.context, engine.waits) == ("ollama", "0.33.0", 8192, False)
    assert engine.loaded == Loaded("toy:latest", 19_000, 6_460, 8192)
    assert [one.name for one in engine.others] == ["other:8b"]
    [said] = engine_warnings(engine.document(), "toy")
    assert said.startswith("SPLIT OVER CPU AND GPU: 66% of toy is on the CPU")
    assert "also loaded: other:8b" in said


def test_ollamas_model_that_is_not_loaded_yet_and_one_that_is_whole() -> None:
    waits = read_engine(TOY, {"/api/version": answer(VERSION), "/api/ps": answer({"models": []})})
    assert waits.waits
    whole = {"models": [{"model": "toy:latest", "size": 5, "size_vram": 5}]}
    engine = read_engine(TOY, {"/api/version": answer(VERSION), "/api/ps": answer(whole)})
    assert (engine.waits, engine.context, list(engine_warnings(engine.document(), "toy"))) == (False, None, [])


def test_the_least_limit_counts_and_a_router_hides_who_serves() -> None:
    assert with_engine(Served("toy", 32768, "vllm"), Engine("vllm", context=4096)) == Served("toy", 4096, "vllm")
    assert with_engine(Served("toy", None), Engine("ollama", context=2048)) == Served("toy", 2048, "ollama")
    assert not with_engine(Served("toy", 100, "vllm"), Engine("vllm", router="llama.cpp's router")).heeds_salt


def test_names_of_one_model() -> None:
    models = {"a": {"id": "a", "root": "/m"}, "b": {"id": "b", "root": "/m"}, "c": {"id": "c", "root": "/n"}}
    assert other_names(models["a"], models) == ("/m", "b")
    assert other_names({"id": "toy", "aliases": ["toy", "short"]}, {}) == ("short",)


def test_what_is_lost_without_a_field_is_said_by_name() -> None:
    assert lacking(ignored("ollama")) == (
        "min_tokens, ignore_eos: outputs may end early; continuous_usage_stats: tokens are counted at the end only"
    )
    assert ignored("llamacpp") == (), "ignore_eos and timings_per_token do the same there"


def test_notes_on_slots_and_on_caches_that_nobody_tells_of() -> None:
    said = [*engine_notes({"name": "llamacpp", "version": "b1", "slots": 2}, concurrency=8, prefix_caching=False)]
    assert said == [
        "served by llama.cpp b1",
        "llama.cpp takes 2 requests at a time: of 8 the others wait, and that is in the numbers",
    ]
    assert [*engine_notes({"name": "llamacpp", "slots": 2}, concurrency=2, prefix_caching=False)] == [
        "served by llama.cpp"
    ]
    blind = {"name": "ollama", "tells_cache": False}
    assert "none can be verified" in [*engine_notes(blind, concurrency=1, prefix_caching=True)][-1]
    assert "OLLAMA_NUM_PARALLEL" in [*engine_notes({"name": "ollama"}, concurrency=2, prefix_caching=False)][-1]
    assert [*engine_notes({}, concurrency=9, prefix_caching=True)] == []


MANY = Asked("daily", alone=False)


def answered(**given: object) -> RequestTrace:
    return dataclasses.replace(trace("plain"), **{"model": "daily", "prompt_tokens": 512, **given})


@pytest.mark.parametrize(
    ("given", "same"), [("daily", True), ("Daily:latest", True), ("openai/daily", True), ("daily-small", False)]
)
def test_names(given: str, same: bool) -> None:
    assert same_name("daily", given) == same
    assert (check_answer(answered(model=given), MANY, 512).error == "") == same


@pytest.mark.parametrize(
    ("given", "asked", "said"),
    [
        ({"model": "root"}, dataclasses.replace(MANY, names=("root",)), ""),
        ({"model": "whatever"}, Asked("daily", alone=True), ""),
        ({"model": ""}, MANY, ""),
        ({"prompt_tokens": None}, MANY, ""),
        ({"error": "time-out", "model": "spare"}, MANY, "time-out"),
        ({"model": "spare"}, MANY, "another model answered: spare instead of daily"),
    ],
)
def test_failover_is_told_by_name(given: dict, asked: Asked, said: str) -> None:
    assert check_answer(answered(**given), asked, 512).error == said
    assert ("fallbacks" in remedy_of(said)) == ("spare" in said)


@pytest.mark.parametrize(
    ("exact", "counted", "cut"),
    [(True, 511, True), (True, 512, False), (True, 530, False), (False, 400, False), (False, 256, True)],
)
def test_cut_prompts(exact: bool, counted: int, cut: bool) -> None:
    said = check_answer(answered(prompt_tokens=counted), Asked("daily", exact=exact), 512).error
    assert bool(said) == cut
    assert not cut or said == f"the prompt was cut: the server read {counted} of 512 tokens"
