"""Links of a host (an HCA with its netdev), and the GID index of an address: from sysfs, and from what
iproute2, ibdev2netdev and the kernel print.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Interface, IPv4Network, IPv6Address, IPv6Network, ip_interface
from typing import Any

from cluster.argv.far import far
from cluster.argv.question import Answer, Question
from cluster.spark.fact import Missing, read_section

Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class PortGid:
    """One entry of a port's GID table; `kind` is `RoCE v2` or `IB/RoCE v1`."""

    index: int
    gid: str
    kind: str


@dataclass(frozen=True, slots=True)
class Link:
    """Port 1 of an HCA and the netdev that has its addresses (a bond or VLAN above it when that has them; empty without
    one).

    `state` is the port's word (`ACTIVE`, `DOWN`, `INIT`), `rate_gbps` what the port claims (100 or 200 on a Spark).
    `xmit_bytes`, `rcv_bytes`: all traffic of the HCA, RDMA included; None when there are no counters. `gids` is empty
    when they were not asked for. `firmware` is the card's (`28.45.4028`).
    """

    hca: str
    netdev: str
    state: str
    rate_gbps: float | None
    mtu: int | None
    addresses: tuple[str, ...]
    operstate: str
    xmit_bytes: int | None
    rcv_bytes: int | None
    gids: tuple[PortGid, ...] = ()
    firmware: str = ""

    @property
    def is_active(self) -> bool:
        return self.state == "ACTIVE"

    @property
    def moved_bytes(self) -> int | None:
        """Sent and received so far; None when there are no counters."""
        return None if self.xmit_bytes is None or self.rcv_bytes is None else self.xmit_bytes + self.rcv_bytes

    def gid_index(self, address: str) -> int | None:
        """Index of the RoCE v2 GID of an IPv4 address now (it moves), None when the table has none."""
        return next((row.index for row in self.gids if "v2" in row.kind and mapped_ipv4(row.gid) == address), None)


@dataclass(frozen=True, slots=True)
class Netdev:
    """A network interface other than loopback. `addresses` are `192.168.100.11/24`; bytes exclude RDMA traffic.
    `sources`: IPv4 address → the address that the kernel sends from to another host in its subnet; another netdev's
    when routes, or a second netdev in the subnet, lead elsewhere."""

    name: str
    mtu: int
    operstate: str
    addresses: tuple[str, ...]
    rx_bytes: int
    tx_bytes: int
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Links:
    """Of a host, by name. `rdma_device`: /dev/infiniband exists, without which no container uses an HCA."""

    links: tuple[Link, ...]
    netdevs: tuple[Netdev, ...]
    rdma_device: bool = False


def port_of(netdev: str) -> str:
    """Equal for the two netdevs (or HCAs) of one QSFP port, which are PCI functions of their own: enp1s0f0np0 and
    enP2p1s0f0np0."""
    return re.sub(r"^(en|roce)P\d+p", r"\1p", netdev)


def half_ports(used: Collection[str], netdevs: Iterable[str]) -> Iterator[tuple[str, str]]:
    """QSFP ports of which one netdev is used and its twin is not: (the used one, the other)."""
    for netdev in filter(None, netdevs):
        twins = [one for one in used if port_of(one) == port_of(netdev)]
        if twins and netdev not in used:
            yield min(twins), netdev


def is_crossed(here: Iterable[str], there: Iterable[str]) -> bool:
    """Whether the cable is in another QSFP port at one end than at the other, by the netdevs in use."""
    own, others = {port_of(netdev) for netdev in here}, {port_of(netdev) for netdev in there}
    return bool(own and others and not own & others)


def question(*, gids: bool = False) -> Question:
    """Without GID tables cheap enough to read byte counters every second."""
    return far("links", {"gids": gids})


def parse(answer: Answer) -> Links | Missing:
    """An address that is none makes it Missing."""
    links = read_section(answer, "links", Links)
    if isinstance(links, Missing):
        return links
    try:
        for addresses in [*(one.addresses for one in links.links), *(one.addresses for one in links.netdevs)]:
            subnets(addresses)
    except ValueError as error:
        return Missing(f"links: {error}")
    return links


def subnets(addresses: Iterable[str]) -> tuple[Network, ...]:
    """The networks of `192.168.100.11/24` and the like, each once, without IPv6 link-local (fe80:: is everywhere);
    raises ValueError."""
    found = [ip_interface(text) for text in addresses]
    return tuple(dict.fromkeys(one.network for one in found if one.version == 4 or not one.is_link_local))


