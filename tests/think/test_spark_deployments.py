"""Disk, deployments and lock: what far/kept tells."""

import fcntl
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from facts_tools import ask, put, put_program, run_far, said, sample

from cluster.spark import deployments, disk
from cluster.spark.deployments import Container, Kept, LockState
from cluster.spark.disk import Room
from cluster.spark.fact import Missing, read_section

A, B = "a" * 64, "b" * 64


def inspected(name: str, **state: Any) -> dict[str, Any]:
    return {
        "Id": A,
        "Created": "2026-05-01T10:00:00.5Z",
        "Path": "python3",
        "Args": ["-u", "/cluster/rank.py"],
        "State": {
            "Status": "running",
            "Running": True,
            "Pid": 4711,
            "ExitCode": 0,
            "OOMKilled": False,
            "StartedAt": "2026-05-01T10:00:01.5Z",
            "FinishedAt": "0001-01-01T00:00:00Z",
            **state,
        },
        "Image": "sha256:" + "c" * 64,
        "Name": f"/{name}",
        "RestartCount": 0,
        "Config": {"Image": "vllm:1", "Labels": {"cluster.rank": "0"}, "Env": ["HF_TOKEN=planted-secret"]},
    }


DOCKER = """#!{python}
import json, sys
containers, gone, words = {containers!r}, {gone!r}, sys.argv[1:]
if words[0] == "ps":
    assert words[1:] == ["--all", "--quiet", "--no-trunc"]
    print("\\n".join([*containers, *gone]))
else:
    assert words[:3] == ["inspect", "--type", "container"]
    print(json.dumps([containers[id] for id in words[3:] if id in containers]))
    for id in gone:
        print({complaint!r} % id, file=sys.stderr)
    sys.exit(1 if gone else 0)
"""
GONE = "Error: No such container: %s"


def with_docker(tmp_path: Path, found: dict[str, Any], gone: tuple[str, ...] = (), complaint: str = GONE) -> Any:
    text = DOCKER.format(python=sys.executable, containers=found, gone=gone, complaint=complaint)
    return ask(deployments.containers_question(), put_program(tmp_path / "bin", "docker", text))


RUNNING = Container(
    id=A,
    name="cluster-x-r0",
    image="vllm:1",
    state="running",
    exit_code=None,
    labels={"cluster.rank": "0"},
    started_at="2026-05-01T10:00:01.5Z",
    finished_at="",
    pid=4711,
    argv=("python3", "-u", "/cluster/rank.py"),
)


def test_a_running_container(tmp_path: Path) -> None:
    answer = with_docker(tmp_path, {A: inspected("cluster-x-r0")})
    assert deployments.parse_containers(answer) == (RUNNING,)
    assert b"planted-secret" not in answer.out


def test_an_ended_and_a_never_started_one(tmp_path: Path) -> None:
    ended = inspected("e", Status="exited", Pid=0, ExitCode=75, FinishedAt="2026-05-01T11:00:00Z")
    created = inspected("c", Status="created", Pid=0, StartedAt="0001-01-01T00:00:00Z")
    created["Config"]["Labels"] = None
    found = deployments.parse_containers(with_docker(tmp_path, {A: ended, B: created}))
    assert [(one.state, one.exit_code, one.started_at, one.finished_at, one.pid) for one in found] == [
        ("exited", 75, "2026-05-01T10:00:01.5Z", "2026-05-01T11:00:00Z", 0),
        ("created", None, "", "", 0),
    ]
    assert found[1].labels == {}


def test_a_container_that_vanishes_is_left_out(tmp_path: Path) -> None:
    for complaint in (GONE, "Error response from daemon: No such container: %s", "Error: No such object: %s"):
        answer = with_docker(tmp_path, {A: inspected("cluster-x-r0")}, (B,), complaint)
        assert deployments.parse_containers(answer) == (RUNNING,)


