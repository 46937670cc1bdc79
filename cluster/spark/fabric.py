"""Which netdevs and HCAs of a host face its peers: found from the hosts themselves, paired by subnet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_interface
from typing import Any

from cluster.spark.fact import Missing
from cluster.spark.finding import Finding
from cluster.spark.links import Links
from cluster.spark.look import Seen

Network = IPv4Network | IPv6Network
ANEW = "cluster down and cluster up start it over what is there now"


@dataclass(frozen=True, slots=True)
class Facing:
    """One netdev of a host that shares a subnet with every peer. `hca` is empty when there is no RDMA behind it."""

    netdev: str
    hca: str
    mtu: int
    address: str
    network: Network

    def as_label(self) -> dict[str, Any]:
        """For the label `cluster.seen`."""
        address = f"{self.address}/{self.network.prefixlen}"
        return {"netdev": self.netdev, "hca": self.hca, "mtu": self.mtu, "address": address}


@dataclass(frozen=True, slots=True)
class HostFabric:
    """How one host reaches its peers. Without `facing`, `address` is the management address.

    `old_hcas`: those of a label of an older form, which does not tell the netdev and address of each.
    """

    host: str
    address: str
    netdev: str
    facing: tuple[Facing, ...] = ()
    old_hcas: tuple[str, ...] = ()

    @property
    def hcas(self) -> tuple[str, ...]:
        """The HCAs whose netdev faces the peers."""
        return tuple(dict.fromkeys(link.hca for link in self.facing if link.hca)) or self.old_hcas

    def as_label(self) -> dict[str, Any]:
        """For the label `cluster.seen`; `recorded` reads it."""
        mtu = min((link.mtu for link in self.facing), default=None)
        links = [link.as_label() for link in self.facing]
        return {"address": self.address, "netdev": self.netdev, "hcas": list(self.hcas), "mtu": mtu, "links": links}


@dataclass(frozen=True, slots=True)
class Fabric:
    """All hosts' ends. `paired` is False when the hosts share no fabric subnet."""

    hosts: Mapping[str, HostFabric]
    paired: bool

    @property
    def rdma(self) -> bool:
        """Whether every host has an active HCA that faces its peers."""
        return self.paired and all(end.hcas for end in self.hosts.values())


def pair(seens: Sequence[Seen], overrides: Mapping[str, Sequence[str]] | None = None) -> Fabric:
    """Pair the hosts' links by subnet. `overrides` names the netdevs to use on a host.

    A link counts when its port is ACTIVE (or its netdev was named by the user, RDMA or not), it is up, it has an
    address, and every other host has such a link in the same subnet. A management netdev has no HCA, so it counts only
    when it is named.
    """
    ends = {seen.host: _usable(seen, (overrides or {}).get(seen.host, ())) for seen in seens}
    shared = [net for net in _networks(ends.values()) if all(_has(links, net) for links in ends.values())]
    if len(seens) < 2 or not shared:
        return Fabric({seen.host: _management(seen) for seen in seens}, paired=False)
    hosts = {}
    for name, links in ends.items():
        facing = tuple(link for net in shared for link in links if link.network == net)
        hosts[name] = HostFabric(name, facing[0].address, facing[0].netdev, facing)
    return Fabric(hosts, paired=True)


def recorded(seen: Mapping[str, Any]) -> Fabric:
    """The fabric that a deployment was started over, from its label `cluster.seen`."""
    hosts = {}
    for name, end in seen["hosts"].items():
        facing = tuple(
            Facing(link["netdev"], link["hca"], link["mtu"], str(address.ip), address.network)
            for link in end.get("links", ())
            if (address := ip_interface(link["address"]))
        )
        old = () if "links" in end else tuple(end.get("hcas", ()))
        hosts[name] = HostFabric(name, end.get("address", ""), end.get("netdev", ""), facing, old)
    return Fabric(hosts, paired=bool(seen.get("paired")))


def drift(before: Fabric, now: Fabric) -> list[Finding]:
    """What was observed at the start and is otherwise now: worth a word, no reason to replace what runs."""
    found_otherwise = []
    for name, end in before.hosts.items():
        found = now.hosts[name]
        for what, was, is_now in (
            ("address", end.address, found.address), ("netdev", end.netdev, found.netdev),
            ("HCAs", ", ".join(end.hcas), ", ".join(found.hcas)),
        ):  # fmt: skip
            if was != is_now:
                said = f"{what} was {was or 'none'} at the start and is {is_now or 'none'} now"
                found_otherwise.append(Finding("warning", "drift", name, said, remedy=ANEW))
    return found_otherwise


def _usable(seen: Seen, named: Sequence[str]) -> list[Facing]:
    if isinstance(seen.links, Missing):
        return []
    found = []
    behind = {link.netdev: link for link in seen.links.links if link.state == "ACTIVE"}
    for netdev in seen.links.netdevs:
        hca = behind.get(netdev.name)
        wanted = netdev.name in named if named else hca is not None
        if not wanted or netdev.operstate == "down":
            continue
        for text in netdev.addresses:
            address = ip_interface(text)
            if address.version == 4 or not address.is_link_local:
                found.append(Facing(netdev.name, hca.hca if hca else "", netdev.mtu, str(address.ip), address.network))
    return found


def _networks(ends: Iterable[Sequence[Facing]]) -> list[Network]:
    found = {link.network for links in ends for link in links}
    return sorted(found, key=lambda net: (net.version, net.is_link_local, int(net.network_address)))


def _has(links: Sequence[Facing], network: Network) -> bool:
    return any(link.network == network for link in links)


def _management(seen: Seen) -> HostFabric:
    address = "" if isinstance(seen.identity, Missing) else seen.identity.management_address
    return HostFabric(seen.host, address, netdev_of(seen.links, address))


def netdev_of(links: Links | Missing, address: str) -> str:
    """The netdev that carries an address; empty when it is not known."""
    if isinstance(links, Missing):
        return ""
    for netdev in links.netdevs:
        if any(text.split("/")[0] == address for text in netdev.addresses):
            return netdev.name
    return ""
