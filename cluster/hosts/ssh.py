"""SSH: the only file that knows fabric and paramiko. They open connections; nothing is run with them."""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import fabric
import paramiko

from cluster.argv.far import COMMAND
from cluster.errors import ClusterError, ConnectionLostError, SilentError, UnreachableError
from cluster.hosts import wire
from cluster.hosts.cancel import Cancel, Scope
from cluster.hosts.known_hosts import KnownKey, fingerprint, is_named, judge, lines_for, read_known_hosts
from cluster.hosts.target import SshTarget, public_key
from cluster.hosts.trouble import key_refused, set_up_failed
from cluster.hosts.wire import WireHost

# what a host is asked to show for each kind of key in known_hosts
ALGORITHMS = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}


class Trust:
    """The host keys known for one target."""

    def __init__(self, name: str, target: SshTarget) -> None:
        self._name = name
        self._target = target
        self._names = tuple(dict.fromkeys([target.key_name, target.host_key_alias or target.hostname]))
        self._keys = read_known_hosts(target.known_hosts)

    def order(self, algorithms: tuple[str, ...]) -> tuple[str, ...]:
        """Host key algorithms with those first whose keys are known, so that the host shows one that we can check."""
        kinds = {known.kind for name in self._names for known in lines_for(self._keys, name)}
        wanted = {algorithm for kind in kinds for algorithm in ALGORITHMS.get(kind, (kind,))}
        return tuple(sorted(algorithms, key=lambda algorithm: algorithm not in wanted))

    def check(self, kind: str, key: bytes) -> None:
        """Raise UnreachableError unless the shown key is the known one."""
        verdict = judge(self._keys, self._names, kind, key)
        if verdict.is_trusted:
            return
        if verdict.by and verdict.is_revoked:
            raise UnreachableError(
                f"{self._name}: its host key {fingerprint(key)} is marked as revoked",
                where=_place(verdict.by),
                remedy="do not connect; ask whoever marked it",
            )
        if verdict.by and verdict.is_changed:
            raise self._changed(verdict.by, key)
        raise self._unknown(kind, key, verdict.by)

    def _changed(self, known: KnownKey, key: bytes) -> UnreachableError:
        file, name = known.file, self._names[0]
        return UnreachableError(
            f"{self._name}: the host key has changed: known {fingerprint(known.key)}, shown {fingerprint(key)}",
            where=_place(known),
            remedy=f"if the host was set up anew: ssh-keygen -R '{name}' -f {file}, then {self._add()};"
            " if not, somebody may be in between",
        )

    def _unknown(self, kind: str, key: bytes, other: KnownKey | None) -> UnreachableError:
        what = f"{self._name}: unknown host key {fingerprint(key)} ({kind})"
        if other:
            what += f"; only its {other.kind} key is known ({_place(other)})"
        elif any(known.marker == "@cert-authority" and is_named(known, self._names[0]) for known in self._keys):
            what += "; known_hosts names an authority for it, which is not used here"
        return UnreachableError(what, where=self._name, remedy=f"compare the fingerprint, then: {self._add()}")

    def _add(self) -> str:
        target = self._target
        address = target.hostname
        if target.port != 22:
            address = f"[{address}]:{target.port}" if ":" in address else f"{address}:{target.port}"
        return f"cluster inventory add {self._name} {target.user}@{address}"


def _place(known: KnownKey) -> str:
    return f"{known.file}:{known.line}"


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


KEEPALIVE_S = 10
BANNER_TIMEOUT_S = 10.0
AUTH_TIMEOUT_S = 15.0
SESSION_TIMEOUT_S = 6.0  # then the kept connection is taken for dead and a new one is made
CHUNK = 65536

logging.getLogger("paramiko").addHandler(logging.NullHandler())  # its threads would print tracebacks


class SshHost(WireHost):
    """A machine reached over SSH, with one kept connection."""

    def __init__(self, name: str, target: SshTarget, cancel: Cancel | None = None) -> None:
        super().__init__(name, SshLine(name, target), cancel)
        self.target = target


