"""`--fabric-test` of doctor and up on simulated Sparks: what is run where, what is said, what is left running."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from fake_host import FakeProcess
from machine import Desk, Machine, unreachable
from typed import Ran, Typed

from cluster.argv.question import Answer

DOCTOR = ("doctor", "--fabric-test")
UP = ("up", "--fabric-test", "--yes")


@pytest.fixture
def rdma(desk: Desk) -> Desk:
    """Both Sparks have perftest, and GIDs at other places."""
    for machine in desk:
        machine.perftest = True
        for port in machine.ports:
            port.gid_index = 2 + machine.number
    return desk


def before_each(desk: Desk, do: Callable[[], Answer | None], *, version: bool = False) -> None:
    """Do this before spark1's ib_write_bw runs, or answers its version; what it returns is answered instead."""
    run: Callable[[list[str]], Answer] = desk["spark1"].run_ib_write_bw
    desk["spark1"].run_ib_write_bw = lambda words: ((version or words != ["--version"]) and do()) or run(words)


def processes(desk: Desk) -> list[FakeProcess]:
    return [process for host in desk.hosts.values() for process in host.processes]


def assert_all_is_over(desk: Desk) -> None:
    """No end of a test runs any more, and no lock is held."""
    assert all(process.ended for process in processes(desk))
    assert [host.lock_holder for host in desk.hosts.values()] == [None, None]


def lines_of(ran: Ran, word: str) -> list[str]:
    lines = (" ".join(line.split()) for line in ran.all.splitlines())
    return [line for line in lines if word in line]


def test_links_at_once_have_ports_of_their_own(cluster: Typed, rdma: Desk) -> None:
    assert cluster("doctor").code == 0
    assert processes(rdma) == [], "without the option nothing is sent"
    assert not [one for one in rdma.hosts["spark1"].asked if one.argv[0] == "ib_write_bw"]
    cluster(*DOCTOR)
    servers = [words for words in rdma.hosts["spark2"].started if "ib_write_bw" in words]
    assert [words[words.index("--port") + 1] for words in servers[-2:]] in (["27130", "27131"], ["27131", "27130"])
    assert {words[words.index("--port") + 1] for words in servers[:-2]} == {"27130"}


def test_the_lock_is_held_meanwhile(cluster: Typed, rdma: Desk) -> None:
    held = []
    before_each(
        rdma, lambda: held.append([(host.lock_holder or {}).get("why") for host in rdma.hosts.values()]), version=True
    )
    cluster(*DOCTOR)
    assert held.count(["doctor --fabric-test"] * 2) == len(held) == 5


def test_a_lock_that_cannot_be_taken_costs_only_the_test(cluster: Typed, rdma: Desk) -> None:
    start = rdma.hosts["spark2"].start

    def refuse(argv: Any, stdin: bytes = b"", *, lasting: bool = False) -> FakeProcess:
        denied = FakeProcess(['{"held": false, "error": "lock: Permission denied"}'], 0)
        return denied if lasting else start(argv, stdin)

    rdma.hosts["spark2"].start = refuse
    ran = cluster(*DOCTOR)
    assert ran.code == 0
    assert "seen: cannot take the lock: lock: Permission denied" in ran.out


def test_somebody_at_work_is_not_disturbed(cluster: Typed, rdma: Desk) -> None:
    rdma.hosts["spark2"].lock_holder = {"who": "ada@desk (pid 5)", "since": None, "why": "bench x"}
    ran = cluster(*DOCTOR)
    assert ran.code == 0
    assert "spark2 is locked by ada@desk (pid 5)" in ran.out
    assert lines_of(ran, "fabric-speed") == ["unknown spark2 fabric-speed the speed of the fabric could not be read"]


@pytest.mark.parametrize(("machine", "role"), [("spark1", "send"), ("spark2", "receive")])
def test_a_link_that_lets_no_tcp_through(cluster: Typed, desk: Desk, machine: str, role: str) -> None:
    desk[machine].broken[role] = '{"error": "No route to host"}'
    ran = cluster(*DOCTOR)
    assert ran.code == 4
    faults = [line for line in lines_of(ran, "fabric-speed") if line.startswith("fault")]
    assert faults == [
        f"fault spark1 fabric-speed no TCP from spark1 {netdev} to spark2 {netdev}"
        for netdev in ("enp1s0f0np0", "enP2p1s0f0np0")
    ]
    assert "No route to host" in ran.out
    assert "on spark1: ping -I enp1s0f0np0 192.168.100.12" in ran.out
    assert_all_is_over(desk)


