"""Room on the disks of a host, from statvfs(3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cluster.argv.far import far
from cluster.spark.fact import Missing, read_section

if TYPE_CHECKING:
    from cluster.argv.question import Answer, Question


@dataclass(frozen=True, slots=True)
class Room:
    """What a path could still take: that of its nearest existing parent, as an unprivileged user sees it.

    `free_inodes` is None where the file system does not count them. Two paths with one `device` share their room.
    """

    path: str
    free_bytes: int
    total_bytes: int
    free_inodes: int | None
    device: int = 0


def question(paths: Iterable[str]) -> Question:
    """Ask for the room at these paths (`~` is the home there)."""
    return far("kept", {"sections": ["disk"], "paths": list(paths)})


def moved_root(root: str, rooms: tuple[Room, ...]) -> bool:
    """Whether Docker's data directory is none of the usual places that were looked at."""
    return root.startswith("/") and all(root != room.path for room in rooms)


def parse(answer: Answer) -> tuple[Room, ...] | Missing:
    """Read the section `disk` of far/kept; the rooms come in the order of the paths asked for, `~` expanded."""
    return read_section(answer, "disk", tuple[Room, ...])
