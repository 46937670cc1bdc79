"""A host's clock beside the operator's: read on the host within one round trip, compared with the middle of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cluster.argv.far import far
from cluster.spark.fact import Missing, read_section
from cluster.spark.finding import Check, Finding

if TYPE_CHECKING:
    from cluster.argv.question import Answer, Question
    from cluster.spark.look import Seen

CLOCK = Check("clock", "first-set-up#clock")


@dataclass(frozen=True, slots=True)
class ClockReading:
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
    reading = read_section(answer, "clock", ClockReading)
    if isinstance(reading, Missing):
        return reading
    before, after = asked
    return Clock(reading.time_unix_s - (before + after) / 2, abs(after - before) / 2, reading.synchronised)


CLOCK_WARNING_S = 5.0
"""Clocks that differ by less do no harm."""


def check_clocks(seens: Sequence[Seen]) -> Iterator[Finding]:
    """The hosts' clocks agree with each other and with the operator's, as far as the round trips can tell."""
    clocks = {seen.host: seen.clock for seen in seens if not isinstance(seen.clock, Missing)}
    yield from (CLOCK.unknown(seen.host, "clock", seen.clock) for seen in seens if isinstance(seen.clock, Missing))
    wrong = {
        host: clock for host, clock in clocks.items() if abs(clock.offset_s) > CLOCK_WARNING_S + clock.uncertainty_s
    }
    if len(wrong) == len(clocks) > 1 and _spread(clocks) <= CLOCK_WARNING_S:
        first = next(iter(wrong))
        yield CLOCK.note(
            first,
            "the hosts' clocks agree, and differ from the one of this machine",
            f"{wrong[first].offset_s:+.0f} s",
            "on this machine: timedatectl",
        )
        return
    for host, clock in wrong.items():
        kept = {True: "synchronized", False: "not synchronized", None: "synchronization unknown"}
        yield CLOCK.warning(
            host,
            "the clock differs from this machine's",
            f"{clock.offset_s:+.0f} s from this machine's; {kept[clock.synchronised]}",
            f"on {host}: timedatectl; sudo timedatectl set-ntp true; sudo systemctl restart systemd-timesyncd",
        )


def _spread(clocks: Mapping[str, Clock]) -> float:
    """Seconds between the earliest and the latest clock."""
    offsets = [clock.offset_s for clock in clocks.values()]
    return max(offsets) - min(offsets)
