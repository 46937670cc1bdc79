"""What a test of the fabric measures: which links, in which order, how fast they were, and what that means."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from cluster.spark.fact import WHY_LENGTH, Missing, as_shape, last_words, load_json, plain, refuse
from cluster.spark.finding import Check, Finding, Level

if TYPE_CHECKING:
    from cluster.argv.question import Answer
    from cluster.spark.fabric import Fabric, HostFabric, Network
    from cluster.spark.links import Link, Links

FABRIC_SPEED = Check("fabric-speed", "it-is-slow#bandwidth")


@dataclass(frozen=True, slots=True)
class Flood:
    """Bytes that arrived, and the seconds from the first to the last of them. `busiest_core` is the busy share (0 to 1)
    of the busiest core of the two machines meanwhile, None when neither says."""

    bytes: int
    seconds: float
    busiest_core: float | None = None

    @property
    def gbps(self) -> float:
        return self.bytes * 8 / self.seconds / 1e9


@dataclass(frozen=True, slots=True)
class _Line:
    """What either end says in its one line."""

    port: int | None = None
    bytes: int | None = None
    seconds: float | None = None
    cpu: float | None = None
    error: str = ""


def parse_port(line: str) -> int | Missing:
    """Where the receiver listens."""
    result = _read(line)
    return result if isinstance(result, Missing) else result.port or Missing("no port reported")


def parse_flood(line: str) -> Flood | Missing:
    """What the sender says."""
    result = _read(line)
    if isinstance(result, Missing):
        return result
    if result.bytes is None or not result.seconds:
        return Missing("no byte count reported")
    return Flood(result.bytes, result.seconds, result.cpu)


def _read(line: str) -> _Line | Missing:
    """A line of either end; its error, or words that are none of ours (python3's own), are the reason."""
    try:
        result = as_shape(load_json(line), "flood", _Line)
    except ValueError:
        return Missing(" ".join(plain(line).split())[:WHY_LENGTH] or "it ended without a result")
    return Missing(result.error) if isinstance(result, _Line) and result.error else result


_PERFTEST = re.compile(r"BW average\[(?P<unit>Gb|MB|MiB)/sec\]")
_PERFTEST_ROW = re.compile(
    r"^[ \t]*(?P<size>\d+)[ \t]+\d+[ \t]+[\d.]+[ \t]+(?P<average>\d+(?:\.\d+)?)[ \t]+[\d.]+[ \t]*$", re.MULTILINE
)
_NCCL_ROW = re.compile(
    r"^[ \t]*(?P<size>\d+)[ \t]+\d+[ \t]+\w+[ \t]+\w+[ \t]+-?\d+[ \t]+[\d.]+[ \t]+[\d.]+"
    r"[ \t]+(?P<busbw>[\d.]+)[ \t]+(?:\d+|N/A)",
    re.MULTILINE,
)
_NCCL_AVERAGE = re.compile(r"Avg bus bandwidth[ \t]*:[ \t]*(?P<busbw>[\d.]+)")
_NCCL_HOST = re.compile(r"^#[ \t]+Rank[ \t]+\d+ .*\bon[ \t]+(?P<host>[\w.-]+)[ \t]+device", re.MULTILINE)
_NCCL_BAD = re.compile(r"Out of bounds values[ \t]*:[ \t]*(?P<count>\d+)[ \t]+FAILED")
_IPERF = re.compile(r" (?P<gbits>\d{1,5}(?:\.\d+)?) Gbits/sec(?:[ \t]+\d+)?[ \t]+(?:receiver|sender)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """The best that a test reached, in Gb/s on the wire. `size`: bytes of the largest message, 0 when not told."""

    tool: Literal["perftest", "nccl-tests", "iperf3"]
    gbps: float
    size: int = 0
    hosts: int = 0
    wrong: int = 0


def parse_bandwidth(answer: Answer) -> Bandwidth | Missing:
    """What the sending end of `ib_write_bw` measured, else its own words why not."""
    found = _perftest(plain(answer.text))
    return found or refuse(answer, "ib_write_bw") or Missing(last_words(answer) or "ib_write_bw gave no result")


def recognise(text: str) -> Bandwidth | None:
    """The result of the first kind of test that a text holds, None when it holds none."""
    if found := _perftest(text):
        return found
    hosts = len({row["host"] for row in _NCCL_HOST.finditer(text)})
    wrong = sum(int(row["count"]) for row in _NCCL_BAD.finditer(text))
    rows = [(int(row["size"]), float(row["busbw"])) for row in _NCCL_ROW.finditer(text)]
    rows = rows or [(0, float(row["busbw"])) for row in _NCCL_AVERAGE.finditer(text)][:1]
    if rows:
        size, busbw = max(rows, key=lambda row: row[0])
        return Bandwidth("nccl-tests", busbw * 8, size, hosts, wrong)
    rates = [float(row["gbits"]) for row in _IPERF.finditer(text)]
    return Bandwidth("iperf3", max(rates)) if rates else None


def _perftest(text: str) -> Bandwidth | None:
    header = _PERFTEST.search(text)
    rows = list(_PERFTEST_ROW.finditer(text)) if header else []
    if not header or not rows:
        return None
    factor = 1.0 if header["unit"] == "Gb" else 8 * 1.048576 / 1000
    best = max(float(row["average"]) for row in rows)
    return Bandwidth("perftest", best * factor, max(int(row["size"]) for row in rows))


Obstacle = tuple[str, Missing]
"""A host, and why RDMA cannot be measured with it although it has an HCA."""


@dataclass(frozen=True, slots=True)
class End:
    """One host's end of a link.

    `rate_gbps` is what the HCA's port claims, None when there is none or it does not say. `no_rdma` says why RDMA
    cannot be measured from here although there is an HCA; without that, `gid_index` is known.
    """

    host: str
    netdev: str
    hca: str
    address: str
    network: Network
    rate_gbps: float | None = None
    gid_index: int | None = None
    no_rdma: Missing | None = None

    @property
    def text(self) -> str:
        return f"{self.host} {self.netdev}"


@dataclass(frozen=True, slots=True)
class Way:
    """A link in one direction."""

    sender: End
    receiver: End

    @property
    def ends(self) -> frozenset[End]:
        """The link, whichever way it is gone."""
        return frozenset((self.sender, self.receiver))

    @property
    def hosts(self) -> frozenset[str]:
        return frozenset((self.sender.host, self.receiver.host))

    @property
    def text(self) -> str:
        return f"{self.sender.text} → {self.receiver.text}"

    @property
    def has_rdma(self) -> bool:
        """There is an HCA at both ends."""
        return bool(self.sender.hca and self.receiver.hca)

    @property
    def obstacles(self) -> tuple[Obstacle, ...]:
        """The hosts that RDMA cannot be measured with although there is an HCA at both ends, each with the reason."""
        ends = (self.sender, self.receiver) if self.has_rdma else ()
        return tuple((end.host, end.no_rdma) for end in ends if end.no_rdma)

    @property
    def rate_gbps(self) -> float | None:
        """The slower of what the ports claim."""
        rates = [end.rate_gbps for end in (self.sender, self.receiver) if end.rate_gbps]
        return min(rates, default=None)


def rounds(fabric: Fabric, seen: Mapping[str, Links | Missing], tools: Mapping[str, Missing | None]) -> list[list[Way]]:
    """What is tested one after another; the ways of one round at the same time.

    Of each neighbouring pair of hosts each link one way, then the other, alone; then all links of the pair one way
    together. `tools` says by host why there is no ib_write_bw, None where there is one.
    """
    ends = {host: list(_ends(own, seen[host], tools[host])) for host, own in fabric.hosts.items()}
    found: list[list[Way]] = []
    for here, there in pairwise(fabric.hosts if fabric.paired else ()):
        links, free = [], list(ends[there])
        for own in ends[here]:
            other = next((end for end in free if end.network == own.network), None)
            if other:
                free.remove(other)
                links.append(Way(own, other))
                found += [[Way(own, other)], [Way(other, own)]]
        found += [links] if len(links) > 1 else []
    return found


def untested(fabric: Fabric, seen: Mapping[str, Links | Missing]) -> Iterator[tuple[str, Link]]:
    """Links that have an address and yet face no peer, by host: the cable, the peer or the port is missing."""
    for host, links in seen.items():
        facing = {link.netdev for link in fabric.hosts[host].facing}
        for link in () if isinstance(links, Missing) else links.links:
            if link.addresses and link.netdev not in facing:
                yield host, link


def _ends(own: HostFabric, seen: Links | Missing, tool: Missing | None) -> Iterator[End]:
    """A host's ends; a netdev with addresses in two subnets is one."""
    by_hca = {} if isinstance(seen, Missing) else {link.hca: link for link in seen.links}
    first = {one.netdev: one for one in reversed(own.facing)}
    for one in [one for one in own.facing if first[one.netdev] is one]:
        link = by_hca.get(one.hca)
        gid = link.gid_index(one.address) if link else None
        why = seen if isinstance(seen, Missing) else tool
        if not why and one.network.version != 4:
            why = Missing(f"{one.netdev} has an IPv6 address, over which ib_write_bw is not tried")
        elif not why and gid is None:
            why = Missing(f"{one.hca} has no RoCE v2 GID of {one.address}")
        rate, no_rdma = link.rate_gbps if link else None, why if one.hca else None
        yield End(own.host, one.netdev, one.hca, one.address, one.network, rate, gid, no_rdma)


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
    `no_rdma`: hosts and reasons when RDMA was to be had and not measured. `together`: with other links at once."""

    way: Way
    result: Bandwidth | Flood | Missing
    no_rdma: tuple[Obstacle, ...] = ()
    together: bool = False

    @property
    def gbps(self) -> float | None:
        return None if isinstance(self.result, Missing) else self.result.gbps

    @property
    def is_rdma(self) -> bool:
        return isinstance(self.result, Bandwidth)

    @property
    def cpu_bound(self) -> bool:
        """A core may have been too busy for the number to say anything of the link."""
        busiest = self.result.busiest_core if isinstance(self.result, Flood) else 0.0
        return busiest is None or busiest >= SATURATED

    @property
    def text(self) -> str:
        """`spark1 → spark2 95.1 Gb/s`."""
        number = "not measured" if self.gbps is None else f"{self.gbps:.1f} Gb/s"
        return f"{self.way.sender.host} → {self.way.receiver.host} {number}"

    def as_dict(self) -> dict[str, Any]:
        """For `--json`; `gbps` is null when nothing came through."""
        return {
            "from": self.way.sender.text,
            "to": self.way.receiver.text,
            "gbps": self.gbps and round(self.gbps, 2),
            "by": "rdma" if self.is_rdma else "tcp",
            "together": self.together,
            "cpu_bound": self.cpu_bound,
        }


def judge_speeds(speeds: Sequence[Speed]) -> Iterator[Finding]:
    """All findings: link by link, over what was tested together, and what could not be known."""
    alone = [speed for speed in speeds if not speed.together]
    for ends in dict.fromkeys(speed.way.ends for speed in alone):
        yield from _judge_link([speed for speed in alone if speed.way.ends == ends])
    for hosts in dict.fromkeys(speed.way.hosts for speed in alone):
        between = [speed for speed in speeds if speed.way.hosts == hosts]
        yield from _judge_unequal([speed for speed in between if not speed.together])
        yield from _judge_together(between)
    without = [speed for speed in alone if speed.no_rdma and speed.gbps is not None]
    least = min(map(_number, without), default=0.0)
    for host, why in dict.fromkeys(obstacle for speed in without for obstacle in speed.no_rdma):
        remedy = "sudo apt install perftest, test again" if why.kind == "absent" else "try ib_write_bw by hand"
        what = f"the RDMA bandwidth is not known; TCP shows that it is at least {least:.1f} Gb/s a link"
        yield FABRIC_SPEED.found("unknown", host, what, why.why, remedy)


def _judge_link(link: Sequence[Speed]) -> Iterator[Finding]:
    """One link in its directions.

    Where not even TCP came through, that is unknown when the host itself was lost meanwhile. RDMA's worse direction
    counts against what the port claims. TCP proves only that a link is at least as fast: a low number is a hint,
    unless the CPU explains it.
    """
    for speed in link:
        if isinstance(speed.result, Missing):
            level: Level = "unknown" if speed.result.kind == "timeout" else "fault"
            sender, receiver = speed.way.sender, speed.way.receiver
            what = f"no TCP from {sender.text} to {receiver.text}"
            remedy = f"on {sender.host}: ping -I {sender.netdev} {receiver.address}; on both: sudo ufw status"
            yield FABRIC_SPEED.found(level, sender.host, what, speed.result.why, remedy)
    rdma = sorted((speed for speed in link if speed.is_rdma and speed.way.rate_gbps), key=_number)
    tcp = [speed for speed in link if isinstance(speed.result, Flood)]
    if rdma and (verdict := judge_rdma(_number(rdma[0]), rdma[0].way.rate_gbps or 0.0)):
        worst, rate = rdma[0], rdma[0].way.rate_gbps or 0.0
        what = f"{_number(worst):.1f} Gb/s by RDMA over {worst.way.text}, of about {min(rate, TWIN_GBPS):.0f}"
        what += "" if all(judge_rdma(_number(speed), rate) for speed in rdma) else ", in this direction only"
        evidence = "ib_write_bw: " + ", ".join(speed.text for speed in link if speed.is_rdma)
        if verdict == "degraded":
            what += ": the ConnectX of one end came up degraded"
            yield FABRIC_SPEED.fault(worst.way.sender.host, what, evidence, RESET)
        else:
            yield FABRIC_SPEED.warning(worst.way.sender.host, what, evidence, REST)
    trusted = [one for one in tcp if (one.way.rate_gbps or 0.0) >= TWIN_GBPS and not one.cpu_bound]
    slow = min(trusted, key=_number, default=None)
    if slow and _number(slow) < LOW_TCP_GBPS:
        what = f"only {_number(slow):.1f} Gb/s by TCP over {slow.way.text} while no CPU core was busy"
        evidence = f"{STREAMS} streams: " + ", ".join(speed.text for speed in tcp)
        remedy = f"on both: sudo apt install perftest, test again; if RDMA is as slow: {RESET}"
        yield FABRIC_SPEED.warning(slow.way.sender.host, f"{what}: could be a degraded ConnectX", evidence, remedy)


def _judge_unequal(alone: Sequence[Speed]) -> Iterator[Finding]:
    """Directions or twins that differ, among numbers that were measured alike and tell of the links."""
    for is_rdma in (True, False):
        comparable = [one for one in alone if one.gbps is not None and one.is_rdma == is_rdma and not one.cpu_bound]
        if not comparable:
            continue
        worst, best = min(comparable, key=_number), max(comparable, key=_number)
        if _number(best) >= UNEQUAL * _number(worst):
            evidence = ", ".join(f"{speed.way.text} {_number(speed):.1f} Gb/s" for speed in (best, worst))
            yield FABRIC_SPEED.note(worst.way.sender.host, "links or directions differ", evidence)


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
        yield FABRIC_SPEED.warning(ways[0].sender.host, what, evidence, REST)


def _number(speed: Speed) -> float:
    return speed.gbps or 0.0