def test_no_containers_another_complaint_and_podmans_other_shape(tmp_path: Path) -> None:
    assert deployments.parse_containers(with_docker(tmp_path, {})) == ()
    assert "unexpected EOF" in deployments.parse_containers(with_docker(tmp_path, {}, (B,), "unexpected EOF %s")).why
    podman = with_docker(tmp_path, {A: {"Id": A, "State": "running"}})
    assert "something else" in deployments.parse_containers(podman).why


def test_no_permission_and_no_docker(tmp_path: Path) -> None:
    words = sample("docker_permission_denied_new.txt")
    script = f"#!/bin/sh\ncat >&2 <<'end'\n{words}end\nexit 1\n"
    env = put_program(tmp_path / "bin", "docker", script)
    found = deployments.parse_containers(ask(deployments.containers_question(), env))
    assert (found.kind, words.strip() in found.why) == ("refused", True)
    nobody = deployments.parse_containers(ask(deployments.containers_question(), {"PATH": str(tmp_path)}))
    assert nobody.kind == "absent"


def test_recorded_reply_with_terminal_codes() -> None:
    row = asdict(RUNNING) | {"exit_code": 0, "name": "\x1b[2Jbad", "argv": ["\x07ring"]}
    found = deployments.parse_containers(said({"containers": {"value": [row]}}))
    assert (found[0].name, found[0].argv) == ("bad", ("ring",))


def test_who_was_given_the_gpu(tmp_path: Path) -> None:
    given: list[tuple[dict[str, Any], bool]] = [
        ({"Runtime": "runc", "DeviceRequests": None}, False),
        ({}, False),
        ({"Runtime": "nvidia"}, True),
        ({"DeviceRequests": [{"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}]}, True),
        ({"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}]}, True),
        ({"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["vendor.com/tpu=0"]}]}, False),
    ]
    rows = {f"{number:064x}": inspected("x") | {"HostConfig": config} for number, (config, _) in enumerate(given)}
    found = deployments.parse_containers(with_docker(tmp_path, rows))
    assert [one.gpu for one in found] == [gpu for _, gpu in given]


def test_room_of_a_path_and_of_one_that_is_not_there(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "PATH": "/bin"}
    found = disk.parse(ask(disk.question(["~", "~/not/there/yet", "/dev/shm", "/dev/null/x"]), env))
    assert [room.path for room in found] == [str(tmp_path), f"{tmp_path}/not/there/yet", "/dev/shm", "/dev/null/x"]
    told = os.statvfs(tmp_path)
    assert abs(found[0].free_bytes - told.f_bavail * told.f_frsize) < 1 << 30
    assert found[0].device == found[1].device == tmp_path.stat().st_dev != found[2].device
    row = {"path": "/x", "free_bytes": 5, "free_inodes": None, "device": 66}
    assert disk.parse(said({"disk": {"value": [row]}})) == (Room("/x", 5, None, 66),)


def kept(folder: Path) -> Any:
    answer = run_far("kept", {"sections": ["deployments"], "data_dir": str(folder)})
    assert b"planted-secret" not in answer.out
    return read_section(answer, "deployments", tuple[Kept, ...])


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
    assert kept(tmp_path) == (Kept("a-4567", None), Kept("b-0123", {"available": 118489088}))
    assert kept(tmp_path / "none") == ()
    assert deployments.parse_lock(ask(deployments.lock_question(f"{tmp_path}/none"))) == LockState(False)


def test_a_directory_of_somebody_else_is_refused(plain_user: Path) -> None:
    (plain_user / "deployments").mkdir(mode=0)
    assert kept(plain_user) == Missing(f"{plain_user}/deployments: permission denied", "refused")


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


@pytest.mark.parametrize("text", ["", "[]", "\xff{"])
def test_a_held_lock_with_odd_words_is_still_held(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lock"
    path.write_text(text)
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert deployments.parse_lock(ask(deployments.lock_question(str(tmp_path)))) == LockState(True)
