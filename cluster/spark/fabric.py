"""Which links of a host face its peers, paired by subnet; whether they are equal at both ends, complete and open."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, ip_interface
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from cluster.argv.question import Answer, Question
from cluster.spark.fact import Missing, known
from cluster.spark.finding import Check, Finding, Level, twice
from cluster.spark.links import Link, Links, Netdev, Network, half_ports, is_crossed, port_of, subnets
from cluster.spark.processes import PACKET_FILTER

if TYPE_CHECKING:
    from cluster.spark.look import Seen
    from cluster.spark.request import Wanted

FABRIC = Check("fabric", "first-set-up#fabric-addresses")
"""Fault: no subnet in common over the HCAs; warning: the same where sockets are accepted. Silent about two of the
four netdevs down, as with one cable."""
RDMA = Check("rdma", "it-is-slow#tcp-instead-of-roce")
"""Warning: no HCA behind the link that faces the peers."""
ADDRESS = Check("address", "first-set-up#fabric-addresses")
"""Fault: two hosts have one fabric address."""
TRANSPORT = Check("transport", "it-is-slow#tcp-instead-of-roce")
"""Doctor only, of a deployment of several ranks that serves: one completion of 8 tokens is asked, and the HCAs'
counters are read before and after. Fault: they stand still, or NCCL says sockets; note: the same where sockets were
accepted, and what the counters show where VLLM_ENABLE_ROCE_ALLREDUCE lets small messages bypass NCCL; unknown: no
answer within 4 s and no traffic. Silent about one rank; no HCA; a busy server whose counters grow."""
PING = Check("ping", "first-set-up#fabric-addresses")
"""Fault: a packet of full size does not come back."""
RDMA_DEVICE = Check("rdma-device", "it-is-slow#tcp-instead-of-roce")
"""Fault: HCAs without `/dev/infiniband`, so NCCL would fall back to sockets silently. Silent about hosts without
HCAs."""
TWINS = Check("twins", "it-is-slow#one-twin")
"""Warning: only one half of the port faces the peers: half the bandwidth."""
CABLING = Check("cabling", "first-set-up#fabric-addresses")
"""Note: the cable is in another port here than there."""
MTU = Check("mtu", "it-is-slow#mtu")
"""Fault: it differs within a subnet; warning: 1500 everywhere. Silent about any other equal value."""
RATE = Check("rate", "it-is-slow#bandwidth")
"""Warning: an HCA runs at less than 100 Gb/s. Silent about 100 and 200: firmwares differ."""
GID = Check("gid", "reboot-or-replace#the-fabric-is-not-what-it-was")
"""Fault: an HCA's table has no RoCE v2 entry for its IPv4 address. Silent about the index, which moves: nothing is
pinned."""
ROUTE = Check("route", "first-set-up#fabric-addresses")
"""Warning: packets to a fabric subnet leave over another netdev. Silent about twins in one subnet."""
FIREWALL = Check("firewall", "first-set-up#firewall")
"""Warning: packets are dropped by default, and no rule speaks of the fabric. Silent about FORWARD, and what Docker
writes."""
DRIFT = Check("drift", "reboot-or-replace#the-fabric-is-not-what-it-was")
"""Warning: address, netdev or HCAs are not those that the deployment was started over."""

N = TypeVar("N", IPv4Network, Network)
RESTART = "run cluster down, then cluster up, to use the present links"


@dataclass(frozen=True, slots=True)
class Facing:
    """One netdev of a host that shares a subnet with every peer. `hca` is empty when there is no RDMA behind it."""

    netdev: str
    hca: str
    mtu: int
    address: str
    network: Network


@dataclass(frozen=True, slots=True)
class HostFabric:
    """How one host reaches its peers. Without `facing`, `address` is the management address. `old_hcas`: those of a
    label of an older form, which lacks the netdev and address of each."""

    host: str
    address: str
    netdev: str
    facing: tuple[Facing, ...] = ()
    old_hcas: tuple[str, ...] = ()

    @property
    def hcas(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(link.hca for link in self.facing if link.hca)) or self.old_hcas

    @property
    def observed(self) -> tuple[str, str, str]:
        return self.address, self.netdev, ", ".join(self.hcas)

    def as_label(self) -> dict[str, Any]:
        """For the label `cluster.seen`; `recorded` reads it."""
        mtu = min((link.mtu for link in self.facing), default=None)
        links = [
            {"netdev": one.netdev, "hca": one.hca, "mtu": one.mtu, "address": f"{one.address}/{one.network.prefixlen}"}
            for one in self.facing
        ]
        return {"address": self.address, "netdev": self.netdev, "hcas": list(self.hcas), "mtu": mtu, "links": links}


@dataclass(frozen=True, slots=True)
class Fabric:
    """All hosts' ends. `paired` is False when the hosts share no fabric subnet."""

    hosts: Mapping[str, HostFabric]
    paired: bool

    @property
    def rdma(self) -> bool:
        return self.paired and all(end.hcas for end in self.hosts.values())