_HEAD = re.compile(r"^\d+: (?P<name>[\w.-]+)(?:@\S+)?: <(?P<flags>[\w,-]*)> mtu (?P<mtu>\d+)(?P<rest>.*)$")
_INET = re.compile(r"^[ \t]+inet (?P<address>[\d.]+/\d+)")
_INET6 = re.compile(r"[ \t]+(?:inet6 )?(?!fe80:)[23f][\da-f]{2,3}:[\da-f:]*/\d+")
_BRIEF = re.compile(
    r"^(?P<name>en\w+|wl\w+|eth\d+|mlx\w+|bond\w+|lo)(?:@\S+)?[ \t]+(?P<state>UP|DOWN|UNKNOWN)\b(?P<rest>.*)$"
)
_NEIGHBOUR = re.compile(
    r"^(?P<address>[\d.]+) (?:dev (?P<netdev>\S+) )?"
    r".*\b(?P<state>REACHABLE|STALE|DELAY|PROBE|FAILED|INCOMPLETE|PERMANENT)\b"
)
_FABRIC = re.compile(r"en\w*?(?:f\d+(?:np\d+)?|np\d+)")


@dataclass(frozen=True, slots=True)
class Interface:
    """An interface as printed. `addresses` (IPv4 with prefix) is None where the command does not show addresses.
    `ipv6`: whether it has an IPv6 address other than the link-local one."""

    name: str
    mtu: int | None
    is_up: bool
    addresses: tuple[str, ...] | None
    ipv6: bool = False

    def networks(self) -> tuple[IPv4Network, ...]:
        return tuple(one.network for one in self.interfaces())

    def interfaces(self) -> tuple[IPv4Interface, ...]:
        """Its IPv4 addresses as values; what is no address is left out."""
        found = []
        for text in self.addresses or ():
            with suppress(ValueError):
                found.append(IPv4Interface(text))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A peer in the neighbour table; newer iproute2 leaves `dev` out of JSON when it was asked for one device."""

    address: str
    netdev: str
    state: str


def is_fabric(netdev: str) -> bool:
    """Whether a name is that of a function of a card (enp1s0f0np0, enP2p1s0f1np1); enP7s7 and wlP9s9 are not."""
    return _FABRIC.fullmatch(netdev) is not None


def recognise_interfaces(text: str) -> tuple[Interface, ...] | None:
    found: list[Interface] = []
    for line in text.splitlines():
        head, brief, inet = _HEAD.match(line), _BRIEF.match(line), _INET.match(line)
        if head:
            shows = None if " mode " in head["rest"] else ()
            found.append(Interface(head["name"], int(head["mtu"]), "LOWER_UP" in head["flags"], shows))
        elif brief and "<" not in brief["rest"]:
            addresses = tuple(re.findall(r"(?<!\S)\d+\.\d+\.\d+\.\d+/\d+", brief["rest"]))
            ipv6 = _INET6.search(brief["rest"]) is not None
            found.append(Interface(brief["name"], None, brief["state"] == "UP", addresses, ipv6))
        elif inet and found:
            found[-1] = replace(found[-1], addresses=(*(found[-1].addresses or ()), inet["address"]))
        elif found and _INET6.match(line):
            found[-1] = replace(found[-1], ipv6=True)
    return tuple(found) or None


def recognise_neighbours(text: str) -> tuple[Neighbour, ...] | None:
    rows = [_NEIGHBOUR.match(line) for line in text.splitlines()]
    if plain := [Neighbour(row["address"], row["netdev"] or "", row["state"]) for row in rows if row]:
        return tuple(plain)
    try:
        listed: Any = json.loads(text[text.index('[{"dst"') : text.rindex("}]") + 2])
        return tuple(Neighbour(row["dst"], row.get("dev", ""), " ".join(row["state"])) for row in listed) or None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


_EVENT = re.compile(
    r"mlx5_core \S+ (?P<netdev>en\S+): Link (?P<state>up|down)|(?P<other>en\w+): NIC Link is (?P<how>Up|Down)"
    r"|networkd\S* (?P<managed>en\w+): (?P<carrier>Gained|Lost) carrier"
)


@dataclass(frozen=True, slots=True)
class LinkEvent:
    """One change of a netdev."""

    netdev: str
    is_up: bool
    line: str


def recognise_events(text: str) -> tuple[LinkEvent, ...] | None:
    found = []
    for line in text.splitlines():
        if event := _EVENT.search(line):
            is_up = (event["state"] or event["how"] or event["carrier"]).lower() in ("up", "gained")
            found.append(LinkEvent(event["netdev"] or event["other"] or event["managed"], is_up, line))
    return tuple(found) or None


_IBDEV = re.compile(r"^\W*(?P<hca>[\w.-]+) port (?P<port>\d+) ==> (?P<netdev>[\w.-]+) \((?P<state>\w+)\)", re.MULTILINE)
_RDMA = re.compile(
    r"^\W*link (?P<hca>[\w.-]+)/(?P<port>\d+) state (?P<state>\w+)(?: physical_state \w+)?"
    r"(?: netdev (?P<netdev>[\w.-]+))?",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Port:
    """One port of an HCA with its netdev (empty when it has none)."""

    hca: str
    netdev: str
    is_up: bool


def recognise_ports(text: str) -> tuple[Port, ...] | None:
    ports = [Port(row["hca"], row["netdev"], row["state"] == "Up") for row in _IBDEV.finditer(text)]
    ports += [Port(row["hca"], row["netdev"] or "", row["state"] == "ACTIVE") for row in _RDMA.finditer(text)]
    ports += [Port(row["hca"], "", row["state"].upper() == "ACTIVE") for row in _DEVINFO.finditer(text)]
    return tuple(ports) or None


_DEVINFO = re.compile(  # ibv_devinfo, ibstat
    r"^(?:hca_id:[ \t]*|CA ')(?P<hca>[\w.-]+)'?\n(?:(?!hca_id|CA ').*\n)*?"
    r"[ \t]*[Ss]tate:[ \t]*(?:PORT_)?(?P<state>\w+)",
    re.MULTILINE,
)
_ACTIVE_MTU = re.compile(r"^[ \t]*(?:state:[ \t]*PORT_(?P<state>\w+)|active_mtu:[ \t]*(?P<mtu>\d+))", re.MULTILINE)


def recognise_active_mtu(text: str) -> tuple[int, ...] | None:
    """What ibv_devinfo prints for each port that is not down: 1024 below an MTU of 1500, 4096 below one of 9000."""
    found, state = [], ""
    for row in _ACTIVE_MTU.finditer(text):
        state = row["state"] or state
        if row["mtu"] and state != "DOWN":
            found.append(int(row["mtu"]))
    return tuple(found) or None


_ETHTOOL = re.compile(
    r"(?:^Settings for (?P<netdev>\S+):$(?:(?!Settings for)[\s\S])*?)?^[ \t]*Speed: (?P<mbps>\d+)Mb/s", re.M
)


def recognise_speeds(text: str) -> tuple[tuple[str, int], ...] | None:
    """Netdev (empty when not shown) and Mb/s of each link in what ethtool prints."""
    return tuple((row["netdev"] or "", int(row["mbps"])) for row in _ETHTOOL.finditer(text)) or None


_PLUGGED = re.compile(r"\[ *(?P<uptime>\d+)\.\d+\] mlx5_core.*Cable plugged")


def recognise_hotplug(text: str) -> int | None:
    """Seconds after boot at which a cable was plugged in last, in the kernel's log; None when none was."""
    found = [int(row["uptime"]) for row in _PLUGGED.finditer(text)]
    return max(found, default=None)