@pytest.mark.parametrize(
    ("machine", "role", "said", "host"),
    [
        ("spark1", "call", " Failed to modify QP 66 to RTR\n", "spark1"),
        ("spark2", "listen", "IB device rocep1s0f0 not found\n Unable to find the Infiniband/RoCE device", "spark2"),
    ],
)
def test_rdma_that_fails_is_told_in_its_words(
    cluster: Typed, rdma: Desk, machine: str, role: str, said: str, host: str
) -> None:
    rdma[machine].broken[role] = said
    ran = cluster(*DOCTOR)
    assert ran.code == 0
    assert lines_of(ran, "fabric-speed") == [
        f"unknown {host} fabric-speed the RDMA bandwidth is not known; TCP shows that it is at least 60.0 Gb/s a link"
    ]
    assert " ".join(said.split()) in ran.out
    assert "try ib_write_bw by hand" in ran.out
    assert_all_is_over(rdma)


def test_a_tool_that_babbles_is_kept_short(cluster: Typed, rdma: Desk) -> None:
    rdma["spark2"].broken["listen"] = "\x1b[31mno device\x1b[0m " + "x" * 5000 + "\n" + "y\n" * 5000 + "the end"
    ran = cluster(*DOCTOR)
    assert "seen: y y y the end" in ran.out
    assert "\x1b[31m" not in ran.all
    assert max(map(len, ran.all.splitlines())) < 300


def test_a_server_that_does_not_listen_yet_is_called_again(cluster: Typed, rdma: Desk) -> None:
    refused = [b" Couldn't connect to 192.168.100.12:27130\n Unable to init the socket connection\n"] * 2
    before_each(rdma, lambda: Answer(1, err=refused.pop()) if refused else None)
    ran = cluster(*DOCTOR)
    assert (ran.code, refused) == (0, [])
    assert "no finding" in ran.out


def test_a_host_that_is_lost_meanwhile(cluster: Typed, desk: Desk) -> None:
    host = desk.hosts["spark2"]
    start = host.start

    def lose(argv: Any, stdin: bytes = b"", *, lasting: bool = False) -> FakeProcess:
        if not lasting:
            host.faults.unreachable = unreachable("spark2")
        return start(argv, stdin, lasting=lasting)

    host.start = lose
    ran = cluster(*DOCTOR)
    assert ran.code == 0
    assert all(line.startswith("unknown") for line in lines_of(ran, "fabric-speed"))
    assert "spark2 did not answer within 10 s" in ran.out


def test_ctrl_c_ends_both_ends(cluster: Typed, desk: Desk) -> None:
    def hang(self: Machine, argv: tuple[str, ...], stdin: bytes) -> FakeProcess:
        if json.loads(argv[-1])["role"] == "receive":
            return FakeProcess(['{"port": 40123}'])
        raise KeyboardInterrupt

    for name, host in desk.hosts.items():
        host.starter = lambda argv, stdin, machine=desk[name]: hang(machine, argv, stdin)
    ran = cluster(*DOCTOR)
    assert ran.code == 130
    assert processes(desk)
    assert_all_is_over(desk)


def test_requests_under_way_are_not_disturbed(cluster: Typed, rdma: Desk) -> None:
    cluster("up")
    for machine in rdma:
        for life in machine.lives():
            life.counts["num_requests_running"] = 3.0
    before = len(processes(rdma))
    ran = cluster(*DOCTOR)
    assert ran.code == 0
    assert lines_of(ran, "fabric-speed") == ["unknown spark2 fabric-speed the links cannot be judged"]
    assert "has requests: 3 running, 0 waiting" in ran.out
    assert not [words for host in rdma.hosts.values() for words in host.started if "ib_write_bw" in words]
    assert len(processes(rdma)) == before + 2  # the lock's holders


