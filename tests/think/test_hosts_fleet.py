"""Fleets over fake hosts: every error kept, order kept, limits kept; and the fake keeps the contract."""

from __future__ import annotations

import threading
import time

import pytest
from fake_host import FakeHost, Faults

from cluster.argv.question import Answer, Question
from cluster.errors import ClusterError, ConnectionLostError, ExitCode, InterruptedByUser, ManyErrors, UnreachableError
from cluster.hosts.cancel import Cancel
from cluster.hosts.fleet import Fleet, Outcome, errors, values
from cluster.hosts.protocol import Host

LOST = ConnectionLostError("spark2 did not answer", where="spark2")
ASK, CHANGE = Question(("docker", "ps")), Question(("docker", "rm"), changes=True)


def echo(question: Question) -> Answer:
    return Answer(0, " ".join(question.argv).encode())


def desk(count: int = 2, limit: int = 32) -> tuple[Fleet, list[FakeHost]]:
    cancel = Cancel()
    hosts = [FakeHost(f"spark{number}", echo, cancel=cancel) for number in range(1, count + 1)]
    return Fleet(hosts, limit, cancel), hosts


def test_outcomes_keep_the_hosts_order_and_every_error() -> None:
    fleet, hosts = desk(4)
    hosts[1].faults.unreachable = LOST
    hosts[3].faults.unreachable = UnreachableError("spark4: unknown host key")
    outcomes = fleet.ask_all([ASK])
    assert list(outcomes) == ["spark1", "spark2", "spark3", "spark4"]
    assert outcomes["spark3"].get()[0].text == "docker ps"
    assert [error.what for error in errors(outcomes)] == ["spark2 did not answer", "spark4: unknown host key"]
    with pytest.raises(ManyErrors) as raised:
        values(outcomes)
    assert raised.value.exit_code == ExitCode.UNREACHABLE
    assert len(raised.value.errors) == 2


def test_a_single_error_is_raised_as_it_is() -> None:
    with pytest.raises(ConnectionLostError) as raised:
        values({"spark1": Outcome(1), "spark2": Outcome(error=LOST)})
    assert raised.value is LOST


def test_values_may_be_none() -> None:
    assert values({"spark1": Outcome[None](None)}) == {"spark1": None}


def test_different_questions_for_some_hosts() -> None:
    fleet, hosts = desk(3)
    outcomes = fleet.ask({"spark3": [ASK], "spark1": [ASK, ASK]})
    assert {name: len(outcome.get()) for name, outcome in outcomes.items()} == {"spark3": 1, "spark1": 2}
    assert hosts[1].asked == []


def test_hosts_work_at_the_same_time_up_to_the_limit() -> None:
    busy, most, lock = 0, 0, threading.Lock()

    def work(host: Host) -> None:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        time.sleep(0.02)
        with lock:
            busy -= 1

    fleet, _ = desk(9, limit=3)
    assert len(values(fleet.each(work))) == 9
    assert most == 3


def test_a_bug_is_raised_as_it_is_after_the_rest() -> None:
    seen = []

    def work(host: Host) -> None:
        if host.name == "spark1":
            raise KeyError("bug")
        time.sleep(0.05)
        seen.append(host.name)

    with pytest.raises(KeyError):
        desk()[0].each(work)
    assert seen == ["spark2"]


def test_a_fleet_closes_its_hosts() -> None:
    fleet, hosts = desk()
    with fleet, pytest.raises(ClusterError):
        raise ClusterError("failed")
    assert all(host.closed for host in hosts)


def test_part_of_a_fleet_shares_hosts_and_switch() -> None:
    fleet, _ = desk(3)
    part = fleet.only(["spark3", "spark1"])
    assert part.names == ("spark3", "spark1")
    assert part["spark1"] is fleet["spark1"]
    assert part.cancel is fleet.cancel
    assert len(part) == 2


def test_ctrl_c_at_a_change_interrupts_all_and_undo_works_afterwards() -> None:
    fleet, hosts = desk()
    hosts[0].faults.interrupt_at = 2
    values(fleet.ask({"spark1": [CHANGE]}))
    with pytest.raises(InterruptedByUser):
        fleet.ask({"spark1": [CHANGE], "spark2": [ASK]})
    assert hosts[0].changes == 1, "interrupted before it was carried out"
    with pytest.raises(InterruptedByUser):
        fleet.ask_all([ASK])
    fleet.cancel.renew()
    assert values(fleet.ask_all([CHANGE]))
    assert hosts[0].changes == 2


def test_the_fake_asks_again_but_never_changes_again() -> None:
    host = FakeHost("spark1", echo, faults=Faults(lost_questions=2))
    assert host.ask([ASK])[0].exit == 0
    host.faults.lost_questions = 3
    with pytest.raises(ConnectionLostError):
        host.ask([ASK])
    host.faults.lost_questions = 1
    with pytest.raises(ConnectionLostError):
        host.ask([CHANGE])
    assert host.changes == 0


def test_the_fake_loses_an_answer_after_the_change() -> None:
    host = FakeHost("spark1", echo, faults=Faults(lose_answer_of=2))
    assert host.ask([CHANGE])[0].exit == 0
    with pytest.raises(ConnectionLostError):
        host.ask([CHANGE, ASK])
    assert host.asked == [CHANGE, CHANGE, ASK], "all were carried out"
    host.faults.lose_answer_of = 3
    with pytest.raises(ConnectionLostError):
        host.put(b"x", "/a")
    assert host.puts[0].data == b"x"


def test_the_fake_fails_at_a_change() -> None:
    host = FakeHost("spark1", echo, faults=Faults(fail_at=1))
    assert [answer.exit for answer in host.ask([CHANGE, CHANGE])] == [1, 0]
    host.faults.fail_at = 3
    with pytest.raises(ClusterError):
        host.put(b"x", "/a")
    assert host.puts == []
