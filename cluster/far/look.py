"""What the kernel and the account report of this host: sections clock, identity, memory, listening, processes.

Given {"sections": [names], "data_dir": path, "hf_home": path, "root": "/"}; only the sections asked for are looked
at, in that order. `root` is where sys/, proc/ and etc/ are. Prints for each a line
{"<section>": {"value": …} | {"missing": why, "kind": kind}}.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable

from cluster.far.prelude import Json, absolute, container_of, emit_sections, pids, read_text, read_text_if

LISTEN = "0A"


# clock


def look_clock(given: dict[str, Json]) -> Json:
    return {"time_unix_s": time.time(), "synchronised": synchronised()}


def synchronised() -> bool | None:
    """Whether something keeps the clock right, as timedatectl judges it: adjtimex(2), maximum error below 16 s."""
    try:
        import ctypes

        timex = ctypes.create_string_buffer(512)
        if ctypes.CDLL(None).adjtimex(timex) < 0:
            return None
    except (ImportError, OSError, AttributeError):
        return None
    return ctypes.c_long.from_buffer(timex, 3 * ctypes.sizeof(ctypes.c_long)).value < 16_000_000


# identity


def look_identity(given: dict[str, Json]) -> Json:
    root, uname = given["root"], os.uname()
    sudo = start_sudo()
    user, groups = account()
    return {
        "product": product(root),
        "machine_id": read_text_if(f"{root}etc/machine-id"),
        "hostname": uname.nodename,
        "kernel": uname.release,
        "arch": uname.machine,
        "user": user,
        "uid": os.getuid(),
        "gid": os.getgid(),
        "groups": groups,
        "path": os.environ.get("PATH", ""),
        "data_dir": absolute(given.get("data_dir", "~")),
        "hf_home": absolute(given.get("hf_home", "~")),
        "management_address": management_address(),
        "named_addresses": named_addresses(root, uname.nodename),
        "sudo": ended_well(sudo),
    }


def product(root: str) -> str:
    """The firmware's name of this machine: DMI, else the device tree."""
    places = ("sys/class/dmi/id/product_name", "sys/devices/virtual/dmi/id/product_name", "proc/device-tree/model")
    return next(filter(None, (read_text_if(root + place) for place in places)), "")


def account() -> tuple[str, list[str]]:
    """User name and group names; the numbers where there are no names."""
    import grp
    import pwd

    def name(lookup: Callable[[int], Json], number: int) -> str:
        try:
            return str(lookup(number)[0])
        except (KeyError, OSError):
            return str(number)

    numbers = dict.fromkeys([os.getgid(), *os.getgroups()])
    return name(pwd.getpwuid, os.getuid()), [name(grp.getgrgid, number) for number in numbers]


def named_addresses(root: str, hostname: str) -> list[str]:
    """The addresses that /etc/hosts gives this host's own name."""
    rows = (line.partition("#")[0].split() for line in read_text_if(f"{root}etc/hosts").splitlines())
    return [row[0] for row in rows if hostname in row[1:]]


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


def start_sudo() -> subprocess.Popen[bytes] | bool:
    """A running `sudo -n true`; True for root, False without sudo."""
    if os.getuid() == 0:
        return True
    null = subprocess.DEVNULL
    try:
        return subprocess.Popen(["sudo", "-n", "true"], stdin=null, stdout=null, stderr=null)
    except OSError:
        return False


def ended_well(sudo: subprocess.Popen[bytes] | bool, timeout_s: float = 3) -> bool:
    if isinstance(sudo, bool):
        return sudo
    try:
        return sudo.wait(timeout_s) == 0
    except subprocess.TimeoutExpired:
        sudo.kill()
        return False


# memory


def look_memory(given: dict[str, Json]) -> str:
    return read_text(f"{given['root']}proc/meminfo")


# listening


def look_listening(given: dict[str, Json]) -> Json:
    proc = f"{given['root']}proc"
    rows = socket_rows(read_text(f"{proc}/net/tcp")) + socket_rows(read_text_if(f"{proc}/net/tcp6"))
    note_holders({row.pop("inode"): row for row in rows}, proc)
    for row in rows:
        row["process"] = read_text_if(f"{proc}/{row['pid']}/comm") if row["pid"] else ""
    return rows


def socket_rows(table: str) -> list[dict[str, Json]]:
    fields = [line.split() for line in table.splitlines()[1:]]
    return [listener(row) for row in fields if len(row) > 9 and row[3] == LISTEN]


def listener(row: list[str]) -> dict[str, Json]:
    address, _, port = row[1].partition(":")
    words = [bytes.fromhex(address[at : at + 8]) for at in range(0, len(address), 8)]
    if sys.byteorder == "little":
        words = [word[::-1] for word in words]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    text = socket.inet_ntop(family, b"".join(words))
    return {"address": text, "port": int(port, 16), "pid": None, "process": "", "uid": int(row[7]), "inode": row[9]}


def note_holders(by_inode: dict[str, dict[str, Json]], proc: str) -> None:
    """Note in each row the lowest pid that holds its socket, where this user may see it."""
    for pid in pids(proc):
        try:
            descriptors = os.listdir(f"{proc}/{pid}/fd")
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                target = os.readlink(f"{proc}/{pid}/fd/{descriptor}")
            except OSError:
                continue
            row = by_inode.get(target[8:-1]) if target.startswith("socket:[") else None
            if row and row["pid"] is None:
                row["pid"] = pid


# processes


def look_processes(given: dict[str, Json]) -> Json:
    proc = f"{given['root']}proc"
    return [row for row in (process_row(proc, pid) for pid in pids(proc)) if row]


def process_row(proc: str, pid: int) -> dict[str, Json] | None:
    name = engine_name(read_text_if(f"{proc}/{pid}/cmdline").split("\0"), proc, pid)
    if not name:
        return None
    pages = read_text_if(f"{proc}/{pid}/statm").split()
    return {
        "pid": pid,
        "name": name[:100],
        "rss_bytes": int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if len(pages) > 1 else 0,
        "container": container_of(pid, proc),
    }


def engine_name(argv: list[str], proc: str, pid: int) -> str:
    """How an engine's process is called, empty for any other. A zombie has no words left, only its short name."""
    first = argv[0] or read_text_if(f"{proc}/{pid}/comm")
    base = os.path.basename(first)
    if first.startswith(("VLLM::", "ray::", "ray-dashboard")):
        return first
    if base in ("raylet", "gcs_server"):
        return base
    program, following = script(argv)
    name = os.path.basename(program)
    if (name, following) in (("vllm", "serve"), ("ray", "start")):
        return f"{name} {following}"
    if program.startswith("vllm.entrypoints"):
        return "vllm serve"
    if program.startswith("ray.") or ("/ray/" in program and program.endswith(".py")):
        return "ray agent"
    return ""


def script(argv: list[str]) -> list[str]:
    """The program and its first word; of an interpreter, the script or module it runs."""
    at = 1 if os.path.basename(argv[0]).startswith("python") else 0
    while at < len(argv) and argv[at].startswith("-"):
        at += 1
    return [*argv[at : at + 2], "", ""][:2]


if __name__ == "__main__":
    looks = {
        "clock": look_clock,
        "identity": look_identity,
        "memory": look_memory,
        "listening": look_listening,
        "processes": look_processes,
    }
    emit_sections(looks)
