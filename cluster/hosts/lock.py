"""The lock of the hosts of one command: taken in a fixed order, kept with a beat, released whatever happens."""

from __future__ import annotations

import getpass
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from cluster.argv.far import started
from cluster.errors import ClusterError, ConnectionLostError, LockedError, SilentError, about
from cluster.hosts.fleet import Fleet
from cluster.hosts.protocol import Host, Process

BEAT_S = 5.0
KEPT_S = 30.0
"""How long a host keeps the lock for a silent owner."""
RETRY_S = 1.0
ANSWER_S = 15.0


def who_am_i() -> str:
    """user@hostname (pid): what others see of who holds the lock."""
    return f"{getpass.getuser()}@{socket.gethostname()} (pid {os.getpid()})"


class Lock:
    """A context manager that holds the lock on every host of a fleet, and takes it again where it was lost.

    `data_dirs`: the directory of cluster's files, by host name. Entering raises LockedError, with who holds it, since
    when and why, after releasing what was taken; ClusterError when a host's lock file cannot be written. No command
    waits for a lock, so two that call the same hosts by other names cannot block each other: at worst both are refused.

    A lock that ended with its connection is taken again, unless somebody else had it in between: the generation in the
    lock's file shows it (`far/hold.py`).
    """

    def __init__(
        self, fleet: Fleet, why: str, data_dirs: Mapping[str, str], *, silence_s: float = KEPT_S, beat_s: float = BEAT_S
    ) -> None:
        self._fleet = fleet
        self._beat_s = beat_s
        self._over = threading.Event()
        given = {"who": who_am_i(), "why": why, "silence_s": silence_s}
        self._held: dict[str, _HostLock] = {}
        for name in sorted(fleet.names):
            self._held[name] = _HostLock(fleet[name], {"data_dir": data_dirs[name], **given}, self._over)

    def __enter__(self) -> Lock:
        try:
            for name, held in self._held.items():
                with about(name):
                    held.take()
        except BaseException:
            self.release()
            raise
        threading.Thread(target=self._beat, name="lock-beat", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        self._over.set()
        for held in reversed(self._held.values()):
            if held.holder is not None:
                held.holder.release()

    def lost(self) -> dict[str, ClusterError]:
        """The hosts whose lock we do not hold and cannot take now: LockedError where somebody else took it."""
        outcomes = self._fleet.each(lambda host: self._held[host.name].ensure())
        return {name: outcome.error for name, outcome in outcomes.items() if outcome.error}

    def taken(self) -> list[ClusterError]:
        """Of the hosts whose lock somebody else is known to have taken meanwhile, who did."""
        return [held.taken for held in self._held.values() if held.taken is not None]

    def require(self, names: Sequence[str] | None = None) -> None:
        """Hold the lock of all hosts, or of those named, even if it was lost. Raises LockedError, UnreachableError."""
        self._fleet.keep_trying(lambda host: self._held[host.name].ensure(), names)

    def note(self, host: str, text: str, **more: Any) -> None:
        """Append a line to a host's audit file; the time and who we are are added there. No secrets."""
        if (holder := self._held[host].holder) is not None:
            holder.write("audit " + json.dumps({"what": text, **more}))

    def _beat(self) -> None:
        while not self._over.wait(self._beat_s):
            for held in self._held.values():
                held.beat()


class _HostLock:
    """The lock of one host, through all the connections that it was held by. `given`: see `far/hold.py`."""

    def __init__(self, host: Host, given: Mapping[str, Any], over: threading.Event) -> None:
        self._host = host
        self._given = given
        self._over = over
        self.holder: _LockHolder | None = None
        self._generation: int | None = None
        self.taken: LockedError | None = None
        self._taking = threading.Lock()

    def take(self) -> None:
        """Take it. Raises LockedError, ConnectionLostError, ClusterError."""
        name = self._host.name
        argv, program = started("hold", {**self._given, "generation": self._generation})
        holder = _LockHolder(name, self._host.start(argv, program, lasting=True), self._keep)
        answer = holder.first_line()
        if answer.get("held"):
            self._generation, self.holder = answer["generation"], holder
            if self._over.is_set():
                holder.release()
            return
        holder.release()
        if "who" not in answer:
            what = f"cannot take the lock: {answer.get('error', answer)}"
            raise ClusterError(what, code="lock-failed", where=name, remedy="check data_dir in the inventory")
        since = ""
        if (unix_s := answer.get("since")) is not None:
            since = (
                f" since {time.strftime('%H:%M:%S', time.localtime(unix_s))} ({max(0.0, time.time() - unix_s):.0f} s)"
            )
        owner = f"{answer['who']}{since}: {answer['why']}"
        if self._generation is None:
            remedy = "wait until it is done; a lock whose owner is gone ends by itself within"
            remedy += f" {self._given['silence_s']:.0f} s"
            raise LockedError(f"{name} is locked by {owner}", code="locked", where=name, remedy=remedy)
        # it could not be taken again: an earlier connection of this process still holds it, or somebody else took it
        if all(answer[key] == self._given[key] for key in ("who", "why")):  # the answer to a take may have been lost
            self._generation = answer["generation"]
        if answer["generation"] == self._generation:
            what = f"{name}: the connection that held its lock was lost"
            raise SilentError(what, code="lock-connection-lost", where=name)
        what = f"the lock of {name} was lost and then taken by {owner}"
        remedy = "cluster status shows what runs now; run the command again when the other one is done"
        self.taken = LockedError(what, code="lock-taken", where=name, remedy=remedy)
        raise self.taken

    def ensure(self) -> None:
        """Hold it: a beat is answered, or it is taken again. Raises LockedError, SilentError, UnreachableError."""
        holder = self.holder
        if holder is not None and holder.answers(5.0):
            return
        if holder is not None and not holder.ended:
            what = f"{self._host.name}: the holder of its lock does not answer"
            raise SilentError(what, code="lock-silent", where=self._host.name)
        self._retake(holder)

    def _retake(self, lost: _LockHolder | None) -> None:
        with self._taking:
            if self.taken is not None:
                raise self.taken
            if self.holder is lost:
                self.take()

    def _keep(self, ended: _LockHolder) -> None:
        """On the thread of a holder that ended: take the lock again as soon as that is possible."""
        while not self._over.wait(RETRY_S) and self.holder is ended and self.taken is None:
            with suppress(ClusterError):
                self._retake(ended)

    def beat(self) -> None:
        """Send a beat; a connection over which none was answered for so long that the lock ended is given up."""
        if self.holder is not None:
            self.holder.beat()
            if not self.holder.ended and time.monotonic() - self.holder.received_at > self._given["silence_s"]:
                self.holder.release(0.0)


class _LockHolder:
    """far/hold on one host, and a thread that reads its lines and calls `end` when it has ended."""

    def __init__(self, host: str, process: Process, end: Callable[[_LockHolder], None]) -> None:
        self._host = host
        self._process = process
        self._end = end
        self._changed = threading.Condition()
        self._first: dict[str, Any] = {}
        self._sent = self._received = 0
        self.received_at = time.monotonic()
        self.ended = False
        self.release = process.close
        threading.Thread(target=self._listen, name=f"lock-{host}", daemon=True).start()

    def first_line(self) -> dict[str, Any]:
        """Whether it has the lock, or who has. Raises ConnectionLostError."""
        with self._changed:
            self._changed.wait_for(lambda: self._first or self.ended, ANSWER_S)
        if not self._first:
            self.release()
            what = f"{self._host} did not answer whether its lock is free"
            raise ConnectionLostError(what, code="lock-silent", where=self._host)
        return self._first

    def beat(self) -> int:
        """Send the next beat; its number."""
        with self._changed:
            self._sent += 1
            number = self._sent
        self.write(f"beat {number}")
        return number

    def answers(self, timeout_s: float) -> bool:
        number = self.beat()
        with self._changed:
            self._changed.wait_for(lambda: self._received >= number or self.ended, timeout_s)
            return self._received >= number and not self.ended

    def write(self, line: str) -> None:
        """Send one command; a holder that is gone is noticed by `answers`."""
        with suppress(ClusterError):
            self._process.write(line.encode() + b"\n")

    def _listen(self) -> None:
        with suppress(ClusterError):
            for text in self._process.lines():
                with suppress(ValueError):
                    line = json.loads(text)
                    with self._changed:
                        self._first = self._first or line
                        self._received = line.get("beat", self._received)
                        self.received_at = time.monotonic()
                        self.ended = self.ended or "ended" in line
                        self._changed.notify_all()
        with self._changed:
            self.ended = True
            self._changed.notify_all()
        self._end(self)
