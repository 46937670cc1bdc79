"""Room on the disks of a host, from statvfs(3)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from cluster.argv.far import far
from cluster.argv.question import Answer, Question
from cluster.spark.fact import Missing, read_section
from cluster.spark.finding import Check, Finding
from cluster.spark.memory import GIB

if TYPE_CHECKING:
    from cluster.spark.look import Seen

DISK = Check("disk", "memory-is-full#the-disk-is-full")
"""Warning: less than 5 GiB or 10 000 inodes where images (a moved `data-root` too), weights or caches live, or a file
system there that is read-only. Silent about the second path of a file system."""
NEARLY_FULL_PCT = 95
NOT_STORAGE = ("/boot", "/snap", "/run", "/sys", "/proc", "/cdrom", "/media")
NOT_DISKS = ("/dev/loop", "squashfs", "efivarfs")
MIN_ROOM = 5 * GIB
MIN_INODES = 10_000


@dataclass(frozen=True, slots=True)
class Room:
    """Room at a path, or at its nearest existing parent, for an unprivileged user. `free_inodes` is None where the file
    system does not count them. Two paths with one `device` share their room."""

    path: str
    free_bytes: int
    free_inodes: int | None
    device: int = 0
    read_only: bool = False


def question(paths: Iterable[str]) -> Question:
    """`~` in paths is the home there."""
    return far("kept", {"sections": ["disk"], "paths": list(paths)})


def moved_root(root: str, rooms: tuple[Room, ...]) -> bool:
    """Whether Docker's data directory is none of the places that were asked for."""
    return root.startswith("/") and all(root != room.path for room in rooms)


def parse(answer: Answer) -> tuple[Room, ...] | Missing:
    """In the order of the paths asked for, `~` expanded."""
    return read_section(answer, "disk", tuple[Room, ...])


_DF = re.compile(
    r"^(?P<device>\S+)[ \t]+(?:\S+[ \t]+)?\S+[ \t]+\S+[ \t]+(?P<free>[\d.]+)(?P<unit>[KMGTP]?)i?"
    r"[ \t]+(?P<used>\d{1,3})%[ \t]+(?P<path>/\S*)[ \t]*$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Filled:
    """A file system in `df`."""

    device: str
    path: str
    used_pct: int
    free_bytes: int

    @property
    def is_storage(self) -> bool:
        """Whether what fills it may be removed: no image, no pseudo file system, no part of the firmware's."""
        return not self.path.startswith(NOT_STORAGE) and not self.device.startswith(NOT_DISKS)


def recognise(text: str) -> tuple[Filled, ...] | None:
    """The rows of `df`, in KiB or with -h."""
    rows = []
    for found in _DF.finditer(text):
        unit = 1024 ** ("KMGTP".find(found["unit"] or "K") + 1)
        rows.append(Filled(found["device"], found["path"], int(found["used"]), int(float(found["free"]) * unit)))
    return tuple(rows) or None


def judge_room(free_bytes: int, used_pct: int = 0) -> Literal["", "little", "full"]:
    """Whether there is room for images, weights and caches. `used_pct` where only that is known exactly."""
    if used_pct >= 100 or free_bytes < GIB:
        return "full"
    return "little" if used_pct >= NEARLY_FULL_PCT or free_bytes < MIN_ROOM else ""


def check_disk(seen: Seen) -> Iterator[Finding]:
    """Some room, in bytes and in files, where images, weights and caches live; a file system is named once."""
    if isinstance(seen.disk, Missing):
        yield DISK.unknown(seen.host, "disk room", seen.disk)
        return
    for room in {room.device or room.path: room for room in reversed(seen.disk)}.values():
        if room.read_only:
            what, remedy = (
                f"the file system of {room.path} is read-only",
                "sudo dmesg | grep -iE 'ext4|nvme'; then reboot",
            )
            yield DISK.warning(seen.host, what, "mounted ro: so on purpose, or after an error of the disk", remedy)
        few_files = room.free_inodes is not None and room.free_inodes < MIN_INODES
        if judge_room(room.free_bytes) or few_files:
            evidence = f"{room.free_bytes / GIB:.1f} GiB free"
            evidence += f", {room.free_inodes} inodes free" if few_files else ""
            remedy = "docker system df; remove what is not needed"
            yield DISK.warning(seen.host, f"little room under {room.path}", evidence, remedy)
