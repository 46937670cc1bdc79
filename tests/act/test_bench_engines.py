"""Foreign engines, by their routes and habits, over real sockets; then the whole command."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from bench_live import Watching, known_server, load_client

from cluster.bench.endpoint import ANOTHER, CUT
from cluster.bench.loader import Loader, Round, RoundRecord
from cluster.bench.result import Result
from cluster.bench.run import run_bench
from cluster.bench.wanted import BenchWanted
from cluster.errors import ClusterError, UsageError


@contextmanager
def engine(name: str) -> Iterator[Watching]:
    with known_server("--ttft-ms", "20", "--rate", "400", "--engine", name) as url, load_client(url) as client:
        yield Watching(client)


def measure(loader: Loader, model: str, **given: object) -> Result:
    values: dict = {"pp": (200,), "tg": (8,), "depth": (0,), "runs": 2, "base_url": "http://known"}
    return run_bench(loader, BenchWanted(model=model, **values | given))


def test_ollama_is_not_sent_what_it_does_not_look_at() -> None:
    with engine("ollama") as loader:
        measured = measure(loader, "whole:26b")
    assert {"min_tokens", "ignore_eos", "cache_salt"} & loader.bodies[-1].keys() == set()
    assert loader.bodies[-1]["stream_options"] == {"include_usage": True}
    assert (measured.manifest.engine["name"], measured.manifest.engine["version"]) == ("ollama", "0.33.0")
    assert measured.manifest.engine["ignored"] == ["min_tokens", "ignore_eos", "continuous_usage_stats"]
    assert measured.rows[0].failed == 0
    assert measured.rows[0].counted == "one an event"


def test_ollamas_split_is_known_though_nothing_was_loaded_before() -> None:
    with engine("ollama") as loader:
        measured = measure(loader, "split:26b")
    assert (measured.manifest.engine["model_bytes"], measured.manifest.engine["gpu_bytes"]) == (
        19_000_000_000,
        6_000_000_000,
    )


def test_ollamas_context_is_asked_before_a_prompt_is_cut() -> None:
    with (
        engine("ollama") as loader,
        pytest.raises(UsageError, match="4096 tokens of context; too long: pp200 tg8 @ d8"),
    ):
        measure(loader, "short:26b", depth=(0, 8192))


def test_rows_whose_prompts_were_cut_are_failures() -> None:
    with engine("ollama") as loader:
        measured = measure(loader, "cutting:26b", depth=(0, 1600))
    whole, cut = measured.rows
    assert (whole.failed, cut.failed) == (0, 2)
    assert cut.pp_throughput is None
    assert CUT in cut.failures[0]
    assert "the server read 512 of 1" in cut.failures[0]


def test_cold_prompts_stay_out_of_llamacpps_cache_and_cached_ones_do_not() -> None:
    with engine("llamacpp") as loader:
        measured = measure(loader, "toy.gguf", depth=(0, 300), depth_mode="prefix-caching")
        measure(loader, "toy.gguf")
    short = [body for body in loader.bodies if body["max_tokens"] == 8 and "warm" not in body]
    assert {body.get("cache_prompt", True) for body in short if len(body["prompt"]) > 250} == {True}
    assert {body.get("cache_prompt", True) for body in short if len(body["prompt"]) == 200} == {False}
    assert all(body["timings_per_token"] and "min_tokens" not in body for body in short)
    assert measured.manifest.engine["slots"] == 2


def test_llamacpps_context_is_that_of_a_slot() -> None:
    with engine("llamacpp") as loader, pytest.raises(UsageError, match="4096 tokens of context"):
        measure(loader, "toy.gguf", pp=(5000,))


def test_a_router_that_sends_a_part_elsewhere() -> None:
    with engine("unknown") as loader:
        measured = measure(loader, "daily", runs=6)
    row = measured.rows[0]
    assert measured.manifest.engine == {}
    assert 0 < row.failed < 6
    assert f"{ANOTHER}: spare instead of daily" in row.failures[0]


def test_an_engine_that_nobody_knows_is_measured() -> None:
    with engine("unknown") as loader:
        measured = measure(loader, "steady")
    assert (measured.manifest.engine, measured.rows[0].failed) == ({}, 0)
    assert "cache_salt" not in loader.bodies[-1], "not every server heeds it"


def test_vllm_is_known() -> None:
    with engine("vllm") as loader:
        assert measure(loader, "").manifest.engine == {"name": "vllm", "version": "0.32.0"}
        assert "cache_salt" in loader.bodies[-1]


def bench(tmp_path: Path, engine: str, *words: str) -> subprocess.CompletedProcess:
    """The whole command."""
    shape = ["--pp", "200", "--tg", "8", "--runs", "2", "--results", str(tmp_path)]
    with known_server("--ttft-ms", "20", "--rate", "400", "--engine", engine) as url:
        argv = [sys.executable, "-m", "cluster.cli.main", "bench", "--base-url", url, *shape, *words]
        return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


def test_split_is_said_first_and_kept_in_the_result(tmp_path: Path) -> None:
    told = bench(tmp_path, "ollama", "--model", "split:26b", "--depth", "0")
    assert told.returncode == 0
    assert "SPLIT OVER CPU AND GPU: 68% of split:26b is on the CPU: 6.0 of 19.0 GB" in " ".join(told.stderr.split())
    assert "ollama stop split:26b" in told.stderr
    assert "Ollama does not look at min_tokens, ignore_eos: outputs may end early" in told.stdout
    [path] = tmp_path.glob("*.json")
    assert json.loads(path.read_text())["manifest"]["engine"]["gpu_bytes"] == 6_000_000_000
    silent = bench(tmp_path, "ollama", "--model", "whole:26b", "--depth", "0")
    assert "SPLIT" not in silent.stderr + silent.stdout


def test_probe_says_it_too_when_the_model_has_come_into_memory() -> None:
    with known_server("--ttft-ms", "20", "--rate", "400", "--engine", "ollama") as url:
        argv = [sys.executable, "-m", "cluster.cli.main", "probe", "--json", "--base-url", url, "--only", "served-name"]
        told = subprocess.run([*argv, "--model", "split:26b"], capture_output=True, text=True, timeout=120, check=False)
    assert "SPLIT OVER CPU AND GPU: 68% of split:26b" in " ".join(told.stderr.split())
    document = json.loads(told.stdout)
    assert document["subject"]["engine"] == "ollama"
    assert document["engine"]["gpu_bytes"] == 6_000_000_000


def test_rows_that_are_not_to_be_believed_are_named_first(tmp_path: Path) -> None:
    told = bench(tmp_path, "ollama", "--model", "cutting:26b", "--depth", "0", "1600")
    assert told.returncode == 6
    assert "INVALID pp200 tg8 @ d1600: the prompt was cut" in " ".join(told.stderr.split())
    told = bench(tmp_path, "unknown", "--model", "daily", "--depth", "0", "--runs", "6")
    assert told.returncode == 6
    assert "INVALID pp200 tg8: another model answered: spare instead of daily" in " ".join(told.stderr.split())


def test_a_model_that_never_answers_itself_ends_the_measurement() -> None:
    class Elsewhere(Watching):
        """Every answer is another model's."""

        def send(self, round: Round) -> RoundRecord:
            record = self.loader.send(round)
            swapped = (
                tuple((t, data.replace(b'"model": "steady"', b'"model": "stead2"')) for t, data in one.chunks)
                for one in record.records
            )
            pairs = zip(record.records, swapped, strict=True)
            return replace(record, records=tuple(replace(one, chunks=chunks) for one, chunks in pairs))

    with engine("unknown") as loader, pytest.raises(ClusterError, match="another model answered: stead2") as caught:
        measure(Elsewhere(loader.loader), "steady")
    assert "--base-url" in caught.value.remedy
