"""A limit of GPU clocks over real SSH, sudo and shell: set before the ranks, noted, reset; also after a kill."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from own_lab import Lab
from person import MP, Person

MHZ = "nvidia-smi --query-gpu=clocks.sm --format=csv,noheader,nounits"
NOTE = "~/.local/share/cluster/clocks.json"


@pytest.fixture
def words(lab: Lab, tmp_path: Path) -> tuple[str, ...]:
    """The lab's hosts, limited."""
    path = tmp_path / "limited.yaml"
    text = lab.inventory.read_text()
    path.write_text(text.replace("defaults:\n", "defaults:\n  clocks: {sm_max_mhz: 2000}\n"))
    return ("-i", str(path))


def left(lab: Lab, host: str) -> str:
    """What shows that clocks are limited."""
    return lab.tell(host, f"ls {NOTE} /run/cluster-lab/clocks.json 2>/dev/null || true")


def test_set_proven_and_reset(lab: Lab, person: Person, words: tuple[str, ...]) -> None:
    ran = person.must("up", *MP, *words)
    assert "of at most 2000 MHz" in ran.out, ran
    for host in ("spark1", "spark2"):
        assert json.loads(lab.tell(host, f"cat {NOTE}"))["sm_max_mhz"] == 2000
        assert int(lab.tell(host, MHZ)) <= 2000
    person.must("down", *words)
    assert [left(lab, host) for host in ("spark1", "spark2")] == ["", ""]


def test_a_killed_up_is_reset_by_the_next_down(lab: Lab, person: Person, words: tuple[str, ...]) -> None:
    run = person.start("up", *MP, *words)
    run.await_said("start containers")
    run.kill()
    lab.must("break", "spark2", "reboot")
    lab.tell("spark2", "sudo nvidia-smi -lgc 0,1500")  # somebody else's
    assert NOTE.rpartition("/")[2] in left(lab, "spark1")
    person.must("down")
    assert left(lab, "spark1") == ""
    assert left(lab, "spark2") == "/run/cluster-lab/clocks.json", "the reboot ended ours; this one is kept"
    lab.tell("spark2", "sudo nvidia-smi -rgc")


def test_without_sudo_it_is_refused(lab: Lab, person: Person, words: tuple[str, ...]) -> None:
    lab.must("break", "spark2", "no-sudo")
    try:
        ran = person("up", *MP, *words)
    finally:
        lab.must("mend", "spark2")
    assert ran.code == 4, ran
    assert [error["code"] for error in ran.errors] == ["clock-limit"]
