"""Verdicts of the fabric test: each number of a Spark fires where it must and is silent where it must be."""

from __future__ import annotations

from ipaddress import ip_network

import pytest
from diagnosis_tools import sample

from cluster.argv.question import Answer
from cluster.diagnosis import outputs
from cluster.spark import fabric_test
from cluster.spark.fabric_test import RESET, REST, Bandwidth, End, Flood, Speed, Way, judge_rdma, judge_speeds
from cluster.spark.fact import Missing
from cluster.spark.finding import Finding

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
    ("gbps", "rate", "verdict"),
    [
        (98, 100, ""),
        (92, 200, ""),
        (92.57, 200, ""),
        (80, 100, ""),
        (79.9, 200, "slow"),
        (50, 100, "slow"),
        (30, 200, "slow"),
        (29.9, 200, "degraded"),
        (25, 100, "degraded"),
        (13.23, 200, "degraded"),
        (8, 100, "degraded"),
        (23.1, 25, ""),
        (12, 25, "slow"),
        (9.4, 10, ""),
    ],
)
def test_rdma_by_what_the_port_claims(gbps: float, rate: float, verdict: str) -> None:
    assert judge_rdma(gbps, rate) == verdict


def test_explain_judges_by_the_same_numbers() -> None:
    for gbps in (8, 13.23, 29.9, 30, 79, 80, 92.57):
        rule = outputs.OF_RDMA[judge_rdma(gbps)]
        assert outputs.judge(Bandwidth("perftest", gbps, 65536)) == rule


def test_the_recorded_outputs() -> None:
    for name, verdict in (("ib_write_bw_healthy_92g", ""), ("ib_write_bw_degraded_13g", "degraded")):
        measured = fabric_test.parse_bandwidth(Answer(0, sample(name).text.encode()))
        assert isinstance(measured, Bandwidth)
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
    assert (fault.evidence, fault.remedy.split(";")[0]) == (
        "No route to host",
        "on spark1: ping -I enp1s0f0np0 192.168.100.2",
    )
    assert only([Speed(way(), Missing("spark2 was lost", "timeout"))]).level == "unknown"


def test_as_a_document() -> None:
    assert rdma(92.567, way()).as_dict() == {
        "from": "spark1 enp1s0f0np0",
        "to": "spark2 enp1s0f0np0",
        "gbps": 92.57,
        "by": "rdma",
        "together": False,
        "cpu_bound": False,
    }
    assert Speed(way(), Missing("x")).as_dict()["gbps"] is None
