"""SSH: the only file that knows fabric and paramiko. They open connections; nothing is run with them."""

from __future__ import annotations

import errno
import logging
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

import fabric
import paramiko

from cluster.argv.far import COMMAND
from cluster.errors import ClusterError, ConnectionLostError, SilentError, UnreachableError
from cluster.hosts import wire
from cluster.hosts.cancel import SLICE_S, Cancel, Scope
from cluster.hosts.known_hosts import Trust
from cluster.hosts.target import SshTarget, public_key

USER_TIMEOUT_MS = 30_000  # unanswered data after which the kernel gives the connection up
KEEPALIVE_S = 10
BANNER_TIMEOUT_S = 10.0
AUTH_TIMEOUT_S = 15.0
SESSION_TIMEOUT_S = 6.0  # then the kept connection is taken for dead and a new one is made
CHUNK = 65536
LOST = (OSError, EOFError, paramiko.SSHException)

logging.getLogger("paramiko").addHandler(logging.NullHandler())  # its threads would print tracebacks


class SshHost(wire.WireHost):
    """A machine reached over SSH, with one kept connection: opened when first needed, and again when it was lost."""

    def __init__(self, name: str, target: SshTarget, cancel: Cancel | None = None) -> None:
        super().__init__(name, cancel)
        self.target = target
        self._lock = threading.Lock()
        self._connection: fabric.Connection | None = None
        self._given_up: list[fabric.Connection] = []

    def open(self, deadline: float, scope: Scope) -> SshPipe:
        while not self._lock.acquire(timeout=SLICE_S):
            scope.check()
        try:
            if self._connection is None or not self._connection.is_connected:
                self._connection = connect(self.name, self.target, deadline, scope)
            connection = self._connection
        finally:
            self._lock.release()
        try:
            channel = connection.transport.open_session(timeout=SESSION_TIMEOUT_S)
            channel.settimeout(wire.STALLED_S)
            channel.exec_command(COMMAND)
        except LOST as error:
            if not isinstance(error, paramiko.ChannelException):
                with self._lock:  # the next `open` connects; this one is not closed, the lock may be held through it
                    if self._connection is connection:
                        self._connection = None
                        self._given_up = [one for one in self._given_up if one.is_connected] + [connection]
            what = f"{self.name} opened no session: {error}"
            raise ConnectionLostError(what, code="ssh-broken", where=self.name) from None
        return SshPipe(self.name, channel)

    def close(self) -> None:
        with self._lock:
            connections = [*self._given_up, self._connection]
            self._given_up, self._connection = [], None
        for connection in filter(None, connections):
            with suppress(Exception):
                connection.client.close()


class SshPipe:
    """A loader at the other end of a channel, never a terminal. See Pipe."""

    def __init__(self, name: str, channel: paramiko.Channel) -> None:
        self._name = name
        self._channel = channel

    def send(self, data: bytes) -> None:
        try:
            self._channel.settimeout(wire.STALLED_S)
            self._channel.sendall(data)
        except LOST:
            what = f"the connection to {self._name} was lost"
            raise ConnectionLostError(what, code="connection-lost", where=self._name) from None

    def receive(self, timeout_s: float) -> bytes | None:
        self._channel.settimeout(timeout_s)
        try:
            return bytes(self._channel.recv(CHUNK))
        except TimeoutError:
            return None

    def end_input(self) -> None:
        with suppress(*LOST):
            self._channel.shutdown_write()

    def exit_code(self, timeout_s: float) -> int | None:
        self._channel.status_event.wait(timeout_s)
        code = int(self._channel.exit_status)
        return code if code >= 0 else None

    def errors(self) -> str:
        data = b""
        while self._channel.recv_stderr_ready() and len(data) < CHUNK:
            data += self._channel.recv_stderr(CHUNK)
        return data.decode("utf-8", "replace")

    def close(self) -> None:
        with suppress(Exception):
            self._channel.close()


class _PromptSocket(socket.socket):
    """Acknowledges what it receives at once.

    sshd's first answer after the login waits for our acknowledgement (Nagle), which the kernel would delay by 40 ms.
    """

    def recv(self, size: int, flags: int = 0) -> bytes:
        data = super().recv(size, flags)
        if hasattr(socket, "TCP_QUICKACK"):
            with suppress(OSError):
                self.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return data


