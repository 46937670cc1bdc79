"""Which links a test of the fabric goes over, in which order, and how each end is named there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from cluster.spark.fabric import Fabric, Facing, HostFabric, Network
from cluster.spark.fact import Missing
from cluster.spark.links import Link, Links

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
        """Host and netdev."""
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
        """The pair of hosts."""
        return frozenset((self.sender.host, self.receiver.host))

    @property
    def text(self) -> str:
        """Both ends."""
        return f"{self.sender.text} → {self.receiver.text}"

    @property
    def has_rdma(self) -> bool:
        """Whether there is an HCA at both ends."""
        return bool(self.sender.hca and self.receiver.hca)

    @property
    def obstacles(self) -> tuple[Obstacle, ...]:
        """The hosts that RDMA cannot be measured with although there is an HCA at both ends, each with the reason."""
        ends = (self.sender, self.receiver) if self.has_rdma else ()
        return tuple((end.host, end.no_rdma) for end in ends if end.no_rdma)

    @property
    def rate_gbps(self) -> float | None:
        """The slower of what the ports claim."""
        told = [end.rate_gbps for end in (self.sender, self.receiver) if end.rate_gbps]
        return min(told, default=None)


def rounds(fabric: Fabric, seen: Mapping[str, Links | Missing], tools: Mapping[str, Missing | None]) -> list[list[Way]]:
    """What is tested one after another; the ways of one round at the same time.

    Of each neighbouring pair of hosts each link one way, then the other, alone; then all links of the pair one way
    together. `tools` says by host why there is no ib_write_bw, None where there is one.
    """
    ends = {host: list(_ends(own, seen[host], tools[host])) for host, own in fabric.hosts.items()}
    found: list[list[Way]] = []
    for here, there in pairwise(fabric.hosts if fabric.paired else ()):
        links = list(_links(ends[here], ends[there]))
        for own, other in links:
            found += [[Way(own, other)], [Way(other, own)]]
        if len(links) > 1:
            found.append([Way(own, other) for own, other in links])
    return found


def untested(fabric: Fabric, seen: Mapping[str, Links | Missing]) -> Iterator[tuple[str, Link]]:
    """Links that have an address and yet face no peer, by host: the cable, the peer or the port is missing."""
    for host, links in seen.items():
        facing = {link.netdev for link in fabric.hosts[host].facing}
        for link in () if isinstance(links, Missing) else links.links:
            if link.addresses and link.netdev not in facing:
                yield host, link


def _links(here: Iterable[End], there: Iterable[End]) -> Iterator[tuple[End, End]]:
    """Ends in one subnet, in their order."""
    free = list(there)
    for own in here:
        other = next((end for end in free if end.network == own.network), None)
        if other:
            free.remove(other)
            yield own, other


def _ends(own: HostFabric, seen: Links | Missing, tool: Missing | None) -> Iterator[End]:
    """A host's ends; a netdev with addresses in two subnets is one."""
    by_hca = {} if isinstance(seen, Missing) else {link.hca: link for link in seen.links}
    first: dict[str, Facing] = {}
    for one in own.facing:
        first.setdefault(one.netdev, one)
    for facing in first.values():
        link = by_hca.get(facing.hca)
        gid_index = link.gid_index(facing.address) if link else None
        no_rdma = _why_no_rdma(facing, seen, tool, gid_index) if facing.hca else None
        rate = link.rate_gbps if link else None
        yield End(own.host, facing.netdev, facing.hca, facing.address, facing.network, rate, gid_index, no_rdma)


def _why_no_rdma(facing: Facing, seen: Links | Missing, tool: Missing | None, gid: int | None) -> Missing | None:
    if isinstance(seen, Missing) or tool:
        return seen if isinstance(seen, Missing) else tool
    if facing.network.version != 4:
        return Missing(f"{facing.netdev} has an IPv6 address, over which ib_write_bw is not tried")
    return Missing(f"{facing.hca} has no RoCE v2 GID of {facing.address}") if gid is None else None
