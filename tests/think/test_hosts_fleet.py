"""Fleets over fake hosts: errors, order, limits, how long a host may be silent; and the fake keeps the contract."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from fake_host import FakeHost, Faults

from cluster.argv.question import Answer, Question
from cluster.errors import (
    ClusterError,
    ConnectionLostError,
    ExitCode,
    InterruptedByUser,
    ManyErrors,
    SilentError,
    UnreachableError,
)
from cluster.hosts.cancel import Cancel
from cluster.hosts.fleet import HOST_SILENCE_S, Fleet, Outcome, Silence, errors, values
from cluster.hosts.protocol import Host

LOST = ConnectionLostError("spark2 did not answer", code="host-unreachable", where="spark2", remedy="is it on?")
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
    hosts[3].faults.unreachable = UnreachableError("spark4: unknown host key", code="host-key-unknown")
    outcomes = fleet.ask_all([ASK])
    assert list(outcomes) == ["spark1", "spark2", "spark3", "spark4"]
    assert outcomes["spark3"].get()[0].text == "docker ps"
    assert [error.what for error in errors(outcomes)] == ["spark2 did not answer", "spark4: unknown host key"]
    with pytest.raises(ManyErrors) as raised:
        values(outcomes)
    assert raised.value.exit_code == ExitCode.UNREACHABLE
    assert len(raised.value.errors) == 2


def test_a_single_error_is_raised_as_it_is_and_values_may_be_none() -> None:
    with pytest.raises(ConnectionLostError) as raised:
        values({"spark1": Outcome(1), "spark2": Outcome(error=LOST)})
    assert raised.value is LOST
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


def test_part_of_a_fleet_shares_hosts_and_switch_and_all_are_closed() -> None:
    fleet, hosts = desk(3)
    part = fleet.only(["spark3", "spark1"])
    assert part.names == ("spark3", "spark1")
    assert part["spark1"] is fleet["spark1"]
    assert part.cancel is fleet.cancel
    with fleet, pytest.raises(ClusterError):
        raise ClusterError("failed", code="failed")
    assert all(host.closed for host in hosts)


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


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic

    def sleep(self, seconds: float, /) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def until(clock: Clock, second: float, error: ClusterError) -> Callable[[], str]:
    """Fails until that second."""

    def act() -> str:
        if clock.now < second:
            raise error
        return "answered"

    return act


@pytest.mark.parametrize("error", [LOST, SilentError("spark2: no address for spark2.local", code="host-unknown")])
def test_silence_is_outlasted_and_told(error: ClusterError, clock: Clock) -> None:
    silence, told = Silence(clock), list[str]()
    assert silence.keep_trying("spark2", until(clock, HOST_SILENCE_S - 1, error), told.append) == "answered"
    assert told[12] == "spark2 unreachable for 12 s"
    assert told[-1] == ""
    assert silence.hosts == ()


def test_three_minutes_of_it_are_too_long(clock: Clock) -> None:
    with pytest.raises(UnreachableError) as raised:
        Silence(clock).keep_trying("spark2", until(clock, 1e9, LOST))
    assert not isinstance(raised.value, SilentError)
    assert (raised.value.code, raised.value.host, raised.value.remedy) == ("host-unreachable", "spark2", "is it on?")
    assert clock.now == HOST_SILENCE_S


@pytest.mark.parametrize(
    "error", [UnreachableError("its host key changed", code="host-key-changed"), ClusterError("no room", code="disk")]
)
def test_what_waiting_cannot_cure_is_raised_at_once(error: ClusterError, clock: Clock) -> None:
    silence = Silence(clock)
    with pytest.raises(ClusterError) as raised:
        silence.keep_trying("spark2", until(clock, 1e9, error))
    with pytest.raises(ClusterError):
        silence.answered({"spark2": Outcome[str](error=error)}, clock.now)
    assert (raised.value, clock.now) == (error, 0)


def test_several_waits_share_the_silence_of_one_host(clock: Clock) -> None:
    silence = Silence(clock)
    for _ in range(100):
        assert silence.answered({"spark1": Outcome("yes"), "spark2": Outcome(error=LOST)}, clock.now) == {
            "spark1": "yes"
        }
        clock.sleep(1)
    with pytest.raises(UnreachableError):
        silence.keep_trying("spark2", until(clock, 1e9, LOST))
    assert clock.now == HOST_SILENCE_S


def test_long_work_that_loses_its_connection_was_not_silent_before(clock: Clock) -> None:
    silence, lengths = Silence(clock), iter((3600.0, 3600.0, 5.0))

    def download() -> str:
        clock.sleep(length := next(lengths))
        if length > 5:
            raise LOST
        return "done"

    assert silence.keep_trying("spark2", download) == "done"


def test_the_fake_fails_at_a_change_or_loses_its_answer() -> None:
    host = FakeHost("spark1", echo, faults=Faults(fail_at=1, lose_answer_of=4))
    assert [answer.exit for answer in host.ask([CHANGE, CHANGE])] == [1, 0]
    host.faults.fail_at = 3
    with pytest.raises(ClusterError):
        host.put(b"x", "/a")
    assert host.puts == []
    with pytest.raises(ConnectionLostError):
        host.ask([CHANGE, ASK])
    assert host.asked[-2:] == [CHANGE, ASK], "all were carried out"
    host.faults.lose_answer_of = 5
    with pytest.raises(ConnectionLostError):
        host.put(b"x", "/a")
    assert host.puts[0].data == b"x"
