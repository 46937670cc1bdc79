"""The limit of a GPU's clocks: what the inventory says, what cluster set, what somebody else did; whether it holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cluster.argv.question import Answer
from cluster.spark.deployments import is_managed
from cluster.spark.fact import Missing, known, read_section
from cluster.spark.finding import Check, Finding
from cluster.spark.gpu import Gpu

if TYPE_CHECKING:
    from cluster.config.inventory import ResolvedHost
    from cluster.spark.look import Seen
    from cluster.spark.request import Wanted

CLOCK_LIMIT = Check("clock-limit", "first-set-up#clock-limit")
"""Fault: the inventory's `clocks`, or a limit that cluster set, needs sudo, and there is none. Warning: somebody else
limits the clocks, which is kept; a rank runs without the inventory's limit, as after a reboot. Note: a limit that a
killed command left. Silent about a limit that shows in no enabled unit or cron file, and not in the clocks now."""
SETTING = "application clocks"
"""How the driver calls a limit while it lowers the clocks (gpu.THROTTLE); an idle GPU shows none."""
TOLERANCE_MHZ = 45
"""The driver rounds a limit to a step of its own."""


@dataclass(frozen=True, slots=True)
class ClockLimit:
    """What is noted on a host. `mhz`: the limit in cluster's note, None without one; `current`: it was written since
    the host's start, which ends all limits. `others`: enabled units and cron files that limit clocks."""

    mhz: int | None
    current: bool
    others: tuple[str, ...] = ()

    @property
    def set_mhz(self) -> int | None:
        """MHz that cluster set and the host still has."""
        return self.mhz if self.current else None


def parse(answer: Answer) -> ClockLimit | Missing:
    return read_section(answer, "clock_limit", ClockLimit)


def noted(seen: Seen) -> ClockLimit:
    """What is noted on a host; nothing where that could not be read."""
    return known(seen.clock_limit) or ClockLimit(None, current=False)


def of_others(seen: Seen) -> str:
    """By what somebody else limits the clocks; empty when nobody is seen to."""
    limit = noted(seen)
    if limit.set_mhz:
        return ""
    lowered = any(SETTING in (gpu.throttle or ()) for gpu in known(seen.gpu) or ())
    return ", ".join([*limit.others, *(["nvidia-smi reports that a setting limits the clocks"] if lowered else [])])


def may_set(seen: Seen) -> bool:
    account = known(seen.identity)
    return account is not None and account.sudo


def to_set(host: ResolvedHost, seen: Seen) -> int:
    """MHz that cluster has to set on a host; 0 for none: not asked for, somebody else's is there, or it may not."""
    return 0 if of_others(seen) or not may_set(seen) else host.sm_max_mhz


def in_words(seen: Seen) -> str:
    """A host's limit for results; empty without one."""
    mhz = noted(seen).set_mhz
    return f"at most {mhz} MHz" if mhz else of_others(seen)


def exceeds(gpus: Sequence[Gpu], mhz: int) -> int | None:
    """The highest SM clock when a limit of so many MHz does not hold; None when it does, or no clock is known."""
    highest = max((gpu.sm_clock_mhz or 0 for gpu in gpus), default=0)
    return highest if highest > mhz + TOLERANCE_MHZ else None


def asked_for(wanted: Wanted, seen: Seen) -> int:
    """MHz that the inventory says for a host; 0 for no limit."""
    return next((one.sm_max_mhz for one in wanted.hosts if one.name == seen.host), 0)


def check_clock_limit(wanted: Wanted, seen: Seen) -> Iterator[Finding]:
    """The limit that the inventory gives to a host can be set, and one that is not to be there can be put back."""
    host, limit, asked = seen.host, noted(seen), asked_for(wanted, seen)
    if isinstance(seen.clock_limit, Missing):
        if asked:
            yield CLOCK_LIMIT.unknown(host, "the note on the GPU clock limit", seen.clock_limit)
        return
    if (others := of_others(seen)) and asked:
        what = f"somebody else limits the GPU's clocks: it is kept, and the inventory's {asked} MHz are not set"
        yield CLOCK_LIMIT.warning(host, what, others, f"on {host}: take that limit away, or `clocks` out")
    elif (asked or limit.set_mhz) and not may_set(seen):
        what = f"a GPU clock limit of {asked} MHz needs sudo without a password" if asked else ""
        what = what or f"the GPU clock limit of {limit.set_mhz} MHz cannot be reset: sudo needs a password"
        remedy = f"on {host}: sudo visudo -f /etc/sudoers.d/cluster; or take `clocks` out of the inventory"
        yield CLOCK_LIMIT.fault(host, what, "sudo -n true: refused", remedy)


def check_limit_held(wanted: Wanted, seen: Seen) -> Iterator[Finding]:
    """Doctor's: a rank has the limit that the inventory gives to its host, and without a rank none is left."""
    host, limit, asked = seen.host, noted(seen), asked_for(wanted, seen)
    runs = any(is_managed(one) and one.state == "running" for one in known(seen.containers) or ())
    if runs and asked and limit.set_mhz != asked and not of_others(seen):
        what = f"a rank runs without the inventory's GPU clock limit of {asked} MHz"
        evidence = f"set since the host's start: {f'{limit.set_mhz} MHz' if limit.set_mhz else 'none'}"
        yield CLOCK_LIMIT.warning(host, what, evidence, "cluster up sets it; the ranks go on")
    elif limit.set_mhz and not runs:
        what = f"a GPU clock limit of {limit.set_mhz} MHz is left, and no rank runs"
        yield CLOCK_LIMIT.note(host, what, remedy="cluster down resets it")
