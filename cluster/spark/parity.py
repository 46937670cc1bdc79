"""Checks over the set of hosts: what must be equal is equal, and the fabric between them is whole."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from cluster.argv.question import Answer, Question
from cluster.spark.fabric import Fabric, check_fabric
from cluster.spark.fact import Missing
from cluster.spark.finding import Finding, unknown

if TYPE_CHECKING:
    from cluster.spark.clock import Clock
    from cluster.spark.look import Seen
    from cluster.spark.request import Wanted

CLOCK_WARNING_S = 5.0
"""Clocks that differ by less do no harm."""
PATIENCE_S = "10"
"""A ping is tried so long until an answer comes: after a cable was moved, the kernel asks its neighbour's former MAC
address for 8 s before it looks for the new one."""


def check_set(wanted: Wanted, seens: Sequence[Seen], fabric: Fabric) -> Iterator[Finding]:
    """All findings over the set."""
    yield from check_machines({seen.host: seen.machine for seen in seens})
    yield from check_hostnames(seens)
    yield from check_clocks(seens)
    yield from check_same(seens)
    yield from check_versions(seens)
    yield from check_stores(seens)
    if len(seens) > 1:
        yield from check_fabric(wanted, seens, fabric)


def check_machines(machines: Mapping[str, str | Missing]) -> Iterator[Finding]:
    """Every host says which machine it is, and no two names are one machine. Nothing is looked up before that holds."""
    names: dict[str, list[str]] = defaultdict(list)
    for host, machine in machines.items():
        if isinstance(machine, Missing):
            yield Finding(
                "fault",
                "machine-id",
                host,
                "its machine-id cannot be read",
                machine.why,
                f"on {host}: cat /etc/machine-id; where there is none: sudo systemd-machine-id-setup",
            )
        else:
            names[machine].append(host)
    for machine, hosts in names.items():
        if len(hosts) > 1:
            yield Finding(
                "fault",
                "machine-id",
                hosts[1],
                f"{' and '.join(hosts)} are the same machine",
                f"machine-id {machine}",
                "name each machine once; after cloning a disk: systemd-machine-id-setup",
            )


def check_hostnames(seens: Sequence[Seen]) -> Iterator[Finding]:
    """Two machines do not have one name."""
    hosts: dict[str, dict[str, str]] = defaultdict(dict)
    for seen in seens:
        if not isinstance(seen.identity, Missing) and seen.host_id:
            hosts[seen.identity.hostname][seen.host_id] = seen.host
    for name, machines in hosts.items():
        if len(machines) > 1:
            those = list(machines.values())
            yield Finding(
                "warning",
                "hostname",
                those[1],
                f"{' and '.join(those)} have the same hostname",
                name,
                f"on {those[1]}: sudo hostnamectl set-hostname OTHER",
            )


def check_clocks(seens: Sequence[Seen]) -> Iterator[Finding]:
    """The hosts' clocks agree with each other and with the operator's, as far as the round trips can tell."""
    clocks = {seen.host: seen.clock for seen in seens if not isinstance(seen.clock, Missing)}
    yield from (unknown("clock", seen.host, seen.clock, "clock") for seen in seens if isinstance(seen.clock, Missing))
    wrong = {
        host: clock for host, clock in clocks.items() if abs(clock.offset_s) > CLOCK_WARNING_S + clock.uncertainty_s
    }
    if len(wrong) == len(clocks) > 1 and _spread(clocks) <= CLOCK_WARNING_S:
        first = next(iter(wrong))
        yield Finding(
            "note",
            "clock",
            first,
            "the hosts' clocks agree, and differ from the one of this machine",
            f"{wrong[first].offset_s:+.0f} s",
            "on this machine: timedatectl",
        )
        return
    for host, clock in wrong.items():
        kept = {True: "synchronised", False: "not synchronised", None: "synchronised or not, it does not say"}
        yield Finding(
            "warning",
            "clock",
            host,
            "the clock is wrong, or this machine's is",
            f"{clock.offset_s:+.0f} s from this machine's; {kept[clock.synchronised]}",
            f"on {host}: timedatectl; sudo timedatectl set-ntp true; sudo systemctl restart systemd-timesyncd",
        )


def _spread(clocks: Mapping[str, Clock]) -> float:
    """Seconds between the earliest and the latest clock."""
    offsets = [clock.offset_s for clock in clocks.values()]
    return max(offsets) - min(offsets)


def check_same(seens: Sequence[Seen]) -> Iterator[Finding]:
    """Image content and weights are equal on all hosts that have them."""
    images = {seen.host: seen.image.content_id for seen in seens if not isinstance(seen.image, Missing)}
    if len(set(images.values())) > 1:
        rows = ", ".join(f"{host} {content[:12]}" for host, content in images.items())
        reference = next(seen.image.reference for seen in seens if not isinstance(seen.image, Missing))
        yield Finding(
            "fault",
            "image-parity",
            list(images)[-1],
            f"image {reference} is not the same on all hosts",
            rows,
            f"on all: docker pull {reference}, or copy it with docker save and docker load",
        )
    for copies in zip(*(seen.copies for seen in seens), strict=True):
        there = {seen.host: one for seen, one in zip(seens, copies, strict=True) if not isinstance(one, Missing)}
        ids = {host: one.commit or one.listing for host, one in there.items()}
        if len(set(ids.values())) > 1:
            rows = ", ".join(f"{host} {copy[:12]}" for host, copy in ids.items())
            yield Finding(
                "fault",
                "weights-parity",
                list(ids)[-1],
                "the hosts have different copies of the model",
                rows,
                "pin one with --set revision=COMMIT, or copy the directory again",
            )
    yield from check_mounted(seens)


def check_mounted(seens: Sequence[Seen]) -> Iterator[Finding]:
    """The model's own files that a recipe mounts are equal: one may have been changed by hand in an equal copy."""
    told = {seen.host: seen.weights.hashes for seen in seens if not isinstance(seen.weights, Missing)}
    for name in sorted({name for hashes in told.values() for name in hashes}):
        contents = {host: hashes[name] for host, hashes in told.items() if name in hashes}
        if len(set(contents.values())) > 1:
            rows = ", ".join(f"{host} {content[:12]}" for host, content in contents.items())
            yield Finding(
                "fault",
                "weights-parity",
                list(contents)[-1],
                f"the hosts have different copies of {name}",
                rows,
                "sha256sum it on all; copy the right one over the other",
            )


