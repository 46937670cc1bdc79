"""Small facts of a host that people paste: kernel release, locked-memory limit, machine-ids, disk usage."""

from __future__ import annotations

import re
from dataclasses import dataclass

_KERNEL = re.compile(
    r"^(?:Linux \S+ )?(?P<release>[4-9]\.\d+\.\d+-[\w.~-]+)(?: |$)"
    r"|\b[Kk]ernel:? (?:Linux )?(?P<told>[4-9]\.\d+\.\d+-[\w.~-]+)",
    re.MULTILINE,
)
_MEMLOCK = re.compile(
    r"max locked memory[ \t]+\(k?bytes, -l\)[ \t]+(?P<kib>\d+|unlimited)"
    r"|^Max locked memory[ \t]+(?P<bytes>\d+|unlimited)",
    re.MULTILINE,
)
_MACHINE = re.compile(r"^[^\n]*?(?<![\w/:-])(?P<id>[0-9a-f]{32})(?![\w-])[ \t]*$", re.MULTILINE)
_HOSTNAME = re.compile(r"\bhostname ?[:=][ \t]*(?P<name>[\w.-]+)", re.MULTILINE | re.IGNORECASE)
_DF = re.compile(
    r"^(?P<device>\S+)[ \t]+(?:\S+[ \t]+)?\S+[ \t]+\S+[ \t]+(?P<free>[\d.]+[KMGTP]?i?)"
    r"[ \t]+(?P<used>\d{1,3})%[ \t]+(?P<path>/\S*)[ \t]*$",
    re.MULTILINE,
)
_UNITS = {"": 1 << 10, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}


@dataclass(frozen=True, slots=True)
class Filled:
    """A file system in `df`. `free_bytes` as far as the unit tells."""

    device: str
    path: str
    used_pct: int
    free_bytes: int


def recognise_kernel(text: str) -> str | None:
    """The release that `uname -r`, `uname -a` or hostnamectl prints."""
    found = _KERNEL.search(text)
    return (found["release"] or found["told"]) if found else None


def recognise_memlock(text: str) -> int | None:
    """The limit of locked memory in bytes, -1 for unlimited: `ulimit -a` or /proc/PID/limits."""
    found = _MEMLOCK.search(text)
    if not found:
        return None
    told = found["kib"] or found["bytes"]
    return -1 if told == "unlimited" else int(told) * (1024 if found["kib"] else 1)


def recognise_machines(text: str) -> tuple[str, ...] | None:
    """Machine-ids, one for each line that ends in one, of a text that names them or has nothing else."""
    found = tuple(row["id"] for row in _MACHINE.finditer(text))
    labelled = tuple(row["id"] for row in _MACHINE.finditer(text) if re.search("machine.?id", row[0], re.IGNORECASE))
    alone = len(found) >= sum(bool(line.strip()) for line in text.splitlines()) - 2
    return labelled or (found if alone else ()) or None


def recognise_hostnames(text: str) -> tuple[str, ...] | None:
    """The names that hostnamectl, or a line `hostname: NAME`, gives."""
    return tuple(found["name"] for found in _HOSTNAME.finditer(text)) or None


def recognise_disk(text: str) -> tuple[Filled, ...] | None:
    """The rows of `df`, in KiB or with -h."""
    rows = []
    for found in _DF.finditer(text):
        number = re.match(r"[\d.]+", found["free"])
        unit = found["free"].rstrip("i")[-1:] if not found["free"][-1:].isdigit() else ""
        free = int(float(number[0]) * _UNITS.get(unit, 1 << 10)) if number else 0
        rows.append(Filled(found["device"], found["path"], int(found["used"]), free))
    return tuple(rows) or None
