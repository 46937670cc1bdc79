"""From inventory entries to a fleet: who is this machine, reached without SSH, and who is reached over SSH."""

from __future__ import annotations

import getpass
import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

from cluster.argv.far import WORDS
from cluster.config.inventory import HostEntry
from cluster.errors import ConnectionLostError
from cluster.hosts import wire
from cluster.hosts.cancel import Cancel, Scope
from cluster.hosts.fleet import AT_ONCE, Fleet, in_parallel, values
from cluster.hosts.protocol import Host
from cluster.hosts.target import SshTarget, resolve

CHUNK = 65536


def connect(entries: Mapping[str, HostEntry]) -> Fleet:
    """A fleet of the inventory's hosts. Connections are opened when first used, in parallel, and then kept.

    This machine is reached without SSH: when the address is one of our own (it can be bound to), with ssh's usual port,
    no jump host, no proxy and our own user. Two names of one machine are found later, by machine-id. Raises UsageError
    when ssh cannot read its configuration for an entry.
    """
    cancel = Cancel()

    def host(name: str, entry: HostEntry) -> Host:
        target = resolve(name, entry)
        if leads_here(target):
            return LocalHost(name, cancel)
        from cluster.hosts.ssh import SshHost

        return SshHost(name, target, cancel)

    jobs = {name: partial(host, name, entry) for name, entry in entries.items()}
    return Fleet(list(values(in_parallel(jobs, AT_ONCE, cancel)).values()), cancel=cancel)


def leads_here(target: SshTarget) -> bool:
    """Whether ssh to the target would end on this machine as this user. See `connect` for the rule."""
    if target.port != 22 or target.proxy_command or target.user != getpass.getuser():
        return False
    try:
        for family, _, _, _, address in socket.getaddrinfo(target.hostname, 22, type=socket.SOCK_STREAM):
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.bind((address[0], 0, *address[2:]))
    except (OSError, UnicodeError):
        return False
    return True


class LocalHost(wire.WireHost):
    """This machine as a host: load clients are child processes."""

    def open(self, deadline: float, scope: Scope) -> wire.Pipe:
        return LocalPipe(self.name)


class LocalPipe:
    """A loader running here, in a session of its own: a Ctrl-C of the terminal does not reach it. See Pipe."""

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
        assert self._process.stdin
        assert self._process.stdout
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    def send(self, data: bytes) -> None:
        left = memoryview(data)
        with suppress(OSError, ValueError):
            while left and _is_ready(self._stdin, select.POLLOUT, wire.STALLED_S):
                left = left[os.write(self._stdin.fileno(), left[: select.PIPE_BUF]) :]  # so much never blocks
        if left:
            what = "the program did not read all of its input"
            raise ConnectionLostError(what, code="connection-lost", where=self._name)

    def receive(self, timeout_s: float) -> bytes | None:
        try:
            return os.read(self._stdout.fileno(), CHUNK) if _is_ready(self._stdout, select.POLLIN, timeout_s) else None
        except (OSError, ValueError):
            raise ConnectionLostError("the program was closed", code="connection-lost", where=self._name) from None

    def end_input(self) -> None:
        with suppress(OSError):
            self._stdin.close()

    def exit_code(self, timeout_s: float) -> int | None:
        try:
            code = self._process.wait(timeout_s)
            return code if code >= 0 else 128 - code
        except subprocess.TimeoutExpired:
            return None

    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read(CHUNK).decode("utf-8", "replace")

    def close(self) -> None:
        for stream in (self._stdin, self._stdout):
            with suppress(OSError):
                stream.close()
        self.exit_code(0.05)


def _is_ready(stream: IO[bytes], event: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(stream, event)
    return bool(poll.poll(timeout_s * 1000))
