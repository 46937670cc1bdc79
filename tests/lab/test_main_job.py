"""The main job on the real engine, with Ray and without: up, proven, measured, one rank lost, repaired, down.

`up` is also killed or interrupted here, at four moments; all other kills are on the quick image. The demo's own test
has the pair with Ray against one host; here it is the pair without Ray, in the campaign.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from signal import SIGINT
from typing import Any

import pytest
from hosts_now import HOSTS, assert_nothing_of_ours, assert_serves, await_end_of_all, containers, rank_of
from own_lab import Lab
from person import PAIR, Person, Ran

Make = Callable[[str, str], None]
FABRIC = {"spark1": "192.168.100.11", "spark2": "192.168.100.12"}
MIB = 1 << 20


def assert_proven(told: dict[str, Any], backend: str, *moments: str) -> None:
    """What `up --json` must tell of two hosts: a completion, the way it took, memory at each moment, time by stage."""
    assert told["changed"] is True
    assert (told["tp"], told["pp"], told["backend"], told["hosts"]) == (2, 1, backend, list(HOSTS))
    assert told["model"] == "cluster-lab/tiny-gemma-4"
    assert "simulated" in told["simulated"]
    assert told["weights"] == "dummy"
    assert told["completion"]["tokens"] >= 8
    assert told["completion"]["seconds"] > 0
    moved = told["transport"]["bytes"]
    assert set(moved) == set(HOSTS)
    assert all(value > 64 * 1024 for value in moved.values()), moved
    memory = told["memory_bytes"]
    assert list(memory) == list(moments)
    for moment, by_host in memory.items():
        assert set(by_host) == set(HOSTS), moment
        assert all(held["available"] > 1 << 30 for held in by_host.values())
    for host in HOSTS:
        assert memory["idle"][host]["gpu"] == 0
        assert memory["ready"][host]["gpu"] > 300 * MIB  # the process of a real rank
    stages = told["stages_s"]
    assert {"connect and lock", "look", "try", "apply", "wait for Ray and vLLM", "prove"} <= set(stages)
    own = sum(seconds for stage, seconds in stages.items() if stage not in ("wait for Ray and vLLM", "prove"))
    print(f"{backend}: {stages}; our own share without the proof {own:.1f} s")


def assert_measured(person: Person, ran: Ran, depths: tuple[int, ...]) -> dict[str, Any]:
    """A table with a row for each test, and the result as it was stored."""
    assert "SIMULATED HOSTS" in ran.out + ran.err
    for depth in depths:
        at = f" @ d{depth}" if depth else ""
        for test in ("pp512", "tg32"):
            assert re.search(rf"^.*\b{test}{at}\s+[\d.]+ ± [\d.]+", ran.out, re.M), ran
    path = re.search(r"^result: (\S+)$", ran.out, re.M)
    assert path
    stored: dict[str, Any] = json.loads((person.place / path[1]).read_text())
    assert [host["role"] for host in stored["manifest"]["hosts"]] == ["head", "worker"][
        : len(stored["manifest"]["hosts"])
    ]
    assert stored["manifest"]["client_on"] == "container"
    for row in stored["benchmarks"]:
        assert_as_the_server_counted(row)
    return stored


def assert_as_the_server_counted(row: dict[str, Any]) -> None:
    """Our numbers are those of vLLM's own histograms: the way through its front is in ours only."""
    server, requests = row["server"], row["requests"]
    assert server["requests"] == requests
    assert server["generation_tokens"] == requests * row["response_size"]
    assert row["percentiles"]["itl_ms"]["mean"] == pytest.approx(server["itl_ms"], rel=0.03)
    assert -1 < row["e2e_ttft"]["mean"] - server["ttft_ms"] < 60