def pair(seens: Sequence[Seen], overrides: Mapping[str, Sequence[str]] | None = None) -> Fabric:
    """Pair the hosts' links by subnet. `overrides` names the netdevs to use on a host.

    A link counts when its port is ACTIVE (or its netdev was named by the user, RDMA or not), it is up, it has an
    address, and every other host has such a link in the same subnet. A management netdev has no HCA, so it counts only
    when it is named.
    """
    ends = {seen.host: _usable(seen, (overrides or {}).get(seen.host, ())) for seen in seens}
    common = common_networks([link.network for link in links] for links in ends.values())
    shared = sorted(common, key=lambda net: (net.version, net.is_link_local, int(net.network_address)))
    hosts = {}
    if len(seens) < 2 or not shared:
        for seen in seens:
            account = known(seen.identity)
            address = account.management_address if account else ""
            hosts[seen.host] = HostFabric(seen.host, address, netdev_of(seen.links, address))
        return Fabric(hosts, paired=False)
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
    return [
        DRIFT.warning(name, f"{what} was {was or 'none'} at the start and is {is_now or 'none'} now", remedy=RESTART)
        for name, end in before.hosts.items()
        for what, was, is_now in zip(("address", "netdev", "HCAs"), end.observed, now.hosts[name].observed, strict=True)
        if was != is_now
    ]


def _usable(seen: Seen, named: Sequence[str]) -> list[Facing]:
    behind = {link.netdev: link.hca for link in _links(seen) if link.is_active}
    return [
        Facing(netdev.name, behind.get(netdev.name, ""), netdev.mtu, str(address.ip), address.network)
        for netdev in _netdevs(seen.links)
        if netdev.name in (named or behind) and netdev.operstate != "down"
        for address in map(ip_interface, netdev.addresses)
        if address.version == 4 or not address.is_link_local
    ]


def common_networks(ends: Iterable[Iterable[N]]) -> set[N]:
    found = [set(networks) for networks in ends]
    return set.intersection(*found) if found else set()


def netdev_of(links: Links | Missing, address: str) -> str:
    """The netdev with an address; empty when it is not known."""
    owners = {own.partition("/")[0]: netdev.name for netdev in _netdevs(links) for own in netdev.addresses}
    return owners.get(address, "")


def _netdevs(links: Links | Missing) -> tuple[Netdev, ...]:
    return () if isinstance(links, Missing) else links.netdevs


SLOWEST_GBPS = 100.0
"""What a port of a Spark claims at least; other firmware says 200."""


def check_fabric(wanted: Wanted, seens: Sequence[Seen], fabric: Fabric) -> Iterator[Finding]:
    if unread := [FABRIC.unknown(seen.host, "links", seen.links) for seen in seens if isinstance(seen.links, Missing)]:
        yield from unread
        return
    asked: Level = "warning" if wanted.accepts_sockets else "fault"  # of what keeps RDMA from being used
    if not fabric.paired:
        level = asked if any(_links(seen) for seen in seens) else "warning"
        what = "the hosts share no fabric subnet; traffic would take the management network"
        remedy = "plug the cable, give both ends an address in one subnet, or use --allow-socket"
        yield FABRIC.found(level, seens[-1].host, what, "; ".join(map(_links_text, seens)), remedy)
        return
    yield from check_addresses(fabric)
    yield from check_mtu(fabric)
    yield from check_twins(seens, fabric)
    yield from check_cabling(fabric)
    for seen in seens:
        if _links(seen) and (links := known(seen.links)) and not links.rdma_device:
            what, remedy = "there are HCAs, but no /dev/infiniband", f"on {seen.host}: sudo modprobe ib_uverbs rdma_ucm"
            yield RDMA_DEVICE.found(asked, seen.host, what, _links_text(seen), remedy)
    if not wanted.accepts_sockets and not fabric.rdma:
        without = [name for name, end in fabric.hosts.items() if not end.hcas]
        what, remedy = "no RDMA device faces the peers", "ls /sys/class/infiniband; ibdev2netdev"
        yield RDMA.warning(without[0], what, ", ".join(without), remedy)
    for seen in seens:
        facing = fabric.hosts[seen.host].facing
        yield from check_links(asked, seen, facing)
        yield from check_routes(seen, facing)
        yield from check_firewall(seen, facing)