def dial(name: str, target: SshTarget, deadline: float, scope: Scope) -> tuple[socket.socket, IO[bytes] | None]:
    """Connect before `deadline` (time.monotonic). Returns the socket, and the file of a proxy command's stderr.

    Raises ConnectionLostError (with a TimeoutError as its cause when nothing answered), SilentError for a name without
    an address, InterruptedByUser.
    """
    if target.proxy_command:
        ours, its = socket.socketpair()
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the connection
        words = ["/bin/sh", "-c", f"exec {target.proxy_command}"]  # as ssh does
        subprocess.Popen(words, stdin=its.fileno(), stdout=its.fileno(), stderr=errors, start_new_session=True)
        its.close()
        return ours, errors
    try:
        found = socket.getaddrinfo(target.hostname, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        what = f"{name}: no address for {target.hostname} ({getattr(error, 'strerror', error)})"
        remedy = "use an IP address in the inventory, or make the name resolve"
        raise SilentError(what, code="name-unknown", where=name, remedy=remedy) from None
    last: OSError = TimeoutError()
    start = time.monotonic()
    for number, (family, _, _, _, address) in enumerate(found):
        sock = _PromptSocket(family, socket.SOCK_STREAM)
        try:
            share_s = (deadline - time.monotonic()) / (len(found) - number)
            sock.settimeout(max(0.01, min(target.connect_timeout_s, share_s)))
            with scope.closing(partial(_hang_up, sock)):
                sock.connect(address)
            sock.settimeout(None)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
            return sock, None
        except OSError as error:
            last = error
            sock.close()
            scope.check()
    if isinstance(last, ConnectionRefusedError):
        code, what, remedy = "ssh-no-sshd", "refused the connection", "is sshd running there, and is the port right?"
    elif isinstance(last, TimeoutError):
        code, what = "ssh-timeout", f"did not answer within {time.monotonic() - start:.0f} s"
        remedy = "is it on, and is this its management address? Fabric addresses often cannot be reached from here"
    elif last.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        code, what = "ssh-no-route", "cannot be reached: no route"
        remedy = "check the address, the cable and this machine's network"
    else:
        code, what = "ssh-unreachable", f"cannot be reached: {last.strerror or last}"
        remedy = "check the address in the inventory"
    where = f"{target.hostname} port {target.port}"
    raise ConnectionLostError(f"{name} ({where}) {what}", code=code, where=name, remedy=remedy) from last


def _hang_up(sock: socket.socket) -> None:
    """End the connection, also while another thread reads from it."""
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


def connect(name: str, target: SshTarget, deadline: float, scope: Scope) -> fabric.Connection:
    """An open, authenticated connection to a host whose key is known. Raises ConnectionLostError, UnreachableError."""
    trust = Trust(name, target)
    sock, proxy_errors = dial(name, target, deadline, scope)
    connection = _prepare(name, target, trust, sock)
    start = time.monotonic()
    try:
        with scope.closing(partial(_hang_up, sock)):
            connection.open()
    except BaseException as error:
        with suppress(Exception):
            connection.client.close()
        _hang_up(sock)
        scope.check()
        if isinstance(error, ClusterError) or not isinstance(error, Exception):
            raise
        raise _set_up_failed(name, target, error, time.monotonic() - start, proxy_errors) from None
    connection.transport.set_keepalive(KEEPALIVE_S)
    return connection


def _prepare(name: str, target: SshTarget, trust: Trust, sock: socket.socket) -> fabric.Connection:
    def transport(sock: socket.socket, **_: Any) -> paramiko.Transport:
        made = paramiko.Transport(sock)  # not ServiceRequestingTransport: it sleeps 0.1 s and can lose the reply
        options = made.get_security_options()
        options.key_types = trust.order(tuple(kind for kind in options.key_types if "-cert-" not in kind))
        return made

    connection = fabric.Connection(
        target.hostname,
        user=target.user,
        port=target.port,
        config=fabric.Config(lazy=True),  # without its files: ssh was asked; one each, since reading it changes it
        gateway=False,
        connect_kwargs={
            "sock": sock,
            "banner_timeout": BANNER_TIMEOUT_S,
            "auth_timeout": AUTH_TIMEOUT_S,
            "auth_strategy": Keys(name, target),
            "transport_factory": transport,
        },
    )
    connection.client.set_missing_host_key_policy(trust)  # asked for every host: it has no known hosts
    return connection


def _set_up_failed(
    name: str, target: SshTarget, error: Exception, seconds: float, proxy_errors: IO[bytes] | None
) -> UnreachableError:
    """What failed between the open socket and the login, `seconds` after it was opened."""
    where = f"{target.hostname} port {target.port}"
    lost = partial(ConnectionLostError, where=name)
    if proxy_errors is not None:
        time.sleep(0.1)
        proxy_errors.seek(0)
        if output := proxy_errors.read(4000).decode("utf-8", "replace").strip():
            what = f"{name}: the proxy to {where} failed: {output}"
            return lost(what, code="ssh-proxy", remedy=f"try: {target.proxy_command}")
    if ("banner" in str(error) and seconds >= BANNER_TIMEOUT_S - 1) or "timeout" in str(error):
        what = f"{name} ({where}) accepts connections but its sshd does not answer"
        remedy = "most likely it is out of memory and thrashing, not a network fault: wait, or power-cycle it"
        return lost(what, code="ssh-banner-timeout", remedy=remedy)
    if isinstance(error, paramiko.IncompatiblePeer):  # trying again cannot help
        remedy = f"on {name} check the algorithms that sshd allows"
        return UnreachableError(f"{name} ({where}): {error}", code="ssh-algorithms", where=name, remedy=remedy)
    what = f"{name} ({where}) ended the connection while it was set up: {error or 'no reason given'}"
    return lost(what, code="ssh-broken", remedy=f"on {name} run: journalctl -u ssh")


class Keys:
    """Offers our keys one after the other, in ssh's order: the agent's, then files. paramiko calls `authenticate`."""

    def __init__(self, name: str, target: SshTarget) -> None:
        self._name = name
        self._target = target
        self._locked: list[str] = []
        self._tried: list[str] = []

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Log in. Raises UnreachableError with what was tried."""
        why = ""
        for label, key in self._offers():
            try:
                more = transport.auth_publickey(self._target.user, key)
            except paramiko.BadAuthenticationType as error:
                why = f"; it accepts only {', '.join(error.allowed_types)}"
                break
            except (paramiko.SSHException, EOFError) as error:
                self._tried.append(label)
                if transport.is_active() and "timeout" not in str(error):
                    continue
                if len(self._tried) == 1:
                    raise  # the connection or the host is at fault, not the key
                why = "; it ended the connection, perhaps after too many keys"
                break
            if not more:
                return
            why = f"; it requires {', '.join(more)} as well"
        login = f"{self._target.user}@{self._target.hostname}"
        if self._locked and not self._tried:
            what = f"{self._name}: the key {self._locked[0]} has a passphrase and no agent holds it"
            raise UnreachableError(what, code="ssh-key-locked", where=login, remedy=f"ssh-add {self._locked[0]}")
        offered = ", ".join([*self._tried, *(f"{path} (has a passphrase, not offered)" for path in self._locked)])
        what = f"{self._name}: {login} accepts none of our keys ({offered or 'none found'}){why}"
        port = "" if self._target.port == 22 else f"-p {self._target.port} "
        remedy = f"ssh-copy-id {port}{login}, or correct user and identity_file"
        raise UnreachableError(what, code="ssh-publickey", where=login, remedy=remedy)

    def _offers(self) -> Iterator[tuple[str, paramiko.PKey]]:
        public = {path: public_key(path) for path in self._target.identity_files}
        held: list[paramiko.AgentKey] = []
        with suppress(OSError, paramiko.SSHException):  # as ssh does: an agent that is gone is no agent
            held = list(_Agent(self._target.agent).get_keys()) if self._target.agent else []
        if self._target.identities_only:
            held = [key for key in held if key.asbytes() in public.values()]
        for key in sorted(held, key=lambda key: key.asbytes() not in public.values()):
            yield f"agent: {key.comment or key.get_name()}", key
        for path in self._target.identity_files:
            if not Path(path).is_file() or public[path] in [key.asbytes() for key in held]:
                continue
            try:
                yield path, paramiko.PKey.from_path(path)
            except (TypeError, paramiko.PasswordRequiredException):
                self._locked.append(path)
            except Exception as error:
                self._tried.append(f"{path} (unreadable: {error})")


class _Agent(paramiko.agent.AgentSSH):  # type: ignore[misc]
    """The agent behind a socket of our choice; paramiko's own knows SSH_AUTH_SOCK only."""

    def __init__(self, path: str) -> None:
        super().__init__()
        agent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        agent.settimeout(AUTH_TIMEOUT_S)
        agent.connect(path)
        self._connect(agent)