class SshLine:
    """The connection to one host; opened when first needed, and again when it was lost."""

    def __init__(self, name: str, target: SshTarget) -> None:
        self._name = name
        self._target = target
        self._lock = threading.Lock()
        self._connection: fabric.Connection | None = None
        self._given_up: list[fabric.Connection] = []

    def open(self, deadline: float, scope: Scope) -> SshPipe:
        """See Line.open."""
        connection = self._connected(deadline, scope)
        try:
            channel = connection.transport.open_session(timeout=SESSION_TIMEOUT_S)
            channel.settimeout(wire.STALLED_S)
            channel.exec_command(COMMAND)
        except (paramiko.SSHException, EOFError, OSError) as error:
            if not isinstance(error, paramiko.ChannelException):
                self._give_up(connection)
            raise ConnectionLostError(f"{self._name} gave no session: {error}", where=self._name) from None
        return SshPipe(self._name, channel)

    def _connected(self, deadline: float, scope: Scope) -> fabric.Connection:
        while not self._lock.acquire(timeout=SLICE_S):
            scope.check()
        try:
            if self._connection is None or not self._connection.is_connected:
                self._connection = connect(self._name, self._target, deadline, scope)
            return self._connection
        finally:
            self._lock.release()

    def _give_up(self, connection: fabric.Connection) -> None:
        """The next `open` makes a new connection; this one is not closed, the lock may still be held through it."""
        with self._lock:
            if self._connection is connection:
                self._connection = None
                self._given_up = [one for one in self._given_up if one.is_connected] + [connection]

    def close(self) -> None:
        """See Line.close."""
        with self._lock:
            connections = [*self._given_up, self._connection]
            self._given_up, self._connection = [], None
        for connection in connections:
            if connection is not None:
                with suppress(Exception):
                    connection.client.close()


class SshPipe:
    """A loader at the other end of a channel. Never a terminal."""

    def __init__(self, name: str, channel: paramiko.Channel) -> None:
        self._name = name
        self._channel = channel

    def send(self, data: bytes) -> None:
        """See Pipe.send."""
        try:
            self._channel.settimeout(wire.STALLED_S)
            self._channel.sendall(data)
        except (OSError, EOFError, paramiko.SSHException):
            raise ConnectionLostError(f"the connection to {self._name} was lost", where=self._name) from None

    def receive(self, timeout_s: float) -> bytes | None:
        """See Pipe.receive."""
        self._channel.settimeout(timeout_s)
        try:
            return bytes(self._channel.recv(CHUNK))
        except TimeoutError:
            return None

    def end_input(self) -> None:
        """See Pipe.end_input."""
        with suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.shutdown_write()

    def exit_code(self, timeout_s: float) -> int | None:
        """See Pipe.exit_code."""
        self._channel.status_event.wait(timeout_s)
        code = int(self._channel.exit_status)
        return code if code >= 0 else None

    def errors(self) -> str:
        """See Pipe.errors."""
        said = b""
        while self._channel.recv_stderr_ready() and len(said) < CHUNK:
            said += self._channel.recv_stderr(CHUNK)
        return said.decode("utf-8", "replace")

    def close(self) -> None:
        """See Pipe.close."""
        with suppress(Exception):
            self._channel.close()


def connect(name: str, target: SshTarget, deadline: float, scope: Scope) -> fabric.Connection:
    """An open, authenticated connection to a host whose key is known.

    Raises ConnectionLostError when trying again may help, else UnreachableError; InterruptedByUser.
    """
    trust = Trust(name, target)
    dialled = dial(name, target, deadline, scope)
    connection = _prepare(name, target, trust, dialled)
    began = time.monotonic()
    try:
        with scope.closing(dialled.close):
            connection.open()
    except BaseException as error:
        with suppress(Exception):
            connection.client.close()
        dialled.close()
        scope.check()
        if isinstance(error, ClusterError) or not isinstance(error, Exception):
            raise
        raise _explain(name, target, error, time.monotonic() - began, dialled) from None
    connection.transport.set_keepalive(KEEPALIVE_S)
    return connection


