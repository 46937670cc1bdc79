"""Links (an HCA with its netdev) and netdevs of a host, from sysfs and the kernel's own address list.

Sources: Documentation/ABI/stable/sysfs-class-infiniband (`state` = `4: ACTIVE`, `rate` = `100 Gb/sec (4X EDR)`,
`port_xmit_data` in units of four bytes; `gids/N` with its kind in `gid_attrs/types/N`) and testing/sysfs-class-net. No
RDMA tool is needed on the host.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network, ip_interface

from cluster.argv.far import far
from cluster.argv.question import Answer, Question
from cluster.spark.fact import Missing
from cluster.spark.gids import mapped_ipv4
from cluster.spark.sections import read_section

Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class PortGid:
    """One entry of a port's GID table; `kind` is `RoCE v2` or `IB/RoCE v1`."""

    index: int
    gid: str
    kind: str


@dataclass(frozen=True, slots=True)
class Link:
    """Port 1 of an HCA and the netdev that carries its addresses (a bond or VLAN above it when that has them).

    `state` is the port's word (`ACTIVE`, `DOWN`, `INIT`), `rate_gbps` what the port claims (100 or 200 on a Spark),
    `speed_mbps` what the netdev claims, None when it is down. `netdev` is empty for an HCA without one.
    `xmit_bytes`, `rcv_bytes`: all traffic of the HCA, RDMA included; None when there are no counters.
    `gids` is empty when they were not asked for. `firmware` is the card's (`28.45.4028`).
    """

    hca: str
    netdev: str
    state: str
    rate_gbps: float | None
    mtu: int | None
    addresses: tuple[str, ...]
    operstate: str
    speed_mbps: int | None
    xmit_bytes: int | None
    rcv_bytes: int | None
    gids: tuple[PortGid, ...] = ()
    firmware: str = ""

    @property
    def is_active(self) -> bool:
        """Whether the HCA's port can carry data."""
        return self.state == "ACTIVE"

    def interfaces(self) -> tuple[IPv4Interface | IPv6Interface, ...]:
        """The addresses with their prefix lengths, as values."""
        return interfaces(self.addresses)

    def subnets(self) -> tuple[Network, ...]:
        """The networks the link is in: IPv4 ones, and IPv6 ones that are not link-local (fe80:: is everywhere)."""
        return subnets(self.addresses)

    def gid_index(self, address: str) -> int | None:
        """Index of the RoCE v2 GID of an IPv4 address at this moment (it moves), None when the table has none."""
        return next((row.index for row in self.gids if "v2" in row.kind and mapped_ipv4(row.gid) == address), None)


@dataclass(frozen=True, slots=True)
class Netdev:
    """A network interface other than loopback. `addresses` are `192.168.100.11/24`; bytes exclude RDMA traffic.

    `sources`: IPv4 address → the address that the kernel sends from to another host in its subnet; that of another
    netdev when routes, or a second netdev in the subnet, lead elsewhere.
    """

    name: str
    mtu: int
    operstate: str
    addresses: tuple[str, ...]
    rx_bytes: int
    tx_bytes: int
    sources: Mapping[str, str] = field(default_factory=dict)

    def subnets(self) -> tuple[Network, ...]:
        """The networks the netdev is in: IPv4 ones, and IPv6 ones that are not link-local."""
        return subnets(self.addresses)


@dataclass(frozen=True, slots=True)
class Links:
    """All links and netdevs of a host, by name.

    `default_netdev` is the netdev of the IPv4 default route, empty when there is none. `rdma_device` says that
    /dev/infiniband exists, without which a container cannot use an HCA.
    """

    links: tuple[Link, ...]
    netdevs: tuple[Netdev, ...]
    default_netdev: str = ""
    rdma_device: bool = False


def port_of(netdev: str) -> str:
    """Equal for the two netdevs of one QSFP port, which are PCI functions of their own: enp1s0f0np0, enP2p1s0f0np0."""
    return re.sub(r"^enP\d+p", "enp", netdev)


def question(*, gids: bool = False) -> Question:
    """Ask for links and netdevs alone; without GID tables cheap enough to read byte counters every second."""
    return far("links", {"gids": gids})


def parse(answer: Answer) -> Links | Missing:
    """Read the section `links` of far/links."""
    links = read_section(answer, "links", Links)
    if isinstance(links, Missing):
        return links
    try:
        for addresses in [link.addresses for link in links.links] + [netdev.addresses for netdev in links.netdevs]:
            interfaces(addresses)
    except ValueError as error:
        return Missing(f"links: {error}")
    return links


def interfaces(addresses: Iterable[str]) -> tuple[IPv4Interface | IPv6Interface, ...]:
    """`192.168.100.11/24` and the like as values; raises ValueError."""
    return tuple(ip_interface(text) for text in addresses)


def subnets(addresses: Iterable[str]) -> tuple[Network, ...]:
    """The networks of addresses, each once, in their order, without IPv6 link-local; raises ValueError."""
    found = (one.network for one in interfaces(addresses) if one.version == 4 or not one.is_link_local)
    return tuple(dict.fromkeys(found))
