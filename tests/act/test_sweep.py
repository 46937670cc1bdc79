"""`cluster sweep` as typed: one key varied, a table with the best named, failures as lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine import Desk
from measured_desk import RECIPE, is_bare, measurable
from typed import Ran, Typed

RATES = (40, 160)
SWEEP = ("sweep", "toy", "--results", "kept")


@pytest.fixture
def toy(place: Path) -> Path:
    (place / "recipes/toy.yaml").write_text(RECIPE.format(model="drafted"))
    return place / "kept"


@pytest.fixture
def measured(desk: Desk, toy: Path) -> Iterator[Path]:
    with measurable(desk, RATES):
        yield toy


def table(ran: Ran) -> dict[str, list[str]]:
    """The first table: its lines by their first word, cells split at two spaces."""
    lines = ran.out.splitlines()
    note = next(at for at, line in enumerate(lines) if line.startswith("  "))
    rows = [re.split(r"\s{2,}", line.strip()) for line in lines[1:note]]
    return {row[0]: row[1:] for row in rows}


def test_sizes_with_the_best_named(cluster: Typed, desk: Desk, measured: Path) -> None:
    ran = cluster(*SWEEP, "--vary", "tp=1,2", "--runs", "3")
    assert ran.code == 0, ran.all
    rows = table(ran)
    assert rows["tp"] == ["tg16 (t/s)", "acceptance", "ready (s)", "spark1 GPU (GiB)", "spark2 GPU (GiB)"]
    assert rows["2"][0].endswith("*")
    assert not rows["1"][0].endswith("*")
    assert (rows["2"][1], rows["2"][-2:]) == ("50%", ["90.0", "90.0"])
    assert re.search(
        r"tg16: best with tp=2: 1\d\d\.\d\d t/s \(95 %: [\d.–]+\), [34]\.\d\d× of tp=1 \(\d\.\d\d–", ran.out
    )
    assert is_bare(desk)


def test_a_key_of_vllm_that_changes_nothing_is_a_tie(cluster: Typed, measured: Path) -> None:
    ran = cluster(*SWEEP, "--tp", "2", "--vary", "vllm.max_num_seqs=4,8", "--runs", "3")
    measured_alone = "cluster up toy --solo -n spark1 --set vllm.max-num-seqs=8 && cluster bench --recipe toy --nodes "
    assert measured_alone in ran.all, "what would be typed, not what was"
    assert ran.code == 0, ran.all
    assert "tg16: a tie of max_num_seqs=" in ran.out
    assert {row[0][-1] for key, row in table(ran).items() if key in ("4", "8")} == {"="}
    names = sorted(measured.glob("*tp2.json"))
    told = [json.loads(path.read_text())["manifest"]["spec"]["recipe"]["vllm"]["max-num-seqs"] for path in names]
    assert told == [4, 8]


def test_a_value_that_fails_is_a_line_with_the_reason_and_resume_tries_it(
    cluster: Typed, desk: Desk, measured: Path
) -> None:
    words = (*SWEEP, "--tp", "2", "--vary", "vllm.kv-cache-dtype=fp9,fp8")
    desk.bad_flag = "fp9"
    ran = cluster(*words)
    assert ran.code == 6, ran.all
    rows = table(ran)
    assert "RuntimeError: unknown kernel" in rows["fp9"][-1]
    assert float(rows["fp8"][0].split()[0]) > 80
    assert "--resume tries what failed again" in ran.err
    assert is_bare(desk)
    desk.bad_flag = ""
    ran = cluster(*words, "--resume")
    assert ran.code == 0, ran.all
    assert "[2/2] kv-cache-dtype=fp8: measured already" in ran.err
    assert len(list(measured.glob("*tp2.json"))) == 2


def test_nothing_works(cluster: Typed, desk: Desk, measured: Path) -> None:
    desk.bad_flag = "fp8"
    ran = cluster(*SWEEP, "--tp", "2", "--vary", "vllm.max-num-seqs=4,8")
    assert ran.code == 1, ran.all
    assert len([line for line in ran.out.splitlines() if "unknown kernel" in line]) == 2


def test_backends_and_a_product(cluster: Typed, desk: Desk, measured: Path) -> None:
    ran = cluster(*SWEEP, "--tp", "2", "--vary", "backend=ray,mp", "--vary", "vllm.max-num-seqs=4,8", "--dry-run")
    assert ran.code == 0, ran.all
    labels = [line.split("] ")[1] for line in ran.out.splitlines() if re.match(r"\[\d/4\]", line)]
    assert labels == [f"backend={one} max-num-seqs={two}" for one in ("ray", "mp") for two in (4, 8)]
    assert "--set vllm.max-num-seqs=8" in ran.out
    assert ran.out.count("--backend mp") >= 2


def test_a_refused_share_of_requests_is_kept_and_said(cluster: Typed, place: Path, desk: Desk) -> None:
    (place / "recipes/toy.yaml").write_text(RECIPE.format(model="refusing"))
    with measurable(desk, RATES):
        ran = cluster(*SWEEP, "--tp", "2", "--vary", "vllm.max-num-seqs=4", "--runs", "4")
    assert ran.code == 6, ran.all
    row = table(ran)["4"]
    assert (float(row[0].split()[0]) > 80, row[-1]) == (True, "bench: some requests failed"), row


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--vary", "vllm.a"), "[vary-invalid]"),
        (("--vary", "vllm.a="), "[vary-invalid]"),
        (("--vary", "vllm.a=[1"), "[yaml-invalid]"),
        (("--vary", "vllm.a=1,1"), "[vary-invalid]"),
        (("--vary", "vllm.a=1", "--vary", "vllm.a=2"), "[vary-invalid]"),
        (("--vary", "backend=ray,tcp"), "[vary-invalid]"),
        (("--vary", "tp=1,x"), "[vary-invalid]"),
        (("--vary", "tp=1,2", "--tp", "2"), "[options-conflict]"),
        (("--vary", "tp=1,3"), "tp=3: "),
        (("--vary", "vlm.a=1"), "[unknown-key]"),
        (("--vary", "port=99999"), "port"),
    ],
)
def test_what_cannot_be_is_said_before_anything(cluster: Typed, desk: Desk, words: tuple[str, ...], what: str) -> None:
    before = desk.state()
    ran = cluster("sweep", "toy", *words)
    assert (ran.code, what in ran.err) == (2, True), ran.all
    assert desk.state() == before
