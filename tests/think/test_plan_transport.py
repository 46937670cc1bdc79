"""Which way the traffic went: HCA counters prove it; NCCL's lines explain it, and speak where counters are silent."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan_tools import links, port

from cluster.spark.fabric import ENOUGH_BYTES, grown_bytes, judge_transport
from cluster.spark.fact import Missing
from cluster.spark.links import Links

IB = "spark1:7:7 [0] NCCL INFO NET/IB : Using [0]rocep1s0f0:1/RoCE [1]roceP2p1s0f0:1/RoCE [RO]; OOB enp1s0f0np0"
VIA = "spark2:2981:3113 [0] NCCL INFO Channel 08/0 : 0[0] -> 1[0] [receive] via NET/IBext_v10/0"
SOCKET = "spark1:7:7 [0] NCCL INFO NET/Socket : Using [0]enp225s0f1:10.10.10.2<0>"
NETWORK = "spark1:7:7 [0] NCCL INFO Using network Socket"
NO_DEVICE = "spark1:7:7 [0] NCCL INFO NET/IB : No device found."
MUCH, LITTLE = ENOUGH_BYTES, ENOUGH_BYTES - 1


@pytest.mark.parametrize(
    ("grown", "lines", "verdict"),
    [
        ({"a": MUCH, "b": MUCH}, {}, "rdma"),
        ({"a": MUCH, "b": MUCH}, {"a": [IB], "b": [VIA]}, "rdma"),
        ({"a": MUCH, "b": LITTLE}, {"a": [IB], "b": [VIA]}, "socket"),
        ({"a": 0, "b": 0}, {}, "socket"),
        ({"a": MUCH, "b": MUCH}, {"a": [], "b": [SOCKET]}, "socket"),
        ({"a": MUCH, "b": MUCH}, {"a": [NETWORK]}, "socket"),
        ({"a": None, "b": None}, {"a": [IB], "b": [VIA]}, "rdma"),
        ({"a": MUCH, "b": None}, {"a": [], "b": [VIA]}, "rdma"),
        ({"a": MUCH, "b": None}, {"a": [IB], "b": []}, "unknown"),
        ({"a": None, "b": None}, {"a": [NO_DEVICE], "b": [NO_DEVICE]}, "unknown"),
        ({"a": None, "b": None}, {}, "unknown"),
        ({"a": None, "b": None}, {"a": [SOCKET]}, "socket"),
        ({}, {}, "unknown"),
    ],
)
def test_verdict(grown: dict[str, int | None], lines: dict[str, list[str]], verdict: str) -> None:
    found = judge_transport(grown, lines)
    assert found.verdict == verdict
    assert found.why
    assert found.grown == {host: value for host, value in grown.items() if value is not None}


def test_hosts_are_named() -> None:
    assert judge_transport({"a": MUCH, "b": 0}, {}).why == "the HCAs' counters stood still on b"
    assert judge_transport({"a": MUCH, "b": None}, {}).why == "the HCAs' counters cannot be read on b"
    assert judge_transport({"a": None, "b": None}, {"b": [SOCKET]}).why == SOCKET


def test_lines_are_kept_once() -> None:
    assert judge_transport({}, {"a": [IB, IB + "  "], "b": [VIA]}).lines == (IB, VIA)


def counted(one: int | None, two: int | None) -> Links:
    return links(port("a", "eth1", moved=one), port("b", "eth2", moved=two))


def test_bytes_of_the_facing_hcas_only() -> None:
    assert grown_bytes(counted(100, 5), counted(150, 900), ["a"]) == 100, "sent and received"
    assert grown_bytes(counted(100, 5), counted(150, 905), ["a", "b"]) == 1900
    assert grown_bytes(counted(100, 5), counted(150, 905), []) == 0


def test_counters_that_cannot_be_read() -> None:
    assert grown_bytes(Missing("no"), counted(1, 1), ["a"]) is None
    assert grown_bytes(counted(1, 1), Missing("no"), ["a"]) is None
    assert grown_bytes(counted(None, 1), counted(1, 1), ["a"]) is None
    assert grown_bytes(counted(None, 1), counted(None, 2), ["b"]) == 2


def test_an_hca_that_vanished_has_not_grown() -> None:
    before = counted(100, 100)
    after = replace(before, links=before.links[1:])
    assert grown_bytes(before, after, ["a"]) == 0
