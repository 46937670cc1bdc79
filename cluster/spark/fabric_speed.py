"""What a test of the fabric says: thresholds, verdicts, findings. The one home of the numbers a twin is judged by.

Sources: NVIDIA's performance guide for two Sparks (ib_write_bw 92–98 Gb/s a twin, about 190 over both) and
dgx-spark-playbooks PR 108 (8–25 Gb/s over a clean 200G link: the ConnectX came up degraded, a full power cycle cures).
Two later reports were cured by a reboot alone (2.8 → 21 GB/s, 13.49 → 108.94 Gb/s), so that is tried first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cluster.spark.bandwidth import Bandwidth
from cluster.spark.fabric_ways import Obstacle, Way
from cluster.spark.fact import Missing
from cluster.spark.finding import Finding, Level
from cluster.spark.flood import Flood

TWIN_GBPS = 100.0
"""What the PCIe of one twin (Gen5 x4) lets through, whatever rate its port claims; it claims 100 or 200."""
STALE, SLOW, TOGETHER = 0.3, 0.8, 0.75
"""Parts of what is to be had, under which RDMA is degraded, slow, and two links hinder each other."""
LOW_TCP_GBPS = 25.0
"""What several streams of TCP give at most over a degraded card; over a good one they give more, if the CPU can."""
SATURATED = 0.9
"""Busy share of a core that may have been the limit, and not the link."""
UNEQUAL = 2.0
STREAMS = 8
RESET = "reboot both hosts, test again; if it is as slow: power both off, unplug their power bricks for a minute"
REST = "on both: ip link (MTU 9000?), let nothing else use the links, reseat the cable, test again"

Verdict = Literal["", "slow", "degraded"]


def judge_rdma(gbps: float, rate_gbps: float = TWIN_GBPS) -> Verdict:
    """What ib_write_bw's number says of a link whose port claims this rate."""
    share = gbps / min(rate_gbps, TWIN_GBPS)
    return "degraded" if share < STALE else "slow" if share < SLOW else ""


@dataclass(frozen=True, slots=True)
class Speed:
    """What a way gave: `result` is a Bandwidth (RDMA), else a Flood (TCP), else why TCP did not come through either.

    `no_rdma`: hosts and reasons when RDMA was to be had and not measured. `together`: with other links at once.
    """

    way: Way
    result: Bandwidth | Flood | Missing
    no_rdma: tuple[Obstacle, ...] = ()
    together: bool = False

    @property
    def gbps(self) -> float | None:
        """The number, None when there is none."""
        return None if isinstance(self.result, Missing) else self.result.gbps

    @property
    def is_rdma(self) -> bool:
        """Whether the number is RDMA's."""
        return isinstance(self.result, Bandwidth)

    @property
    def cpu_bound(self) -> bool:
        """Whether a core may have been too busy for the number to say anything of the link."""
        if not isinstance(self.result, Flood):
            return False
        return self.result.busiest_core is None or self.result.busiest_core >= SATURATED

    @property
    def text(self) -> str:
        """`spark1 → spark2 95.1 Gb/s`."""
        told = "not measured" if self.gbps is None else f"{self.gbps:.1f} Gb/s"
        return f"{self.way.sender.host} → {self.way.receiver.host} {told}"

    def as_dict(self) -> dict[str, Any]:
        """For `--json`; `gbps` is null when nothing came through."""
        return {
            "from": self.way.sender.text, "to": self.way.receiver.text, "gbps": self.gbps and round(self.gbps, 2),
            "by": "rdma" if self.is_rdma else "tcp", "together": self.together, "cpu_bound": self.cpu_bound,
        }  # fmt: skip


def judge_speeds(speeds: Sequence[Speed]) -> Iterator[Finding]:
    """All findings: link by link, over what was tested together, and what could not be known."""
    alone = [speed for speed in speeds if not speed.together]
    for ends in dict.fromkeys(speed.way.ends for speed in alone):
        link = [speed for speed in alone if speed.way.ends == ends]
        yield from _judge_broken(link)
        yield from _judge_rdma([speed for speed in link if speed.is_rdma])
        yield from _judge_tcp([speed for speed in link if isinstance(speed.result, Flood)])
    for hosts in dict.fromkeys(speed.way.hosts for speed in alone):
        between = [speed for speed in speeds if speed.way.hosts == hosts]
        yield from _judge_unequal([speed for speed in between if not speed.together])
        yield from _judge_together(between)
    yield from _unknown(alone)


