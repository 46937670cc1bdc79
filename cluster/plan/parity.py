"""Checks over the set of hosts: what must be equal is equal, and the fabric between them is whole."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from cluster.commands.question import Answer, Question
from cluster.facts.fact import Missing
from cluster.facts.links import Link, Links
from cluster.facts.seen import Seen
from cluster.plan.fabric import Fabric
from cluster.plan.finding import Finding, Level
from cluster.plan.wanted import Wanted

CLOCK_WARNING_S = 5.0
PATIENCE_S = "10"
"""A ping is tried so long until an answer comes: after a cable was moved, the kernel asks its neighbour's former MAC
address for 8 s before it looks for the new one."""


def check_set(wanted: Wanted, seens: Sequence[Seen], fabric: Fabric) -> Iterator[Finding]:
    """All findings over the set."""
    yield from check_machines(seens)
    yield from check_clocks(seens)
    yield from check_same(seens)
    if len(seens) > 1:
        yield from check_fabric(wanted, seens, fabric)


def check_machines(seens: Sequence[Seen]) -> Iterator[Finding]:
    """Two names are not the same machine."""
    by_id: dict[str, list[str]] = defaultdict(list)
    for seen in seens:
        if not isinstance(seen.identity, Missing) and seen.identity.machine_id:
            by_id[seen.identity.machine_id].append(seen.host)
    for machine_id, hosts in by_id.items():
        if len(hosts) > 1:
            yield Finding(
                "fault", "machine-id", hosts[1], f"{' and '.join(hosts)} are the same machine",
                f"machine-id {machine_id}", "name each machine once; after cloning a disk: systemd-machine-id-setup",
            )  # fmt: skip


def check_clocks(seens: Sequence[Seen]) -> Iterator[Finding]:
    """The hosts' clocks agree; they were read within one round trip of each other."""
    times = {seen.host: seen.identity.time_unix_s for seen in seens if not isinstance(seen.identity, Missing)}
    if len(times) < 2:
        return
    early, late = min(times, key=lambda host: times[host]), max(times, key=lambda host: times[host])
    apart = times[late] - times[early]
    if apart > CLOCK_WARNING_S:
        yield Finding(
            "warning", "clock", late, f"the clocks of {early} and {late} differ", f"{apart:.0f} s",
            "on both: timedatectl; sudo systemctl restart systemd-timesyncd",
        )  # fmt: skip


def check_same(seens: Sequence[Seen]) -> Iterator[Finding]:
    """Image content and weights are equal on all hosts that have them."""
    images = {seen.host: seen.image.content_id for seen in seens if not isinstance(seen.image, Missing)}
    if len(set(images.values())) > 1:
        rows = ", ".join(f"{host} {content[:12]}" for host, content in images.items())
        reference = next(seen.image.reference for seen in seens if not isinstance(seen.image, Missing))
        yield Finding(
            "fault", "image-parity", list(images)[-1], f"image {reference} is not the same on all hosts", rows,
            f"on all: docker pull {reference}, or copy it with docker save and docker load",
        )  # fmt: skip
    for copies in zip(*(seen.copies for seen in seens), strict=True):
        there = {seen.host: one for seen, one in zip(seens, copies, strict=True) if not isinstance(one, Missing)}
        ids = {host: one.commit or one.listing for host, one in there.items()}
        if len(set(ids.values())) > 1:
            rows = ", ".join(f"{host} {copy[:12]}" for host, copy in ids.items())
            yield Finding(
                "fault", "weights-parity", list(ids)[-1], "the hosts have different copies of the model", rows,
                "pin one with --set revision=COMMIT, or copy the directory again",
            )  # fmt: skip


def check_fabric(wanted: Wanted, seens: Sequence[Seen], fabric: Fabric) -> Iterator[Finding]:
    """Paired, equal and large MTU, RDMA where there are HCAs."""
    rdma_wanted = wanted.recipe.transport == "rdma" and not wanted.allow_socket
    if not fabric.paired:
        has_hcas = [seen.host for seen in seens if not isinstance(seen.links, Missing) and seen.links.links]
        yield Finding(
            "fault" if has_hcas and rdma_wanted else "warning", "fabric", seens[-1].host,
            "the hosts share no fabric subnet; traffic would take the management network",
            "; ".join(_links_text(seen) for seen in seens),
            "plug the cable, give both ends an address in one subnet, or say --allow-socket",
        )  # fmt: skip
        return
    yield from check_mtu(fabric)
    yield from check_twins(seens, fabric)
    yield from check_device(wanted, seens)
    if rdma_wanted and not fabric.rdma:
        without = [name for name, end in fabric.hosts.items() if not end.hcas]
        yield Finding(
            "warning", "rdma", without[0], "no RDMA device faces the peers", ", ".join(without),
            "ls /sys/class/infiniband; ibdev2netdev",
        )  # fmt: skip


