"""A host's clock beside the operator's: read on the host within one round trip, compared with the middle of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cluster.argv.far import far
from cluster.spark.fact import Missing, read_section

if TYPE_CHECKING:
    from cluster.argv.question import Answer, Question


@dataclass(frozen=True, slots=True)
class Told:
    """What the host says: its clock in unix seconds, and whether something keeps it right (None when not told)."""

    time_unix_s: float
    synchronised: bool | None = None


@dataclass(frozen=True, slots=True)
class Clock:
    """`offset_s`: how far the host is ahead of the operator, give or take `uncertainty_s`, half of the round trip."""

    offset_s: float
    uncertainty_s: float
    synchronised: bool | None = None

    @property
    def ahead_s(self) -> float:
        """Seconds that the host is surely ahead; 0 where the round trip explains the difference."""
        return self.offset_s if abs(self.offset_s) > self.uncertainty_s else 0.0


def question() -> Question:
    """Ask for the clock alone."""
    return far("look", {"sections": ["clock"]}, timeout_s=5)


def parse(answer: Answer, asked: tuple[float, float]) -> Clock | Missing:
    """Read the section `clock` of far/look. `asked`: the operator's unix seconds before and after the round trip."""
    told = read_section(answer, "clock", Told)
    if isinstance(told, Missing):
        return told
    before, after = asked
    return Clock(told.time_unix_s - (before + after) / 2, abs(after - before) / 2, told.synchronised)