def _links(seen: Seen) -> tuple[Link, ...]:
    return () if isinstance(seen.links, Missing) else seen.links.links


def check_addresses(fabric: Fabric) -> Iterator[Finding]:
    """No two hosts have one address: a ping to it is answered at home, and nothing reaches the peer."""
    netdevs = {(name, link.address): link.netdev for name, end in fabric.hosts.items() for link in end.facing}
    for address, hosts in twice(netdevs).items():
        evidence = f"{address}: {', '.join(f'{host} {netdevs[host, address]}' for host in hosts)}"
        what, remedy = "have the same fabric address", "give each host an address of its own in netplan"
        yield ADDRESS.fault(hosts[-1], f"{' and '.join(hosts)} {what}", evidence, remedy)


def check_twins(seens: Sequence[Seen], fabric: Fabric) -> Iterator[Finding]:
    """One QSFP port is two netdevs, each with half the bandwidth; both face the peers."""
    for seen in seens:
        facing = {link.netdev for link in fabric.hosts[seen.host].facing}
        links = {link.netdev: link for link in _links(seen)}
        for netdev, other in half_ports(facing, links):
            link = links[other]
            remedy = f"look at the other end of {other}: is it up, and in the same subnet?"
            if not link.is_active:
                remedy = f"on {seen.host}: sudo ip link set {other} up; reseat the cable at both ends"
            elif not subnets(link.addresses):
                remedy = f"give {other} an address in a subnet of its own, on every host"
            what = f"only {netdev} of its port faces the peers: half the bandwidth"
            state = f"{other} {link.state}, {' '.join(link.addresses) or 'no address'}"
            yield TWINS.warning(seen.host, what, state, remedy)


def check_cabling(fabric: Fabric) -> Iterator[Finding]:
    """The cable is in another port here than there: it works, since every host is given names of its own."""
    netdevs = {name: {link.netdev for link in end.facing if link.hca} for name, end in fabric.hosts.items()}
    first, *others = netdevs
    for name in others:
        if is_crossed(netdevs[name], netdevs[first]):
            ports = [f"{one} {', '.join(sorted(set(map(port_of, netdevs[one]))))}" for one in (first, name)]
            what = f"the cable is in another port than on {first}: names of HCAs differ"
            remedy = "nothing to do for cluster; programs that copy one host's NCCL_IB_HCA to the other fail"
            yield CABLING.note(name, what, "; ".join(ports), remedy)


def judge_mtu(sizes: Iterable[int]) -> Literal["", "differs", "small"]:
    """What the MTUs in one subnet mean: large RDMA transfers fail between different ones, and 1500 is slow."""
    found = set(sizes)
    return "differs" if len(found) > 1 else "small" if found == {1500} else ""


def check_mtu(fabric: Fabric) -> Iterator[Finding]:
    """MTU equal at both ends of each subnet (a fault when not), and better than 1500 (a warning when not)."""
    all_ends = [(name, link) for name, end in fabric.hosts.items() for link in end.facing]
    for network in dict.fromkeys(link.network for _, link in all_ends):
        ends = [(host, link.netdev, link.mtu) for host, link in all_ends if link.network == network]
        evidence = ", ".join(f"{host} {netdev} {mtu}" for host, netdev, mtu in ends)
        state = judge_mtu(mtu for _, _, mtu in ends)
        worst, netdev, _ = min(ends, key=lambda end: end[2])
        remedy = f"on {worst}: sudo ip link set {netdev} mtu 9000, and in netplan to keep it"
        if state == "differs":
            yield MTU.fault(worst, f"the MTU differs within {network}", evidence, remedy)
        elif state == "small":
            yield MTU.warning(worst, f"{network} runs at MTU 1500; 9000 is faster", evidence, remedy)


