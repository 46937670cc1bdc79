"""A host's clock compared with the operator's: read on the host, against the middle of the round trip."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cluster.argv.far import far
from cluster.argv.question import Answer, Question
from cluster.spark.fact import Missing, known, read_section
from cluster.spark.finding import Check, Finding

if TYPE_CHECKING:
    from cluster.spark.look import Seen

CLOCK = Check("clock", "first-set-up#clock")
"""Warning: more than 5 s from this machine's, beyond half the round trip; note: all hosts agree and this machine
differs. Silent about slow round trips."""
CLOCK_WARNING_S = 5.0
"""Clocks that differ by less do no harm."""


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The host's clock in unix seconds, and whether something keeps it right (None when unknown)."""

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
    return far("look", {"sections": ["clock"]}, timeout_s=5)


def parse(answer: Answer, asked: tuple[float, float]) -> Clock | Missing:
    """`asked`: the operator's unix seconds before and after the round trip."""
    reading = read_section(answer, "clock", ClockReading)
    if isinstance(reading, Missing):
        return reading
    before, after = asked
    return Clock(reading.time_unix_s - (before + after) / 2, abs(after - before) / 2, reading.synchronised)


def check_clocks(seens: Sequence[Seen]) -> Iterator[Finding]:
    """The hosts' clocks agree with each other and with the operator's, beyond half the round trip."""
    yield from (CLOCK.unknown(seen.host, "clock", seen.clock) for seen in seens if isinstance(seen.clock, Missing))
    clocks = {seen.host: clock for seen in seens if (clock := known(seen.clock))}
    wrong = {host: one for host, one in clocks.items() if abs(one.offset_s) > CLOCK_WARNING_S + one.uncertainty_s}
    offsets = [clock.offset_s for clock in clocks.values()]
    if len(wrong) == len(clocks) > 1 and max(offsets) - min(offsets) <= CLOCK_WARNING_S:
        what = "the hosts' clocks agree, and differ from the one of this machine"
        yield CLOCK.note(next(iter(wrong)), what, f"{offsets[0]:+.0f} s", "on this machine: timedatectl")
        return
    for host, clock in wrong.items():
        kept = {True: "synchronized", False: "not synchronized", None: "synchronization unknown"}[clock.synchronised]
        evidence = f"{clock.offset_s:+.0f} s from this machine's; {kept}"
        remedy = f"on {host}: timedatectl; sudo timedatectl set-ntp true; sudo systemctl restart systemd-timesyncd"
        yield CLOCK.warning(host, "the clock differs from this machine's", evidence, remedy)
