"""Which links a fabric test goes over, and what each end is told."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_network

import pytest
from diagnosis_tools import sample
from plan_tools import links, one_cable, port, seen

from cluster.argv.question import Answer
from cluster.diagnosis import outputs
from cluster.spark import fabric_test
from cluster.spark.fabric import pair
from cluster.spark.fabric_test import (
    RESET,
    REST,
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
from cluster.spark.finding import Finding
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


def texts(todo: list[list[Way]]) -> list[list[str]]:
    return [[way.text for way in ways] for ways in todo]


TWO = sparks(with_gids(one_cable(1), 3), with_gids(one_cable(2, connector=1), 5))


def test_each_link_both_ways_then_all_at_once() -> None:
    assert texts(planned(TWO)) == [
        ["spark1 enp1s0f0np0 → spark2 enp1s0f1np1"],
        ["spark2 enp1s0f1np1 → spark1 enp1s0f0np0"],
        ["spark1 enP2p1s0f0np0 → spark2 enP2p1s0f1np1"],
        ["spark2 enP2p1s0f1np1 → spark1 enP2p1s0f0np0"],
        ["spark1 enp1s0f0np0 → spark2 enp1s0f1np1", "spark1 enP2p1s0f0np0 → spark2 enP2p1s0f1np1"],
    ]


def test_every_end_has_its_own_hca_and_gid() -> None:
    way = planned(TWO)[0][0]
    assert (way.sender.hca, way.sender.address, way.sender.gid_index) == ("rocep1s0f0", "192.168.100.11", 3)
    assert (way.receiver.hca, way.receiver.address, way.receiver.gid_index) == ("rocep1s0f1", "192.168.100.12", 5)
    assert way.has_rdma
    assert way.obstacles == ()
    assert way.rate_gbps == 100.0


def test_neighbouring_pairs_of_three() -> None:
    todo = planned(sparks(*(with_gids(one_cable(number), 3) for number in (1, 2, 3))))
    assert [sorted(ways[0].hosts) for ways in todo] == [["spark1", "spark2"]] * 5 + [["spark2", "spark3"]] * 5


def test_one_link_is_not_tested_together() -> None:
    found = sparks(*(links(port("mlx5_0", "enp1s0f0np0", f"192.168.100.1{number}/24")) for number in (1, 2)))
    assert len(planned(found)) == 2


def test_twins_in_one_subnet_and_a_netdev_in_two() -> None:
    both = sparks(
        *(
            links(
                port("mlx5_0", "enp1s0f0np0", f"10.0.0.1{number}/24", f"10.9.0.1{number}/24"),
                port("mlx5_1", "enP2p1s0f0np0", f"10.0.0.2{number}/24"),
            )
            for number in (1, 2)
        )
    )
    together = ["spark1 enp1s0f0np0 → spark2 enp1s0f0np0", "spark1 enP2p1s0f0np0 → spark2 enP2p1s0f0np0"]
    assert texts(planned(both))[4] == together
    assert len(planned(both)) == 5


def test_no_fabric_no_rounds() -> None:
    assert planned(sparks(one_cable(1))) == []
    assert planned(sparks(one_cable(1), links(port("", "enP7s7", "192.168.1.42/24")))) == []


def test_why_rdma_cannot_be_measured() -> None:
    gone = Missing("ib_write_bw: not found", "absent")
    assert planned(TWO, spark2=gone)[0][0].obstacles == (("spark2", gone),)
    assert [host for host, _ in planned(TWO, spark1=gone, spark2=gone)[0][0].obstacles] == ["spark1", "spark2"]
    drifted = sparks(with_gids(one_cable(1), 3), one_cable(2))
    assert planned(drifted)[0][0].obstacles == (("spark2", Missing("rocep1s0f0 has no RoCE v2 GID of 192.168.100.12")),)


def test_ends_whose_links_cannot_be_read_any_more() -> None:
    fabric = pair([seen(links=links, host=host) for host, links in TWO.items()])
    way = rounds(fabric, TWO | {"spark2": Missing("it hung", "timeout")}, {"spark1": None, "spark2": None})[0][0]
    assert way.obstacles == (("spark2", Missing("it hung", "timeout")),)
    assert way.rate_gbps == 100.0


def test_an_ipv6_link_is_left_to_tcp() -> None:
    found = sparks(*(links(port("mlx5_0", "enp1s0f0np0", f"fd00::1{number}/64")) for number in (1, 2)))
    ((_, why), _) = planned(found)[0][0].obstacles
    assert why.why == "enp1s0f0np0 has an IPv6 address, over which ib_write_bw is not tried"


def test_without_hcas_there_is_nothing_to_miss() -> None:
    plain = sparks(*(links(port("", "eth1", f"10.0.0.1{number}/24")) for number in (1, 2)))
    fabric = pair(
        [seen(links=links, host=host) for host, links in plain.items()], {"spark1": ["eth1"], "spark2": ["eth1"]}
    )
    way = rounds(fabric, plain, {"spark1": Missing("x"), "spark2": Missing("x")})[0][0]
    assert (way.has_rdma, way.obstacles, way.rate_gbps) == (False, (), None)


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


def rdma(gbps: float, over: Way, *, together: bool = False) -> Speed:
    return Speed(over, Bandwidth("perftest", gbps, 65536), together=together)


def tcp(gbps: float, over: Way, cpu: float | None = 0.3, *, together: bool = False) -> Speed:
    why = (("spark1", Missing("ib_write_bw: not found", "absent")),)
    return Speed(over, Flood(int(gbps * 1e9 / 8), 1.0, cpu), why, together)


def link(make, there: float, back: float, twin: int = 0, **more) -> list[Speed]:
    """Both directions of a link."""
    return [make(there, way(1, 2, twin), **more), make(back, way(2, 1, twin), **more)]


def told(speeds: list[Speed]) -> list[str]:
    return [f"{one.level} {one.host}: {one.what}" for one in judge_speeds(speeds) if one.level != "unknown"]


def only(speeds: list[Speed]) -> Finding:
    (finding,) = judge_speeds(speeds)
    return finding


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


def test_explain_judges_by_the_same_numbers() -> None:
    for gbps in (8, 13.23, 29.9, 30, 79, 80, 92.57):
        rule = outputs.OF_RDMA[judge_rdma(gbps)]
        assert outputs.judge(Bandwidth("perftest", gbps, 65536)) == rule


def test_the_recorded_outputs() -> None:
    for name, verdict in (("ib_write_bw_healthy_92g", ""), ("ib_write_bw_degraded_13g", "degraded")):
        measured = fabric_test.parse_bandwidth(Answer(0, sample(name).text.encode()))
        assert judge_rdma(measured.gbps, 200.0) == verdict
    assert fabric_test.parse_bandwidth(Answer(1, err=sample("ib_write_bw_no_server").text.encode())) == Missing(
        "Couldn't connect to 192.168.100.12:18515 Unable to init the socket connection"
    )
    assert fabric_test.parse_bandwidth(Answer(None)) == Missing("ib_write_bw did not answer in time", "timeout")
    assert fabric_test.parse_bandwidth(Answer(0, b"\x1b[1m\xff\n")) == Missing("�")


def test_two_healthy_twins() -> None:
    speeds = link(rdma, 92.6, 97.9) + link(rdma, 96.4, 93.1, twin=1)
    speeds += [rdma(94.8, way(), together=True), rdma(95.1, way(twin=1), together=True)]
    assert list(judge_speeds(speeds)) == []


def test_a_degraded_card() -> None:
    finding = only(link(rdma, 13.23, 12.9))
    assert (finding.level, finding.check, finding.host) == ("fault", "fabric-speed", "spark2")
    assert finding.what == (
        "12.9 Gb/s by RDMA over spark2 enp1s0f0np0 → spark1 enp1s0f0np0, of about 100: the ConnectX of one end came up "
        "degraded"
    )
    assert finding.evidence == "ib_write_bw: spark1 → spark2 13.2 Gb/s, spark2 → spark1 12.9 Gb/s"
    assert finding.remedy == RESET
    assert RESET.index("reboot both hosts") < RESET.index("unplug")
    assert finding.runbook == "it-is-slow#bandwidth"


def test_slow_in_one_direction_only() -> None:
    speeds = link(rdma, 95.0, 61.0)
    assert told(speeds) == [
        "warning spark2: 61.0 Gb/s by RDMA over spark2 enp1s0f0np0 → spark1 enp1s0f0np0, of about 100, in this "
        "direction only"
    ]
    assert only(speeds).remedy == REST


def test_one_twin_degraded_is_named_beside_the_good_one() -> None:
    assert told(link(rdma, 95.0, 95.0) + link(rdma, 14.0, 14.5, twin=1)) == [
        "fault spark1: 14.0 Gb/s by RDMA over spark1 enP2p1s0f0np0 → spark2 enP2p1s0f0np0, of about 100: the ConnectX "
        "of one end came up degraded",
        "note spark1: links or directions differ",
    ]


def test_an_hca_that_claims_no_rate_is_only_shown() -> None:
    assert told([rdma(5.0, way(rate=None))]) == []
    assert told([tcp(5.0, way(rate=None))]) == []


def test_twins_that_hinder_each_other() -> None:
    speeds = link(rdma, 95.0, 95.0) + link(rdma, 96.0, 96.0, twin=1)
    together = [rdma(60.0, way(), together=True), rdma(61.0, way(twin=1), together=True)]
    assert told(speeds + together) == [
        "warning spark1: 2 links give 121.0 Gb/s together, 191.0 one after another",
    ]
    by_tcp = [tcp(30.0, way(), together=True), tcp(31.0, way(twin=1), together=True)]
    assert told(speeds + by_tcp) == []
    lost = [rdma(60.0, way(), together=True), Speed(way(twin=1), Missing("x"), together=True)]
    assert told(speeds + lost) == []


def test_tcp_proves_and_does_not_accuse() -> None:
    """Under RDMA's number is normal; very little while no core was busy is a hint; a busy core explains it."""
    assert told(link(tcp, 60.0, 41.0)) == []
    assert told(link(tcp, 25.0, 27.0)) == []
    assert told(link(tcp, 13.0, 9.0, cpu=0.97)) == []
    assert told(link(tcp, 13.0, 9.0, cpu=None)) == []
    assert told(link(tcp, 24.9, 30.0)) == [
        "warning spark1: only 24.9 Gb/s by TCP over spark1 enp1s0f0np0 → spark2 enp1s0f0np0 while no CPU core was "
        "busy: could be a degraded ConnectX"
    ]
    assert told([tcp(9.4, way(rate=10.0)), tcp(9.4, way(2, 1, rate=10.0))]) == []
    assert told([tcp(13.0, way(), cpu=0.95), tcp(60.0, way(2, 1))]) == []


