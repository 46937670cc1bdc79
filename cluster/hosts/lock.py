"""The lock of the hosts of one command: taken in a fixed order, kept with a beat, released whatever happens."""

from __future__ import annotations

import getpass
import json
import os
import queue
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from cluster.argv.far import started
from cluster.errors import ClusterError, ConnectionLostError, LockedError, SilentError, about
from cluster.hosts.fleet import Fleet
from cluster.hosts.protocol import Host, Process

BEAT_S = 5.0
LOCK_S = 30.0
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
        self, fleet: Fleet, why: str, data_dirs: Mapping[str, str], *, silence_s: float = LOCK_S, beat_s: float = BEAT_S
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
            held.release()

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
        self._held[host].write("audit " + json.dumps({"what": text, **more}))

    def _beat(self) -> None:
        while not self._over.wait(self._beat_s):
            for held in self._held.values():
                held.beat()


class _HostLock:
    """The lock of one host, through all the connections that it is held by. `given`: see `far/hold.py`.

    `_process` runs far/hold while the lock is held; a thread reads its lines, and takes the lock again when it ended.
    """

    def __init__(self, host: Host, given: Mapping[str, Any], over: threading.Event) -> None:
        self._host = host
        self._given = given
        self._over = over
        self.taken: LockedError | None = None
        self._generation: int | None = None
        self._process: Process | None = None
        self._taking = threading.Lock()
        self._changed = threading.Condition()
        self._sent = self._received = 0
        self._received_at = 0.0

    def take(self) -> None:
        """Take it. Raises LockedError, ConnectionLostError, ClusterError."""
        name, lines = self._host.name, queue.SimpleQueue[dict[str, Any]]()
        argv, program = started("hold", {**self._given, "generation": self._generation})
        process = self._host.start(argv, program, lasting=True)
        threading.Thread(target=self._listen, args=[process, lines], name=f"lock-{name}", daemon=True).start()
        answer: dict[str, Any] = {}
        with suppress(queue.Empty):
            answer = lines.get(timeout=ANSWER_S)
        if answer.get("held"):
            if self._over.is_set():
                process.close()
            return
        process.close()
        if not answer:
            what = f"{name} did not answer whether its lock is free"
            raise ConnectionLostError(what, code="lock-silent", where=name)
        if "who" not in answer:
            what = f"cannot take the lock: {answer.get('error', answer)}"
            raise ClusterError(what, code="lock-failed", where=name, remedy="check data_dir in the inventory")
        since = ""
        if (unix_s := answer.get("since")) is not None:
            clock, ago_s = time.strftime("%H:%M:%S", time.localtime(unix_s)), max(0.0, time.time() - unix_s)
            since = f" since {clock} ({ago_s:.0f} s)"
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

    def _listen(self, process: Process, lines: queue.SimpleQueue[dict[str, Any]]) -> None:
        with suppress(ClusterError):
            for text in process.lines():
                with suppress(ValueError):
                    line = json.loads(text)
                    if "ended" in line:
                        break
                    with self._changed:
                        if line.get("held"):
                            self._generation, self._process = line["generation"], process
                        self._received = line.get("beat", self._received)
                        self._received_at = time.monotonic()
                        self._changed.notify_all()
                    lines.put(line)
        lines.put({})
        with self._changed:
            held = self._process is process
            self._process = None if held else self._process
            self._changed.notify_all()
        while held and not self._over.wait(RETRY_S) and self._process is None and self.taken is None:
            with suppress(ClusterError):
                self._retake()

    def ensure(self) -> None:
        """Hold it: a beat is answered, or it is taken again. Raises LockedError, SilentError, UnreachableError."""
        if self._process is not None:
            number = self.beat()
            with self._changed:
                self._changed.wait_for(lambda: self._received >= number or self._process is None, 5.0)
                if self._process is not None and self._received >= number:
                    return
                if self._process is not None:
                    what = f"{self._host.name}: the holder of its lock does not answer"
                    raise SilentError(what, code="lock-silent", where=self._host.name)
        self._retake()

    def _retake(self) -> None:
        with self._taking:
            if self.taken is not None:
                raise self.taken
            if self._process is None:
                self.take()

    def beat(self) -> int:
        """Send a beat; its number. A connection over which none was answered for too long is given up."""
        with self._changed:
            self._sent += 1
            number, silent_s = self._sent, time.monotonic() - self._received_at
        self.write(f"beat {number}")
        if silent_s > self._given["silence_s"]:
            self.release(0.0)
        return number

    def write(self, line: str) -> None:
        """Send one command to the holder; one that is gone is noticed by `ensure`."""
        if (process := self._process) is not None:
            with suppress(ClusterError):
                process.write(line.encode() + b"\n")

    def release(self, timeout_s: float = 5.0) -> None:
        if (process := self._process) is not None:
            process.close(timeout_s)
