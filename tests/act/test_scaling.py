"""`cluster scaling` as typed: each size is started, measured and taken down; what failed is gone on with."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machine import Desk, Killed, unreachable
from measured_desk import RECIPE, is_bare, measurable
from typed import Ran, Typed

RATES = (60, 150)
SCALING = ("scaling", "toy", "-n", "spark1,spark2", "--tp", "1", "2", "--results", "kept")


@pytest.fixture
def toy(place: Path) -> Path:
    (place / "recipes/toy.yaml").write_text(RECIPE.format(model="plain"))
    return place / "kept"


@pytest.fixture
def measured(desk: Desk, toy: Path) -> Iterator[Path]:
    with measurable(desk, RATES):
        yield toy


def series(folder: Path) -> Any:
    [path] = folder.glob("*.series.json")
    return json.loads(path.read_text())


def line_of(ran: Ran, *words: str) -> str:
    """The one line of the output that begins with these words."""
    [line] = [line for line in ran.out.splitlines() if line.split()[: len(words)] == list(words)]
    return line


def measured_rows(ran: Ran, step: str) -> int:
    """What the table of steps says of one."""
    found = re.search(rf"^{step} .* \d+\.\d +(\d+)( |$)", ran.out, re.MULTILINE)
    return int(found[1]) if found else 0


def test_two_sizes_one_report(cluster: Typed, desk: Desk, measured: Path) -> None:
    ran = cluster(*SCALING)
    assert ran.code == 0, ran.all
    row = line_of(ran, "token", "generation", "tg16")
    speed_up = re.search(r"(\d\.\d\d)× +\d+\.\d\d–\d+\.\d\d", row)
    assert speed_up, row
    assert 2.0 < float(speed_up[1]) < 2.7, f"60 → 150 tokens a second, with its interval: {row}"
    assert "546.0 (2" in row, "2 × 273 GB/s ÷ 1 GB, about 27 % of it reached"
    assert row.split()[-3:] == ["200", "340", "1.70×"], "the recipe's published numbers stand beside ours"
    assert "273 GB/s × 2 ÷ 1 GB a token (1 billion parameters × 1 bytes (fp8))" in ran.out
    assert line_of(ran, "TP=2", "spark2", "worker").split()[-1] == "90.0"
    assert is_bare(desk)
    lines = ran.out.splitlines()
    header = next(line for line in lines if line.startswith("size "))
    assert header.split("  ")[0] == "size"
    assert [word for word in ("idle", "Ray up", "loaded", "ready", "measuring") if word not in header] == []
    assert "116.0 / 0.0" in line_of(ran, "TP=1", "spark1", "head")
    assert "/ 90.0" in line_of(ran, "TP=2", "spark2", "worker")
    assert "backend ray at every size, as the recipe says" in ran.err
    results = [json.loads((measured / point["result"]).read_text()) for point in series(measured)["points"]]
    assert [one["manifest"]["backend"] for one in results] == ["ray", "ray"]
    assert [one["manifest"]["nodes"] for one in results] == [1, 2]
    assert "backend:" not in ran.out, "a difference would be named"
    ends = [(host["hcas"], host["firmware"]) for host in results[1]["manifest"]["hosts"]]
    assert [(len(hcas), firmware) for hcas, firmware in ends] == [(2, ["28.45.4028"])] * 2


def test_json_is_one_document(cluster: Typed, desk: Desk, measured: Path) -> None:
    ran = cluster(*SCALING, "--json")
    told = json.loads(ran.out)
    assert told["exit"] == 0
    assert [one["manifest"]["tp"] for one in told["results"]] == [1, 2]
    assert {table["title"] for table in told["tables"]} >= {"scaling: TP=2 beside TP=1", "memory per host"}
    assert all(point["up"]["stages_s"] and point["down"]["hosts"] for point in told["points"])
    for result in told["results"]:
        manifest = result["manifest"]
        assert manifest["client_on"] == "container"
        assert manifest["client_where"].endswith(f", in the container cluster-{manifest['deployment']}-r0")
    assert [words[:3] for words in desk.hosts["spark1"].started if "docker" in words] == [
        ("docker", "exec", "--interactive")
    ] * 2


def test_a_size_that_fails_is_named_and_resume_measures_it_only(cluster: Typed, desk: Desk, measured: Path) -> None:
    models = dict(desk["spark2"].models)
    desk["spark2"].models.clear()
    desk.hub.clear()
    ran = cluster(*SCALING, "-y")
    assert ran.code == 6, ran.all
    assert "TP=2: up failed:" in ran.err
    assert "up failed" in line_of(ran, "TP=2", "spark1,", "spark2")
    assert measured_rows(ran, "TP=1") == 1
    assert is_bare(desk)
    first = series(measured)["points"][0]
    desk["spark2"].models.update(models)
    ran = cluster(*SCALING, "--resume")
    assert ran.code == 0, ran.all
    assert "[1/2] TP=1: measured already" in ran.err
    assert series(measured)["points"][0] == first, "one series goes on"
    assert "×" in line_of(ran, "token", "generation", "tg16")


def test_a_host_that_is_lost_ends_the_series(cluster: Typed, desk: Desk, toy: Path) -> None:
    def lose() -> None:
        if len(next(iter(desk.serving().values()))) == 2:
            desk.hosts["spark2"].faults.unreachable = unreachable("spark2")

    with measurable(desk, RATES, lose):
        ran = cluster(*SCALING)
        assert ran.code == 3, ran.all
        assert measured_rows(ran, "TP=1") == 1, "what was measured is shown"
        assert any("--resume goes on" in line for error in ran.errors() for line in error)
        desk.recover()
    with measurable(desk, RATES):
        ran = cluster(*SCALING, "--resume")
        assert ran.code == 0, ran.all
    assert is_bare(desk)


def test_ctrl_c_while_measuring_takes_down_and_keeps(cluster: Typed, desk: Desk, toy: Path) -> None:
    def interrupt() -> None:
        if len(next(iter(desk.serving().values()))) == 2:
            raise KeyboardInterrupt

    with measurable(desk, RATES, interrupt):
        ran = cluster(*SCALING)
    assert ran.code == 130, ran.all
    assert is_bare(desk), "what this run started is gone"
    assert [bool(point["result"]) for point in series(toy)["points"]] == [True, False]
    with measurable(desk, RATES):
        assert cluster(*SCALING, "--resume").code == 0


def test_killed_while_measuring_and_resumed(cluster: Typed, desk: Desk, toy: Path) -> None:
    def kill() -> None:
        if len(next(iter(desk.serving().values()))) == 2:
            desk.kill()

    with measurable(desk, RATES, kill), pytest.raises(Killed):
        cluster(*SCALING)
    desk.recover()
    assert desk.serving(), "it lives on, as a killed operator leaves it"
    with measurable(desk, RATES):
        ran = cluster(*SCALING, "--resume")
    assert ran.code == 0, ran.all
    assert "[1/2] TP=1: measured already" in ran.err
    assert series(toy)["points"][1]["up"]["changed"] is False, "it is found running"
    assert is_bare(desk)


def test_nothing_to_resume(cluster: Typed, measured: Path) -> None:
    ran = cluster(*SCALING, "--resume")
    assert ran.code == 4
    assert "[nothing-to-resume]" in ran.err
    assert cluster(*SCALING).code == 0
    ran = cluster(*SCALING, "--resume", "--tg", "8")
    assert ran.code == 4
    assert "bench.tg: (none) → [8]" in ran.err, "what differs is named"


def test_what_runs_is_not_taken_down_unasked(cluster: Typed, desk: Desk, measured: Path) -> None:
    assert cluster("up", "toy", "--tp", "2").code == 0
    before = desk.state()
    ran = cluster(*SCALING)
    assert ran.code == 4
    assert "[not-confirmed]" in ran.err
    assert desk.state() == before
    assert cluster(*SCALING, "--yes").code == 0
    assert is_bare(desk)


def test_one_size_is_compared_with_the_stored_baseline(cluster: Typed, measured: Path) -> None:
    assert cluster(*SCALING).code == 0
    alone = ("scaling", "toy", "-n", "spark1,spark2", "--tp", "2", "--results", "kept")
    ran = cluster(*alone)
    assert ran.code == 0, ran.all
    assert "×" in line_of(ran, "token", "generation", "tg16")
    ran = cluster(*alone, "--set", "vllm.max-num-seqs=8")
    assert "spec.recipe.vllm.max-num-seqs: (none) → 8" in ran.out, "the field that differs is named"
    assert "speed-up" not in ran.out


def test_dry_run_shows_all_and_changes_nothing(cluster: Typed, desk: Desk, toy: Path) -> None:
    before = desk.state()
    ran = cluster(*SCALING, "--dry-run", "-e", "MY_TOKEN=planted", "--depth", "0", "512")
    assert ran.code == 0, ran.all
    assert "cluster up toy --env MY_TOKEN --nodes spark1 --tp 1 --backend ray" in ran.out
    assert "cluster bench --recipe toy --nodes spark1,spark2 --depth 0 512 --results kept" in ran.out
    assert "cluster down --nodes spark1,spark2" in ran.out
    assert ran.out.count("docker run") == 3, "every host's argv: one rank, then two"
    assert "--dry-run" not in ran.out, "the commands that would be typed do it"
    assert "planted" not in ran.all
    assert desk.state() == before
    assert not toy.exists()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--tp", "4"), "[size-invalid]"),
        (("--tp", "1"), "[size-invalid]"),
        (("--tp", "0"), "[size-invalid]"),
        (("--set", "vlm.x=1"), "[unknown-key]"),
    ],
)
def test_what_cannot_be_is_said_before_anything(cluster: Typed, desk: Desk, words: tuple[str, ...], what: str) -> None:
    before = desk.state()
    ran = cluster("scaling", "toy", "-n", "spark1,spark2", *words)
    assert (ran.code, what in ran.err) == (2, True), ran.all
    assert desk.state() == before
