"""Which links a fabric test goes over, and what each end is told."""

from __future__ import annotations

import re
from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import pytest
from diagnosis_tools import sample
from plan_tools import links, one_cable, port, seen

from cluster.argv.question import Answer
from cluster.spark import fabric_test
from cluster.spark.fabric import pair
from cluster.spark.fabric_test import (
    Bandwidth,
    End,
    Flood,
    Speed,
    Way,
    judge_rdma,
    judge_speeds,
    parse_flood,
    parse_port,
    rounds,
    untested,
)
from cluster.spark.fact import Missing
from cluster.spark.links import Links, PortGid

Found = dict[str, Links | Missing]


def with_gids(found: Links, index: int) -> Links:
    """The links with a RoCE v2 GID for each IPv4 address, at this index; v1 comes just before it."""
    told = []
    for link in found.links:
        rows = [PortGid(0, "fe80:0000:0000:0000:4ebb:47ff:fe2a:9d3c", "RoCE v2")]
        for address in link.addresses:
            four = [int(part) for part in address.split("/")[0].split(".")]
            gid = "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}".format(*four)
            rows += [PortGid(index - 1, gid, "IB/RoCE v1"), PortGid(index, gid, "RoCE v2")]
        told.append(replace(link, gids=tuple(rows)))
    return replace(found, links=tuple(told))


def sparks(*found: Links | Missing) -> Found:
    return {f"spark{number}": links for number, links in enumerate(found, 1)}


def planned(found: Found, **tools: Missing | None) -> list[list[Way]]:
    fabric = pair([seen(links=links, host=host) for host, links in found.items()])
    return rounds(fabric, found, {host: tools.get(host) for host in found})


TWO = sparks(with_gids(one_cable(1), 3), with_gids(one_cable(2, connector=1), 5))


def plain(*ports: str) -> Found:
    """Two hosts with these ports, each `HCA NETDEV ADDRESS…` with the host's number for N."""
    return sparks(*(links(*(port(*one.replace("N", str(n)).split(" ")) for one in ports)) for n in (1, 2)))


@pytest.mark.parametrize(
    ("found", "rounds_of"),
    [
        (TWO, ["1 enp1s0f0np0 → 2 enp1s0f1np1", "1 enP2p1s0f0np0 → 2 enP2p1s0f1np1"]),
        (plain("a e0 10.0.0.N/24"), ["1 e0 → 2 e0"]),
        (plain("a e0 10.0.0.N/24 10.9.0.N/24", "b e1 10.0.0.N0/24"), ["1 e0 → 2 e0", "1 e1 → 2 e1"]),
        (sparks(one_cable(1)), []),
        (sparks(one_cable(1), links(port("", "enP7s7", "192.168.1.42/24"))), []),
    ],
    ids=["two twins", "one link", "one subnet, and a netdev in two", "one host", "no fabric"],
)
def test_each_link_both_ways_then_all_at_once(found: Found, rounds_of: list[str]) -> None:
    todo = [[way.text.replace("spark", "") for way in ways] for ways in planned(found)]
    alone = [[one] for way in rounds_of for one in (way, " → ".join(reversed(way.split(" → "))))]
    assert todo == alone + [rounds_of] * (len(rounds_of) > 1)


def test_every_end_has_its_own_hca_and_gid() -> None:
    way = planned(TWO)[0][0]
    assert (way.sender.hca, way.sender.address, way.sender.gid_index) == ("rocep1s0f0", "192.168.100.11", 3)
    assert (way.receiver.hca, way.receiver.address, way.receiver.gid_index) == ("rocep1s0f1", "192.168.100.12", 5)
    assert (way.has_rdma, way.obstacles, way.rate_gbps) == (True, (), 100.0)


def test_neighbouring_pairs_of_three() -> None:
    todo = planned(sparks(*(with_gids(one_cable(number), 3) for number in (1, 2, 3))))
    hosts = [sorted((ways[0].sender.host, ways[0].receiver.host)) for ways in todo]
    assert hosts == [["spark1", "spark2"]] * 5 + [["spark2", "spark3"]] * 5


