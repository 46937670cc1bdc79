"""Foreign engines, by their routes and habits; then the whole command over real sockets."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from bench_live import Watching, known_server
from measured_desk import LoadClient, server
from typed import Ran, Typed

from cluster.bench.loader import Batch, BatchRecord, Loader, ProcessLoader
from cluster.bench.result import Result
from cluster.bench.run import run_bench
from cluster.bench.wanted import BenchWanted
from cluster.errors import ClusterError, UsageError


def engine(name: str) -> Watching:
    return Watching(ProcessLoader(LoadClient([server(400, 0.02, name)], {})))


def measure(loader: Loader, model: str, **given: object) -> Result:
    values: dict = {"pp": (200,), "tg": (8,), "depth": (0,), "runs": 2}
    return run_bench(loader, BenchWanted(("http://known",), model, **values | given))


def test_ollama_is_not_sent_what_it_ignores() -> None:
    loader = engine("ollama")
    measured = measure(loader, "split:26b")
    found, row = measured.manifest.engine, measured.rows[0]
    assert {"min_tokens", "ignore_eos", "cache_salt"} & loader.bodies[-1].keys() == set()
    assert loader.bodies[-1]["stream_options"] == {"include_usage": True}
    assert (found["name"], found["version"]) == ("ollama", "0.33.0")
    assert found["ignored"] == ["min_tokens", "ignore_eos", "continuous_usage_stats"]
    assert (found["model_bytes"], found["gpu_bytes"]) == (19_000_000_000, 6_000_000_000), "it was not loaded before"
    assert (row.failed, row.counted) == (0, "one an event")


@pytest.mark.parametrize(
    ("name", "model", "given"),
    [("ollama", "short:26b", {"depth": (0, 8192)}), ("llamacpp", "toy.gguf", {"pp": (5000,)})],
)
def test_the_engines_context_is_asked_before_a_prompt_is_cut(name: str, model: str, given: dict) -> None:
    with pytest.raises(UsageError, match="4096 tokens of context; too long: pp"):
        measure(engine(name), model, **given)


def test_cold_prompts_stay_out_of_llamacpps_cache_and_cached_ones_do_not() -> None:
    loader = engine("llamacpp")
    measured = measure(loader, "toy.gguf", depth=(0, 300), depth_mode="prefix-caching")
    measure(loader, "toy.gguf")
    short = [body for body in loader.bodies if body["max_tokens"] == 8 and "warm" not in body]
    assert {body.get("cache_prompt", True) for body in short if len(body["prompt"]) > 250} == {True}
    assert {body.get("cache_prompt", True) for body in short if len(body["prompt"]) == 200} == {False}
    assert all(body["timings_per_token"] and "min_tokens" not in body for body in short)
    assert measured.manifest.engine["slots"] == 2


def test_an_unknown_engine_is_measured() -> None:
    loader = engine("unknown")
    steady = measure(loader, "steady")
    assert (steady.manifest.engine, steady.rows[0].failed) == ({}, 0)
    assert "cache_salt" not in loader.bodies[-1], "not every server uses it"


def test_vllm_is_known() -> None:
    loader = engine("vllm")
    assert measure(loader, "").manifest.engine == {"name": "vllm", "version": "0.32.0"}
    assert "cache_salt" in loader.bodies[-1]


def test_a_model_that_never_answers_itself_ends_the_measurement() -> None:
    class Elsewhere(Watching):
        """Every answer is another model's."""

        def send(self, wanted: Batch) -> BatchRecord:
            def swap(data: bytes) -> bytes:
                return data.replace(b'"model": "steady"', b'"model": "stead2"')

            record = self.loader.send(wanted)
            records = (replace(one, chunks=tuple((t, swap(data)) for t, data in one.chunks)) for one in record.records)
            return replace(record, records=tuple(records))

    with pytest.raises(ClusterError, match="another model answered: stead2") as caught:
        measure(Elsewhere(engine("unknown").loader), "steady")
    assert "--base-url" in caught.value.remedy


Asked = Callable[..., Ran]


@pytest.fixture
def asked(cluster: Typed) -> Asked:
    """A command as typed, of an engine."""

    def ask(engine: str, code: int, *words: str) -> Ran:
        with known_server("--ttft-ms", "20", "--rate", "400", "--engine", engine) as url:
            return cluster.ends(code, *words, "--base-url", url)

    return ask


BENCH = ("bench", "--pp", "200", "--tg", "8", "--runs", "2", "--results", "kept", "--model")


def test_split_is_warned_of_and_kept_in_the_result(asked: Asked, place: Path) -> None:
    ran = asked("ollama", 0, *BENCH, "split:26b", "--depth", "0")
    assert "SPLIT OVER CPU AND GPU: 68% of split:26b is on the CPU: 6.0 of 19.0 GB" in " ".join(ran.err.split())
    assert "ollama stop split:26b" in ran.err
    assert "Ollama does not look at min_tokens, ignore_eos: outputs may end early" in ran.out
    [path] = (place / "kept").glob("*.json")
    assert json.loads(path.read_text())["manifest"]["engine"]["gpu_bytes"] == 6_000_000_000
    assert "SPLIT" not in asked("ollama", 0, *BENCH, "whole:26b", "--depth", "0").all


def test_probe_warns_of_it_too_once_the_model_is_in_memory(asked: Asked) -> None:
    ran = asked("ollama", 0, "probe", "--json", "--only", "served-name", "--model", "split:26b")
    assert "SPLIT OVER CPU AND GPU: 68% of split:26b" in " ".join(ran.err.split())
    document = json.loads(ran.out)
    assert document["subject"]["engine"] == "ollama"
    assert document["engine"]["gpu_bytes"] == 6_000_000_000


@pytest.mark.parametrize(
    ("engine", "words", "warning", "failed"),
    [
        (
            "ollama",
            "cutting:26b --depth 0 1600",
            "INVALID pp200 tg8 @ d1600: the prompt was cut: the server read 512 of 1",
            [0, 2],
        ),
        (
            "unknown",
            "daily --depth 0 --runs 6",
            "INVALID pp200 tg8: another model answered: spare instead of daily",
            [1],
        ),
    ],
)
def test_invalid_rows_are_named_first(asked: Asked, engine: str, words: str, warning: str, failed: list[int]) -> None:
    ran = asked(engine, 6, *BENCH, *words.split(), "--json")
    assert warning in " ".join(ran.err.split())
    assert [row["failed"] for row in json.loads(ran.out)["benchmarks"]] == failed
