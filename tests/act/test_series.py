"""`cluster scaling` and `cluster sweep` as typed: each step is started, measured and taken down; failures are lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machine import Desk, Killed, Stranger, unreachable
from measured_desk import RECIPE, is_bare, measurable
from typed import Ran, Typed

from cluster.cli.main import main
from cluster.errors import UNCHANGED

RATES = (60, 150)
ON = ("toy", "-n", "spark1,spark2", "--results", "kept")
SCALING = ("scaling", *ON, "--tp", "1", "2")
SWEEP = ("sweep", "toy", "--results", "kept")


@pytest.fixture
def toy(place: Path) -> Path:
    (place / "recipes/toy.yaml").write_text(RECIPE.format(model="plain"))
    return place / "kept"


@pytest.fixture
def drafted(place: Path, toy: Path) -> Path:
    (place / "recipes/toy.yaml").write_text(RECIPE.format(model="drafted"))
    return toy


@pytest.fixture
def measured(desk: Desk, toy: Path) -> Iterator[Path]:
    with measurable(desk, RATES):
        yield toy


def points(folder: Path) -> list[Any]:
    [path] = folder.glob("*.series.json")
    return json.loads(path.read_text())["points"]


def line_of(ran: Ran, *words: str) -> str:
    """The one line of the output that begins with these words."""
    [line] = [line for line in ran.out.splitlines() if line.split()[: len(words)] == list(words)]
    return line


def measured_rows(ran: Ran, step: str) -> int:
    """The number of rows in the table of steps."""
    found = re.search(rf"^{step} .* \d+ +(\d+)( |$)", ran.out, re.MULTILINE)
    return int(found[1]) if found else 0


def swept(ran: Ran) -> dict[str, list[str]]:
    """The table of a sweep: its lines by their first word, cells split at two spaces."""
    lines = ran.out.splitlines()
    begin = next(at for at, line in enumerate(lines) if line.rstrip() == "sweep") + 1
    end = next(at for at in range(begin, len(lines)) if lines[at].startswith("  "))
    rows = [re.split(r"\s{2,}", line.strip()) for line in lines[begin:end]]
    return {row[0]: row[1:] for row in rows}


def test_two_sizes_one_report(cluster: Typed, desk: Desk, measured: Path) -> None:
    ran = cluster(*SCALING, "--json")
    document = json.loads(ran.out)
    assert (ran.code, document["exit"]) == (0, 0), ran.all
    assert "backend ray at every size, as the recipe says" in ran.err
    tables = {table["title"]: table for table in document["tables"]}
    [row] = [row for row in tables["scaling: TP=2 beside TP=1"]["rows"] if row["test"] == "tg16"]
    assert float(row["speed-up"][:-1]) == pytest.approx(2.5, rel=0.02), f"60 → 150 tokens a second: {row}"
    assert row["ceiling TP=2"].startswith("546.0 (2"), "2 × 273 GB/s ÷ 1 GB, about 27 % of it reached"
    published = [row[f"published {what}"] for what in ("TP=1", "TP=2", "speed-up")]
    assert published == ["200", "340", "1.70×"], "the recipe's"
    notes = "\n".join(tables["scaling: TP=2 beside TP=1"]["notes"])
    assert "273 GB/s × 2 ÷ 1 GB a token (1 billion parameters × 1 bytes (fp8))" in notes
    assert "backend:" not in notes, "a difference would be named"
    one, _, two = tables["memory per host"]["rows"]
    assert list(one) == [
        "size",
        "host",
        "role",
        "idle",
        "Ray up",
        "loaded",
        "ready",
        "measuring",
        "published VRAM (GiB)",
    ]
    assert (one["host"], one["idle"]) == ("spark1", "116.0 / 0.0")
    assert (two["host"], two["ready"][-6:], two["published VRAM (GiB)"]) == ("spark2", "/ 90.0", "90.0")
    assert all(point["up"]["stages_s"] and point["down"]["hosts"] for point in document["points"])
    manifests = [result["manifest"] for result in document["results"]]
    assert [(one["tp"], one["backend"], one["nodes"]) for one in manifests] == [(1, "ray", 1), (2, "ray", 2)]
    assert [(len(host["hcas"]), host["firmware"]) for host in manifests[1]["hosts"]] == [(2, ["28.45.4028"])] * 2
    for one in manifests:
        assert one["client_on"] == "container"
        assert one["client_where"].endswith(f", in the container cluster-{one['deployment']}-r0")
    execs = [words[:3] for words in desk.hosts["spark1"].started if "docker" in words]
    assert execs == [("docker", "exec", "--interactive")] * 2
    assert is_bare(desk)


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
    first = points(measured)[0]
    desk["spark2"].models.update(models)
    ran = cluster(*SCALING, "--resume")
    assert ran.code == 0, ran.all
    assert "[1/2] TP=1: measured already" in ran.err
    assert points(measured)[0] == first, "the series is the same"
    assert "×" in line_of(ran, "token", "generation", "tg16")


@pytest.mark.parametrize("how", ["lost", "interrupted", "killed"])
def test_what_ends_the_second_size_keeps_the_first_and_resume_measures_the_rest(
    cluster: Typed, desk: Desk, toy: Path, how: str
) -> None:
    def end() -> None:
        if len(next(iter(desk.serving().values()))) == 2:
            if how == "lost":
                desk.hosts["spark2"].faults.unreachable = unreachable("spark2")
            elif how == "interrupted":
                raise KeyboardInterrupt
            else:
                desk.kill()

    with measurable(desk, RATES, end):
        if how == "killed":
            with pytest.raises(Killed):
                cluster(*SCALING)
        else:
            ran = cluster(*SCALING)
            assert ran.code == {"lost": 3, "interrupted": 130}[how], ran.all
            assert measured_rows(ran, "TP=1") == 1, "what was measured is shown"
            assert any("--resume goes on" in line for error in ran.errors() for line in error)
        desk.recover()
    assert bool(desk.serving()) == (how == "killed"), "a killed operator's deployment lives on"
    with measurable(desk, RATES):
        ran = cluster(*SCALING, "--resume")
    assert ran.code == 0, ran.all
    assert "[1/2] TP=1: measured already" in ran.err
    assert points(toy)[1]["up"]["changed"] is (how != "killed"), "what runs already is measured"
    assert is_bare(desk)


@pytest.mark.parametrize("first", [True, False])
def test_a_size_that_cannot_be_begun(first: bool, cluster: Typed, desk: Desk, toy: Path) -> None:
    """That nothing was changed is said only while that is so of the series."""
    holder = {"who": "ada", "since": 0.0, "why": "bench"}

    def lock() -> None:
        desk.hosts["spark2"].lock_holder = holder

    if first:
        lock()
    with measurable(desk, RATES, lock):
        ran = cluster.ends(5, "scaling", "toy", "--tp", *("2 1" if first else "1 2").split(), "--results", "kept")
    assert "[locked]" in ran.error["error"]
    assert ran.error.get("rolled back") == (UNCHANGED if first else None)


def test_nothing_to_resume(cluster: Typed, measured: Path) -> None:
    ran = cluster(*SCALING, "--resume")
    assert ran.code == 4
    assert "[nothing-to-resume]" in ran.err
    assert cluster(*SCALING).code == 0
    ran = cluster(*SCALING, "--resume", "--tg", "8")
    assert ran.code == 4
    assert "bench.tg: (none) → [8]" in ran.err, "what differs is named"


def test_what_runs_is_not_taken_down_unasked(cluster: Typed, desk: Desk, measured: Path) -> None:
    assert cluster("up", "toy", "--tp", "2", "--no-probe").code == 0
    before = desk.state()
    ran = cluster(*SCALING)
    assert ran.code == 4
    assert "[not-confirmed]" in ran.err
    assert desk.state() == before
    assert cluster(*SCALING, "--yes").code == 0
    assert is_bare(desk)


def test_one_size_is_compared_with_the_stored_baseline(cluster: Typed, measured: Path) -> None:
    assert cluster(*SCALING).code == 0
    ran = cluster("scaling", *ON, "--tp", "2")
    assert ran.code == 0, ran.all
    assert "×" in line_of(ran, "token", "generation", "tg16")
    ran = cluster("scaling", *ON, "--tp", "2", "--set", "vllm.max-num-seqs=8")
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
    ran = cluster(*SWEEP, "--tp", "2", "--vary", "backend=ray,mp", "--vary", "vllm.max-num-seqs=4,8", "--dry-run")
    labels = [line.split("] ")[1] for line in ran.out.splitlines() if re.match(r"\[\d/4\]", line)]
    assert labels == [f"backend={one} max-num-seqs={two}" for one in ("ray", "mp") for two in (4, 8)]
    assert "--set vllm.max-num-seqs=8" in ran.out
    assert ran.out.count("--backend mp") >= 2
    assert desk.state() == before
    assert not toy.exists()


def test_a_sweep_of_sizes_names_the_best(cluster: Typed, desk: Desk, drafted: Path) -> None:
    with measurable(desk, (40, 160)):
        ran = cluster(*SWEEP, "--vary", "tp=1,2", "--runs", "3")
    assert ran.code == 0, ran.all
    rows = swept(ran)
    assert rows["tp"] == ["tg16 (t/s)", "acceptance", "ready (s)", "spark1 GPU (GiB)", "spark2 GPU (GiB)"]
    assert [rows[tp][0].endswith("*") for tp in ("1", "2")] == [False, True]
    assert (rows["2"][1], rows["2"][-2:]) == ("50%", ["90.0", "90.0"])
    best = r"tg16: best with tp=2: 1\d\d\.\d\d t/s \(95 %: [\d.–]+\), [34]\.\d\d× of tp=1 \(\d\.\d\d–"
    assert re.search(best, ran.out)
    assert is_bare(desk)


def test_a_key_of_vllm_that_changes_nothing_is_a_tie(cluster: Typed, measured: Path) -> None:
    ran = cluster(*SWEEP, "--tp", "2", "--vary", "vllm.max_num_seqs=4,8", "--runs", "3")
    measured_alone = "cluster up toy --solo -n spark1 --set vllm.max-num-seqs=8 && cluster bench --recipe toy --nodes "
    assert measured_alone in ran.all, "what would be typed, not what was"
    assert ran.code == 0, ran.all
    assert "tg16: a tie of max_num_seqs=" in ran.out
    first, second = swept(ran)["4"][0], swept(ran)["8"][0]
    assert first != second, "numbers that chance made different"
    assert {first[-1], second[-1]} == {"="}
    manifests = [json.loads(path.read_text())["manifest"] for path in sorted(measured.glob("*tp2.json"))]
    assert [one["spec"]["recipe"]["vllm"]["max-num-seqs"] for one in manifests] == [4, 8]


def test_a_value_that_fails_is_a_line_with_the_reason_and_resume_tries_it(
    cluster: Typed, desk: Desk, measured: Path
) -> None:
    words = (*SWEEP, "--tp", "2", "--vary", "vllm.kv-cache-dtype=fp9,fp8")
    desk.bad_flag = "fp9"
    ran = cluster(*words)
    assert ran.code == 6, ran.all
    rows = swept(ran)
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


def test_a_refused_share_of_requests_is_kept_and_marked(cluster: Typed, place: Path, desk: Desk) -> None:
    (place / "recipes/toy.yaml").write_text(RECIPE.format(model="refusing"))
    with measurable(desk, RATES):
        ran = cluster(*SWEEP, "--tp", "2", "--vary", "vllm.max-num-seqs=4", "--runs", "4")
    assert ran.code == 6, ran.all
    row = swept(ran)["4"]
    assert (float(row[0].split()[0]) > 80, row[-1]) == (True, "bench: some requests failed"), row


def test_a_refused_share_is_measured_again_although_down_failed_too(cluster: Typed, place: Path, desk: Desk) -> None:
    (place / "recipes/toy.yaml").write_text(RECIPE.format(model="refusing"))
    words = (*SWEEP, "--tp", "2", "--vary", "vllm.max-num-seqs=4", "--runs", "4")

    def lose() -> None:
        desk.hosts["spark2"].faults.unreachable = unreachable("spark2")

    with measurable(desk, RATES, lose):
        ran = cluster(*words)
    assert (ran.code, swept(ran)["4"][-1]) == (3, "bench: some requests failed"), ran.all
    desk.recover()
    with measurable(desk, RATES):
        ran = cluster(*words, "--resume")
    assert (ran.code, "measured already" in ran.err) == (6, False), ran.all
    assert is_bare(desk)


REPLICAS = (*SCALING, "--replicas", "--concurrency", "1", "2", "--tg", "160", "--runs", "2")


def test_replicas_beside_the_size_on_the_same_hosts(cluster: Typed, desk: Desk, toy: Path) -> None:
    """100 tokens a second on one host, 150 on two, for each client."""
    with measurable(desk, (100, 150)):
        ran = cluster(*REPLICAS, "--json")
    document = json.loads(ran.out)
    assert ran.code == 0, ran.all
    tables = {table["title"]: table for table in document["tables"]}
    steps = [(row["step"], row["hosts"]) for row in tables["steps"]["rows"]]
    assert steps == [("TP=1", "spark1"), ("TP=2", "spark1, spark2"), ("2 × TP=1", "spark1, spark2")]
    assert {"scaling: TP=2 beside TP=1", "scaling: 2 × TP=1 beside TP=1"} <= tables.keys()
    both = tables["2 × TP=1 or TP=2: the same hosts"]
    rows = {(row["test"], row["clients"]): row for row in both["rows"] if row["what"] == "token generation"}
    assert list(rows) == [("tg160", "1"), ("tg160 (c2)", "2")]
    one, two = rows.values()
    assert (one["better"], two["better"]) == ("TP=2", "TP=2")
    assert one["2 × TP=1 ÷ TP=2"].startswith("0.")
    assert "token generation, better by clients: TP=2 at 1, 2" in both["notes"]
    gains = {row["test"]: row for row in tables["scaling: 2 × TP=1 beside TP=1"]["rows"]}
    assert float(gains["tg160"]["speed-up"][:-1]) == pytest.approx(1, abs=0.02)
    assert "published TP=1" not in gains["tg160"] or not gains["tg160"].get("published 2 × TP=1")
    point = document["points"][-1]
    assert point["values"] == {"tp": 1, "replicas": 2}
    assert point["up"]["hosts"] == ["spark1", "spark2"]
    assert {host for by_host in point["up"]["memory_bytes"].values() for host in by_host} == {"spark1", "spark2"}
    assert len(document["results"][-1]["manifest"]["replicas"]) == 2
    assert is_bare(desk)
    assert main(["report", str(next(toy.glob("*.series.json"))), "-o", "all.html", "-o", "all.md"]) == 0
    assert "2 × TP=1 or TP=2: the same hosts" in Path("all.md").read_text()
    ran = cluster(*REPLICAS, "--resume")
    assert ran.err.count("measured already") == 3


def test_a_replica_that_does_not_start_takes_the_others_down(cluster: Typed, desk: Desk, measured: Path) -> None:
    desk["spark2"].strangers.append(Stranger(7, "server", 8000))
    ran = cluster("scaling", *ON, "--tp", "1", "--replicas")
    assert ran.code == 6, ran.all
    assert "2 × TP=1: up failed:" in ran.err
    assert measured_rows(ran, "TP=1") == 1
    assert is_bare(desk)
    desk["spark2"].strangers.clear()
    ran = cluster("scaling", *ON, "--tp", "1", "--replicas", "--resume")
    assert ran.code == 0, ran.all
    assert "[1/2] TP=1: measured already" in ran.err


def test_replicas_that_a_killed_series_left_are_taken_over(cluster: Typed, desk: Desk, toy: Path) -> None:
    def end() -> None:
        if len(desk.serving()) == 2:
            desk.kill()

    words = ("scaling", *ON, "--tp", "1", "--replicas")
    with measurable(desk, RATES, end), pytest.raises(Killed):
        cluster(*words)
    desk.recover()
    assert len(desk.serving()) == 2
    with measurable(desk, RATES):
        ran = cluster(*words, "--resume")
    assert ran.code == 0, ran.all
    assert points(toy)[1]["up"]["changed"] is False
    assert is_bare(desk)


def test_replicas_in_a_dry_run(cluster: Typed, desk: Desk, toy: Path) -> None:
    ran = cluster(*SCALING, "--replicas", "--dry-run")
    assert ran.code == 0, ran.all
    lines = [line.strip() for line in ran.out.splitlines() if line.startswith(("[3/3]", "  cluster"))][-5:]
    assert lines == [
        "[3/3] 2 × TP=1",
        "cluster up toy --nodes spark1 --tp 1 --backend ray",
        "cluster up toy --nodes spark2 --tp 1 --backend ray",
        "cluster bench --recipe toy --nodes spark1,spark2 --results kept --replicas",
        "cluster down --nodes spark1,spark2",
    ]
    assert ran.out.count("docker run") == 5


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("scaling", "toy", "-n", "spark1", "--tp", "1", "--replicas"), "[options-conflict]"),
        (("scaling", *ON, "--tp", "1", "--pipeline-parallel", "2", "--replicas"), "[options-conflict]"),
        (("scaling", *ON, "--tp", "4"), "[size-invalid]"),
        (("scaling", *ON, "--pipeline-parallel", "0"), "[size-invalid]"),
        (("scaling", *ON, "--set", "vlm.x=1"), "[unknown-key]"),
        ((*SWEEP, "--vary", "vllm.a=1,1"), "[vary-invalid]"),
        ((*SWEEP, "--vary", "vllm.a=[1"), "[yaml-invalid]"),
        ((*SWEEP, "--vary", "tp=1,2", "--tp", "2"), "[options-conflict]"),
        ((*SWEEP, "--vary", "tp=1,3"), "tp=3: "),
        ((*SWEEP, "--vary", "vlm.a=1"), "[unknown-key]"),
        ((*SWEEP, "--vary", "port=99999"), "port"),
    ],
)
def test_what_cannot_be_is_refused_before_anything(
    cluster: Typed, desk: Desk, words: tuple[str, ...], what: str
) -> None:
    before = desk.state()
    ran = cluster(*words)
    assert (ran.code, what in ran.err) == (2, True), ran.all
    assert desk.state() == before
