"""A socket to a host's sshd, directly or through a proxy command; failures said in plain words."""

from __future__ import annotations

import errno
import socket
import subprocess
import tempfile
import time
from typing import IO, Any

from cluster.errors import ConnectionLostError, UnreachableError
from cluster.hosts.target import SshTarget

USER_TIMEOUT_MS = 30_000  # unanswered data after which the kernel gives the connection up


class Dialled:
    """An open socket; `said` is what a proxy command wrote to stderr."""

    def __init__(self, sock: socket.socket, errors: IO[bytes] | None = None) -> None:
        self.sock = sock
        self._errors = errors

    def said(self) -> str:
        """The last words of the proxy command."""
        if self._errors is None:
            return ""
        time.sleep(0.1)
        self._errors.seek(0)
        return self._errors.read(4000).decode("utf-8", "replace").strip()


def dial(name: str, target: SshTarget, deadline: float) -> Dialled:
    """Connect before `deadline` (time.monotonic). Raises ConnectionLostError, or UnreachableError for unknown names."""
    if target.proxy_command:
        return _dial_through(target.proxy_command)
    where = f"{target.hostname} port {target.port}"
    try:
        found = socket.getaddrinfo(target.hostname, target.port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise UnreachableError(
            f"{name}: no address for {target.hostname} ({getattr(error, 'strerror', error)})",
            where=name,
            remedy="use an IP address in the inventory, or see that the name resolves",
        ) from None
    last: OSError = TimeoutError()
    for family, _, _, _, address in found:
        try:
            return Dialled(_connect(family, address, min(target.connect_timeout_s, deadline - time.monotonic())))
        except OSError as error:
            last = error
    raise _plain(name, where, last, target)


def _connect(family: int, address: tuple[Any, ...], timeout_s: float) -> socket.socket:
    if timeout_s <= 0:
        raise TimeoutError
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(address)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
    except BaseException:
        sock.close()
        raise
    return sock


def _plain(name: str, where: str, error: OSError, target: SshTarget) -> ConnectionLostError:
    if isinstance(error, ConnectionRefusedError):
        what, remedy = "refused the connection", "is sshd running there, and is the port right?"
    elif isinstance(error, TimeoutError):
        what = f"did not answer within {target.connect_timeout_s:.0f} s"
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
