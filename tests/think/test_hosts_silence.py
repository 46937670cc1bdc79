"""How long a host may be silent: what counts as silence, what ends it, what is given up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.errors import ClusterError, ConnectionLostError, SilentError, UnreachableError
from cluster.hosts.fleet import SILENCE_S, Outcome, Silence

LOST = ConnectionLostError("spark2: refused", remedy="is it on?")


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

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


@pytest.mark.parametrize("error", [LOST, SilentError("spark2: no address for spark2.local")])
def test_silence_is_outlasted_and_told(error: ClusterError, clock: Clock) -> None:
    silence, told = Silence(clock), list[str]()
    assert silence.keep_trying("spark2", until(clock, SILENCE_S - 1, error), told.append) == "answered"
    assert told[12] == "spark2 unreachable for 12 s"
    assert told[-1] == ""
    assert silence.hosts == ()


def test_three_minutes_of_it_are_too_long(clock: Clock) -> None:
    with pytest.raises(UnreachableError) as raised:
        Silence(clock).keep_trying("spark2", until(clock, 1e9, LOST))
    assert not isinstance(raised.value, SilentError)
    assert (raised.value.where, raised.value.host, raised.value.remedy) == ("spark2", "spark2", "is it on?")
    assert clock.now == SILENCE_S


@pytest.mark.parametrize("error", [UnreachableError("its host key changed"), ClusterError("no room")])
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
    assert clock.now == SILENCE_S


def test_long_work_that_loses_its_connection_was_not_silent_before(clock: Clock) -> None:
    silence, lengths = Silence(clock), iter((3600.0, 3600.0, 5.0))

    def download() -> str:
        clock.sleep(length := next(lengths))
        if length > 5:
            raise LOST
        return "done"

    assert silence.keep_trying("spark2", download) == "done"