def test_what_was_started_before_the_lock_was_held_is_not_disturbed(cluster: Typed, rdma: Desk) -> None:
    def start() -> None:
        cluster.must("up", "toy", "--no-probe")
        for life in rdma.lives():
            life.counts["num_requests_running"] = 1.0

    rdma.when_locked("spark1", start)
    assert "has requests: 1 running, 0 waiting" in cluster(*DOCTOR).out


def test_requests_that_came_meanwhile_spoil_the_verdict(cluster: Typed, rdma: Desk) -> None:
    """The numbers are shown, and nobody is accused."""
    cluster("up")
    machine = rdma["spark1"]
    before_each(rdma, lambda: machine.lives()[0].counts.update(num_requests_running=1.0))
    machine.ports[0].rdma_gbps = 12.0
    ran = cluster(*DOCTOR)
    assert ran.code == 0
    assert "12.0 RDMA (ib_write_bw)" in "\n".join(lines_of(ran, "RDMA"))
    assert lines_of(ran, "fabric-speed") == ["unknown spark2 fabric-speed the links cannot be judged"]
    assert "meanwhile toy-" in ran.out


def test_hosts_without_a_common_link(cluster: Typed, rdma: Desk) -> None:
    for port in rdma["spark2"].ports[:4]:
        port.state = "DOWN"
    ran = cluster(*DOCTOR)
    assert "the links cannot be judged" in ran.out
    assert "the hosts share no fabric subnet" in ran.out
    assert "one host has no peer" in cluster(*DOCTOR, "-n", "spark1").out


def test_a_link_that_leads_nowhere_is_named(cluster: Typed, rdma: Desk) -> None:
    rdma["spark2"].ports[2].state = "DOWN"
    ran = cluster(*DOCTOR)
    assert lines_of(ran, "not tested") == [
        "spark1 enP2p1s0f0np0 roceP2p1s0f0 not tested: ACTIVE, no peer over it",
        "spark2 enP2p1s0f0np0 roceP2p1s0f0 not tested: DOWN, no peer over it",
    ]
    assert len(lines_of(ran, "RDMA (ib_write_bw)")) == 2


def test_the_numbers_as_a_document(cluster: Typed, rdma: Desk) -> None:
    document = json.loads(cluster(*DOCTOR, "--json").out)
    assert document["findings"] == []
    assert [row["gbps"] for row in document["fabric"]] == [95.0] * 6
    assert document["fabric"][5]["together"]
    assert json.loads(cluster("doctor", "--json").out)["fabric"] == []


def test_up_is_refused_before_anything_changes_unless_it_is_forced(cluster: Typed, rdma: Desk) -> None:
    rdma["spark1"].ports[0].rdma_gbps = 12.0
    before = rdma.state()
    assert cluster(*UP).code == 4
    assert rdma.state() == before
    assert_all_is_over(rdma)
    ran = cluster(*UP, "--force", "fabric-speed")
    assert ran.code == 0
    assert "fault (forced): spark1: 12.0 Gb/s by RDMA" in ran.err
    assert list(rdma.serving().values()) == [["spark1", "spark2"]]


def test_up_tests_only_before_a_start(cluster: Typed, rdma: Desk) -> None:
    assert "fabric test: 5 measurements" not in cluster(*UP, "--dry-run").err
    assert "fabric test: 5 measurements" in cluster(*UP).err
    again = cluster(*UP)
    assert again.code == 0
    assert "runs already" in again.out
    assert "fabric test: 5 measurements" not in again.err


def test_the_deadlines_are_the_hosts(cluster: Typed, rdma: Desk) -> None:
    """The sender's by its question, the listener's by timeout(1), far/flood's by its own alarm."""
    cluster(*DOCTOR)
    calls = [one for one in rdma.hosts["spark1"].asked if one.argv[0] == "ib_write_bw" and len(one.argv) > 2]
    assert {one.timeout_s for one in calls} == {12}
    assert all(
        words[:5] == ("timeout", "--foreground", "-k", "1", "12")
        for words in rdma.hosts["spark2"].started
        if "ib_write_bw" in words
    )
    rdma["spark1"].perftest = False
    cluster(*DOCTOR)
    given = [json.loads(words[-1]) for words in rdma.hosts["spark2"].started if words[0] == "python3"]
    assert {one["deadline_s"] for one in given if "role" in one} == {12}
