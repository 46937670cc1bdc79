"""Guard of a rank's memory: ends the rank before the kernel's OOM killer does, or before the host stalls.

usage: python3 -I -S guard.py LIMITS      (a child of rank.py, started before all others; rank.py imports `kill`)

LIMITS is JSON: loading_gib, serving_gib, serving_s, pressure_percent (0 turns one off), pressure_gib, period_s, and
the files meminfo and pressure. While the model is loaded, MemAvailable below loading_gib ends the rank at once. While
it serves, less than serving_gib for serving_s does, less than half of it at once, and so does memory pressure (the
share of time in which all programs waited for memory, the kernel's "full avg10") above pressure_percent for serving_s,
with less than pressure_gib available: page cache counts as available, and another container's own limit makes pressure
as well.

stdin: one byte once the server answers; its end is that of rank.py, and ends the guard. stdout: one JSON line just
before everything below rank.py is killed, {"why": text, "missing": bytes, "total": bytes}. stderr: for the log.

Its memory is locked, its files stay open, and nothing grows, so that it works when nothing else does.
"""

import ctypes
import gc
import json
import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import Any

KIB_PER_GIB = 1 << 20
LOCK_ALL = 1 | 2  # MCL_CURRENT | MCL_FUTURE, linux/mman.h
ENDED_FOR_MEMORY = 77
SHOWN = 3
PAGE = os.sysconf("SC_PAGE_SIZE")


class KernelFile:
    """A file of the kernel that stays open and is read into the same place each time. Raises OSError."""

    def __init__(self, path: str) -> None:
        self.file, self.buffer = os.open(path, os.O_RDONLY | os.O_CLOEXEC), bytearray(8192)
        self.places = (self.buffer,)
        os.preadv(self.file, self.places, 0)

    def read(self) -> None:
        """Read it again; what was read before counts when the kernel cannot."""
        with suppress(OSError):
            os.preadv(self.file, self.places, 0)

    def number(self, name: bytes) -> float:
        """The number after `name`; 0 when it is not there."""
        at = self.buffer.find(name)
        return float(self.buffer[at + len(name) : at + len(name) + 24].split(None, 1)[0]) if at >= 0 else 0.0


class Guard:
    """What is read, the limits, and since when one of them has been crossed."""

    def __init__(self, limits: dict[str, Any]) -> None:
        self.limits, self.serving, self.missing = limits, False, list[str]()
        self.since: dict[str, float] = {}
        self.memory, self.stalls = KernelFile(limits["meminfo"]), self.find_stalls()
        if not self.memory.number(b"SwapTotal:"):
            self.missing.append("swap (none)")

    def find_stalls(self) -> "KernelFile | None":
        try:
            return KernelFile(self.limits["pressure"])
        except OSError as error:
            self.missing.append(f"memory pressure ({self.limits['pressure']}: {error.strerror})")
            return None

    def look(self, now: float) -> tuple[str, float]:
        """Why this rank must end now (else empty), and the GiB that are missing; `now` in seconds."""
        self.memory.read()
        limits, available = self.limits, self.memory.number(b"MemAvailable:") / KIB_PER_GIB
        has = f"{int(available * 10) / 10:.1f} GiB available"
        if not self.serving:
            least = limits["loading_gib"]
            low = available < least
            return (f"{has}, {least:.1f} GiB required while loading", least - available) if low else ("", 0.0)
        least, seconds = limits["serving_gib"], limits["serving_s"]
        if available < least / 2:  # what grows by 1 GiB in less than serving_s would be killed by the kernel
            return f"{has}, {least / 2:g} GiB required at any moment while serving", least - available
        if self.lasts("low", available < least, now):
            return f"{has}, {least:.1f} GiB required while serving, for {seconds:g} s", least - available
        if self.stalls and limits["pressure_percent"]:
            self.stalls.read()
            full = self.stalls.number(b"full avg10=")
            pressed = full > limits["pressure_percent"] and available < limits["pressure_gib"]
            if self.lasts("pressed", pressed, now):
                most = f"{limits['pressure_percent']:g} % allowed while serving, for {seconds:g} s"
                return f"{has}, all programs wait for memory {full:.0f} % of the time, {most}", 0.0
        return "", 0.0

    def lasts(self, what: str, holds: bool, now: float) -> bool:
        """Whether it holds, and has held for serving_s."""
        if not holds:
            self.since.pop(what, None)
            return False
        return bool(now - self.since.setdefault(what, now) >= self.limits["serving_s"])

    def describe(self, family: list[tuple[int, int, str]]) -> str:
        """Who holds how much: the biggest by name, and what no process shows, which on a Spark is the GPU's memory."""
        held: dict[str, float] = {}
        for pages, _, name in family:
            held[name] = held.get(name, 0.0) + pages * PAGE / (1 << 30)
        number = self.memory.number
        rest = (number(b"MemTotal:") - number(b"MemAvailable:")) / KIB_PER_GIB - sum(held.values())
        biggest = sorted(held.items(), key=lambda row: -row[1])[:SHOWN]
        rows = [*biggest, ("GPU and others", max(0.0, rest))]
        total, free = number(b"SwapTotal:") / KIB_PER_GIB, number(b"SwapFree:") / KIB_PER_GIB
        swap = f"swap {free:.1f} of {total:.1f} GiB free" if total else "no swap"
        return f"held: {', '.join(f'{name} {gib:.1f} GiB' for name, gib in rows)}; {swap}"


