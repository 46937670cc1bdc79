"""A socket to a host's sshd, directly or through a proxy command; failures said in plain words."""

from __future__ import annotations

import errno
import os
import select
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from typing import IO, Any

from cluster.errors import ConnectionLostError, SilentError
from cluster.hosts.cancel import Scope
from cluster.hosts.target import SshTarget

SLICE_S = 0.2
USER_TIMEOUT_MS = 30_000  # unanswered data after which the kernel gives the connection up


class Dialled:
    """An open socket; `said` is what a proxy command wrote to stderr."""

    def __init__(self, sock: socket.socket, errors: IO[bytes] | None = None) -> None:
        self.sock = sock
        self._errors = errors

    def close(self) -> None:
        """End the connection, also under the feet of a thread that reads from it."""
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    def said(self) -> str:
        """The last words of the proxy command."""
        if self._errors is None:
            return ""
        time.sleep(0.1)
        self._errors.seek(0)
        return self._errors.read(4000).decode("utf-8", "replace").strip()


def dial(name: str, target: SshTarget, deadline: float, scope: Scope) -> Dialled:
    """Connect before `deadline` (time.monotonic).

    Raises ConnectionLostError (with a TimeoutError as its cause when nothing answered), SilentError for a name without
    an address, InterruptedByUser.
    """
    if target.proxy_command:
        return _dial_through(target.proxy_command)
    where = f"{target.hostname} port {target.port}"
    try:
        found = socket.getaddrinfo(target.hostname, target.port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise SilentError(
            f"{name}: no address for {target.hostname} ({getattr(error, 'strerror', error)})",
            where=name,
            remedy="use an IP address in the inventory, or see that the name resolves",
        ) from None
    last: OSError = TimeoutError()
    began = time.monotonic()
    for left, (family, _, _, _, address) in zip(range(len(found), 0, -1), found, strict=True):
        patience = min(target.connect_timeout_s, (deadline - time.monotonic()) / left)
        try:
            return Dialled(_connect(family, address, patience, scope))
        except OSError as error:
            last = error
    raise _plain(name, where, last, time.monotonic() - began) from last


class _PromptSocket(socket.socket):
    """Acknowledges what it receives at once.

    sshd's first answer after the login waits for our acknowledgement (Nagle), which the kernel would delay by 40 ms.
    """

    def recv(self, size: int, flags: int = 0) -> bytes:
        """As socket.recv."""
        data = super().recv(size, flags)
        if hasattr(socket, "TCP_QUICKACK"):
            with suppress(OSError):
                self.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return data


def _connect(family: int, address: tuple[Any, ...], timeout_s: float, scope: Scope) -> socket.socket:
    sock = _PromptSocket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        code = sock.connect_ex(address)
        if code == errno.EINPROGRESS:
            code = _await_connection(sock, time.monotonic() + timeout_s, scope)
        if code:
            raise OSError(code, os.strerror(code))
        sock.setblocking(True)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
    except BaseException:
        sock.close()
        raise
    return sock


def _await_connection(sock: socket.socket, deadline: float, scope: Scope) -> int:
    """The errno of a connection under way, 0 for success. Raises TimeoutError, InterruptedByUser."""
    poll = select.poll()
    poll.register(sock, select.POLLOUT)
    while not poll.poll(SLICE_S * 1000):
        scope.check()
        if time.monotonic() > deadline:
            raise TimeoutError
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


def _plain(name: str, where: str, error: OSError, waited_s: float) -> ConnectionLostError:
    if isinstance(error, ConnectionRefusedError):
        what, remedy = "refused the connection", "is sshd running there, and is the port right?"
    elif isinstance(error, TimeoutError):
        what = f"did not answer within {waited_s:.0f} s"
        remedy = "is it on, and is this its management address? Fabric addresses often cannot be reached from here"
    elif error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        what, remedy = "cannot be reached: no route", "see the address, the cable and this machine's network"
    else:
        what, remedy = f"cannot be reached: {error.strerror or error}", "see the address in the inventory"
    return ConnectionLostError(f"{name} ({where}) {what}", where=name, remedy=remedy)


def _dial_through(command: str) -> Dialled:
    """Run a proxy command as ssh does (`exec` in a shell), its stdin and stdout on one socket."""
    ours, its = socket.socketpair()
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the connection
    words = ["/bin/sh", "-c", f"exec {command}"]
    subprocess.Popen(words, stdin=its.fileno(), stdout=its.fileno(), stderr=errors, start_new_session=True)
    its.close()
    return Dialled(ours, errors)
