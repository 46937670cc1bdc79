"""`cluster bench --suite` and `--base-url` as the command line carries them out, against the server of known timing."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from bench_live import known_server

from cluster.bench.loader import Batch, BatchRecord, ProcessLoader
from cluster.bench.result import read_result
from cluster.cli import bench, options
from cluster.errors import ConnectionLostError, ExitCode, UsageError
from cluster.screen import Screen


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with known_server("--ttft-ms", "40", "--rate", "400") as address:
        yield address


def args(*words: str) -> argparse.Namespace:
    parser = options.Parser()
    parser.add_options(options.OPTIONS["bench"])
    return parser.parse_args(words)


def test_options_are_those_of_the_command_line() -> None:
    """What `scaling` leaves to its defaults measures as `cluster bench` does."""
    assert bench.BenchOptions.of(args()) == bench.BenchOptions()
    assert vars(args()).keys() - asdict(bench.BenchOptions()).keys() == {"json", "debug"}


def bench_json(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[ExitCode, Any]:
    given = args("--base-url", url, "--results", str(tmp_path), "--json", *words)
    code = bench.run(given, Screen(json_mode=True))
    return code, json.loads(capsys.readouterr().out)


def test_prefix_cache_suite(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--suite", "prefix-cache", "--model", "caching", "--runs", "2")
    code, found = bench_json(url, tmp_path, capsys, *words)
    assert code is ExitCode.DONE
    [document] = found["results"]
    assert (found["suite"], document["manifest"]["suite"]) == ("prefix-cache", "prefix-cache")
    assert document["prefix_caching_enabled"]
    context, cached = document["benchmarks"]
    assert (context["is_context_prefill_phase"], cached["cache"]) == (True, {"hit": 2})
    assert cached["e2e_ttft"]["mean"] < context["e2e_ttft"]["mean"]
    kept = read_result(Path(document["path"]))
    assert (kept.manifest.depth_mode, kept.manifest.runs) == ("prefix-caching", 2)


class Impatient(Screen):
    """The user interrupts when measuring begins, after so many measurements."""

    def __init__(self, patience: int = 0, *, json_mode: bool = False) -> None:
        super().__init__(json_mode=json_mode)
        self.patience = patience

    def stay(self) -> None:
        self.patience -= 1
        if self.patience < 0:
            raise KeyboardInterrupt


def test_stopped_before_the_first_row_says_that_nothing_was_kept(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = args("--base-url", url, "--results", str(tmp_path), "--model", "plain")
    assert bench.run(given, Impatient()) is ExitCode.INTERRUPTED
    assert "nothing was measured" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_lost_load_client_keeps_the_rows_before_it(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost at the second row, and once more: the first row is shown and lies in a file."""

    def lose(self: ProcessLoader, wanted: Batch) -> BatchRecord:
        if "d64" in wanted.id and "run" in wanted.id:
            raise ConnectionLostError("the load client ended", code="load-client-lost", where="spark1")
        return send(self, wanted)

    send = ProcessLoader.send
    given = args("--base-url", url, "--results", str(tmp_path), "--model", "plain", "--pp", "64", "--tg", "4")
    given.depth, given.runs = [0, 64], 1
    monkeypatch.setattr(ProcessLoader, "send", lose)
    with pytest.raises(ConnectionLostError) as raised:
        bench.run(given, Screen())
    assert raised.value.exit_code is ExitCode.UNREACHABLE
    [kept] = tmp_path.iterdir()
    assert [row.shape.name for row in read_result(kept).rows] == ["pp64 tg4"]
    assert "tg4" in capsys.readouterr().out
    given.depth = [64]
    with pytest.raises(ConnectionLostError):
        bench.run(given, Screen())
    assert list(tmp_path.iterdir()) == [kept], "nothing was measured, so no file is left"


def test_suite_of_two_parts_is_two_results(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--suite", "tool-calls", "--model", "tools", "--runs", "1")
    code, found = bench_json(url, tmp_path, capsys, *words)
    assert code is ExitCode.DONE
    without, using = found["results"]
    assert len(list(tmp_path.glob("*.json"))) == 2
    assert list(tmp_path.glob("*.partial*")) == []
    assert without["manifest"]["api"] == using["manifest"]["api"] == "/v1/chat/completions"
    assert "tools" in using["request"]
    assert "tools" not in without["request"]
    assert set(without["manifest"]["extra_fields"]) == {"question"}


def test_interrupted_in_its_second_part_a_suite_still_shows_the_first(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--suite", "tool-calls", "--model", "tools", "--runs", "1")
    given = args("--base-url", url, "--results", str(tmp_path), "--json", *words)
    assert bench.run(given, Impatient(patience=1, json_mode=True)) is ExitCode.INTERRUPTED
    found = json.loads(capsys.readouterr().out)
    assert [("path" in one, len(one["benchmarks"])) for one in found["results"]] == [(True, 1), (False, 0)]


def test_plain_measurement_is_one_document_with_its_conditions(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", "plain", "--pp", "64", "--tg", "8", "--depth", "0", "--runs", "2"]
    words += ["--corpus", "code", "--seed", "7"]
    code, found = bench_json(url, tmp_path, capsys, *words)
    assert code is ExitCode.DONE
    conditions = found["manifest"]
    assert (conditions["seed"], conditions["runs"], conditions["corpus"].split()[0]) == (7, 2, "code")
    assert conditions["est_ppt_from"] == ["first token − latency"]
    assert found["sentinel"]["test"] == "pp64 tg8"
    assert found["schema"] == 2


@pytest.mark.parametrize("own", [("--pp", "64"), ("--depth", "0"), ("--chat",), ("--prefix-caching",)])
def test_suite_has_its_own_shapes(own: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=f"--suite matrix has its own {own[0]}"):
        bench.run(args("--base-url", "http://127.0.0.1:9", "--suite", "matrix", *own), Screen())


@pytest.mark.parametrize("text", ["few", "3.5", ""])
def test_runs_is_a_number_or_auto(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert args("--runs", "auto").runs == "auto"
    with pytest.raises(SystemExit):
        args("--runs", text)
    assert "a number or auto is wanted" in capsys.readouterr().err