def test_why_rdma_cannot_be_measured() -> None:
    gone, hung = Missing("ib_write_bw: not found", "absent"), Missing("it hung", "timeout")
    assert planned(TWO, spark2=gone)[0][0].obstacles == (("spark2", gone),)
    assert [host for host, _ in planned(TWO, spark1=gone, spark2=gone)[0][0].obstacles] == ["spark1", "spark2"]
    drifted = sparks(with_gids(one_cable(1), 3), one_cable(2))
    assert planned(drifted)[0][0].obstacles == (("spark2", Missing("rocep1s0f0 has no RoCE v2 GID of 192.168.100.12")),)
    fabric = pair([seen(links=links, host=host) for host, links in TWO.items()])
    way = rounds(fabric, TWO | {"spark2": hung}, {"spark1": None, "spark2": None})[0][0]
    assert (way.obstacles, way.rate_gbps) == ((("spark2", hung),), 100.0)
    ((_, why), _) = planned(plain("a e0 fd00::N/64"))[0][0].obstacles
    assert why.why == "e0 has an IPv6 address, over which ib_write_bw is not tried"


def test_without_hcas_there_is_nothing_to_miss() -> None:
    found = plain(" e0 10.0.0.N/24")
    fabric = pair([seen(links=links, host=host) for host, links in found.items()], {"spark1": ["e0"], "spark2": ["e0"]})
    way = rounds(fabric, found, {"spark1": Missing("x"), "spark2": Missing("x")})[0][0]
    assert (way.has_rdma, way.obstacles, way.rate_gbps) == (False, (), 0.0)


def test_links_that_are_set_up_and_lead_nowhere() -> None:
    """One Spark has addresses on a second cable; ports without an address are no news, and nor are those unread."""
    second = port("rocep1s0f1", "enp1s0f1np1", "192.168.150.11/24", state="DOWN")
    wide = replace(one_cable(1), links=(*one_cable(1).links[:1], second[0], *one_cable(1).links[2:]))
    found = sparks(wide, one_cable(2))
    fabric = pair([seen(links=links, host=host) for host, links in found.items()])
    assert [(host, link.netdev) for host, link in untested(fabric, found)] == [("spark1", "enp1s0f1np1")]
    assert list(untested(fabric, found | {"spark1": Missing("x")})) == []


NETDEVS = ("enp1s0f0np0", "enP2p1s0f0np0")


def way(sender: int = 1, receiver: int = 2, twin: int = 0, rate: float | None = 100.0) -> Way:
    network = ip_network(f"192.168.{100 + twin}.0/24")
    here, there = (
        End(f"spark{number}", NETDEVS[twin], f"mlx5_{twin}", f"192.168.{100 + twin}.{number}", network, rate, 3)
        for number in (sender, receiver)
    )
    return Way(here, there)


def rdma(gbps: float, over: Way) -> Speed:
    return Speed(over, Bandwidth("perftest", gbps, 65536))


def tcp(gbps: float, over: Way, cpu: float | None = 0.3) -> Speed:
    why = (("spark1", Missing("ib_write_bw: not found", "absent")),)
    return Speed(over, Flood(int(gbps * 1e9 / 8), 1.0, cpu), why)


def link(make: Any, there: float, back: float, twin: int = 0, rate: float | None = 100.0, **more: Any) -> list[Speed]:
    """Both directions of a link."""
    return [make(there, way(1, 2, twin, rate), **more), make(back, way(2, 1, twin, rate), **more)]


@pytest.mark.parametrize(
    ("verdict", "measured"),
    [
        ("", [(98, 100), (92, 200), (92.57, 200), (80, 100), (23.1, 25), (9.4, 10)]),
        ("slow", [(79.9, 200), (50, 100), (30, 200), (12, 25)]),
        ("degraded", [(29.9, 200), (25, 100), (13.23, 200), (8, 100)]),
    ],
)
def test_rdma_by_what_the_port_claims(verdict: str, measured: list[tuple[float, float]]) -> None:
    assert [(gbps, rate) for gbps, rate in measured if judge_rdma(gbps, rate) != verdict] == []


def test_the_recorded_outputs() -> None:
    for name, verdict in (("ib_write_bw_healthy_92g", ""), ("ib_write_bw_degraded_13g", "degraded")):
        measured = fabric_test.parse_bandwidth(Answer(0, sample(name).text.encode()))
        assert judge_rdma(measured.gbps, 200.0) == verdict
    assert fabric_test.parse_bandwidth(Answer(1, err=sample("ib_write_bw_no_server").text.encode())) == Missing(
        "Couldn't connect to 192.168.100.12:18515 Unable to init the socket connection"
    )
    assert fabric_test.parse_bandwidth(Answer(None)) == Missing("ib_write_bw did not answer in time", "timeout")
    assert fabric_test.parse_bandwidth(Answer(0, b"\x1b[1m\xff\n")) == Missing("�")


