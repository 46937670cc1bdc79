"""Holds a lab's switch (its network namespace lives as long as this process) and keeps the RDMA counters fresh.

    unshare --net python3 daemon.py REGISTRY MODEL LAB_DIR

Five times a second, for each booted host: bytes of the fabric netdevs (/proc/PID/net/dev) become
port_xmit_data and port_rcv_data, in units of 4 bytes; carrier becomes state. A host whose name is in LAB_DIR/still
keeps its counters as they are. The lab's registry and hub (outside.py) end with it.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PERIOD_S = 0.2


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
    rows = {}
    for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]:
        name, _, rest = line.partition(":")
        rows[name.strip()] = (int(rest.split()[0]), int(rest.split()[8]))
    return rows


def put(path: Path, text: str) -> None:
    """Write in place and in one call; a shorter text is cut after it."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    os.pwrite(handle, text.encode(), 0)
    os.ftruncate(handle, len(text.encode()))
    os.close(handle)


def refresh(pid: int, boot: dict[str, Any], still: bool, kept: dict[Path, str]) -> None:
    """Bring one host's RDMA tree up to date; `kept` has each file's content."""
    seen = traffic(pid)
    sys_root = Path(f"/proc/{pid}/root/sys")
    for port in boot["ports"]:
        one = sys_root / "class/infiniband" / port["hca"] / "ports/1"
        received, sent = seen.get(port["netdev"], (0, 0))
        try:  # whether the cable is plugged in and the netdev is up
            up = (sys_root / "class/net" / port["netdev"] / "carrier").read_text().strip() == "1"
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


def main() -> None:
    lab = Path(sys.argv[3])
    outside = [sys.executable, "-I", "-S", str(Path(__file__).with_name("outside.py")), *sys.argv[1:3]]
    subprocess.Popen(outside, stdin=subprocess.DEVNULL)
    kept: dict[Path, str] = {}
    found: list[tuple[int, dict[str, Any]]] = []
    for turn in itertools.count():
        if turn % 5 == 0:
            found = hosts_of(lab)
        for pid, boot in found:
            try:
                refresh(pid, boot, (lab / "still" / boot["name"]).exists(), kept)
            except (OSError, ValueError):
                continue  # it is booting or gone
        time.sleep(PERIOD_S)


if __name__ == "__main__":
    main()