def _prepare(name: str, target: SshTarget, trust: Trust, dialled: Dialled) -> fabric.Connection:
    connection = fabric.Connection(
        target.hostname,
        user=target.user,
        port=target.port,
        config=fabric.Config(lazy=True),  # without its files: ssh was asked; one each, since reading it changes it
        gateway=False,
        connect_kwargs={
            "sock": dialled.sock,
            "banner_timeout": BANNER_TIMEOUT_S,
            "auth_timeout": AUTH_TIMEOUT_S,
            "auth_strategy": Keys(name, target),
            "transport_factory": lambda sock, **kwargs: _transport(sock, trust),
        },
    )
    connection.client.set_missing_host_key_policy(_Policy(trust))
    return connection


def _transport(sock: socket.socket, trust: Trust) -> paramiko.Transport:
    transport = paramiko.Transport(sock)  # not ServiceRequestingTransport: it sleeps 0.1 s and can lose the reply
    options = transport.get_security_options()
    options.key_types = trust.order(tuple(kind for kind in options.key_types if "-cert-" not in kind))
    return transport


class _Policy(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
    """Asked for every host, since fabric's client is given no known hosts of its own."""

    def __init__(self, trust: Trust) -> None:
        self._trust = trust

    def missing_host_key(self, client: object, hostname: str, key: paramiko.PKey) -> None:
        """Raise UnreachableError unless the key is trusted."""
        self._trust.check(key.get_name(), key.asbytes())


def _explain(name: str, target: SshTarget, error: Exception, seconds: float, dialled: Dialled) -> UnreachableError:
    silent = ("banner" in str(error) and seconds >= BANNER_TIMEOUT_S - 1) or "timeout" in str(error)
    return set_up_failed(
        name, target, str(error), dialled.said(), silent=silent, final=isinstance(error, paramiko.IncompatiblePeer)
    )


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
                why = f"it accepts only {', '.join(error.allowed_types)}"
                break
            except (paramiko.SSHException, EOFError) as error:
                self._tried.append(label)
                if transport.is_active() and "timeout" not in str(error):
                    continue
                if len(self._tried) == 1:
                    raise  # the connection or the host is at fault, not the key
                why = "it ended the connection, perhaps after too many keys"
                break
            if not more:
                return
            why = f"it wants {', '.join(more)} as well"
        raise key_refused(self._name, self._target, self._tried, self._locked, why)

    def _offers(self) -> Iterator[tuple[str, paramiko.PKey]]:
        public = {path: public_key(path) for path in self._target.identity_files}
        held = _agent_keys(self._target.agent) if self._target.agent else []
        held.sort(key=lambda key: key.asbytes() not in public.values())
        offered = set()
        for key in held:
            if not self._target.identities_only or key.asbytes() in public.values():
                offered.add(key.asbytes())
                yield f"agent: {key.comment or key.get_name()}", key
        for path in self._target.identity_files:
            if Path(path).is_file() and public[path] not in offered:
                key = self._load(path)
                if key is not None:
                    yield path, key

    def _load(self, path: str) -> paramiko.PKey | None:
        try:
            return _load_key(path, Path(path).stat().st_mtime_ns)
        except (TypeError, paramiko.PasswordRequiredException):
            self._locked.append(path)
        except Exception as error:
            self._tried.append(f"{path} (unreadable: {error})")
        return None


@lru_cache(64)
def _load_key(path: str, mtime_ns: int) -> paramiko.PKey:
    return paramiko.PKey.from_path(path)


class _Agent(paramiko.agent.AgentSSH):  # type: ignore[misc]
    """The agent behind a socket of our choice; paramiko's own knows SSH_AUTH_SOCK only."""

    def __init__(self, path: str) -> None:
        super().__init__()
        agent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        agent.settimeout(AUTH_TIMEOUT_S)
        agent.connect(path)
        self._connect(agent)


def _agent_keys(path: str) -> list[paramiko.AgentKey]:
    try:
        return list(_Agent(path).get_keys())
    except (OSError, paramiko.SSHException):
        return []  # as ssh does: an agent that is gone is no agent


def read_ssh_config(address: str) -> dict[str, list[str]]:
    """What ~/.ssh/config says of a name, in the shape of `ssh -G`; for machines without OpenSSH."""
    path = Path("~/.ssh/config").expanduser()
    found = paramiko.SSHConfig.from_path(str(path)).lookup(address) if path.is_file() else {"hostname": address}
    return {key: value if isinstance(value, list) else [value] for key, value in found.items()}
