"""What a test of the fabric measures: which links, in which order, how fast they were, and what that means."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from cluster.spark.fact import WHY_LENGTH, Missing, last_words, load_json, plain, refuse
from cluster.spark.finding import Check, Finding, Level

if TYPE_CHECKING:
    from cluster.argv.question import Answer
    from cluster.spark.fabric import Fabric, HostFabric
    from cluster.spark.links import Link, Links, Network

FABRIC_SPEED = Check("fabric-speed", "it-is-slow#bandwidth")
"""`--fabric-test` only: fault at a degraded ConnectX's speed, warning below what a twin gives."""


@dataclass(frozen=True, slots=True)
class Flood:
    """Bytes that arrived, seconds from the first to the last, and the busy share (0 to 1) of the busiest core of both
    machines meanwhile, None when neither reports it."""

    bytes: int
    seconds: float
    busiest_core: float | None = None

    @property
    def gbps(self) -> float:
        return self.bytes * 8 / self.seconds / 1e9


def parse_port(line: str) -> int | Missing:
    said = _read(line)
    return said if isinstance(said, Missing) else int(said["port"])


def parse_flood(line: str) -> Flood | Missing:
    said = _read(line)
    return said if isinstance(said, Missing) else Flood(said["bytes"], said["seconds"], said["cpu"])


