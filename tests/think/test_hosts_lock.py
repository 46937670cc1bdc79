"""The lock over fake hosts: order, release, contention, loss."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from fake_host import FakeHost

from cluster.argv.question import Answer
from cluster.errors import ExitCode, LockedError, UnreachableError
from cluster.hosts.fleet import Fleet
from cluster.hosts.lock import Lock, who_am_i

NAMES = ("spark2", "spark1")
DIRS = {name: f"/data/{name}" for name in NAMES}


def desk() -> tuple[Fleet, dict[str, FakeHost]]:
    hosts = {name: FakeHost(name, lambda question: Answer(0)) for name in NAMES}
    return Fleet(list(hosts.values())), hosts


@pytest.mark.parametrize("bug", [None, RuntimeError("bug")])
def test_it_is_held_on_all_hosts_and_given_back(bug: Exception | None) -> None:
    fleet, hosts = desk()
    with pytest.raises(RuntimeError) if bug else nullcontext(), Lock(fleet, "up", DIRS) as lock:
        assert not lock.lost()
        assert [host.lock_holder and host.lock_holder["why"] for host in hosts.values()] == ["up", "up"]
        if bug:
            raise bug
    assert [host.lock_holder for host in hosts.values()] == [None, None]


def test_hosts_are_locked_in_the_order_of_their_names() -> None:
    fleet, hosts = desk()
    hosts["spark1"].lock_holder = {"who": "ada@laptop (pid 7)", "since": 0.0, "why": "bench"}
    with pytest.raises(LockedError) as raised, Lock(fleet, "up", DIRS):
        raise AssertionError("held")
    assert hosts["spark2"].started == [], "spark1 comes first"
    assert raised.value.exit_code == ExitCode.LOCKED
    assert raised.value.what.startswith("spark1 is locked by ada@laptop (pid 7) since ")
    assert raised.value.what.endswith(": bench")


def test_what_was_taken_is_given_back_when_a_later_host_fails() -> None:
    fleet, hosts = desk()
    hosts["spark2"].faults.unreachable = UnreachableError("spark2: unknown host key")
    with pytest.raises(UnreachableError), Lock(fleet, "up", DIRS):
        raise AssertionError("held")
    assert hosts["spark1"].started
    assert hosts["spark1"].lock_holder is None


def test_notes_reach_the_host_they_are_for() -> None:
    fleet, hosts = desk()
    with Lock(fleet, "up", DIRS) as lock:
        lock.note("spark1", "docker run", argv=["a"])
    assert hosts["spark1"].audit == [{"who": who_am_i(), "what": "docker run", "argv": ["a"]}]
    assert hosts["spark2"].audit == []
