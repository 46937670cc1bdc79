"""The one seam to a machine: ask, start, put. `ssh`, `connect` (this machine) and tests' fakes keep this contract."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from cluster.argv.question import Answer, Question


class Process(Protocol):
    """A program running on a host. It ends when `close` is called or the connection is lost."""

    def lines(self) -> Iterator[str]:
        """Standard output by line, without the line end, as it comes; ends with the program."""

    def write(self, data: bytes) -> None:
        """Send bytes to the program's stdin. Raises ConnectionLostError when it is gone."""

    def close(self, timeout_s: float = 5.0) -> int | None:
        """Close stdin, wait up to `timeout_s`, end what still runs there; the exit code, None if ended by force."""


class Host(Protocol):
    """A machine that answers questions, runs programs and takes files. `name` is what the user calls it."""

    @property
    def name(self) -> str: ...

    def ask(self, questions: Sequence[Question]) -> list[Answer]:
        """Run all questions side by side in one round trip; the answers come in the same order.

        Repeated with backoff when the connection fails, unless one of them `changes` something.
        Raises UnreachableError (ConnectionLostError when a change's answer was lost).
        """

    def start(self, argv: Sequence[str], stdin: bytes = b"", *, lasting: bool = False) -> Process:
        """Start a long-running program; `stdin` is written first and stdin stays open.

        It is ended when the user interrupts the run, unless it is `lasting` (the lock, which undo still needs).
        """

    def put(self, data: bytes, path: str, mode: int = 0o600) -> None:
        """Write a file (parents made 0700, `~` is the home there) by rename. Raises ClusterError when it cannot."""

    def close(self) -> None:
        """Close the connection; harmless when it is closed."""
