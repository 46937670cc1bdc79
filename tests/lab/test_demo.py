"""`scripts/demo`, as the README says it: the main job on the real engine, measured, and nothing left behind."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from own_lab import CACHE

pytestmark = pytest.mark.campaign
ROOT = Path(__file__).parents[2]
DIRECTORY = "/var/lib/cluster-lab-of-demo-test"


@pytest.fixture(scope="module")
def said() -> str:
    """What the demo printed, all of it."""
    if os.geteuid() != 0:
        pytest.skip("the lab needs root")
    env = {**os.environ, "CLUSTER_LAB_DIR": DIRECTORY, "CLUSTER_LAB_CACHE": CACHE}
    done = subprocess.run(
        [ROOT / "scripts/demo"], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def test_one_and_two_hosts_are_ready(said: str) -> None:
    assert "(TP=1 on spark1)" in said
    assert "(TP=2 on spark1, spark2, Ray)" in said
    assert re.search(r"^Ray: 2 nodes: 192\.168\.\S+ \(1 GPU\), 192\.168\.\S+ \(1 GPU\)$", said, re.M)
    moved = re.search(r"spark1 ([\d.]+) MB, spark2 ([\d.]+) MB\)$", said, re.M)
    assert moved
    assert float(moved[1]) > 0.06
    assert float(moved[2]) > 0.06


def test_a_scaling_table_is_printed_and_labelled(said: str) -> None:
    assert "SIMULATED HOSTS" in said
    assert "DUMMY WEIGHTS" in said
    table = said[said.index("\nscaling") :]
    number = r"[\d.]+ ± [\d.]+"
    for what, test in (("token generation", r"tg32( @ d4096)?"), ("prompt processing", r"pp512( @ d4096)?")):
        rows = re.findall(rf"^{what} +{test} +{number} +{number} +([\d.]+)× ", table, re.M)
        assert len(rows) == 2, table
    assert len(re.findall(r"^time to first response +pp512", table, re.M)) == 2


def test_memory_is_shown_at_every_moment(said: str) -> None:
    assert re.search(r"idle +Ray up +loaded +ready$", said, re.M)
    assert len(re.findall(r"^spark[12]( +[\d.]+ / [\d.]+){4}$", said, re.M)) >= 2


def test_nothing_is_left_behind(said: str) -> None:
    assert len(re.findall(r"^spark[12]: containers, ports and processes are released", said, re.M)) == 4
    assert not Path(DIRECTORY).exists()
    assert DIRECTORY not in Path("/proc/self/mountinfo").read_text()
    for words in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert DIRECTORY.encode() not in words.read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
