"""`cluster status`, `logs` and `exec`: they tell how things are and change nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from fake_host import FakeProcess
from machine import Desk, Killed
from typed import UP, Typed

from cluster.errors import ConnectionLostError, UnreachableError


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
    cluster.must(*UP)
    assert state(cluster) == (0, "ready")
    desk["spark2"].lives()[0].ray = False
    assert state(cluster) == (4, "unhealthy"), "the server answers, and yet a node of Ray is gone"
    desk["spark2"].lives()[0].ray = True
    desk.kill_rank("spark2")
    assert state(cluster)[0] == 4
    desk.pass_time(5)
    assert state(cluster) == (4, "down")
    cluster.must(*UP)
    desk.reboot("spark1")
    desk.reboot("spark2")
    assert state(cluster) == (4, "down")
    cluster.must(*UP)
    assert state(cluster) == (0, "ready")
    assert cluster("down").code == 0
    assert state(cluster) == (0, "none")


@pytest.mark.parametrize("host", ["spark1", "spark2"])
def test_it_says_who_failed_first(host: str, cluster: Typed, desk: Desk) -> None:
    assert cluster(*UP, "--backend", "mp").code == 0
    desk.kill_rank(host)
    desk.pass_time(5)
    ran = cluster("status")
    assert f"{host}: container exited, exit 137; cluster up starts it again" in ran.err
    other = {"spark1": "spark2", "spark2": "spark1"}[host]
    rank = ["spark1", "spark2"].index(host)
    assert f"{other}: exited, exit 76: rank {rank} (192.168.100.1{rank + 1}) is gone, killed or rebooted" in ran.out


def test_it_changes_nothing_and_needs_no_lock(cluster: Typed, desk: Desk) -> None:
    cluster.must(*UP)
    desk.hosts["spark1"].lock_holder = {"who": "ada", "since": 0.0, "why": "bench"}
    before = desk.state()
    for words in (("status",), ("logs",), ("logs", "--tail", "3"), ("status", "-n", "spark2")):
        cluster(*words)
        assert desk.state() == before
        assert sum(host.changes for host in desk.hosts.values()) == 0


def test_status_as_json(cluster: Typed, desk: Desk) -> None:
    cluster.must(*UP)
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
    cluster.must(*UP)
    ran = cluster("logs")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines == sorted(lines, key=lambda line: line[:23])
    assert {line.split()[1] for line in lines} == {"spark1:", "spark2:"}
    assert any("Loading weights took" in line for line in lines)
    told = json.loads(cluster("logs", "--json", "--tail", "1").out)
    assert len(told["lines"]) == 2


def lost_when_asked(desk: Desk, word: str, *, raises: bool = True) -> None:
    """Spark2 answers until it is asked for something with this word; its error points to a login."""

    def lose() -> None:
        desk.hosts["spark2"].faults.unreachable = refused("spark2")
        if raises:
            raise refused("spark2")

    desk.when_asked("spark2", word, lose)


def refused(name: str) -> UnreachableError:
    return UnreachableError(
        f"{name}: nvidia@192.168.1.42 accepts none of our keys", code="ssh-publickey", where="nvidia@192.168.1.42"
    )


def test_a_host_has_its_name_wherever_its_error_points(cluster: Typed, desk: Desk) -> None:
    desk.hosts["spark2"].faults.unreachable = refused("spark2")
    ran = cluster("status")
    assert ran.code == 3
    assert [line.split()[0] for line in ran.out.splitlines()[1:3]] == ["spark1", "spark2"]
    for words, key in ((("status",), "unreachable"), (("doctor",), "errors")):
        [error] = json.loads(cluster(*words, "--json").out)[key]
        assert (error["host"], error["where"]) == ("spark2", "nvidia@192.168.1.42")


def test_a_finding_of_a_lost_host_has_its_name(cluster: Typed, desk: Desk) -> None:
    lost_when_asked(desk, "docker run", raises=False)
    told = json.loads(cluster("doctor", "--fabric-test", "--json").out)
    assert [one["host"] for one in told["findings"] if one["check"] == "fabric-speed"] == ["spark2"]


def test_logs_of_two_deployments_on_one_host(cluster: Typed, desk: Desk) -> None:
    """During a swap the old one is there, stopped."""
    assert cluster("up", "toy", "--solo", "-n", "spark1").code == 0
    [old] = desk["spark1"].docker.containers.values()
    other = replace(old, id="f" * 64, name="cluster-toy-00000000-r0", options={**old.options})
    label = old.labels["cluster.deployment"]
    other.options["--label"] = [word.replace(label, "toy-00000000") for word in old.options["--label"]]
    desk["spark1"].docker.containers[other.id] = other
    rows = json.loads(cluster("logs", "-n", "spark1", "--json").out)["lines"]
    assert {row["deployment"] for row in rows} == {label, "toy-00000000"}
    shown = cluster("logs", "-n", "spark1").out
    assert f"spark1/{label}: " in shown
    assert "spark1/toy-00000000: " in shown


@pytest.mark.parametrize("words", [("logs",), ("logs", "--explain")], ids=" ".join)
def test_logs_of_the_others_when_a_host_is_lost(words: tuple[str, ...], cluster: Typed, desk: Desk) -> None:
    cluster.must(*UP)
    lost_when_asked(desk, "docker logs")
    ran = cluster(*words, "--json")
    told = json.loads(ran.out)
    assert (ran.code, [one["host"] for one in told["errors"]]) == (3, ["spark2"])
    assert "lines" not in told or {row["host"] for row in told["lines"]} == {"spark1"}


class Cut(FakeProcess):
    """Prints, then its connection is lost."""

    def lines(self) -> Iterator[str]:
        yield from super().lines()
        raise ConnectionLostError(
            "the connection to spark2 ended before the answer", code="connection-lost", where="spark2"
        )


STAMPS = [f"2026-01-01T00:00:0{second}.000000000Z" for second in range(9)]


def test_followed_logs_go_on_after_a_lost_connection(cluster: Typed, desk: Desk) -> None:
    cluster.must(*UP)
    asked: list[tuple[str, ...]] = []

    def starter(argv: tuple[str, ...], stdin: bytes) -> FakeProcess:
        asked.append(argv)
        if len(asked) == 1:
            return Cut([f"{STAMPS[1]} one", f"{STAMPS[2]} two"], 0)
        return FakeProcess([f"{STAMPS[2]} two", f"{STAMPS[3]} three"], 0)

    desk.hosts["spark2"].starter = starter
    desk.hosts["spark1"].starter = lambda argv, stdin: FakeProcess([f"{STAMPS[1]} here"], 0)
    ran = cluster("logs", "-f")
    assert ran.code == 0
    lines = [line.split(": ")[1] for line in ran.out.splitlines() if "spark2: " in line]
    assert lines == ["one", "two", "three"], "none is missing, none comes twice"
    assert STAMPS[2] in asked[1]


@pytest.mark.parametrize("lost_at_once", [False, True])
def test_followed_logs_of_the_others(lost_at_once: bool, cluster: Typed, desk: Desk) -> None:
    """A host that is lost meanwhile is waited for; one that was not there is not."""
    cluster.must(*UP)

    def starter(argv: tuple[str, ...], stdin: bytes) -> FakeProcess:
        desk.hosts["spark2"].drop()
        return Cut([], 0)

    desk.hosts["spark2"].starter = starter
    desk.hosts["spark1"].starter = lambda argv, stdin: FakeProcess([f"{STAMPS[1]} here"], 0)
    if lost_at_once:
        desk.hosts["spark2"].drop()
    began = desk.now
    ran = cluster("logs", "-f")
    assert (ran.code, len(ran.errors())) == (3, 1)
    assert "here" in ran.out
    assert lost_at_once or 180 <= desk.now - began < 200


def test_exec_reports_every_host(cluster: Typed, desk: Desk) -> None:
    desk["spark2"].sudo = False
    ran = cluster("exec", "--", "sudo", "-n", "sh", "-c", "drop_caches")
    assert ran.code == 1
    assert "spark2: sudo: a password is required" in ran.out
    assert "spark2: exit 1" in ran.err
    desk.hosts["spark1"].faults.unreachable = refused("spark1")
    ran = cluster("exec", "--json", "--", "true")
    told = json.loads(ran.out)
    assert (ran.code, told["spark2"]["exit"]) == (3, 0)
    assert (told["spark1"]["host"], "error" in told["spark1"]) == ("spark1", True)
    assert (cluster("exec", "--", "true").code, cluster("exec").code) == (3, 2)


def test_round_trips_are_few(cluster: Typed, desk: Desk) -> None:
    """They are what a command costs on a slow line: look, and what only a look can tell to ask for."""
    cluster(*UP)
    for words, most in ((("status",), (2, 2)), ((*UP, "--json"), (8, 6)), (("exec", "--", "true"), (1, 1))):
        before = [host.asks for host in desk.hosts.values()]
        assert cluster(*words).code == 0
        assert tuple(host.asks - was for host, was in zip(desk.hosts.values(), before, strict=True)) == most, words
