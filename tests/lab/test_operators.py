"""Two operators at once: one works, the other is told who does; a lock never outlives its owner for long."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from signal import SIGCONT, SIGINT, SIGSTOP

import pytest
import yaml
from hosts_now import DATA, HOSTS, assert_nothing_of_ours, assert_serves, containers
from own_lab import Lab
from person import MP, PAIR, QUICK, Person, Ran, Running, quick
from waiting import eventually

WAITING = (*MP, *quick(ready_after_s=15))


def begin(person: Person, *words: str) -> Running:
    """An `up` that holds the lock and waits for the engine."""
    run = person.start("up", *words)
    run.await_said("waiting: the engine")
    return run


def assert_told_who(ran: Ran, holder: Running, why: str) -> None:
    """Exit 5, with who, since when, and doing what, for the host that was asked first."""
    assert ran.code == 5, ran
    [error] = ran.errors
    pid = holder.process.pid
    assert re.search(
        rf"^spark1 is locked by \S+@\S+ \(pid {pid}\) since \d\d:\d\d:\d\d \(\d+ s\): {why}$", error["error"]
    )
    assert "ends by itself within 30 s" in error["hint"]
    assert ran.seconds < 30


def test_two_at_the_same_moment(lab: Lab, resident: Person) -> None:
    """Exactly one gets the lock, and nobody waits for the other for ever."""
    runs = [resident.start("up", *MP) for _ in range(2)]
    codes = sorted(run.ended().code for run in runs)
    assert codes in ([0, 5], [0, 0]), [str(run.ended()) for run in runs]
    assert_serves(lab)
    assert {host: len(found) for host, found in containers(lab).items()} == {"spark1": 1, "spark2": 1}


@pytest.fixture
def pair(resident: Person) -> Person:
    """What the two at the same moment have started."""
    resident.must("up", *MP)
    return resident


def test_bench_holds_the_lock(lab: Lab, pair: Person) -> None:
    bench = pair.start("bench", "--depth", "0", "--pp", "512", "--tg", "64", "--runs", "5", "--results", "r")
    eventually(lambda: "bench" in lock_text(lab), 30, "bench takes the lock")
    assert_told_who(pair("down"), bench, r"bench lab-tiny-\w+")
    assert bench.ended().code == 0


def lock_text(lab: Lab) -> str:
    """What the holder wrote into the lock's file of spark2."""
    return lab.tell("spark2", "cat ~/.local/share/cluster/lock 2>/dev/null || true")


def test_another_inventory_sees_the_same_deployment(lab: Lab, pair: Person) -> None:
    """A second laptop, whose inventory calls the same hosts otherwise."""
    before = containers(lab)
    names = {"spark1": "left", "spark2": "right"}
    shared = yaml.safe_load(lab.inventory.read_text())
    hosts = {names[name]: entry for name, entry in shared["hosts"].items()}
    second = pair.place / "second.yaml"
    second.write_text(yaml.safe_dump(shared | {"hosts": hosts, "groups": {}}, sort_keys=False))
    there = ("-i", str(second))
    [one] = pair.must("status", *there, "--json").document["deployments"]
    assert (one["state"], one["hosts"]) == ("ready", list(names.values()))
    again = pair.must("up", *there, "--tp", "2", *QUICK, "--backend", "mp", "--json")
    assert (again.document["changed"], again.document["hosts"]) == (False, list(names.values()))
    assert containers(lab) == before
    inspected = lab.tell("spark1", "docker inspect $(docker ps -q)")
    assert re.search(r'"cluster.hosts": "[0-9a-f]{12},[0-9a-f]{12}"', inspected)
    assert [host for host in HOSTS if lab.tell(host, "cat /etc/machine-id") in inspected] == []
    pair.must("down", *there)
    assert_nothing_of_ours(lab)


def test_second_operator_is_told_and_the_first_is_not_disturbed(lab: Lab, person: Person) -> None:
    """All four are typed at once, while the first waits for its engine."""
    first = begin(person, *WAITING)
    dry = ("up", *PAIR, "--dry-run", "--backend", "mp")
    runs = [person.start(*words) for words in (("up", *MP), ("down",), ("status",), dry)]
    up, down, status, plan = (run.ended() for run in runs)
    assert_told_who(up, first, "up lab-tiny")
    assert_told_who(down, first, "up lab-tiny")
    assert status.code == 4
    assert re.search(r"lab-tiny-\w+: starting", status.out), status
    assert "docker run" in plan.out, plan
    ran = first.ended()
    assert ran.code == 0
    for phase in ("weights loaded, getting ready", "compiling the model (torch.compile)", "capturing CUDA graphs, 67%"):
        assert f"waiting: the engine: {phase}\n" in ran.err, ran
    assert_serves(lab)


@pytest.mark.campaign
def test_frozen_operator_loses_the_lock_and_undoes_nothing_later(lab: Lab, person: Person) -> None:
    """SIGSTOP: free within 30 s of silence. Another one takes over; the first, thawed, must not take that away."""
    first = begin(person, *WAITING)
    first.send(SIGSTOP)
    began = time.monotonic()
    while (ran := person("up", *WAITING)).code == 5:
        assert time.monotonic() - began < 60, ran
        time.sleep(1)
    took = time.monotonic() - began
    print(f"lock of a frozen operator was free after {took:.0f} s")
    assert 15 < took < 50
    assert ran.code == 0, ran
    before = containers(lab)
    first.send(SIGINT)
    first.send(SIGCONT)
    late = first.ended()
    assert late.code != 0, late
    assert containers(lab) == before, late
    assert_serves(lab)
    assert late.errors[0]["rolled_back"].count("nothing was undone there (the lock of spark") == 2, late


@pytest.mark.campaign
def test_a_start_outlasts_an_outage(lab: Lab, person: Person, broken: Callable[[str, str], None]) -> None:
    """The management cable is out for longer than the 30 s after which a host releases a silent owner's lock."""
    run = begin(person, *MP, *quick(ready_after_s=60))
    began = lock_since(lab)
    broken("spark2", "unreachable")
    time.sleep(40)
    lab.must("mend")
    eventually(lambda: lock_since(lab) > began + 30, 20, "the lock of spark2 is taken again")
    ran = run.ended()
    assert ran.code == 0, ran
    assert "; spark2 unreachable for " in ran.err, ran
    assert_serves(lab)


def lock_since(lab: Lab) -> float:
    """When the lock of spark2 was taken; 0 while nobody has it, or the host is not reached yet."""
    return float(json.loads(lab.ssh("spark2", f"cat {DATA}/lock").stdout or "{}").get("since", 0))