def check_links(level: Level, seen: Seen, facing: Sequence[Facing]) -> Iterator[Finding]:
    """Each HCA that faces the peers runs at full rate, and has the GID by which RoCE v2 finds its IPv4 address; where
    it has none, that is of this level."""
    links = {link.hca: link for link in _links(seen)}
    for end in facing:
        link = links.get(end.hca)
        if link is None:
            continue
        if link.rate_gbps is not None and link.rate_gbps < SLOWEST_GBPS:
            what, rate = f"{link.hca} runs at less than {SLOWEST_GBPS:g} Gb/s", f"{link.rate_gbps:g} Gb/s"
            yield RATE.warning(seen.host, what, rate, "another cable: a QSFP56 or QSFP112 one for 200G; reseat it")
        if link.gids and end.network.version == 4 and link.gid_index(end.address) is None:
            what = f"{link.hca} has no RoCE v2 GID for {end.address}, so no RDMA can use that address"
            table = ", ".join(f"{row.index}: {row.gid} {row.kind}" for row in link.gids)
            renew = f"sudo ip link set {link.netdev} down && sudo ip link set {link.netdev} up"
            remedy = f"on {seen.host}: {renew}; the address in netplan, not in /run"
            yield GID.found(level, seen.host, what, table, remedy)


def check_routes(seen: Seen, facing: Sequence[Facing]) -> Iterator[Finding]:
    """What goes to a fabric subnet leaves over a netdev that faces it, and so do the answers."""
    sources = {netdev.name: netdev.sources for netdev in _netdevs(seen.links)}
    for end in facing:
        within = {one.netdev for one in facing if one.network == end.network}
        source = sources[end.netdev].get(end.address, "")
        owner = netdev_of(seen.links, source)
        if source and owner not in within:
            what = f"what goes to {end.network} does not leave over {end.netdev}"
            evidence = f"it leaves from {source} ({owner or 'another netdev'})"
            route = f"on {seen.host}: ip route get {end.network[-2]}"
            remedy = f"{route}; two netdevs in one subnet: give one another subnet"
            yield ROUTE.warning(seen.host, what, evidence, remedy)


def check_firewall(seen: Seen, facing: Sequence[Facing]) -> Iterator[Finding]:
    """Where packets are dropped by default, some rule speaks of the fabric; NCCL's and Ray's connections go over it."""
    firewall = seen.of(PACKET_FILTER)
    if isinstance(firewall, Missing):
        account = known(seen.identity)
        if not (account and not account.sudo and firewall.kind == "refused"):  # the check `sudo` reports it then
            yield FIREWALL.unknown(seen.host, "firewall rules", firewall)
        return
    for end in facing:
        if isinstance(end.network, IPv4Network) and not firewall.may_pass(end.netdev, end.network):
            what = f"the firewall drops everything from {end.network} on {end.netdev}"
            remedy = f"on {seen.host}: allow it, with ufw: sudo ufw allow in on {end.netdev}"
            yield FIREWALL.warning(seen.host, what, firewall.drops, remedy)


def _links_text(seen: Seen) -> str:
    ends = [(one.netdev or one.hca, one.state, " ".join(one.addresses) or "no address") for one in _links(seen)]
    return f"{seen.host}: {', '.join(map(' '.join, ends)) or 'no HCA'}"


PATIENCE_S = "10"
"""After a cable was moved, the kernel asks its neighbour's former MAC address for 8 s, then looks for the new one."""


def ping_questions(fabric: Fabric, host: str) -> dict[tuple[str, str], Question]:
    """Pings from one host to each peer over each link, as large as the MTU allows, by (netdev, peer address)."""
    questions = {}
    for link in fabric.hosts[host].facing:
        for peer, end in fabric.hosts.items():
            for other in end.facing:
                if peer != host and other.network == link.network:
                    size = str(min(link.mtu, other.mtu) - (28 if link.network.version == 4 else 48))
                    argv = ("ping", "-n", "-q", "-c", "1", "-w", PATIENCE_S, "-M", "do", "-s", size, "-I", link.netdev)
                    questions[link.netdev, other.address] = Question((*argv, other.address), timeout_s=15)
    return questions


_MAY_NOT_PING = re.compile("cap_net_raw|Operation not permitted|Permission denied", re.IGNORECASE)
"""iputils' words where no raw socket, no net.ipv4.ping_group_range or no `-I` is allowed: nothing of the network."""


