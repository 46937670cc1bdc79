"""`cluster bench --suite` and `--base-url` as typed, against the server of known timing."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from bench_live import known_server
from typed import Ran, Typed

from cluster.bench.loader import Batch, BatchRecord, ProcessLoader
from cluster.bench.result import read_result
from cluster.cli.bench import BenchOptions
from cluster.cli.main import parse
from cluster.errors import ConnectionLostError
from cluster.screen import Screen

Bench = Callable[..., Ran]
TOOLS = ("--suite", "tool-calls", "--model", "tools", "--runs", "1")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with known_server("--ttft-ms", "40", "--rate", "400") as address:
        yield address


@pytest.fixture
def kept(place: Path) -> Path:
    return place / "kept"


@pytest.fixture
def bench(url: str, cluster: Typed, kept: Path) -> Bench:
    """`cluster bench` of that server; its results are kept."""
    return lambda code, *words: cluster.ends(code, "bench", "--base-url", url, "--results", "kept", *words)


def test_options_are_those_of_the_command_line() -> None:
    """What `scaling` leaves to its defaults measures as `cluster bench` does."""
    given = parse(["bench"])
    assert BenchOptions.of(given) == BenchOptions()
    others = {"json", "debug", "command", "words", "print_completion"}
    assert vars(given).keys() - asdict(BenchOptions()).keys() == others


def test_prefix_cache_suite(bench: Bench) -> None:
    found = json.loads(bench(0, "--suite", "prefix-cache", "--model", "caching", "--runs", "2", "--json").out)
    [document] = found["results"]
    assert (found["suite"], document["manifest"]["suite"]) == ("prefix-cache", "prefix-cache")
    assert document["prefix_caching_enabled"]
    context, cached = document["benchmarks"]
    assert (context["is_context_prefill_phase"], cached["cache"]) == (True, {"hit": 2})
    assert cached["e2e_ttft"]["mean"] < context["e2e_ttft"]["mean"]
    stored = read_result(Path(document["path"]))
    assert (stored.manifest.depth_mode, stored.manifest.runs) == ("prefix-caching", 2)


def interrupt_at(monkeypatch: pytest.MonkeyPatch, measurement: int) -> None:
    """The user interrupts when the n-th measurement begins."""
    begun: list[Any] = []

    def stay(self: Screen) -> None:
        begun.append(self)
        if len(begun) == measurement:
            raise KeyboardInterrupt

    monkeypatch.setattr(Screen, "stay", stay)


def test_stopped_before_the_first_row_says_that_nothing_was_kept(
    bench: Bench, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_at(monkeypatch, 1)
    assert "nothing was measured" in bench(130, "--model", "plain").err
    assert list(kept.iterdir()) == []


def test_a_lost_load_client_keeps_the_rows_before_it(bench: Bench, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lost at the second row, and once more: the first row is shown and lies in a file."""

    def lose(self: ProcessLoader, wanted: Batch) -> BatchRecord:
        if "d64" in wanted.id and "run" in wanted.id:
            raise ConnectionLostError("the load client ended", code="load-client-lost", where="spark1")
        return send(self, wanted)

    send = ProcessLoader.send
    monkeypatch.setattr(ProcessLoader, "send", lose)
    words = ("--model", "plain", "--pp", "64", "--tg", "4", "--runs", "1", "--depth")
    assert "tg4" in bench(3, *words, "0", "64").out
    [left] = kept.iterdir()
    assert [row.shape.name for row in read_result(left).rows] == ["pp64 tg4"]
    bench(3, *words, "64")
    assert list(kept.iterdir()) == [left], "nothing was measured, so no file is left"


def test_suite_of_two_parts_is_two_results(bench: Bench, kept: Path) -> None:
    without, using = json.loads(bench(0, *TOOLS, "--json").out)["results"]
    assert len(list(kept.glob("*.json"))) == 2
    assert list(kept.glob("*.partial*")) == []
    assert without["manifest"]["api"] == using["manifest"]["api"] == "/v1/chat/completions"
    assert "tools" in using["request"]
    assert "tools" not in without["request"]
    assert set(without["manifest"]["extra_fields"]) == {"question"}


def test_interrupted_in_its_second_part_a_suite_still_shows_the_first(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_at(monkeypatch, 2)
    found = json.loads(bench(130, *TOOLS, "--json").out)
    assert [("path" in one, len(one["benchmarks"])) for one in found["results"]] == [(True, 1), (False, 0)]


def test_plain_measurement_is_one_document_with_its_conditions(bench: Bench) -> None:
    words = ("--model", "plain", "--pp", "64", "--tg", "8", "--depth", "0", "--runs", "2")
    found = json.loads(bench(0, *words, "--corpus", "code", "--seed", "7", "--json").out)
    conditions = found["manifest"]
    assert (conditions["seed"], conditions["runs"], conditions["corpus"].split()[0]) == (7, 2, "code")
    assert conditions["est_ppt_from"] == ["first token − latency"]
    assert found["sentinel"]["test"] == "pp64 tg8"
    assert found["schema"] == 2


@pytest.mark.parametrize("own", [("--pp", "64"), ("--depth", "0"), ("--chat",), ("--prefix-caching",)])
def test_suite_has_its_own_shapes(bench: Bench, own: tuple[str, ...]) -> None:
    assert f"--suite matrix has its own {own[0]}" in bench(2, "--suite", "matrix", *own).err


@pytest.mark.parametrize("text", ["few", "3.5", ""])
def test_runs_is_a_number_or_auto(bench: Bench, text: str) -> None:
    assert parse(["bench", "--runs", "auto"]).runs == "auto"
    assert "expected a number or auto" in bench(2, "--runs", text).err
