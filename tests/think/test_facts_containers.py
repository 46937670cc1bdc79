import json
import sys
from pathlib import Path
from typing import Any

import pytest
from facts_tools import ask, put_program, said, sample

from cluster.spark import deployments
from cluster.spark.deployments import Container
from cluster.spark.fact import Missing

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
    assert not isinstance(found, Missing)
    assert [(one.state, one.exit_code, one.started_at, one.finished_at, one.pid) for one in found] == [
        ("exited", 75, "2026-05-01T10:00:01.5Z", "2026-05-01T11:00:00Z", 0),
        ("created", None, "", "", 0),
    ]
    assert found[1].labels == {}


@pytest.mark.parametrize(
    "complaint", [GONE, "Error response from daemon: No such container: %s", "Error: No such object: %s"]
)
def test_a_container_that_vanishes_is_left_out(tmp_path: Path, complaint: str) -> None:
    assert deployments.parse_containers(with_docker(tmp_path, {A: inspected("cluster-x-r0")}, (B,), complaint)) == (
        RUNNING,
    )


def test_another_complaint_is_not_swallowed(tmp_path: Path) -> None:
    found = deployments.parse_containers(with_docker(tmp_path, {}, (B,), "unexpected EOF %s"))
    assert isinstance(found, Missing)
    assert "unexpected EOF" in found.why


def test_no_containers(tmp_path: Path) -> None:
    assert deployments.parse_containers(with_docker(tmp_path, {})) == ()


def test_no_permission_and_no_docker(tmp_path: Path) -> None:
    words = sample("docker_permission_denied_new.txt")
    script = f"#!/bin/sh\ncat >&2 <<'end'\n{words}end\nexit 1\n"
    found = deployments.parse_containers(
        ask(deployments.containers_question(), put_program(tmp_path / "bin", "docker", script))
    )
    assert isinstance(found, Missing)
    assert (found.kind, words.strip() in found.why) == ("refused", True)
    nobody = deployments.parse_containers(ask(deployments.containers_question(), {"PATH": str(tmp_path)}))
    assert isinstance(nobody, Missing)
    assert nobody.kind == "absent"


def test_podmans_other_shape_is_missing(tmp_path: Path) -> None:
    found = deployments.parse_containers(with_docker(tmp_path, {A: {"Id": A, "State": "running"}}))
    assert isinstance(found, Missing)
    assert "something else" in found.why


def test_recorded_reply_with_terminal_codes() -> None:
    row = {
        "id": A,
        "name": "\x1b[2Jbad",
        "image": "i",
        "state": "running",
        "exit_code": 0,
        "labels": {},
        "started_at": "",
        "finished_at": "",
        "pid": 1,
        "argv": ["\x07ring"],
    }
    found = deployments.parse_containers(said({"containers": {"value": [row]}}))
    assert not isinstance(found, Missing)
    assert (found[0].name, found[0].argv) == ("bad", ("ring",))
    assert json.dumps(found[0].name).isprintable()


@pytest.mark.parametrize(
    ("host_config", "gpu"),
    [
        ({"Runtime": "runc", "DeviceRequests": None}, False),
        ({}, False),
        ({"Runtime": "nvidia"}, True),
        ({"DeviceRequests": [{"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}]}, True),
        ({"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}]}, True),
        ({"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["vendor.com/tpu=0"]}]}, False),
    ],
)
def test_who_was_given_the_gpu(tmp_path: Path, host_config: dict[str, Any], gpu: bool) -> None:
    answer = with_docker(tmp_path, {A: inspected("x") | {"HostConfig": host_config}})
    found = deployments.parse_containers(answer)
    assert not isinstance(found, Missing)
    assert found[0].gpu is gpu
