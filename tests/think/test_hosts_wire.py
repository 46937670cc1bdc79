"""What a host said before its line ended, however early that was."""

from __future__ import annotations

import pytest

from cluster.argv.question import Question
from cluster.errors import ConnectionLostError, UnreachableError
from cluster.hosts.cancel import Scope
from cluster.hosts.wire import WireHost


class GonePipe:
    """A login that speaks and ends before anything could be sent."""

    def __init__(self) -> None:
        self._said = [b"This account is ", b"currently not available.\n", b""]

    def send(self, data: bytes) -> None:
        raise ConnectionLostError("the connection to spark1 was lost", where="spark1")

    def receive(self, timeout_s: float) -> bytes | None:
        return self._said.pop(0)

    def end_input(self) -> None:
        raise AssertionError

    def exit_code(self, timeout_s: float) -> int | None:
        return 1

    def errors(self) -> str:
        return ""

    def close(self) -> None:
        pass


class GoneLine:
    """Opens such pipes."""

    def open(self, deadline: float, scope: Scope) -> GonePipe:
        return GonePipe()

    def close(self) -> None:
        pass


def test_a_login_that_ends_at_once_is_quoted() -> None:
    with pytest.raises(UnreachableError, match="exit 1; output: This account is currently not available"):
        WireHost("spark1", GoneLine()).ask([Question(("true",))])