def check_pings(host: str, answers: Mapping[tuple[str, str], Answer]) -> Iterator[Finding]:
    """A ping without an answer, with ping's own words."""
    for (netdev, peer), answer in answers.items():
        if answer.exit == 0:
            continue
        if answer.exit == 127:
            yield PING.found("unknown", host, "peers could not be pinged", "ping is not installed")
            return
        said = (answer.error_text.strip() or answer.text.strip() or "no answer").splitlines()[-1]
        if _MAY_NOT_PING.search(answer.error_text):
            remedy = f"on {host}: sudo setcap cap_net_raw+ep $(readlink -f $(command -v ping))"
            yield PING.found("unknown", host, "peers could not be pinged: this login may not", said, remedy)
            return
        ping = f"on {host}: ping -M do -s 8972 {peer} (1472 at MTU 1500)"
        remedy = f"{ping}; compare MTU and addresses at both ends"
        yield PING.fault(host, f"no full-size packet from {netdev} to {peer}", said, remedy)


_OVER_RDMA = re.compile(r"NET/IB\w* : Using|via NET/IB")
ENOUGH_BYTES = 64 << 10
"""A completion over N ranks moves at least this much; idle links move a few hundred bytes a second."""
ROCE_ALLREDUCE = "VLLM_ENABLE_ROCE_ALLREDUCE"
"""With it, a fork of vLLM sends small all-reduces over RoCE by itself: NCCL's lines prove nothing about those."""

Moved = Mapping[str, int]
"""Bytes that each HCA of a host sent and received meanwhile, by its name."""


@dataclass(frozen=True, slots=True)
class Transport:
    """The verdict. `moved` is by host what its facing HCAs moved during the completion, as far as it could be read."""

    verdict: Literal["rdma", "socket", "unknown"]
    why: str
    moved: Mapping[str, Moved]
    lines: tuple[str, ...] = ()
    bypass: bool = False

    @property
    def grown(self) -> dict[str, int]:
        """Bytes by host."""
        return {host: sum(hcas.values()) for host, hcas in self.moved.items()}

    def __str__(self) -> str:
        """Why, and what the counters show: by host, by HCA where NCCL's lines are not all there is to know."""
        by_hca = [(f"{host} {hca}", value) for host, hcas in self.moved.items() for hca, value in hcas.items()]
        rows = by_hca if self.bypass else self.grown.items()
        return "; ".join(filter(None, (self.why, ", ".join(f"{name} {value / 1e6:.1f} MB" for name, value in rows))))


def moved_bytes(before: Links | Missing, after: Links | Missing, hcas: Sequence[str]) -> Moved | None:
    """What the named HCAs moved meanwhile; None when a counter could not be read."""
    if isinstance(before, Missing) or isinstance(after, Missing):
        return None
    first = {link.hca: link.moved_bytes for link in before.links}
    pairs = {one.hca: (first[one.hca], one.moved_bytes) for one in after.links if one.hca in hcas and one.hca in first}
    moved = {hca: now - then for hca, (then, now) in pairs.items() if then is not None and now is not None}
    return moved if len(moved) == len(pairs) else None


def judge_transport(
    moved: Mapping[str, Moved | None], lines: Mapping[str, Sequence[str]], *, bypass: bool = False
) -> Transport:
    """RDMA is proven by every host's counters; NCCL's lines say why not, and decide where counters cannot be read.

    `bypass`: small messages do not go through NCCL (ROCE_ALLREDUCE). Then its lines prove no RDMA, and only the
    counters do; sockets in them are still those of its large messages.
    """
    counted = {host: value for host, value in moved.items() if value is not None}
    every = [line.strip() for host_lines in lines.values() for line in host_lines]
    still = [host for host, value in counted.items() if sum(value.values()) < ENOUGH_BYTES]
    silent = [host for host in moved if host not in counted]
    unread = f"the HCAs' counters cannot be read on {', '.join(silent) or 'any host'}"
    verdict: Literal["rdma", "socket", "unknown"]
    if socket := next((line for line in every if "network Socket" in line or "NET/Socket" in line), ""):
        verdict, why = "socket", socket
    elif still:
        verdict, why = "socket", f"the HCAs' counters stood still on {', '.join(still)}"
    elif moved and not silent:
        verdict, why = "rdma", "the HCAs' own counters grew on every host"
    elif moved and not bypass and all(any(map(_OVER_RDMA.search, lines.get(host, ()))) for host in silent):
        verdict, why = "rdma", f"NCCL reports it; {unread}"
    else:
        verdict, why = "unknown", unread
    if bypass:
        why += f"; small messages bypass NCCL ({ROCE_ALLREDUCE}), so its log proves nothing about them"
    return Transport(verdict, why, counted, tuple(dict.fromkeys(every))[:8], bypass)
