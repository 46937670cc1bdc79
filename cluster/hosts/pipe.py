"""A far program at the other end: bytes in, bytes out, an exit code. The little that ssh and local have to provide."""

from __future__ import annotations

from typing import Protocol

from cluster.hosts.cancel import Scope

STALLED_S = 20.0  # how long sending may make no progress


class Pipe(Protocol):
    """One running loader (`commands.far.COMMAND`), wherever it runs."""

    def send(self, data: bytes) -> None:
        """Write all of `data` to its stdin. Raises ConnectionLostError, also when it takes nothing for STALLED_S."""
        ...

    def receive(self, timeout_s: float) -> bytes | None:
        """Some bytes of its stdout; b"" at the end; None when none came in time. Raises ConnectionLostError."""
        ...

    def end_input(self) -> None:
        """Close its stdin."""
        ...

    def exit_code(self, timeout_s: float) -> int | None:
        """Its exit code; None when it has not ended in time or the connection was lost."""
        ...

    def errors(self) -> str:
        """What it wrote to stderr so far (the last part of it)."""
        ...

    def close(self) -> None:
        """Let go of it; it ends itself. Harmless when closed."""
        ...


class Line(Protocol):
    """The way to one machine: opens pipes, as many as wanted at the same time."""

    def open(self, deadline: float, scope: Scope) -> Pipe:
        """Start one loader there, before `deadline` (of time.monotonic).

        Raises ConnectionLostError when trying again may help, UnreachableError when not, InterruptedByUser.
        """
        ...

    def close(self) -> None:
        """Close the connection; the next `open` makes a new one."""
        ...