def check_versions(seens: Sequence[Seen]) -> Iterator[Finding]:
    """Kernel, driver, Docker and the ConnectX's firmware are the same everywhere: else it works here and not there."""
    told: dict[str, dict[str, str]] = {"kernel": {}, "driver": {}, "Docker": {}, "ConnectX firmware": {}}
    for seen in seens:
        if not isinstance(seen.identity, Missing):
            told["kernel"][seen.host] = seen.identity.kernel
        if not isinstance(seen.gpu, Missing) and seen.gpu:
            told["driver"][seen.host] = seen.gpu[0].driver
        if not isinstance(seen.docker, Missing):
            told["Docker"][seen.host] = seen.docker.version
        if not isinstance(seen.links, Missing) and seen.links.links:
            told["ConnectX firmware"][seen.host] = seen.links.links[0].firmware
    for what, versions in told.items():
        if len(set(versions.values())) > 1:
            rows = ", ".join(f"{host} {version or 'unknown'}" for host, version in versions.items())
            yield Finding(
                "note",
                "versions",
                list(versions)[-1],
                f"the hosts differ in {what}",
                rows,
                "bring them to one version when there is time",
            )


def check_stores(seens: Sequence[Seen]) -> Iterator[Finding]:
    """Docker keeps images in one way everywhere; where it does not, ids of one image differ (its content does not)."""
    stores = {seen.host: seen.docker.image_store for seen in seens if not isinstance(seen.docker, Missing)}
    if len(set(stores.values())) > 1:
        rows = ", ".join(f"{host} {store}" for host, store in stores.items())
        yield Finding(
            "note",
            "image-store",
            list(stores)[-1],
            "the hosts keep images in different stores, so ids differ",
            rows,
            "nothing to do for cluster, which compares content; containerd-snapshotter in /etc/docker/daemon.json",
        )


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
            "fault",
            "ping",
            host,
            f"no full-size packet from {netdev} to {peer}",
            said,
            f"on {host}: ping -M do -s 8972 {peer} (1472 at MTU 1500); compare MTU and addresses at both ends",
        )
