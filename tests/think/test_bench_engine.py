"""What serves is read from recorded answers: shapes of llama.cpp b11434 as they were seen, of Ollama 0.33 by its source
(api/types.go); values are ours."""

import dataclasses

import pytest
from bench_tools import trace

from cluster.bench.endpoint import (
    Engine,
    Served,
    check_answer,
    engine_notes,
    engine_warnings,
    lacking,
    read_engine,
    remedy_of,
    with_engine,
)

PS = {
    "models": [
        {"name": "other:8b", "model": "other:8b", "size": 6_000, "size_vram": 6_000, "context_length": 4096},
        {"name": "toy:latest", "model": "toy:latest", "size": 19_000, "size_vram": 6_460, "context_length": 8192},
    ]
}
WHOLE = {"models": [{"model": "toy:latest", "size": 5, "size_vram": 5}]}
PROPS = {"default_generation_settings": {"n_ctx": 4096}, "total_slots": 2, "build_info": "b11434-0badcafe"}
ROUTER = {"role": "router", "default_generation_settings": {"n_ctx": 0}, "build_info": "b11434"}
LLAMACPP = Engine("llamacpp", "b11434-0badcafe", "", 4096, 2, True)
OLLAMA = Engine("ollama", "0.33.0", tells_cache=False)


@pytest.mark.parametrize(
    ("owner", "routes", "engine"),
    [
        ("vllm", {"/version": {"version": "0.32.0"}}, Engine("vllm", "0.32.0")),
        ("vllm", {"/version": {}}, Engine("vllm")),
        ("llamacpp", {"/props": PROPS}, LLAMACPP),
        ("", {"/props": PROPS}, LLAMACPP),
        ("llamacpp", {"/props": ROUTER}, Engine("llamacpp", "b11434", "llama.cpp's router", tells_cache=True)),
        ("another_engine", {}, Engine()),
        ("somebody", {"/version": {}, "/props": {}, "/api/ps": {"error": "unexpected"}}, Engine()),
        ("library", {"/api/version": {"version": "0.33.0"}, "/api/ps": {"models": []}}, OLLAMA),
        (
            "library",
            {"/api/version": {"version": "0.33.0"}, "/api/ps": PS},
            dataclasses.replace(OLLAMA, context=8192, model_bytes=19_000, gpu_bytes=6_460, others=["other:8b"]),
        ),
        ("library", {"/api/ps": WHOLE}, Engine("ollama", "", tells_cache=False, model_bytes=5, gpu_bytes=5)),
    ],
)
def test_engines(owner: str, routes: dict, engine: Engine) -> None:
    assert read_engine(Served("toy", None, owner), routes) == engine


def test_a_split_model_is_warned_of() -> None:
    engine = read_engine(Served("toy", None), {"/api/ps": PS})
    [warning] = engine_warnings(engine.document(), "toy")
    assert warning.startswith("SPLIT OVER CPU AND GPU: 66% of toy is on the CPU")
    assert "also loaded: other:8b" in warning
    assert [*engine_warnings(read_engine(Served("toy", None), {"/api/ps": WHOLE}).document(), "toy")] == []


def test_the_least_limit_counts_and_a_router_hides_who_serves() -> None:
    assert with_engine(Served("toy", 32768, "vllm"), Engine("vllm", context=4096)) == Served("toy", 4096, "vllm")
    assert with_engine(Served("toy", None), Engine("ollama", context=2048)) == Served("toy", 2048, "ollama")
    routed = with_engine(Served("toy", 100, "vllm"), Engine("vllm", router="llama.cpp's router"))
    assert (routed.owner, routed.alone) == ("", False)


def test_what_is_lost_without_a_field_is_named() -> None:
    assert lacking(OLLAMA.ignored) == (
        "min_tokens, ignore_eos: outputs may end early; continuous_usage_stats: tokens are counted at the end only"
    )
    assert LLAMACPP.ignored == (), "ignore_eos and timings_per_token do the same there"


@pytest.mark.parametrize(
    ("engine", "concurrency", "notes"),
    [
        (
            {"name": "llamacpp", "version": "b1", "slots": 2},
            8,
            [
                "served by llama.cpp b1",
                "llama.cpp takes 2 requests at a time: of 8 the others wait, and that is in the numbers",
            ],
        ),
        ({"name": "llamacpp", "slots": 2}, 2, ["served by llama.cpp"]),
        (
            {"name": "ollama", "tells_cache": False},
            2,
            [
                "served by Ollama",
                "Ollama takes OLLAMA_NUM_PARALLEL requests at a time (1 unless set) and does not report its value",
                "Ollama does not report prefix-cache hits, so none can be verified",
            ],
        ),
        ({}, 9, []),
    ],
)
def test_notes_on_slots_and_caches(engine: dict, concurrency: int, notes: list[str]) -> None:
    assert [*engine_notes(engine, concurrency=concurrency, prefix_caching=True)] == notes


MANY = Served("daily", None, alone=False)


@pytest.mark.parametrize(
    ("given", "asked", "error"),
    [
        ({"model": "Daily:latest"}, MANY, ""),
        ({"model": "openai/daily"}, MANY, ""),
        ({"model": "daily-small"}, MANY, "another model answered: daily-small instead of daily"),
        ({"model": "root"}, dataclasses.replace(MANY, names=("root",)), ""),
        ({"model": "whatever"}, Served("daily", None), ""),
        ({"model": ""}, MANY, ""),
        ({"prompt_tokens": None}, MANY, ""),
        ({"error": "time-out", "model": "spare"}, MANY, "time-out"),
    ],
)
def test_answers_of_another_model(given: dict, asked: Served, error: str) -> None:
    answer = dataclasses.replace(trace("plain"), **{"model": "daily", "prompt_tokens": 512, **given})
    assert check_answer(answer, asked, 512).error == error
    assert ("fallbacks" in remedy_of(error)) == ("another" in error)


@pytest.mark.parametrize(
    ("exact", "counted", "cut"),
    [(True, 511, True), (True, 512, False), (True, 530, False), (False, 400, False), (False, 256, True)],
)
def test_cut_prompts(exact: bool, counted: int, cut: bool) -> None:
    answer = dataclasses.replace(trace("plain"), prompt_tokens=counted)
    error = f"the prompt was cut: the server read {counted} of 512 tokens" if cut else ""
    assert check_answer(answer, Served("daily", None), 512, exact=exact).error == error