_GID = re.compile(
    r"""^(?: hca_id:[ \t]*(?P<head>\S+)                              # ibv_devinfo, and its entries
    | [ \t]*GID\[[ \t]*(?P<index>\d+)\]:[ \t]+(?P<gid>[0-9a-fA-F:.]+)(?:,[ \t]*(?P<kind>[\w/ ]+v[12]))?
    | (?P<hca>[\w.-]+)[ \t]+\d+[ \t]+(?P<at>\d+)[ \t]+             # show_gids
      (?P<shown>[0-9a-fA-F]{4}(?::[0-9a-fA-F]{4}){7})[ \t]+(?:\d+\.\d+\.\d+\.\d+)?[ \t]*(?P<short>v[12])\b )""",
    re.MULTILINE | re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Gid:
    """One entry. `hca` is empty where the text does not say, `ipv4` (the address inside) for another kind."""

    hca: str
    index: int
    ipv4: str
    is_v2: bool


def recognise_gids(text: str) -> tuple[Gid, ...] | None:
    gids, hca = [], ""
    for row in _GID.finditer(text):
        hca = row["head"] or hca
        if gid := row["gid"] or row["shown"]:
            is_v2 = "v2" in (row["kind"] or row["short"] or "")
            gids.append(Gid(row["hca"] or hca, int(row["index"] or row["at"]), mapped_ipv4(gid), is_v2))
    return tuple(gids) or None


def mapped_ipv4(gid: str) -> str:
    """The IPv4 address in ::ffff:192.168.100.10 or 0000:…:ffff:c0a8:640a, empty for other GIDs."""
    with suppress(ValueError):
        return str(IPv6Address(gid).ipv4_mapped or "")
    return ""
