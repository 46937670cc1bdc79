"""`cluster doctor` on real hosts: silent when all is well, names each fault of the lab, silent when all are mended.

Faults that do not hide each other are made together, on both hosts, to save time.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hosts_now import await_end_of_all, rank_of
from own_lab import Lab
from person import MP, Person, Ran

SPARK1, SPARK2 = "spark1", "spark2"


@dataclass(frozen=True)
class Round:
    """Faults by host, and all that doctor says then: `level check host`; hosts that cannot be reached."""

    spark1: tuple[str, ...]
    spark2: tuple[str, ...]
    findings: frozenset[str]
    lost: tuple[str, ...] = ()

    @property
    def code(self) -> int:
        return 3 if self.lost else 4 if any(row.startswith("fault") for row in self.findings) else 0


def one_round(spark1: str, spark2: str, *findings: str, lost: tuple[str, ...] = ()) -> Round:
    return Round(tuple(spark1.split()), tuple(spark2.split()), frozenset(findings), lost)


ROUNDS = (
    one_round(
        "port-taken gpu-stranger",
        "mtu clock cut-model",
        "fault ports spark1",
        "warning gpu-stranger spark1",
        "fault mtu spark2",
        "warning clock spark2",
        "fault weights spark2",
    ),
    one_round(
        "low-memory stranger",
        "one-twin no-model",
        "fault memory spark1",
        "note stranger spark1",
        "warning twins spark1",
        "warning twins spark2",
        "note weights spark2",
    ),
    one_round(
        "no-image no-sudo",
        "link-down power-cap",
        "note image spark1",
        "note sudo spark1",
        "warning fabric spark2",
        "fault power-cap spark2",
    ),
    one_round("no-gpu", "no-ipv4 wedged", "fault container spark1", "warning fabric spark2", "warning wedged spark2"),
    one_round("ollama", "no-ray", "warning tenants spark1", "fault image-parity spark2", "fault image spark2"),
    one_round("", "other-image", "fault image-parity spark2"),
    one_round("docker-down", "no-docker", "fault docker spark1", "fault docker spark2"),
    one_round("counters-still", "other-port", "note cabling spark2"),
    one_round("no-ssh", "host-key", lost=(SPARK1, SPARK2)),
    one_round("unreachable", "unknown-key", lost=(SPARK1, SPARK2)),
    one_round("", "killed", lost=(SPARK2,)),
)
"""counters-still shows only in traffic, so where nothing runs there is none. A cable in another port is no fault."""


def said(ran: Ran) -> set[str]:
    """What doctor found, a line each; whether page cache fills the machine that the hosts share is not theirs."""
    found = [one for one in ran.document["findings"] if one["check"] != "page-cache"]
    return {f"{one['level']} {one['check']} {one['host']}" for one in found}


def assert_silent(person: Person) -> None:
    ran = person("doctor", "--json")
    assert (ran.code, said(ran), ran.document["errors"]) == (0, set(), []), ran


@pytest.mark.parametrize("one", ROUNDS, ids=lambda one: "+".join((*one.spark1, *one.spark2)))
def test_faults_are_named(lab: Lab, resident: Person, one: Round) -> None:
    try:
        for host, faults in ((SPARK1, one.spark1), (SPARK2, one.spark2)):
            for fault in faults:
                lab.must("break", host, fault)
        ran = resident("doctor", "--json")
    finally:
        lab.must("mend")
    assert said(ran) == one.findings, ran
    assert ran.code == one.code, ran
    assert len(ran.document["errors"]) == len(one.lost), ran
    assert set(ran.document["hosts"]) == {SPARK1, SPARK2} - set(one.lost)


def test_every_fault_is_tried(lab: Lab) -> None:
    tried = {fault for one in ROUNDS for fault in (*one.spark1, *one.spark2)} | {"reboot"}
    assert tried == {line.split()[0] for line in lab.must("break", "--list").splitlines()}


def test_what_runs_is_ours_and_what_ran_is_a_fault(lab: Lab, resident: Person) -> None:
    up = ("up", *MP, "--set", "transport=rdma")
    resident.must(*up)
    assert_silent(resident)
    lab.must("break", SPARK2, "counters-still")
    ran = resident("doctor", "--json")
    assert (ran.code, said(ran)) == (4, {"fault transport spark1"}), ran
    assert ran.document["findings"][0]["evidence"] == f"the HCAs' counters stood still on {SPARK2}"
    refused = resident(*up)
    assert (refused.code, "RDMA was not used between the ranks" in refused.err) == (4, True), refused
    lab.must("mend")
    lab.tell(SPARK2, f"docker kill {rank_of(lab, SPARK2)}")
    await_end_of_all(lab)
    ran = resident("doctor", "--json")
    assert (ran.code, said(ran)) == (4, {"fault deployment spark2"}), ran
    resident.must("down")
    assert_silent(resident)
