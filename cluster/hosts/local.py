"""This machine: the same far programs, started without SSH."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from cluster.argv.far import WORDS
from cluster.errors import ConnectionLostError
from cluster.hosts import wire
from cluster.hosts.cancel import Cancel, Scope
from cluster.hosts.wire import WireHost

CHUNK = 65536
ATOMIC = select.PIPE_BUF  # as much as a pipe that is ready takes without blocking


class LocalHost(WireHost):
    """This machine as a host."""

    def __init__(self, name: str, cancel: Cancel | None = None) -> None:
        super().__init__(name, LocalLine(name), cancel)


class LocalLine:
    """Starts loaders as children of ours, in sessions of their own: a Ctrl-C of the terminal does not reach them."""

    def __init__(self, name: str) -> None:
        self._name = name

    def open(self, deadline: float, scope: Scope) -> LocalPipe:
        """See Line.open."""
        return LocalPipe(self._name)

    def close(self) -> None:
        """Nothing to close."""


class LocalPipe:
    """A loader running here."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the pipe
        self._process = subprocess.Popen(
            (sys.executable, *WORDS[1:]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
            start_new_session=True,
            cwd=Path.home() if Path.home().is_dir() else "/",
        )

    def send(self, data: bytes) -> None:
        """See Pipe.send."""
        assert self._process.stdin
        left = memoryview(data)
        try:
            fd = self._process.stdin.fileno()
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            while left and poll.poll(wire.STALLED_S * 1000):
                left = left[os.write(fd, left[:ATOMIC]) :]
        except (OSError, ValueError):
            pass
        if left:
            raise ConnectionLostError("the program did not read all of its input", where=self._name)

    def receive(self, timeout_s: float) -> bytes | None:
        """See Pipe.receive."""
        assert self._process.stdout
        try:
            fd = self._process.stdout.fileno()
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            return os.read(fd, CHUNK) if poll.poll(timeout_s * 1000) else None
        except (OSError, ValueError):
            raise ConnectionLostError("closed", where=self._name) from None

    def end_input(self) -> None:
        """See Pipe.end_input."""
        assert self._process.stdin
        with suppress(OSError):
            self._process.stdin.close()

    def exit_code(self, timeout_s: float) -> int | None:
        """See Pipe.exit_code."""
        try:
            code = self._process.wait(timeout_s)
            return code if code >= 0 else 128 - code
        except subprocess.TimeoutExpired:
            return None

    def errors(self) -> str:
        """See Pipe.errors."""
        self._errors.seek(0)
        return self._errors.read(CHUNK).decode("utf-8", "replace")

    def close(self) -> None:
        """See Pipe.close."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                with suppress(OSError):
                    stream.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0.05)
