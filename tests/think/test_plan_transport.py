"""Which way the traffic went: HCA counters prove it; NCCL's lines explain it, and speak where counters are silent."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan_tools import links, port

from cluster.spark.fabric import ENOUGH_BYTES, Moved, Transport, judge_transport, moved_bytes
from cluster.spark.fact import Missing
from cluster.spark.links import Links

IB = "spark1:7:7 [0] NCCL INFO NET/IB : Using [0]rocep1s0f0:1/RoCE [1]roceP2p1s0f0:1/RoCE [RO]; OOB enp1s0f0np0"
VIA = "spark2:2981:3113 [0] NCCL INFO Channel 08/0 : 0[0] -> 1[0] [receive] via NET/IBext_v10/0"
SOCKET = "spark1:7:7 [0] NCCL INFO NET/Socket : Using [0]enp225s0f1:10.10.10.2<0>"
NETWORK = "spark1:7:7 [0] NCCL INFO Using network Socket"
NO_DEVICE = "spark1:7:7 [0] NCCL INFO NET/IB : No device found."
MUCH, LITTLE = ENOUGH_BYTES, ENOUGH_BYTES - 1


def judged(grown: dict[str, int | None], lines: dict[str, list[str]], *, bypass: bool = False) -> Transport:
    """The verdict on hosts with two HCAs each, of which the second moved nothing."""
    moved: dict[str, Moved | None] = {
        host: None if value is None else {"a": value, "b": 0} for host, value in grown.items()
    }
    return judge_transport(moved, lines, bypass=bypass)


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
    found = judged(grown, lines)
    assert found.verdict == verdict
    assert found.why
    assert found.grown == {host: value for host, value in grown.items() if value is not None}


def test_hosts_are_named() -> None:
    assert judged({"a": MUCH, "b": 0}, {}).why == "the HCAs' counters stood still on b"
    assert judged({"a": MUCH, "b": None}, {}).why == "the HCAs' counters cannot be read on b"
    assert judged({"a": None, "b": None}, {"b": [SOCKET]}).why == SOCKET


def test_lines_are_kept_once() -> None:
    assert judge_transport({}, {"a": [IB, IB + "  "], "b": [VIA]}).lines == (IB, VIA)


def counted(one: int | None, two: int | None) -> Links:
    return links(port("a", "eth1", moved=one), port("b", "eth2", moved=two))


def test_bytes_of_the_facing_hcas_only() -> None:
    assert moved_bytes(counted(100, 5), counted(150, 900), ["a"]) == {"a": 100}, "sent and received"
    assert moved_bytes(counted(100, 5), counted(150, 905), ["a", "b"]) == {"a": 100, "b": 1800}
    assert moved_bytes(counted(100, 5), counted(150, 905), []) == {}


def test_counters_that_cannot_be_read() -> None:
    assert moved_bytes(Missing("no"), counted(1, 1), ["a"]) is None
    assert moved_bytes(counted(1, 1), Missing("no"), ["a"]) is None
    assert moved_bytes(counted(None, 1), counted(1, 1), ["a"]) is None
    assert moved_bytes(counted(None, 1), counted(None, 2), ["b"]) == {"b": 2}


def test_an_hca_that_vanished_has_not_grown() -> None:
    before = counted(100, 100)
    after = replace(before, links=before.links[1:])
    assert moved_bytes(before, after, ["a"]) == {}


@pytest.mark.parametrize(
    ("grown", "lines", "verdict"),
    [
        ({"a": MUCH, "b": MUCH}, {}, "rdma"),
        ({"a": MUCH, "b": LITTLE}, {"a": [IB], "b": [VIA]}, "socket"),
        ({"a": None, "b": None}, {"a": [IB], "b": [VIA]}, "unknown"),
        ({"a": MUCH, "b": None}, {"a": [IB], "b": [VIA]}, "unknown"),
        ({"a": MUCH, "b": MUCH}, {"a": [], "b": [SOCKET]}, "socket"),
    ],
)
def test_messages_that_bypass_nccl(grown: dict[str, int | None], lines: dict[str, list[str]], verdict: str) -> None:
    found = judged(grown, lines, bypass=True)
    assert found.verdict == verdict
    assert "its log proves nothing about them" in found.why


def test_what_the_counters_show() -> None:
    moved = {"s1": {"a": 4_200_000, "b": 100_000}, "s2": {"a": 4_300_000, "b": 0}}
    assert str(judge_transport(moved, {})).endswith("; s1 4.3 MB, s2 4.3 MB")
    assert str(judge_transport(moved, {}, bypass=True)).endswith("; s1 a 4.2 MB, s1 b 0.1 MB, s2 a 4.3 MB, s2 b 0.0 MB")
