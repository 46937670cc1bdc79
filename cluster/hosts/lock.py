"""The lock of the hosts of one command: taken in a fixed order, kept with a beat, given back whatever happens."""

from __future__ import annotations

import getpass
import json
import os
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

from cluster.commands.far import started
from cluster.errors import ClusterError, ConnectionLostError, LockedError, about
from cluster.hosts.fleet import Fleet
from cluster.hosts.protocol import Host, Process

BEAT_S = 5.0
SILENCE_S = 30.0


def who_am_i() -> str:
    """user@hostname (pid), as others will see who holds the lock."""
    return f"{getpass.getuser()}@{socket.gethostname()} (pid {os.getpid()})"


class Lock:
    """A context manager that holds the lock on every host of a fleet.

    `data_dirs`: the directory of cluster's files, by host name. Entering raises LockedError, with who holds it, since
    when and why, after giving back what was taken; ClusterError when a host's lock file cannot be written.
    """

    def __init__(
        self,
        fleet: Fleet,
        why: str,
        data_dirs: Mapping[str, str],
        *,
        silence_s: float = SILENCE_S,
        beat_s: float = BEAT_S,
    ) -> None:
        self._fleet = fleet
        self._why = why
        self._data_dirs = data_dirs
        self._silence_s = silence_s
        self._beat_s = beat_s
        self._holders: dict[str, _Holder] = {}
        self._over = threading.Event()

    def __enter__(self) -> Lock:
        try:
            for name in sorted(self._fleet.names):
                with about(name):
                    self._take(self._fleet[name])
        except BaseException:
            self.release()
            raise
        threading.Thread(target=self._beat, name="lock-beat", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    def release(self) -> None:
        """Give the lock back on all hosts."""
        self._over.set()
        for holder in reversed(self._holders.values()):
            holder.release()
        self._holders.clear()

    def lost(self, timeout_s: float = 5.0) -> tuple[str, ...]:
        """The hosts whose lock we no longer hold: each is asked for a beat and has `timeout_s` to answer."""
        deadline = time.monotonic() + timeout_s
        asked = {name: holder.beat() for name, holder in self._holders.items()}
        return tuple(name for name, number in asked.items() if not self._holders[name].answered(number, deadline))

    def still_held(self, timeout_s: float = 5.0) -> bool:
        """Whether every host says that we still hold its lock."""
        return not self.lost(timeout_s)

    def require(self) -> None:
        """Raise LockedError when the lock was lost, for example because this machine slept."""
        lost = self.lost()
        if lost:
            raise LockedError(
                f"the lock of {', '.join(lost)} was lost", where=", ".join(lost), remedy="run the command again"
            )

    def note(self, host: str, text: str, **more: Any) -> None:
        """Append a line to a host's audit file; the time and who we are are added there. No secrets."""
        self._holders[host].write("audit " + json.dumps({"what": text, **more}))

    def _take(self, host: Host) -> None:
        given = {
            "data_dir": self._data_dirs[host.name],
            "who": who_am_i(),
            "why": self._why,
            "silence_s": self._silence_s,
        }
        holder = _Holder(host.name, _start(host, given))
        self._holders[host.name] = holder
        said = holder.first_line()
        if said.get("held"):
            return
        if "who" in said:
            raise LockedError(
                f"{said['who']} is at work on {host.name}{_since(said.get('since'))}: {said['why']}",
                where=host.name,
                remedy="wait until it is done; a lock whose owner is gone ends by itself within"
                f" {self._silence_s:.0f} s",
            )
        raise ClusterError(
            f"cannot take the lock: {said.get('error', said)}", where=host.name, remedy="see data_dir in the inventory"
        )

    def _beat(self) -> None:
        while not self._over.wait(self._beat_s):
            for holder in list(self._holders.values()):
                holder.beat()


def _start(host: Host, given: Mapping[str, Any]) -> Process:
    argv, program = started("hold", given)
    return host.start(argv, program, lasting=True)


def _since(unix_s: float | None) -> str:
    if unix_s is None:
        return ""
    return time.strftime(" since %H:%M:%S", time.localtime(unix_s)) + f" ({max(0.0, time.time() - unix_s):.0f} s)"


class _Holder:
    """far/hold on one host, and a thread that hears what it says."""

    def __init__(self, host: str, process: Process) -> None:
        self._host = host
        self._process = process
        self._changed = threading.Condition()
        self._first: dict[str, Any] | None = None
        self._sent = 0
        self._heard = 0
        self._ended = False
        threading.Thread(target=self._listen, name=f"lock-{host}", daemon=True).start()

    def first_line(self, timeout_s: float = 15.0) -> dict[str, Any]:
        """What it said first. Raises ConnectionLostError."""
        with self._changed:
            self._changed.wait_for(lambda: self._first is not None or self._ended, timeout_s)
        if self._first is None:
            raise ConnectionLostError(f"{self._host} did not say whether the lock is free", where=self._host)
        return self._first

    def beat(self) -> int:
        """Send the next beat; its number."""
        with self._changed:
            self._sent += 1
            number = self._sent
        self.write(f"beat {number}")
        return number

    def answered(self, number: int, deadline: float) -> bool:
        """Whether beat `number` was answered before `deadline` (time.monotonic)."""
        with self._changed:
            self._changed.wait_for(lambda: self._heard >= number or self._ended, max(0.0, deadline - time.monotonic()))
            return self._heard >= number and not self._ended

    def write(self, line: str) -> None:
        """Send one command; a holder that is gone is noticed by `answered`."""
        with suppress(ClusterError):
            self._process.write(line.encode() + b"\n")

    def release(self) -> None:
        """End it."""
        self._process.close()

    def _listen(self) -> None:
        with suppress(ClusterError):
            for line in self._process.lines():
                self._hear(line)
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _hear(self, line: str) -> None:
        with suppress(ValueError):
            said = json.loads(line)
            with self._changed:
                self._first = self._first or said
                self._heard = said.get("beat", self._heard)
                self._ended = self._ended or "ended" in said
                self._changed.notify_all()