def _judge_broken(link: Sequence[Speed]) -> Iterator[Finding]:
    """Not even TCP came through; unknown when the host itself was lost meanwhile."""
    for speed in link:
        if not isinstance(speed.result, Missing):
            continue
        sender, receiver = speed.way.sender, speed.way.receiver
        level: Level = "unknown" if speed.result.kind == "timeout" else "fault"
        yield Finding(
            level, "fabric-speed", sender.host, f"no TCP from {sender.text} to {receiver.text}", speed.result.why,
            f"on {sender.host}: ping -I {sender.netdev} {receiver.address}; on both: sudo ufw status",
        )  # fmt: skip


def _judge_rdma(link: Sequence[Speed]) -> Iterator[Finding]:
    """The worse of the two directions, against what the port claims."""
    if not link:
        return
    worst = min(link, key=_number)
    rate = worst.way.rate_gbps
    verdict = judge_rdma(_number(worst), rate) if rate else ""
    if verdict:
        told = f"{_number(worst):.1f} Gb/s by RDMA over {worst.way.text}, of about {min(rate or 0, TWIN_GBPS):.0f}"
        one_way = "" if all(judge_rdma(_number(speed), rate or 0) for speed in link) else ", in this direction only"
        yield Finding(
            "fault" if verdict == "degraded" else "warning", "fabric-speed", worst.way.sender.host,
            f"{told}{one_way}" + (": the ConnectX of one end came up degraded" if verdict == "degraded" else ""),
            "ib_write_bw: " + ", ".join(speed.text for speed in link), RESET if verdict == "degraded" else REST,
        )  # fmt: skip


def _judge_tcp(link: Sequence[Speed]) -> Iterator[Finding]:
    """TCP proves only that a link is at least as fast: a low number is a hint, unless the CPU explains it."""
    told = [one for one in link if (one.way.rate_gbps or 0.0) >= TWIN_GBPS and not one.cpu_bound]
    worst = min(told, key=_number, default=None)
    if worst and _number(worst) < LOW_TCP_GBPS:
        yield Finding(
            "warning", "fabric-speed", worst.way.sender.host,
            f"only {_number(worst):.1f} Gb/s by TCP over {worst.way.text} while no CPU core was busy: could be a "
            "degraded ConnectX", f"{STREAMS} streams: " + ", ".join(speed.text for speed in link),
            f"on both: sudo apt install perftest, test again; if RDMA is as slow: {RESET}",
        )  # fmt: skip


def _judge_unequal(alone: Sequence[Speed]) -> Iterator[Finding]:
    """Directions or twins that differ, among numbers that were measured alike and tell of the links."""
    for is_rdma in (True, False):
        told = [one for one in alone if one.gbps is not None and one.is_rdma == is_rdma and not one.cpu_bound]
        if not told:
            continue
        worst, best = min(told, key=_number), max(told, key=_number)
        if _number(best) >= UNEQUAL * _number(worst):
            evidence = ", ".join(f"{speed.way.text} {_number(speed):.1f} Gb/s" for speed in (best, worst))
            yield Finding("note", "fabric-speed", worst.way.sender.host, "links or directions differ", evidence)


def _judge_together(between: Sequence[Speed]) -> Iterator[Finding]:
    """Links of a pair at once give nearly what each gives alone; of RDMA only, since TCP's number is the CPU's."""
    together = [speed for speed in between if speed.together]
    ways = [speed.way for speed in together]
    alone = [speed for speed in between if not speed.together and speed.way in ways]
    if not together or not all(speed.is_rdma for speed in (*together, *alone)):
        return
    total, sum_alone = sum(map(_number, together)), sum(map(_number, alone))
    if total < TOGETHER * sum_alone:
        what = f"{len(ways)} links give {total:.1f} Gb/s together, {sum_alone:.1f} one after another"
        evidence = "ib_write_bw, together: " + ", ".join(speed.text for speed in together)
        yield Finding("warning", "fabric-speed", ways[0].sender.host, what, evidence, REST)


def _unknown(alone: Sequence[Speed]) -> Iterator[Finding]:
    """Where RDMA was to be had and TCP had to do, with the number that it proves."""
    without = [speed for speed in alone if speed.no_rdma and speed.gbps is not None]
    least = min(map(_number, without), default=0.0)
    for host, why in dict.fromkeys(obstacle for speed in without for obstacle in speed.no_rdma):
        remedy = "sudo apt install perftest, test again" if why.kind == "absent" else "try ib_write_bw by hand"
        what = f"the RDMA bandwidth is not known; TCP shows that it is at least {least:.1f} Gb/s a link"
        yield Finding("unknown", "fabric-speed", host, what, why.why, remedy)


def _number(speed: Speed) -> float:
    """For comparisons: nothing came through is 0."""
    return speed.gbps or 0.0
