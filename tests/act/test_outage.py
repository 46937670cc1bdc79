"""A host that cannot be reached for a while: what was begun goes on, and is given up after three minutes."""

from __future__ import annotations

import pytest
from machine import IMAGE, Desk, DeskHost
from typed import UP, Typed

from cluster.errors import UnreachableError

LONG = ("--set", "ready_timeout_s=900")
OTHER_SEED = ("-e", "SEED=2")


def steal(host: DeskHost) -> None:
    """The connection that holds the lock ends, and somebody else has it for a moment."""
    host.end_processes()
    host.lock_generation += 1


@pytest.mark.parametrize("host", ["spark1", "spark2"])
@pytest.mark.parametrize("seconds", [12, 60, 170])
def test_a_start_outlasts_an_outage(host: str, seconds: float, cluster: Typed, desk: Desk) -> None:
    desk.at_sleep(2, lambda: desk.hosts[host].drop(seconds))
    ran = cluster.must(*UP, *LONG)
    assert f"{host} unreachable for " in ran.err
    desk.deployment()


@pytest.mark.parametrize("host", ["spark1", "spark2"])
def test_a_host_that_stays_away_is_given_up_after_three_minutes(host: str, cluster: Typed, desk: Desk) -> None:
    desk.at_sleep(2, desk.hosts[host].drop)
    ran = cluster.ends(3, *UP, *LONG)
    assert ran.error["error"].startswith(f"{host} was unreachable for 180 s: ")
    assert ran.error["where"] == host
    assert f"all but: {host}: nothing was undone there" in ran.error["rolled back"]
    assert 180 <= desk.now < 200
    other = "spark2" if host == "spark1" else "spark1"
    assert not desk[other].docker.containers


def test_the_deadline_of_the_start_ends_it_earlier(cluster: Typed, desk: Desk) -> None:
    desk.at_sleep(2, desk.hosts["spark1"].drop)
    ran = cluster.ends(3, *UP, "--set", "ready_timeout_s=30")
    assert ran.error["error"].startswith("not ready after 30 s; last: spark1 unreachable for 2")
    assert desk.now < 60


def test_what_waiting_cannot_cure_ends_it_at_once(cluster: Typed, desk: Desk) -> None:
    """The host comes back with another key."""
    key = UnreachableError("spark2: its host key changed", code="host-key-changed", where="spark2")
    desk.at_sleep(2, lambda: setattr(desk.hosts["spark2"].faults, "unreachable", key))
    ran = cluster.ends(3, *UP, *LONG)
    assert [error[0] for error in ran.errors()] == ["error: spark2: its host key changed [host-key-changed]"]
    assert desk.now < 10


def changes_of(cluster: Typed, *words: str) -> dict[str, int]:
    """How many changes `cluster WORDS` makes on each host; found on a copy of the desk."""
    rehearsal = cluster.copy()
    rehearsal.must(*words)
    return {name: line.changes for name, line in rehearsal.desk.hosts.items()}


def test_every_change_outlasts_an_outage_that_begins_with_it(cluster: Typed, desk: Desk, running: str) -> None:
    """A replacing `up`, then `down`: nothing was sent when the host went away, and it is back after a minute."""
    for words in ((*UP, *OTHER_SEED), ("down",)):
        for host, count in changes_of(cluster, *words).items():
            for number in range(1, count + 1):
                tried = cluster.copy()
                tried.desk.hosts[host].away_at, tried.desk.hosts[host].away_s = number, 60
                tried.must(*words)
                assert tried.desk.now >= 60, (words, host, number)
                assert len(tried.desk.serving()) == (words != ("down",))


def test_a_lock_that_was_lost_is_taken_again(cluster: Typed, desk: Desk, running: str) -> None:
    """Only the connection that held it ends; what was replaced is removed under the lock all the same."""
    desk.at_sleep(2, desk.hosts["spark2"].end_processes)
    ran = cluster.must(*UP, *OTHER_SEED)
    assert "could not be removed" not in ran.err
    desk.deployment()
    assert [host.lock_generation for host in desk.hosts.values()] == [2, 3]
    assert [host.lock_holder for host in desk.hosts.values()] == [None, None]


def test_where_somebody_else_took_the_lock_nothing_is_undone(cluster: Typed, desk: Desk) -> None:
    """A rank dies while the lock of one host belongs to somebody else: that may be why, and it is left alone."""
    desk.at_sleep(2, lambda: (steal(desk.hosts["spark2"]), desk.kill_rank("spark2")))
    ran = cluster.ends(5, *UP)
    taken, _ = ran.errors()
    assert taken[0].startswith("error: the lock of spark2 was lost and then taken by ada@desk (pid 7)")
    assert taken[1] == "where: spark2"
    assert taken[2].startswith("rolled back: all but: spark2: nothing was undone there")
    assert len(desk["spark2"].docker.containers) == 1
    assert not desk["spark1"].docker.containers


def test_a_change_stops_where_somebody_else_took_the_lock(cluster: Typed, desk: Desk) -> None:
    """The host is away when its container is to be started, and somebody else works there before it is back."""
    host = desk.hosts["spark2"]
    host.away_at, host.away_s = changes_of(cluster, *UP)["spark2"], 60
    desk.on_sleep.append(lambda: setattr(host, "lock_generation", 9))
    ran = cluster.ends(5, *UP)
    assert [error[1] for error in ran.errors()] == ["where: spark2"]
    assert desk["spark2"].kept(), "what was written there is left to who works there now"
    assert not desk["spark1"].kept()


@pytest.mark.parametrize("host", ["spark1", "spark2"])
def test_down_outlasts_an_outage_while_memory_comes_back(host: str, cluster: Typed, desk: Desk, running: str) -> None:
    for machine in desk:
        machine.lingering_bytes = 30 << 30
    began = desk.now
    desk.at_sleep(2, lambda: desk.hosts[host].drop(60))
    desk.on_sleep.append(
        lambda: [setattr(one, "lingering_bytes", 0) for one in desk] if desk.now > began + 50 else None
    )
    ran = cluster.must("down")
    assert f"{host} unreachable for " in ran.err
    assert all(not machine.kept() for machine in desk)


def test_a_download_that_went_on_is_awaited(cluster: Typed, desk: Desk) -> None:
    """Its connection was lost, its container was not: a second one beside it would have no name."""
    for machine in desk:
        machine.models.clear()
    host, docker = desk.hosts["spark2"], desk["spark2"].docker
    host.away_at, host.away_s = changes_of(cluster, "pull", "toy", "--yes")["spark2"] - 1, 30
    words = ["run", "--detach", "--name", "cluster-download", "--label", "cluster.try=1", "--entrypoint", "sleep"]

    def go_on() -> None:
        there = [one for one in docker.containers.values() if one.name == "cluster-download"]
        if not there and 0 < desk.now < 50:
            docker.answer((*words, IMAGE))
        elif there and desk.now >= 50:
            docker.answer(("rm", "--force", "cluster-download"))

    desk.on_sleep.append(go_on)
    assert "spark2 unreachable for " in cluster.must("pull", "toy", "--yes").err
    assert desk.now >= 50
    assert all(machine.models for machine in desk)
