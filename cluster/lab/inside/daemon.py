"""Holds a lab's switch (its network namespace lives as long as this process) and keeps made-up readings fresh.

    unshare --net python3 daemon.py REGISTRY MODEL LAB_DIR

Five times a second, for each booted host: bytes of the fabric netdevs (/proc/PID/net/dev) become
port_xmit_data and port_rcv_data, in units of 4 bytes; carrier becomes state. A host with a file `still` keeps its
counters as they are. Twenty times a second, for each host with a limit of memory: its cgroup becomes its
/proc/meminfo. The lab's registry and hub (outside.py) end with it.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PERIOD_S = 0.05
COUNTERS, HOSTS = 4, 20  # every so many periods


def hosts_of(lab: Path) -> list[tuple[int, dict[str, Any]]]:
    """(process id of the host's init, what it booted with) for each host that runs."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            words = Path("/proc", entry, "cmdline").read_bytes().split(b"\0")[:-1]
            if words and words[-1].startswith(bytes(lab / "hosts") + b"/") and b"unshare" not in words[0]:
                found.append((int(entry), json.loads(Path(words[-1].decode()).read_text())))
        except (OSError, ValueError):
            continue
    return found


def traffic(pid: int) -> dict[str, tuple[int, int]]:
    """Bytes received and sent by netdev."""
    rows = [line.replace(":", " ").split() for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]]
    return {name: (int(numbers[0]), int(numbers[8])) for name, *numbers in rows}


def put(path: Path, text: str) -> None:
    """Write in place and in one call; a shorter text is cut after it."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    os.pwrite(handle, text.encode(), 0)
    os.ftruncate(handle, len(text.encode()))
    os.close(handle)


def refresh(pid: int, boot: dict[str, Any], still: bool, kept: dict[Path, str]) -> None:
    """Bring one host's RDMA tree up to date; `kept` has each file's content."""
    seen = traffic(pid)
    classes = Path(f"/proc/{pid}/root/sys/class")
    for port in boot["ports"]:
        one = classes / "infiniband" / port["hca"] / "ports/1"
        received, sent = seen.get(port["netdev"], (0, 0))
        try:  # whether the cable is plugged in and the netdev is up
            up = (classes / "net" / port["netdev"] / "carrier").read_text().strip() == "1"
        except OSError:
            up = False
        wanted = {"state": "4: ACTIVE\n" if up else "1: DOWN\n"}
        if not still:
            wanted["counters/port_rcv_data"] = f"{received // 4}\n"
            wanted["counters/port_xmit_data"] = f"{sent // 4}\n"
        for name, text in wanted.items():
            if kept.get(one / name) != text:
                put(one / name, text)
                kept[one / name] = text


def meminfo(limit: int, usage: int, stat: Mapping[str, int]) -> str:
    """The /proc/meminfo of a machine of `limit` bytes, from a memory cgroup (v1). All have one length, so that a reader
    never sees half of one. Pages of files count as available, as in the kernel's own."""
    free = max(limit - usage, 0)
    active, inactive = (
        [stat.get(f"total_{kind}_{pages}", 0) for pages in ("anon", "file")] for kind in ("active", "inactive")
    )
    rows = {
        "MemTotal": limit,
        "MemFree": free,
        "MemAvailable": min(free + active[1] + inactive[1], limit),
        "Buffers": 0,
        "Cached": stat.get("total_cache", 0),
        "SwapCached": 0,
        "Active": sum(active),
        "Inactive": sum(inactive),
        "SwapTotal": 0,
        "SwapFree": 0,
        "AnonPages": stat.get("total_rss", 0),
        "Mapped": stat.get("total_mapped_file", 0),
        "Shmem": stat.get("total_shmem", 0),
        "SReclaimable": 0,
    }
    width = len(str(limit // 1024))
    return "".join(f"{name + ':':<16}{size // 1024:>{width}} kB\n" for name, size in rows.items())


def show_memory(pid: int, memory: dict[str, Any]) -> None:
    """Bring the /proc/meminfo of a host with a limit up to date."""
    group = Path(memory["group"])
    before = (group / "memory.usage_in_bytes").read_text()
    stat = {name: int(size) for name, size in map(str.split, (group / "memory.stat").read_text().splitlines())}
    after = (group / "memory.usage_in_bytes").read_text()
    text = meminfo(memory["limit"], min(int(before), int(after)), stat)  # page cache that came in between is no use
    put(Path(f"/proc/{pid}/root/run/cluster-lab/memory/meminfo"), text)


def main() -> None:
    lab = Path(sys.argv[3])
    outside = [sys.executable, "-I", "-S", str(Path(__file__).with_name("outside.py")), *sys.argv[1:3]]
    subprocess.Popen(outside, stdin=subprocess.DEVNULL)
    kept: dict[Path, str] = {}
    found: list[tuple[int, dict[str, Any]]] = []
    for turn in itertools.count():
        if turn % HOSTS == 0:
            found = hosts_of(lab)
        for pid, boot in found:
            try:
                if boot.get("memory"):
                    show_memory(pid, boot["memory"])
                if turn % COUNTERS == 0:
                    refresh(pid, boot, (lab / "hosts" / boot["name"] / "still").exists(), kept)
            except (OSError, ValueError):
                continue  # it is booting or gone
        time.sleep(PERIOD_S)


if __name__ == "__main__":
    main()