@pytest.mark.parametrize(
    ("speeds", "found"),
    [
        (link(rdma, 92.6, 97.9) + link(rdma, 96.4, 93.1, twin=1), []),
        (link(rdma, 13.2, 12.9), ["fault spark2 12.9 RDMA"]),
        (link(rdma, 95.0, 61.0), ["warning spark2 61.0 RDMA"]),
        (link(rdma, 95.0, 95.0) + link(rdma, 14.0, 14.5, twin=1), ["fault spark1 14.0 RDMA"]),
        (link(rdma, 5.0, 5.0, rate=None) + link(tcp, 5.0, 5.0, rate=None), []),
        ([replace(one, together=True) for one in link(rdma, 60.0, 61.0)], []),
        (link(tcp, 60.0, 41.0), []),
        (link(tcp, 25.0, 27.0), []),
        (link(tcp, 24.9, 30.0), ["warning spark1 24.9 TCP"]),
        (link(tcp, 13.0, 9.0, cpu=0.97), []),
        (link(tcp, 13.0, 9.0, cpu=None), []),
        (link(tcp, 9.4, 9.4, rate=10.0), []),
        ([tcp(13.0, way(), cpu=0.95), tcp(60.0, way(2, 1))], []),
    ],
)
def test_the_worst_of_each_link(speeds: list[Speed], found: list[str]) -> None:
    """TCP proves and does not accuse: very little while no core was busy is a hint; a busy core explains it."""
    told = [one for one in judge_speeds(speeds) if one.level != "unknown"]
    numbers = [re.search(r"([\d.]+) Gb/s by (\w+) over", one.what).groups() for one in told]
    rows = [f"{one.level} {one.host} {gbps} {by}" for one, (gbps, by) in zip(told, numbers, strict=True)]
    assert (rows, {one.check for one in told} <= {"fabric-speed"}) == (found, True)


def test_what_is_not_known_without_the_tool() -> None:
    [finding] = judge_speeds([tcp(60.0, way()), tcp(41.3, way(2, 1))])
    assert (finding.level, finding.host) == ("unknown", "spark1")
    assert finding.what == "the RDMA bandwidth is not known; TCP shows that it is at least 41.3 Gb/s a link"
    assert (finding.evidence, finding.remedy) == ("ib_write_bw: not found", "sudo apt install perftest, test again")
    failed = Speed(way(), Flood(10**10, 1.0), (("spark2", Missing("IB device not found")),))
    assert [one.remedy for one in judge_speeds([failed])] == ["try ib_write_bw by hand"]


def test_nothing_comes_through() -> None:
    [fault] = judge_speeds([Speed(way(), Missing("No route to host"))])
    assert (fault.level, fault.host, fault.evidence) == ("fault", "spark1", "No route to host")
    assert fault.what == "no TCP from spark1 enp1s0f0np0 to spark2 enp1s0f0np0"
    assert fault.remedy.startswith("on spark1: ping -I enp1s0f0np0 192.168.100.2;")
    [unknown] = judge_speeds([Speed(way(), Missing("spark2 was lost", "timeout"))])
    assert unknown.level == "unknown"


def test_as_a_document() -> None:
    ends = {"from": "spark1 enp1s0f0np0", "to": "spark2 enp1s0f0np0"}
    told = {"gbps": 92.57, "by": "rdma", "together": False, "cpu_bound": False}
    assert rdma(92.567, way()).as_dict() == ends | told
    assert Speed(way(), Missing("x")).as_dict()["gbps"] is None


def test_what_the_ends_of_a_flood_print() -> None:
    assert parse_port('{"port": 40123}') == 40123
    flood = parse_flood('{"bytes": 25000000000, "seconds": 2.0, "cpu": 0.41}')
    assert (flood, flood.gbps) == (Flood(25000000000, 2.0, 0.41), 100.0)
    assert parse_flood('{"error": "No route to host"}') == Missing("No route to host")
    assert parse_flood("bash: python3: \x1b[31mnot found") == Missing("bash: python3: not found")
    assert parse_flood("") == parse_port("") == Missing("it ended without a result")