def check_device(wanted: Wanted, seens: Sequence[Seen]) -> Iterator[Finding]:
    """HCAs without /dev/infiniband: no container can use them, and NCCL would fall back to sockets silently."""
    level: Level = "fault" if wanted.recipe.transport == "rdma" and not wanted.allow_socket else "warning"
    for seen in seens:
        if not isinstance(seen.links, Missing) and seen.links.links and not seen.links.rdma_device:
            yield Finding(
                level, "rdma-device", seen.host, "there are HCAs, but no /dev/infiniband", _links_text(seen),
                f"on {seen.host}: sudo modprobe ib_uverbs rdma_ucm",
            )  # fmt: skip


def check_twins(seens: Sequence[Seen], fabric: Fabric) -> Iterator[Finding]:
    """One QSFP port is two netdevs, each with half the bandwidth; when only one faces the peers, that is said."""
    for seen in seens:
        if isinstance(seen.links, Missing):
            continue
        facing = {link.netdev for link in fabric.hosts[seen.host].facing}
        for link in seen.links.links:
            if link.netdev in facing or not (twins := facing & _twins_of(link, seen.links)):
                continue
            yield Finding(
                "warning", "twins", seen.host, f"only {min(twins)} of its port faces the peers: half the bandwidth",
                f"{link.netdev} {link.state}, {' '.join(link.addresses) or 'no address'}",
                f"give {link.netdev} an address in a subnet of its own, on every host",
            )  # fmt: skip


def _twins_of(link: Link, links: Links) -> set[str]:
    """Netdevs of the same port behind another PCI domain: `enp1s0f1np1` and `enP2p1s0f1np1`."""
    port = _port(link.netdev)
    return {one.netdev for one in links.links if one.netdev != link.netdev and _port(one.netdev) == port}


def _port(netdev: str) -> str:
    return re.sub(r"^enP\d+", "en", netdev)


def check_mtu(fabric: Fabric) -> Iterator[Finding]:
    """MTU equal at both ends of each subnet (a fault when not), and better than 1500 (a warning when not)."""
    by_network: dict[str, list[tuple[str, str, int]]] = defaultdict(list)
    for name, end in fabric.hosts.items():
        for link in end.facing:
            by_network[str(link.network)].append((name, link.netdev, link.mtu))
    for network, ends in by_network.items():
        evidence = ", ".join(f"{host} {netdev} {mtu}" for host, netdev, mtu in ends)
        sizes = {mtu for _, _, mtu in ends}
        worst, netdev, _ = min(ends, key=lambda end: end[2])
        remedy = f"on {worst}: sudo ip link set {netdev} mtu 9000, and in netplan to keep it"
        if len(sizes) > 1:
            yield Finding("fault", "mtu", worst, f"the MTU differs within {network}", evidence, remedy)
        elif sizes == {1500}:
            yield Finding("warning", "mtu", worst, f"{network} runs at MTU 1500; 9000 is faster", evidence, remedy)


def _links_text(seen: Seen) -> str:
    if isinstance(seen.links, Missing):
        return f"{seen.host}: {seen.links.why}"
    rows = [
        f"{link.netdev or link.hca} {link.state} {' '.join(link.addresses) or 'no address'}"
        for link in seen.links.links
    ]
    return f"{seen.host}: {', '.join(rows) or 'no HCA'}"


def ping_questions(fabric: Fabric, host: str) -> dict[tuple[str, str], Question]:
    """Pings from one host to each peer over each link, as large as the MTU allows, by (netdev, peer address)."""
    if not fabric.paired:
        return {}
    questions = {}
    for link in fabric.hosts[host].facing:
        for peer, end in fabric.hosts.items():
            for other in end.facing:
                if peer != host and other.network == link.network:
                    size = str(min(link.mtu, other.mtu) - (28 if link.network.version == 4 else 48))
                    argv = ("ping", "-n", "-q", "-c", "1", "-w", PATIENCE_S, "-M", "do", "-s", size, "-I", link.netdev)
                    questions[link.netdev, other.address] = Question((*argv, other.address), timeout_s=15)
    return questions


def check_pings(host: str, answers: Mapping[tuple[str, str], Answer]) -> Iterator[Finding]:
    """A ping that did not come back, with ping's own words."""
    for (netdev, peer), answer in answers.items():
        if answer.exit == 0:
            continue
        if answer.exit == 127:
            yield Finding("unknown", "ping", host, "peers could not be pinged", "ping is not installed")
            return
        said = (answer.error_text.strip() or answer.text.strip() or "no answer").splitlines()[-1]
        yield Finding(
            "fault", "ping", host, f"no full-size packet from {netdev} to {peer}", said,
            f"on {host}: ping -M do -s 8972 {peer}; compare MTU and addresses at both ends",
        )  # fmt: skip