def test_pair_with_ray(lab: Lab, person: Person) -> None:
    """up · again · bench · worker killed · up killed → up · down."""
    told = person.must("up", *PAIR, "--json").document
    assert_proven(told, "ray", "idle", "ray_up", "loaded", "ready")
    assert sorted(told["ray_nodes"]) == [f"{address} (1 GPU)" for address in FABRIC.values()]
    before = containers(lab)
    again = person.assert_unchanged("up", "-n", "spark1,spark2", "--tp", "2")
    assert containers(lab) == before
    print(f"up again: {again.seconds:.1f} s")
    bench = person.must("bench", "--depth", "0", "2048", "--runs", "2")
    assert_measured(person, bench, (0, 2048))
    assert re.search(
        r"no single-node baseline .*\n +cluster down && cluster up .*--solo -n spark1.* && cluster bench", bench.out
    )
    assert "Ray: 2 of 2 nodes" in person.must("status").out

    lab.tell("spark2", f"docker kill {rank_of(lab, 'spark2')}")
    print(f"ray, worker killed: all ended after {await_end_of_all(lab):.0f} s")
    assert_down_and_why(person, "spark2: exited, exit 137")
    killed = person.start("up", *PAIR)
    killed.await_said("waiting: the engine")
    killed.kill()
    on_its_way = containers(lab)
    person.assert_unchanged("up", *PAIR)
    assert containers(lab) == on_its_way != before
    assert_serves(lab)
    down = person.must("down")
    assert len(re.findall(r"^spark[12]: containers, ports and processes are released; [\d.]+ GiB", down.out, re.M)) == 2
    assert_nothing_of_ours(lab)


def assert_down_and_why(person: Person, why: str) -> None:
    """`status` ends with 4, says that it is down, and what happened."""
    told = person("status")
    assert told.code == 4, told
    assert re.search(r"lab-tiny-\w+: down", told.out), told
    assert re.search(why, told.out), told


@pytest.fixture
def one_host(person: Person) -> Ran:
    """One host alone, measured: what the pair is compared with."""
    person.must("up", "--solo", "-n", "spark1")
    ran = person.must("bench", "--depth", "0", "2048", "--runs", "2")
    person.must("down")
    return ran


@pytest.mark.campaign
def test_pair_without_ray_against_one_host(lab: Lab, person: Person, one_host: Ran, broken: Make) -> None:
    """Killed → down · Ctrl-C → nothing left · up · bench against one host · link cut · killed → up."""
    assert_measured(person, one_host, (0, 2048))
    killed = person.start("up", *PAIR, "--backend", "mp")
    killed.await_said("waiting: containers")
    killed.kill()
    person.must("down")
    assert_nothing_of_ours(lab)
    interrupted = person.start("up", *PAIR, "--backend", "mp")
    interrupted.await_said("waiting: the engine")
    interrupted.send(SIGINT)
    assert interrupted.ended().code == 130
    assert_nothing_of_ours(lab)

    told = person.must("up", *PAIR, "--backend", "mp", "--json").document
    assert_proven(told, "mp", "idle", "ray_up", "loaded", "ready")
    assert told["ray_nodes"] == []
    bench = person.must("bench", "--depth", "0", "2048", "--runs", "2")
    assert_measured(person, bench, (0, 2048))
    table = bench.out[bench.out.index("\nscaling") :]
    rows = re.findall(r"^(prompt processing|token generation) +(pp512|tg32)( @ d2048)? .* ([\d.]+)× ", table, re.M)
    assert len(rows) == 4, bench
    print(table)

    broken("spark2", "link-down")
    print(f"mp, link cut: all ended after {await_end_of_all(lab):.0f} s")
    lab.must("mend")
    assert_down_and_why(person, r"was silent for 60 s: .*the link is cut")
    killed = person.start("up", *PAIR, "--backend", "mp")
    killed.await_said("real completion")
    killed.kill()
    person.assert_unchanged("up", *PAIR, "--backend", "mp")
    assert_serves(lab)
    person.must("down")
    assert_nothing_of_ours(lab)