def test_tcp_that_differs_is_a_note() -> None:
    (finding,) = [one for one in judge_speeds(link(tcp, 90.0, 40.0)) if one.level != "unknown"]
    assert (finding.level, finding.what) == ("note", "links or directions differ")
    assert finding.evidence == (
        "spark1 enp1s0f0np0 → spark2 enp1s0f0np0 90.0 Gb/s, spark2 enp1s0f0np0 → spark1 enp1s0f0np0 40.0 Gb/s"
    )
    assert told(link(tcp, 90.0, 40.0, cpu=1.0)) == []
    assert told([rdma(95.0, way()), tcp(30.0, way(2, 1))]) == []


def test_what_is_not_known_without_the_tool() -> None:
    finding = only([tcp(60.0, way()), tcp(41.3, way(2, 1))])
    assert (finding.level, finding.host) == ("unknown", "spark1")
    assert finding.what == "the RDMA bandwidth is not known; TCP shows that it is at least 41.3 Gb/s a link"
    assert (finding.evidence, finding.remedy) == ("ib_write_bw: not found", "sudo apt install perftest, test again")
    failed = Speed(way(), Flood(10**9, 1.0), (("spark2", Missing("IB device not found")),))
    assert only([failed]).remedy == "try ib_write_bw by hand"


