"""Conditions on outputs about the fabric, alone and side by side: ports, interfaces, GID tables, link events."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from cluster.diagnosis.explanation import Explanation
from cluster.diagnosis.outputs import Output, Outputs
from cluster.spark.gids import Gid
from cluster.spark.ibdev2netdev import Port
from cluster.spark.ip_text import Interface, Neighbour, is_fabric
from cluster.spark.link_events import LinkEvent

FLAPS = 3
USUAL_GID = 3


def judge_ports(outputs: Outputs) -> Iterator[Explanation]:
    """All down; one twin only; other ports on one host than on the other. Two Down lines of four are normal."""
    found = outputs.named("ports")
    for output in found:
        ports: tuple[Port, ...] = output.value
        if not any(port.is_up for port in ports):
            yield output.say("no-link-up", (ports[0].netdev or ports[0].hca,))
        for port in ports:
            twin = next((one for one in ports if one != port and one.twin_name == port.twin_name), None)
            if twin and port.is_up and not twin.is_up:
                yield output.say("one-twin-up", (twin.netdev,), netdev=port.netdev, twin=twin.netdev)
    for first, second in combinations(found, 2):
        there, here = ({port.netdev for port in output.value if port.is_up} for output in (first, second))
        if here and there and not here & there:
            yield second.say("ports-crossed", (min(here),), here=listed(here), there=listed(there))


def listed(names: set[str]) -> str:
    """Names for a sentence."""
    return ", ".join(sorted(names))


def judge_interfaces(outputs: Outputs) -> Iterator[Explanation]:
    """Link-local and missing addresses; different MTU, one address twice or no common subnet at the two ends."""
    found = outputs.named("interfaces")
    for output in found:
        fabric = fabric_of(output)
        for row in fabric:
            addresses = row.interfaces()
            if addresses and all(address.ip.is_link_local for address in addresses):
                yield output.say("link-local-address", (str(addresses[0].ip),), netdev=row.name)
            elif row.addresses == () and any(other.addresses for other in fabric):
                yield output.say("fabric-no-address", (row.name,), netdev=row.name)
    for first, second in combinations(found, 2):
        yield from _compare_mtu(first, second)
        yield from _compare_addresses(first, second)


def fabric_of(output: Output) -> list[Interface]:
    """The fabric's interfaces that carry."""
    rows: tuple[Interface, ...] = output.value
    return [row for row in rows if row.is_fabric and row.is_up]


def _compare_mtu(first: Output, second: Output) -> Iterator[Explanation]:
    pairs = [(row, other) for row in fabric_of(first) for other in fabric_of(second) if _one_link(row, other)]
    sizes = [(row.mtu or 0, other.mtu or 0) for row, other in pairs if row.mtu and other.mtu]
    for (row, other), (mtu, others_mtu) in zip(pairs, sizes, strict=False):
        if mtu != others_mtu:
            output, worse, better = (first, row, other) if mtu < others_mtu else (second, other, row)
            small = f"{worse.mtu} at {worse.name} in {output.file}"
            large = f"{better.mtu} in {(second if output is first else first).file}"
            yield output.say("mtu-differs", (worse.name, f"mtu {worse.mtu}"), small=small, large=large)
    if sizes and set(sizes) == {(1500, 1500)}:
        yield second.say("mtu-1500", (pairs[0][1].name, "mtu 1500"))


def _one_link(row: Interface, other: Interface) -> bool:
    """Whether interfaces of two hosts face each other: by subnet, else by name."""
    if row.networks() and other.networks():
        return bool(set(row.networks()) & set(other.networks()))
    return row.name == other.name


def _compare_addresses(first: Output, second: Output) -> Iterator[Explanation]:
    there, here = ({address for row in fabric_of(output) for address in row.interfaces()} for output in (first, second))
    twice = {str(address.ip) for address in here} & {str(address.ip) for address in there}
    if twice and first.value != second.value:
        yield second.say("address-twice", (min(twice),), address=min(twice))
    networks = [{str(address.network) for address in one} for one in (here, there)]
    if all(networks) and not networks[0] & networks[1]:
        shown = str(min(here).ip)
        yield second.say("no-common-subnet", (shown,), here=listed(networks[0]), there=listed(networks[1]))


def judge_gids(outputs: Outputs) -> Iterator[Explanation]:
    """A table with a hole whose RoCE v2 entry for IPv4 is not where it usually is."""
    for output in outputs.named("gids"):
        gids: tuple[Gid, ...] = output.value
        for hca in dict.fromkeys(gid.hca for gid in gids):
            own = {gid.index: gid for gid in gids if gid.hca == hca}
            right = [gid for gid in own.values() if gid.is_v2 and gid.ipv4]
            holes = [index for index in range(max(own)) if index not in own]
            if right and holes and USUAL_GID not in [gid.index for gid in right]:
                bracketed = f"[{right[0].index:3}]"
                words = (bracketed,) if output.find(bracketed) else (right[0].ipv4, "v2")
                yield output.say("gid-moved", words, index=str(right[0].index), hole=str(holes[0]))


def judge_neighbours(outputs: Outputs) -> Iterator[Explanation]:
    """A peer on the fabric that does not answer."""
    for output in outputs.named("neighbours"):
        rows: tuple[Neighbour, ...] = output.value
        for row in rows:
            if row.state in ("FAILED", "INCOMPLETE") and is_fabric(row.netdev):
                yield output.say("neighbour-silent", (row.address,), address=row.address, netdev=row.netdev)


def judge_link_events(outputs: Outputs) -> Iterator[Explanation]:
    """Links that are down at the end, or go up and down; one plug-in (down, then up) is neither."""
    for output in outputs.named("link events"):
        events: tuple[LinkEvent, ...] = output.value
        by_netdev = [[one for one in events if one.netdev == name] for name in dict.fromkeys(e.netdev for e in events)]
        lost = [own[-1] for own in by_netdev if not own[-1].is_up and any(event.is_up for event in own)]
        flapping = [own[-1] for own in by_netdev if sum(not event.is_up for event in own) > FLAPS]
        for id, found in (("link-went-down", lost), ("link-flaps", [one for one in flapping if one not in lost])):
            if found:
                names = listed({event.netdev for event in found})
                yield output.say(id, (found[0].line.strip(),), netdevs=names)