def read_family(root: int) -> list[tuple[int, int, str]]:
    """(resident pages, pid, name) of all processes below `root` but this one, the biggest first.

    From /proc/PID/stat alone: other files there wait for a lock that a process holds while it waits for memory.
    """
    found: dict[int, tuple[int, int, str]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError), open(f"/proc/{entry}/stat", "rb") as file:
                head, _, tail = file.read().rpartition(b")")
                fields = tail.split()
                if fields[0] != b"Z":
                    name = head.partition(b"(")[2].decode("utf-8", "replace")
                    found[int(entry)] = int(fields[1]), int(fields[21]), name
    family, before = {root}, 0
    while len(family) > before:
        before = len(family)
        family |= {pid for pid, (parent, _, _) in found.items() if parent in family}
    return sorted((found[pid][1], pid, found[pid][2]) for pid in family - {root, os.getpid()} if pid in found)[::-1]


def kill(root: int, spared: int = 0, within_s: float = 5.0) -> None:
    """End everything below `root` but this process and the one spared, the biggest first, until nothing is left."""
    for _ in range(int(within_s / 0.05)):
        family = [row for row in read_family(root) if row[1] != spared]
        for _, pid, _ in family:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not family:
            return
        time.sleep(0.05)


def lock() -> str:
    """Keep this process in memory, and out of the OOM killer's way where that is allowed; why it is not locked."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("-900")
    libc = ctypes.CDLL(None, use_errno=True)
    return "" if libc.mlockall(LOCK_ALL) == 0 else f"a lock on its own memory ({os.strerror(ctypes.get_errno())})"


def say(text: str) -> None:
    """One line of the rank's log."""
    os.write(2, f"memory guard: {text}\n".encode())


def main() -> int:
    limits, root = json.loads(sys.argv[1]), os.getppid()
    guard = Guard(limits)
    guard.describe(read_family(root))  # so that the memory this takes is there when it counts
    guard.missing += filter(None, [lock()])
    if guard.missing:
        say(f"works without {', '.join(guard.missing)}")
    gc.disable()
    gc.freeze()
    stdin, pause_ms = select.poll(), limits["period_s"] * 1000
    stdin.register(0, select.POLLIN)
    while True:
        if stdin.poll(pause_ms):
            if not os.read(0, 1):
                return 0
            guard.serving = True
            say(f"the server answers: {limits['serving_gib']:g} GiB are enough from here on")
        why, missing_gib = guard.look(time.monotonic())
        if why:
            total = int(guard.memory.number(b"MemTotal:")) << 10
            text = f"memory guard: {why}; {guard.describe(read_family(root))}"
            line = json.dumps({"why": text, "missing": int(missing_gib * (1 << 30)), "total": total})
            with suppress(OSError):
                os.write(1, line.encode() + b"\n")
            kill(root)
            return ENDED_FOR_MEMORY


if __name__ == "__main__":
    sys.exit(main())