def test_nothing_comes_through() -> None:
    fault = only([Speed(way(), Missing("No route to host"))])
    assert (fault.level, fault.host) == ("fault", "spark1")
    assert fault.what == "no TCP from spark1 enp1s0f0np0 to spark2 enp1s0f0np0"
    assert fault.evidence == "No route to host"
    assert fault.remedy.startswith("on spark1: ping -I enp1s0f0np0 192.168.100.2;")
    assert only([Speed(way(), Missing("spark2 was lost", "timeout"))]).level == "unknown"


def test_as_a_document() -> None:
    ends = {"from": "spark1 enp1s0f0np0", "to": "spark2 enp1s0f0np0"}
    told = {"gbps": 92.57, "by": "rdma", "together": False, "cpu_bound": False}
    assert rdma(92.567, way()).as_dict() == ends | told
    assert Speed(way(), Missing("x")).as_dict()["gbps"] is None


def test_a_flood() -> None:
    flood = parse_flood('{"bytes": 25000000000, "seconds": 2.0, "cpu": 0.41}')
    assert flood == Flood(25000000000, 2.0, 0.41)
    assert flood.gbps == 100.0
    assert parse_flood('{"bytes": 1, "seconds": 2, "cpu": null}') == Flood(1, 2.0, None)


def test_a_port() -> None:
    assert parse_port('{"port": 40123}') == 40123


def test_errors_and_other_words_are_reasons() -> None:
    assert parse_flood('{"error": "No route to host"}') == Missing("No route to host")
    assert parse_port('{"error": "Cannot assign requested address"}') == Missing("Cannot assign requested address")
    assert parse_flood("bash: python3: \x1b[31mnot found") == Missing("bash: python3: not found")
    assert parse_flood("") == parse_port("") == Missing("it ended without a result")
    assert parse_flood('{"port": 5}') == Missing("no byte count reported")
    assert parse_flood('{"bytes": 5, "seconds": 0}') == Missing("no byte count reported")
    assert parse_port('{"bytes": 5, "seconds": 1.0}') == Missing("no port reported")
    assert isinstance(parse_flood('{"bytes": "many", "seconds": 1}'), Missing)
    assert isinstance(parse_flood("[1, 2]"), Missing)
