"""`cluster status`, `logs` and `exec`: they tell how things are and change nothing."""

from __future__ import annotations

import json

import pytest
from machine import Desk, Killed
from typed import Typed

UP = ("up", "toy", "--tp", "2")


def state(cluster: Typed) -> tuple[int, str]:
    """Exit code, and the state of the only deployment."""
    ran = cluster("status", "--json")
    told = json.loads(ran.out)
    return ran.code, told["deployments"][0]["state"] if told["deployments"] else "none"


def test_the_life_of_a_deployment(cluster: Typed, desk: Desk) -> None:
    assert state(cluster) == (0, "none")
    desk.on_sleep.append(lambda: desk.kill() if desk.sleeps == 1 else None)
    with pytest.raises(Killed):
        cluster(*UP)
    desk.recover()
    assert state(cluster) == (4, "starting")
    assert cluster(*UP).code == 0
    assert state(cluster) == (0, "ready")
    desk.kill_rank("spark2")
    assert state(cluster)[0] == 4
    desk.pass_time(5)
    assert state(cluster) == (4, "down")
    assert cluster(*UP).code == 0
    desk.reboot("spark1")
    desk.reboot("spark2")
    assert state(cluster) == (4, "down")
    assert cluster(*UP).code == 0
    assert state(cluster) == (0, "ready")
    assert cluster("down").code == 0
    assert state(cluster) == (0, "none")


@pytest.mark.parametrize("backend", ["ray", "mp"])
@pytest.mark.parametrize("host", ["spark1", "spark2"])
def test_it_says_who_failed_first(host: str, backend: str, cluster: Typed, desk: Desk) -> None:
    assert cluster(*UP, "--backend", backend).code == 0
    desk.kill_rank(host)
    desk.pass_time(5)
    ran = cluster("status")
    assert f"{host}: container exited, exit 137; cluster up starts it again" in ran.err
    other = {"spark1": "spark2", "spark2": "spark1"}[host]
    rank = ["spark1", "spark2"].index(host)
    assert f"{other}: exited, exit 76: rank {rank} (192.168.100.1{rank + 1}) is gone without a word" in ran.out


def test_a_cut_link(cluster: Typed, desk: Desk) -> None:
    assert cluster(*UP).code == 0
    desk.cut.add("spark2")
    desk.pass_time(90)
    assert desk.lives() == []
    assert [machine.available_bytes >> 30 for machine in desk] == [116, 116]
    ran = cluster("status")
    assert ran.code == 4
    assert "was silent for 60 s: it has no power, hangs, or the link is cut" in ran.out
    desk.cut.clear()
    assert cluster(*UP).code == 0


def test_a_node_of_ray_that_is_gone(cluster: Typed, desk: Desk) -> None:
    """The server answers and yet the cluster is not whole."""
    assert cluster(*UP).code == 0
    [worker] = desk["spark2"].lives()
    worker.ray = False
    ran = cluster("status")
    assert ran.code == 4
    assert "192.168.100.12 is not an alive node" in ran.err
    assert "unhealthy" in ran.out


def test_it_changes_nothing_and_needs_no_lock(cluster: Typed, desk: Desk) -> None:
    assert cluster(*UP).code == 0
    desk.hosts["spark1"].lock_holder = {"who": "ada", "since": 0.0, "why": "bench"}
    before = desk.state()
    for words in (("status",), ("logs",), ("logs", "--tail", "3"), ("status", "-n", "spark2")):
        cluster(*words)
        assert desk.state() == before
        assert sum(host.changes for host in desk.hosts.values()) == 0


def test_status_as_json(cluster: Typed, desk: Desk) -> None:
    assert cluster(*UP).code == 0
    desk.hosts["spark2"].drop()
    ran = cluster("status", "--json")
    told = json.loads(ran.out)
    assert ran.code == 3
    assert told["hosts"]["spark1"]["machine"] == "NVIDIA_DGX_Spark"
    assert told["unreachable"][0]["where"] == "spark2"
    [one] = told["deployments"]
    assert (one["model"], one["hosts"], one["ray_nodes"]) == ("example/toy", ["spark1", "spark2"], 2)


def test_logs_are_merged_by_time(cluster: Typed, desk: Desk) -> None:
    assert cluster("logs").code == 4
    assert cluster(*UP).code == 0
    ran = cluster("logs")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines == sorted(lines, key=lambda line: line[:23])
    assert {line.split()[1] for line in lines} == {"spark1:", "spark2:"}
    assert any("Loading weights took" in line for line in lines)
    told = json.loads(cluster("logs", "--json", "--tail", "1").out)
    assert len(told["lines"]) == 2


def test_exec_tells_every_host(cluster: Typed, desk: Desk) -> None:
    assert cluster("exec", "--", "true").code == 0
    desk["spark2"].sudo = False
    ran = cluster("exec", "--", "sudo", "-n", "sh", "-c", "drop_caches")
    assert ran.code == 1
    assert "spark2: sudo: a password is required" in ran.out
    assert "spark2: exit 1" in ran.err
    desk.hosts["spark1"].drop()
    ran = cluster("exec", "--", "true")
    assert ran.code == 3
    assert cluster("exec").code == 2
