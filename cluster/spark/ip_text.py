"""Interfaces and neighbours from what iproute2 prints for people: `ip addr`, `ip link`, `ip -br addr`, `ip neigh`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv4Network, ip_interface
from typing import Any

_HEAD = re.compile(r"^\d+: (?P<name>[\w.-]+)(?:@\S+)?: <(?P<flags>[\w,-]*)> mtu (?P<mtu>\d+)(?P<rest>.*)$")
_INET = re.compile(r"^[ \t]+inet (?P<address>[\d.]+/\d+)")
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
    """An interface as printed. `addresses` (IPv4 with prefix) is None where the command does not show addresses."""

    name: str
    mtu: int | None
    is_up: bool
    addresses: tuple[str, ...] | None

    @property
    def is_fabric(self) -> bool:
        """Whether a card of several functions is behind it, as a Spark's ConnectX-7 is."""
        return is_fabric(self.name)

    def networks(self) -> tuple[IPv4Network, ...]:
        """The IPv4 networks it is in; what is no address is left out."""
        return tuple(one.network for one in self.interfaces())

    def interfaces(self) -> tuple[IPv4Interface, ...]:
        """Its IPv4 addresses as values."""
        found = []
        for text in self.addresses or ():
            try:
                found.append(ip_interface(text))
            except ValueError:
                continue
        return tuple(one for one in found if isinstance(one, IPv4Interface))


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A peer in the neighbour table; newer iproute2 leaves `dev` out of JSON when it was asked for one device."""

    address: str
    netdev: str
    state: str


def is_fabric(netdev: str) -> bool:
    """Whether a name is that of a function of a card (enp1s0f0np0, enP2p1s0f1np1); enP7s7 and wlP9s9 are not."""
    return _FABRIC.fullmatch(netdev) is not None


def recognise(text: str) -> tuple[Interface, ...] | None:
    """Every interface that a text shows, None when it shows none."""
    found: list[Interface] = []
    for line in text.splitlines():
        head, brief, inet = _HEAD.match(line), _BRIEF.match(line), _INET.match(line)
        if head:
            shows = None if " mode " in head["rest"] else ()
            found.append(Interface(head["name"], int(head["mtu"]), "LOWER_UP" in head["flags"], shows))
        elif brief and "<" not in brief["rest"]:
            addresses = tuple(re.findall(r"(?<!\S)\d+\.\d+\.\d+\.\d+/\d+", brief["rest"]))
            found.append(Interface(brief["name"], None, brief["state"] == "UP", addresses))
        elif inet and found:
            last = found[-1]
            found[-1] = Interface(last.name, last.mtu, last.is_up, (*(last.addresses or ()), inet["address"]))
    return tuple(found) or None


def recognise_neighbours(text: str) -> tuple[Neighbour, ...] | None:
    """`ip neigh`, plain or JSON, None when it is neither."""
    rows = [_NEIGHBOUR.match(line) for line in text.splitlines()]
    plain = [Neighbour(row["address"], row["netdev"] or "", row["state"]) for row in rows if row]
    if plain:
        return tuple(plain)
    start, end = text.find('[{"dst"'), text.rfind("}]")
    if start < 0 or end < start:
        return None
    try:
        told: Any = json.loads(text[start : end + 2])
        return tuple(Neighbour(row["dst"], row.get("dev", ""), " ".join(row["state"])) for row in told) or None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
