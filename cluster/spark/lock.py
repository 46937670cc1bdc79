"""Who holds the lock of a host: flock(2) on `<data_dir>/lock`, with JSON of the holder inside."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.argv.far import far
from cluster.argv.question import Answer, Question
from cluster.spark.fact import Missing
from cluster.spark.sections import read_section


@dataclass(frozen=True, slots=True)
class LockState:
    """Whether somebody holds the lock. `who`, `why`: the holder's own words; `since`: unix seconds, None if not told.

    A lock that is not held names nobody, whatever an earlier holder left in the file.
    """

    held: bool
    who: str = ""
    since: float | None = None
    why: str = ""


def question(data_dir: str) -> Question:
    """Ask for the lock alone."""
    return far("kept", {"sections": ["lock"], "data_dir": data_dir})


def parse(answer: Answer) -> LockState | Missing:
    """Read the section `lock` of far/kept."""
    return read_section(answer, "lock", LockState)
