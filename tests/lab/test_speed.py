"""How long the commands take here, printed; the bounds are loose, since this machine does other things too."""

from __future__ import annotations

import statistics
import subprocess
import time

import pytest
from own_lab import Lab
from person import CLUSTER, MP, QUICK, RAY, Person


def measure(what: str, runs: list[float]) -> float:
    """Print the median and the range of some runs, in seconds; the best one."""
    print(f"{what}: median {statistics.median(runs):.2f} s, {min(runs):.2f} to {max(runs):.2f} s, {len(runs)} runs")
    return min(runs)


def test_help() -> None:
    runs = []
    for _ in range(9):
        began = time.monotonic()
        subprocess.run([CLUSTER, "--help"], capture_output=True, check=True)
        runs.append(time.monotonic() - began)
    assert measure("cluster --help", runs) < 0.5


def test_nothing_heavy_is_imported_for_help() -> None:
    line = f"import sys; sys.argv = ['{CLUSTER}', '--help']; from cluster.cli import main; main()"
    program = f"try:\n  exec({line!r})\nexcept SystemExit: pass\nimport sys; print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([CLUSTER.replace("bin/cluster", "bin/python"), "-c", program], capture_output=True, text=True)
    assert done.returncode == 0
    heavy = {"paramiko", "fabric", "pydantic", "rich", "yaml", "cluster.hosts.ssh", "cluster.config.recipe"}
    assert heavy & set(done.stderr.split()) == set()


def test_status_and_up_again(lab: Lab, resident: Person) -> None:
    resident.must("up", *MP)
    assert measure("status", [resident.must("status").seconds for _ in range(5)]) < 5
    assert measure("exec -- true", [resident.must("exec", "--", "true").seconds for _ in range(3)]) < 4
    beyond = []
    for _ in range(5):
        began = time.monotonic()
        told = resident.must("up", *MP, "--json").document
        assert told["changed"] is False
        beyond.append(time.monotonic() - began - told["stages_s"]["prove"])
    assert measure("up again, beyond its proofs", beyond) < 6
    assert measure("up --dry-run", [resident.must("up", *MP, "--dry-run").seconds for _ in range(3)]) < 8
    assert measure("down", [resident.must("down").seconds]) < 40


@pytest.mark.parametrize("words", [("--solo", "-n", "spark1", *QUICK), MP, RAY], ids=["solo", "mp", "ray"])
def test_own_share_of_up(resident: Person, words: tuple[str, ...]) -> None:
    """All but waiting for the engine, by stage."""
    told = resident.must("up", *words, "--yes", "--json").document
    stages = {stage: seconds for stage, seconds in told["stages_s"].items() if stage != "wait for Ray and vLLM"}
    shown = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in stages.items())
    own, all_of_it = sum(stages.values()), sum(told["stages_s"].values())
    print(f"up {' '.join(words)}: own share {own:.1f} s ({shown}); all {all_of_it:.1f} s")
    assert own < 60
    resident.must("down")
