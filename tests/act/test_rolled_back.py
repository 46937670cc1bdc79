"""What is printed, and what stays, when a start fails or is interrupted once or twice."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from machine import Desk
from test_transcripts import NO_CACHE, OOM, Prepare, asked_for, docker, typed
from typed import UP, Ran, Typed

from cluster.deploy.cause import name_cause
from cluster.deploy.fetch import How, naming_what_stays
from cluster.errors import UNCHANGED, ClusterError, InterruptedByUser, ManyErrors
from cluster.screen import Screen

if TYPE_CHECKING:
    from conftest import Disk

NEW = (*UP, "--", "--max-num-seqs", "8")


def ctrl_c() -> None:
    raise KeyboardInterrupt


def containers(desk: Desk) -> list[tuple[str, str]]:
    return [(machine.name, one.state) for machine in desk for one in machine.docker.containers.values()]


def typed_remedy(ran: Ran) -> list[str]:
    """The command of a remedy, as words."""
    found = re.search(r"cluster (down -n \S+?)(?=[;.]|\s|$)", ran.error["hint"])
    assert found, ran.err
    return found[1].split()


def lost(run: Typed) -> None:
    run.desk.hosts["spark2"].drop()


def one_machine(run: Typed) -> None:
    run.desk["spark2"].machine_id = f"{1:032x}"


REFUSED: list[tuple[Prepare, int, str]] = [
    (lost, 3, "scaling toy"),
    (lost, 3, "down -n spark2"),
    (lost, 3, "down"),
    (one_machine, 4, "down"),
    (asked_for("spark2", "docker run --rm", "ctrl-c"), 130, "up toy"),
    (lambda run: run.desk["spark2"].models.clear(), 4, "up toy --dry-run"),
    (typed(*UP), 4, "scaling toy"),
    (lambda run: None, 4, "swap toy"),
]


@pytest.mark.parametrize(("prepare", "code", "words"), REFUSED)
def test_a_refusal_before_the_first_change_says_so(prepare: Prepare, code: int, words: str, cluster: Typed) -> None:
    prepare(cluster)
    ran = cluster.ends(code, *words.split(), "--json")
    errors = json.loads(ran.out)["errors"]
    assert errors
    assert [one.get("rolled_back") for one in errors] == [UNCHANGED] * len(errors)


@pytest.mark.parametrize("words", ["logs", "bench", "probe", "doctor", "status", "exec -- true"])
@pytest.mark.parametrize("prepare", [lost, one_machine])
def test_what_only_reads_says_nothing_of_changes(prepare: Prepare, words: str, cluster: Typed) -> None:
    cluster.must(*UP)
    prepare(cluster)
    assert "rolled back" not in cluster(*words.split()).all


@pytest.mark.parametrize("wrong", [lost, docker("spark2", trouble=(127, "docker: not found"))])
def test_a_host_that_was_left_out_says_nothing_of_what_was_taken_down(
    wrong: Prepare, cluster: Typed, running: str
) -> None:
    wrong(cluster)
    ran = cluster("down")
    assert ran.code in (3, 4)
    assert "rolled back" not in ran.all, "something was changed"


@pytest.mark.parametrize("second", ["journalctl", "docker inspect --type", "docker cp", "docker rm"])
def test_a_second_ctrl_c_says_what_stays(second: str, cluster: Typed, desk: Desk) -> None:
    desk.at_sleep(1, ctrl_c)
    desk.when_asked("spark2", second, ctrl_c)
    ran = cluster.ends(130, *UP)
    if second != "docker rm":
        assert containers(desk) == [("spark1", "running"), ("spark2", "running")], "it leaves at once"
    [deployment] = desk["spark2"].kept()
    got = ran.error["rolled back"]
    assert deployment in got
    assert "spark2" in got
    cluster.must(*typed_remedy(ran))
    assert containers(desk) == []


def test_a_second_ctrl_c_names_the_old_one_that_stays_stopped(cluster: Typed, desk: Desk, running: str) -> None:
    began = desk.sleeps
    desk.on_sleep.append(lambda: ctrl_c() if desk.lives() and desk.sleeps > began + 1 else None)
    desk.when_asked("spark2", "journalctl", ctrl_c)
    ran = cluster.ends(130, *NEW)
    assert running in ran.error["rolled back"]
    desk.on_sleep.clear()
    cluster.must(*typed_remedy(ran))
    assert containers(desk) == []


@pytest.mark.parametrize(
    ("said", "now"), [(UNCHANGED, "nothing"), ("nothing: the containers of x stay on a", None), ("all of it", "")]
)
def test_what_was_fetched_is_said_beside_what_stays(said: str, now: str | None) -> None:
    with pytest.raises(InterruptedByUser) as caught, naming_what_stays(How(True, "", ["image i on a"])):
        raise InterruptedByUser(rolled_back=said)
    fetched = f"{said if now is None else now}; what was fetched stays: image i on a"
    assert caught.value.rolled_back == (said if now == "" else fetched)


def test_the_first_ctrl_c_while_evidence_is_saved_still_rolls_back(cluster: Typed, desk: Desk) -> None:
    desk.bad_flag, desk.last_line = "--max-model-len", NO_CACHE
    desk.when_asked("spark2", "journalctl", ctrl_c)
    ran = cluster(*UP)
    assert ran.code == 1, "the start had failed before"
    assert containers(desk) == []


def evidence(cluster: Typed) -> Path:
    return cluster.place / "state/cluster/evidence"


def test_strangers_in_the_directory_of_evidence_do_not_hide_the_cause(cluster: Typed, desk: Desk) -> None:
    place = evidence(cluster)
    (place / "mine" / "below").mkdir(parents=True)
    (place / "0-note.txt").write_text("mine")
    for number in range(25):
        (place / f"20200101-0000{number:02}-7-toy-12345678" / "below").mkdir(parents=True)
    desk.bad_flag, desk.last_line = "--max-model-len", NO_CACHE
    ran = cluster(*UP)
    kept = sorted(one.name for one in place.iterdir())
    [new] = [name for name in kept if name.startswith("2") and not name.startswith("2020")]
    assert "[kv-cache-none]" in ran.error["error"]
    assert str(place / new) in ran.error["hint"]
    assert {"mine", "0-note.txt"} <= set(kept)
    assert len(kept) == 20 + 2


def test_evidence_that_is_saved_in_part_is_read(cluster: Typed, desk: Desk) -> None:
    """A file cannot be written; what was written before it names the cause."""
    desk.bad_flag, desk.last_line = "--max-model-len", NO_CACHE

    def block() -> None:
        [place] = evidence(cluster).iterdir()
        (place / "spark2-log.txt").mkdir()

    desk.when_asked("spark2", "journalctl", block)
    ran = cluster(*UP)
    assert "[kv-cache-none]" in ran.error["error"]
    assert str(evidence(cluster)) in ran.error["hint"]


def test_what_could_not_be_started_again_is_not_said_to_be(cluster: Typed, desk: Desk, running: str) -> None:
    desk.bad_flag = "--max-num-seqs"
    desk["spark2"].docker.broken = {"start": (1, "Error response from daemon: cannot start")}
    ran = cluster.ends(1, *NEW)
    assert f"{running} was started again" not in ran.error["rolled back"]
    assert desk.serving() == {}


def test_a_state_before_without_memory(cluster: Typed, desk: Desk, running: str) -> None:
    """What another version or a hand wrote: `up` goes on."""
    for machine, got in zip(desk, (b"{}", b'{"available": null}'), strict=True):
        [path] = [name for name in machine.files if name.endswith("before.json")]
        machine.files[path] = (got, 0o644)
    cluster.must(*NEW)
    cluster.must("down")


def test_on_a_full_disk_the_failure_is_still_shown_and_rolled_back(
    cluster: Typed, desk: Desk, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.fill()
    monkeypatch.setenv("XDG_STATE_HOME", str(disk.place))
    desk.bad_flag = "--max-model-len"
    ran = cluster.ends(1, *UP, "--json")
    [error] = json.loads(ran.out)["errors"]
    assert desk.last_line in error["error"]
    assert os.strerror(errno.ENOSPC) in ran.err
    assert containers(desk) == []


def test_a_cause_is_said_of_its_own_host(tmp_path: Path) -> None:
    """The name of one host is the beginning of the other's."""
    (tmp_path / "spark1-kernel.txt").write_text(f"{OOM[1]}\n".replace("spark2", "spark1"))
    errors = [
        ClusterError(f"{name}: lost", code="connection-lost", where=name, host=name) for name in ("spark10", "spark1")
    ]
    name_cause(ManyErrors(errors), errors, str(tmp_path), Screen())
    assert [one.code for one in errors] == ["connection-lost", "kernel-oom"]
