"""Disk, deployments and lock: what far/kept tells."""

import fcntl
import json
import os
from pathlib import Path

import pytest
from facts_tools import ask, put, said

from cluster.spark import deployments, disk
from cluster.spark.deployments import Kept, LockState
from cluster.spark.disk import Room
from cluster.spark.fact import Missing


def test_room_of_a_path_and_of_one_that_is_not_there(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "PATH": "/bin"}
    found = disk.parse(ask(disk.question(["~", "~/not/there/yet", "/dev/shm", "/dev/null/x"]), env))
    assert not isinstance(found, Missing)
    assert [room.path for room in found] == [str(tmp_path), f"{tmp_path}/not/there/yet", "/dev/shm", "/dev/null/x"]
    told = os.statvfs(tmp_path)
    assert abs(found[0].free_bytes - told.f_bavail * told.f_frsize) < 1 << 30
    assert found[0].device == found[1].device == tmp_path.stat().st_dev != found[2].device


def test_a_file_system_that_counts_no_inodes() -> None:
    row = {"path": "/x", "free_bytes": 5, "free_inodes": None, "device": 66}
    assert disk.parse(said({"disk": {"value": [row]}})) == (Room("/x", 5, None, 66),)


def test_deployments_with_their_files(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "deployments/b-0123/rank.json": "{}",
            "deployments/b-0123/before.json": '{"available": 118489088}',
            "deployments/b-0123/evidence/log.txt": "x",
            "deployments/a-4567/before.json": "[1",
            "deployments/a-4567/secrets.json": '{"A": "planted-secret"}',
            "deployments/stray": "",
        },
    )
    answer = ask(deployments.question(str(tmp_path)))
    assert deployments.parse(answer) == (
        Kept("a-4567", None),
        Kept("b-0123", {"available": 118489088}),
    )
    assert b"planted-secret" not in answer.out


def test_nothing_kept_yet(tmp_path: Path) -> None:
    assert deployments.parse(ask(deployments.question(f"{tmp_path}/none"))) == ()
    assert deployments.parse_lock(ask(deployments.lock_question(f"{tmp_path}/none"))) == LockState(False)


def test_a_directory_of_somebody_else_is_refused(plain_user: Path) -> None:
    (plain_user / "deployments").mkdir(mode=0)
    found = deployments.parse(ask(deployments.question(str(plain_user))))
    assert found == Missing(f"{plain_user}/deployments: permission denied", "refused")


HOLDER = {"who": "ada@laptop", "since": 1780000000.5, "why": "up gemma-4-31b-fp8", "pid": 7}


def test_a_held_lock_names_its_holder_and_a_free_one_nobody(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text(json.dumps(HOLDER))
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        found = deployments.parse_lock(ask(deployments.lock_question(str(tmp_path))))
        assert found == LockState(True, "ada@laptop", 1780000000.5, "up gemma-4-31b-fp8")
    assert deployments.parse_lock(ask(deployments.lock_question(str(tmp_path)))) == LockState(False)
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("text", ["", "[]", '{"since": "noon"}', "\xff{", "[" * 100000])
def test_a_held_lock_with_odd_words_is_still_held(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lock"
    path.write_text(text)
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert deployments.parse_lock(ask(deployments.lock_question(str(tmp_path)))) == LockState(True)
