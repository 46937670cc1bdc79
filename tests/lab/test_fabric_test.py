"""`doctor --fabric-test` over the lab's links, which have no RDMA tools and no rate of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hosts_now import KEPT, assert_same, snapshot
from own_lab import Lab
from person import QUICK, Person, Ran

TWINS = ("enp1s0f1np1", "enP2p1s0f1np1")
DOCTOR = ("doctor", "--fabric-test", *QUICK, "--json")
LIMIT_GBPS = 1.0


def findings(ran: Ran) -> list[tuple[str, str]]:
    """Level and what of each finding about speed."""
    return [(one["level"], one["what"]) for one in ran.document["findings"] if one["check"] == "fabric-speed"]


def rows(ran: Ran) -> dict[tuple[str, str], float]:
    """Gb/s of each link alone, by its two ends."""
    told: list[dict[str, Any]] = ran.document["fabric"]
    return {(row["from"], row["to"]): row["gbps"] for row in told if not row["together"]}


def test_both_twins_both_ways_and_nothing_stays(lab: Lab, person: Person) -> None:
    """TCP proves that the links carry; RDMA is said to be unknown, and nothing else is found."""
    before = snapshot(lab, without=KEPT)
    ran = person.must(*DOCTOR)
    assert set(rows(ran)) == {
        (f"{here} {twin}", f"{there} {twin}")
        for here, there in (("spark1", "spark2"), ("spark2", "spark1"))
        for twin in TWINS
    }
    assert all(gbps > 0.1 for gbps in rows(ran).values()), ran
    assert [row["by"] for row in ran.document["fabric"]] == ["tcp"] * 6
    assert [level for level, _ in findings(ran)] == ["unknown"] * 2, ran
    assert all("RDMA bandwidth is not known" in what for _, what in findings(ran))
    assert_same(lab, before, without=KEPT)


@pytest.mark.campaign
def test_a_pulled_twin_and_a_slow_one(lab: Lab, person: Person, broken: Callable[[str, str], None]) -> None:
    """The link that is down is named and not tested; the other sends as slowly as it was made, in one direction."""
    broken("spark2", "one-twin")
    limit = f"rate {LIMIT_GBPS}gbit burst 1mb latency 20ms"
    lab.tell("spark2", f"sudo -n tc qdisc add dev {TWINS[0]} root tbf {limit}")
    try:
        ran = person.must(*DOCTOR)
    finally:
        lab.tell("spark2", f"sudo -n tc qdisc del dev {TWINS[0]} root")
    there, back = (f"spark1 {TWINS[0]}", f"spark2 {TWINS[0]}"), (f"spark2 {TWINS[0]}", f"spark1 {TWINS[0]}")
    assert set(rows(ran)) == {there, back}
    assert 0.5 * LIMIT_GBPS < rows(ran)[back] < 1.1 * LIMIT_GBPS, ran
    assert rows(ran)[there] > rows(ran)[back]
    assert f"spark2 {TWINS[1]}" in ran.err
    assert "not tested: DOWN" in ran.err
    for row in ran.document["fabric"]:
        way = f"{row['from']} → {row['to']}"
        accused = any(level == "warning" and way in what for level, what in findings(ran))
        assert accused == (row["from"] == back[0] and not row["cpu_bound"]), ran