def _read(line: str) -> dict[str, Any] | Missing:
    """The line that either end prints; its error, or words of python3 instead, are the reason."""
    try:
        said: dict[str, Any] = load_json(line)
    except ValueError:
        return Missing(" ".join(plain(line).split())[:WHY_LENGTH] or "it ended without a result")
    return Missing(said["error"]) if "error" in said else said


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
_IPERF = re.compile(
    r" (?P<rate>\d{1,5}(?:\.\d+)?) (?P<unit>[GM])bits/sec(?:[ \t]+\d+)?[ \t]+(?:receiver|sender)", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """The best that a test reached, in Gb/s on the wire. `size`: bytes of the largest message, 0 when not shown."""

    tool: Literal["perftest", "nccl-tests", "iperf3"]
    gbps: float
    size: int = 0
    hosts: int = 0
    wrong: int = 0


def parse_bandwidth(answer: Answer) -> Bandwidth | Missing:
    """What the sending end of `ib_write_bw` measured, else its own words why not."""
    found = recognise(plain(answer.text))
    return found or refuse(answer, "ib_write_bw") or Missing(last_words(answer) or "ib_write_bw gave no result")


def recognise(text: str) -> Bandwidth | None:
    header = _PERFTEST.search(text)
    rows = [(int(row["size"]), float(row["average"])) for row in _PERFTEST_ROW.finditer(text)]
    if header and rows:
        factor = 1.0 if header["unit"] == "Gb" else 8 * 1.048576 / 1000
        return Bandwidth("perftest", max(average for _, average in rows) * factor, max(rows)[0])
    rows = [(int(row["size"]), float(row["busbw"])) for row in _NCCL_ROW.finditer(text)]
    rows = rows or [(0, float(row["busbw"])) for row in _NCCL_AVERAGE.finditer(text)][:1]
    if rows:
        size, busbw = max(rows, key=lambda row: row[0])
        hosts = len({row["host"] for row in _NCCL_HOST.finditer(text)})
        wrong = sum(int(row["count"]) for row in _NCCL_BAD.finditer(text))
        return Bandwidth("nccl-tests", busbw * 8, size, hosts, wrong)
    rates = [float(row["rate"]) / (1 if row["unit"] == "G" else 1000) for row in _IPERF.finditer(text)]
    return Bandwidth("iperf3", max(rates)) if rates else None


_USING = re.compile(
    r"NET/IB : Using (?P<hcas>\[0\].*?)(?: \[RO\]|;|$)|Made virtual device \[\d+\] name=(?P<name>\S+)", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class NcclTransport:
    """How NCCL says that it reaches the other host. `hcas`: those that it uses."""

    hcas: tuple[str, ...]
    sockets: bool


def recognise_transport(text: str) -> NcclTransport | None:
    hcas: dict[str, None] = {}
    for row in _USING.finditer(text):
        listed = re.findall(r"\[\d+\]([\w.-]+):\d", row["hcas"] or "")
        hcas |= dict.fromkeys([*listed, *(row["name"] or "").split("+")])
    hcas.pop("", None)
    sockets = "via NET/Socket" in text or "Using network Socket" in text
    return NcclTransport(tuple(hcas), sockets) if hcas or sockets else None


Obstacle = tuple[str, Missing]
"""A host, and why RDMA cannot be measured with it although it has an HCA."""


@dataclass(frozen=True, slots=True)
class End:
    """One host's end of a link. `rate_gbps` is what the HCA's port claims, if it does. `no_rdma`: why RDMA cannot be
    measured from here although there is an HCA; without that, `gid_index` is known."""

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
    sender: End
    receiver: End

    @property
    def text(self) -> str:
        return f"{self.sender.text} → {self.receiver.text}"

    @property
    def has_rdma(self) -> bool:
        return bool(self.sender.hca and self.receiver.hca)

    @property
    def obstacles(self) -> tuple[Obstacle, ...]:
        """The hosts that RDMA cannot be measured with although there is an HCA at both ends, each with the reason."""
        ends = (self.sender, self.receiver) if self.has_rdma else ()
        return tuple((end.host, end.no_rdma) for end in ends if end.no_rdma)

    @property
    def rate_gbps(self) -> float:
        """The slower of what the ports claim, 0 when neither does."""
        return min(filter(None, (self.sender.rate_gbps, self.receiver.rate_gbps)), default=0.0)


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
DEGRADED, SLOW = 0.3, 0.8
"""Parts of what is possible, under which RDMA is degraded and slow."""
LOW_TCP_GBPS = 25.0
"""What several streams of TCP give at most over a degraded card; over a good one they give more, if the CPU can."""
SATURATED = 0.9
"""Busy share of a core that may have been the limit, and not the link."""
STREAMS = 8
RESET = "reboot both hosts, test again; if it is as slow: power both off, unplug their power bricks for a minute"
REST = "on both: ip link (MTU 9000?), let nothing else use the links, reseat the cable, test again"

Verdict = Literal["", "slow", "degraded"]


def judge_rdma(gbps: float, rate_gbps: float = TWIN_GBPS) -> Verdict:
    """What ib_write_bw's number says of a link whose port claims this rate."""
    share = gbps / min(rate_gbps, TWIN_GBPS)
    return "degraded" if share < DEGRADED else "slow" if share < SLOW else ""


@dataclass(frozen=True, slots=True)
class Speed:
    """What a way gave: `result` is a Bandwidth (RDMA), else a Flood (TCP), else why TCP did not come through either.
    `no_rdma`: hosts and reasons when RDMA was possible and not measured. `together`: with other links at once."""

    way: Way
    result: Bandwidth | Flood | Missing
    no_rdma: tuple[Obstacle, ...] = ()
    together: bool = False

    @property
    def gbps(self) -> float | None:
        return None if isinstance(self.result, Missing) else self.result.gbps

    @property
    def cpu_bound(self) -> bool:
        """A core may have been too busy for the number to say anything of the link."""
        busiest = self.result.busiest_core if isinstance(self.result, Flood) else 0.0
        return busiest is None or busiest >= SATURATED

    @property
    def verdict(self) -> Verdict:
        """TCP proves only that a link is at least as fast: a low number is a hint, unless the CPU explains it."""
        rate = self.way.rate_gbps
        if isinstance(self.result, Bandwidth):
            return judge_rdma(self.result.gbps, rate) if rate else ""
        low = isinstance(self.result, Flood) and self.result.gbps < LOW_TCP_GBPS and not self.cpu_bound
        return "slow" if low and rate >= TWIN_GBPS else ""

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
            "by": "rdma" if isinstance(self.result, Bandwidth) else "tcp",
            "together": self.together,
            "cpu_bound": self.cpu_bound,
        }


def judge_speeds(speeds: Sequence[Speed]) -> Iterator[Finding]:
    """The worst of each link that was tested alone, what did not come through, and what could not be known."""
    alone = [speed for speed in speeds if not speed.together]
    links: dict[frozenset[End], list[Speed]] = {}
    for speed in alone:
        links.setdefault(frozenset((speed.way.sender, speed.way.receiver)), []).append(speed)
    for link in links.values():
        yield from _judge_link(link)
    without = [speed for speed in alone if speed.no_rdma and speed.gbps is not None]
    least = min((speed.gbps or 0.0 for speed in without), default=0.0)
    for host, why in dict.fromkeys(obstacle for speed in without for obstacle in speed.no_rdma):
        remedy = "sudo apt install perftest, test again" if why.kind == "absent" else "try ib_write_bw by hand"
        what = f"the RDMA bandwidth is not known; TCP shows that it is at least {least:.1f} Gb/s a link"
        yield FABRIC_SPEED.found("unknown", host, what, why.why, remedy)


def _judge_link(link: Sequence[Speed]) -> Iterator[Finding]:
    """One link in its directions. A host that was lost meanwhile is unknown, no fault of the link."""
    for speed in link:
        if isinstance(speed.result, Missing):
            level: Level = "unknown" if speed.result.kind == "timeout" else "fault"
            sender, receiver = speed.way.sender, speed.way.receiver
            what = f"no TCP from {sender.text} to {receiver.text}"
            remedy = f"on {sender.host}: ping -I {sender.netdev} {receiver.address}; on both: sudo ufw status"
            yield FABRIC_SPEED.found(level, sender.host, what, speed.result.why, remedy)
    worst = min((speed for speed in link if speed.verdict), key=lambda speed: speed.gbps or 0.0, default=None)
    if worst is None:
        return
    host, shown = worst.way.sender.host, ", ".join(speed.text for speed in link)
    if isinstance(worst.result, Flood):
        what = f"only {worst.gbps:.1f} Gb/s by TCP over {worst.way.text} while no CPU core was busy"
        remedy = f"on both: sudo apt install perftest, test again; if RDMA is as slow: {RESET}"
        what += ": could be a degraded ConnectX"
        yield FABRIC_SPEED.warning(host, what, f"{STREAMS} streams: {shown}", remedy)
        return
    what = f"{worst.gbps:.1f} Gb/s by RDMA over {worst.way.text}, of about {min(worst.way.rate_gbps, TWIN_GBPS):.0f}"
    if worst.verdict == "degraded":
        what += ": the ConnectX of one end came up degraded"
        yield FABRIC_SPEED.fault(host, what, f"ib_write_bw: {shown}", RESET)
    else:
        yield FABRIC_SPEED.warning(host, what, f"ib_write_bw: {shown}", REST)
