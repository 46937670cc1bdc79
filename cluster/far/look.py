"""What the kernel and the account report of this host: sections clock, identity, memory, listening, processes.

Given {"sections": [names], "data_dir": path, "hf_home": path, "root": "/"}; only the sections asked for are looked
at, in that order. `root` is where sys/, proc/ and etc/ are. Prints for each a line
{"<section>": {"value": …} | {"missing": why, "kind": kind}}.
"""

import grp
import os
import pwd
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from cluster.far.prelude import Json, absolute, container_of, emit_sections, pids, read_text, read_text_if

LISTEN = "0A"


def look_clock(given: dict[str, Json]) -> Json:
    """`synchronised` as timedatectl judges it: adjtimex(2), maximum error below 16 s; None when that is not known."""
    now, synchronised = time.time(), None
    with suppress(ImportError, OSError, AttributeError):
        import ctypes  # slow, and only for this section

        timex = ctypes.create_string_buffer(512)
        if ctypes.CDLL(None).adjtimex(timex) >= 0:
            error_us = ctypes.c_long.from_buffer(timex, 3 * ctypes.sizeof(ctypes.c_long)).value
            synchronised = error_us < 16_000_000
    return {"time_unix_s": now, "synchronised": synchronised}


def look_identity(given: dict[str, Json]) -> Json:
    """`product` is the firmware's name of this machine: DMI, else the device tree."""
    root, uname = given["root"], os.uname()
    products = ("sys/class/dmi/id/product_name", "sys/devices/virtual/dmi/id/product_name", "proc/device-tree/model")
    names = (line.partition("#")[0].split() for line in read_text_if(f"{root}etc/hosts").splitlines())
    return {
        "product": next(filter(None, (read_text_if(root + place) for place in products)), ""),
        "machine_id": read_text_if(f"{root}etc/machine-id"),
        "hostname": uname.nodename,
        "kernel": uname.release,
        "arch": uname.machine,
        "user": name_of(pwd.getpwuid, os.getuid()),
        "uid": os.getuid(),
        "gid": os.getgid(),
        "groups": [name_of(grp.getgrgid, number) for number in dict.fromkeys([os.getgid(), *os.getgroups()])],
        "path": os.environ.get("PATH", ""),
        "data_dir": absolute(given.get("data_dir", "~")),
        "hf_home": absolute(given.get("hf_home", "~")),
        "management_address": management_address(),
        "named_addresses": [row[0] for row in names if uname.nodename in row[1:]],
        "sudo": sudo_works(),
    }


def management_address() -> str:
    """Where SSH reached this host, else the source of its default route (a connected UDP socket sends nothing)."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    if len(words) == 4:
        return words[2].split("%")[0]
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((far, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return ""


def sudo_works() -> bool:
    """Whether `sudo -n` asks for no password; root needs none."""
    null = subprocess.DEVNULL
    with suppress(OSError, subprocess.TimeoutExpired):  # one that hangs cannot be killed by this user
        return os.getuid() == 0 or subprocess.Popen(["sudo", "-n", "true"], stdin=null, stderr=null).wait(3) == 0
    return False


def name_of(lookup: Callable[[int], Json], number: int) -> str:
    """A user's or group's name; the number where it has none."""
    with suppress(KeyError, OSError):
        return str(lookup(number)[0])
    return str(number)


def look_listening(given: dict[str, Json]) -> Json:
    proc = f"{given['root']}proc"
    rows = socket_rows(read_text(f"{proc}/net/tcp")) + socket_rows(read_text_if(f"{proc}/net/tcp6"))
    by_inode = {row.pop("inode"): row for row in rows}
    for pid in pids(proc):
        for inode in sockets_of(f"{proc}/{pid}/fd") & by_inode.keys():
            by_inode[inode]["pid"] = by_inode[inode]["pid"] or pid  # the lowest
    for row in rows:
        row["process"] = read_text_if(f"{proc}/{row['pid']}/comm") if row["pid"] else ""
    return rows


def socket_rows(table: str) -> list[dict[str, Json]]:
    """The listeners in /proc/net/tcp or tcp6, whose addresses are words in the order of this machine's bytes."""
    found = []
    for row in (line.split() for line in table.splitlines()[1:]):
        if len(row) > 9 and row[3] == LISTEN:
            address, _, port = row[1].partition(":")
            words = [bytes.fromhex(address[at : at + 8]) for at in range(0, len(address), 8)]
            packed = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
            text = socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, packed)
            place = {"address": text, "port": int(port, 16), "uid": int(row[7]), "inode": row[9]}
            found.append({**place, "pid": None, "process": ""})
    return found


def sockets_of(folder: str) -> set[str]:
    found = set()
    with suppress(OSError):
        for descriptor in os.listdir(folder):
            with suppress(OSError):
                found.update(re.findall(r"^socket:\[(\d+)\]$", os.readlink(f"{folder}/{descriptor}")))
    return found


def look_processes(given: dict[str, Json]) -> Json:
    proc, found = f"{given['root']}proc", []
    for pid in pids(proc):
        argv = read_text_if(f"{proc}/{pid}/cmdline").split("\0")
        # a zombie has no words left, only its short name
        if name := engine_name([argv[0] or read_text_if(f"{proc}/{pid}/comm"), *argv[1:]]):
            pages = read_text_if(f"{proc}/{pid}/statm").split()
            held = int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if len(pages) > 1 else 0
            found.append({"pid": pid, "name": name[:100], "rss_bytes": held, "container": container_of(pid, proc)})
    return found


def engine_name(argv: list[str]) -> str:
    """How an engine's process is called, empty for any other."""
    first, base = argv[0], os.path.basename(argv[0])
    if first.startswith(("VLLM::", "ray::", "ray-dashboard")):
        return first
    if base in ("raylet", "gcs_server"):
        return base
    at = 1 if base.startswith("python") else 0  # of an interpreter, the script or module that it runs
    while at < len(argv) and argv[at].startswith("-"):
        at += 1
    program, following = [*argv[at : at + 2], "", ""][:2]
    name = os.path.basename(program)
    if (name, following) in (("vllm", "serve"), ("ray", "start")):
        return f"{name} {following}"
    if program.startswith("vllm.entrypoints"):
        return "vllm serve"
    if program.startswith("ray.") or ("/ray/" in program and program.endswith(".py")):
        return "ray agent"
    return ""


if __name__ == "__main__":
    emit_sections(
        {
            "clock": look_clock,
            "identity": look_identity,
            "memory": lambda given: read_text(f"{given['root']}proc/meminfo"),
            "listening": look_listening,
            "processes": look_processes,
        }
    )
