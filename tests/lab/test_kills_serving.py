"""A rank killed, a link cut, hosts rebooted while serving: all end by themselves, `status` says why, `up` repairs."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

import pytest
from hosts_now import (
    BACK_S,
    HOSTS,
    assert_nothing_of_ours,
    assert_serves,
    await_end_of_all,
    containers,
    rank_of,
    state_of,
)
from own_lab import Lab, campaign
from person import HASTY, MP, RAY, SILENCE_S, Person
from waiting import eventually

Make = Callable[[str, str], None]
WORDS = {"ray": RAY, "mp": MP}


def assert_told_and_repaired(lab: Lab, person: Person, words: tuple[str, ...], *why: str) -> None:
    """`status` ends with 4 and names what happened; one `up` brings new containers that serve; `down` takes all."""
    status = person("status")
    assert status.code == 4, status
    assert re.search(r"lab-tiny-\w+: down", status.out), status
    for text in why:
        assert re.search(text, status.out + status.err), status
    [told] = person("status", "--json").document["deployments"]
    assert told["state"] == "down"
    assert told["why"], told
    before = {host: rank_of(lab, host) for host in HOSTS}
    ids = {host: lab.tell(host, f"docker inspect -f '{{{{.Id}}}}' {name}") for host, name in before.items()}
    person.must("up", *words)
    assert_serves(lab)
    now = containers(lab)
    assert {host: len(found) for host, found in now.items()} == {"spark1": 1, "spark2": 1}
    assert not {*ids.values()} & {found[0] for found in now.values()}
    assert person("status").code == 0
    person.must("down")
    assert_nothing_of_ours(lab)


@pytest.mark.parametrize(("backend", "victim"), [("mp", "spark2"), campaign("mp", "spark1"), campaign("ray", "spark1")])
def test_container_killed_while_serving(lab: Lab, person: Person, backend: str, victim: str) -> None:
    """Ray's worker: on the real engine in test_main_job."""
    person.must("up", *WORDS[backend])
    well = person.must("logs", "--explain")
    assert re.match(r"nothing known to be wrong in \d+ lines of the logs of spark1, spark2\n", well.out)
    lab.tell(victim, f"docker kill {rank_of(lab, victim)}")
    took = await_end_of_all(lab)
    print(f"{backend}, {victim} killed: all ended after {took:.0f} s")
    if backend == "mp":  # with Ray its own complaints may come first
        explained = person("logs", "--explain", "--json")
        assert explained.code == 4, explained
        [one] = explained.document["deployments"]
        assert (one["root"]["id"], one["root"]["host"]) == ("rank-lost", "spark2" if victim == "spark1" else "spark1")
        assert "killed or rebooted" in one["root"]["evidence"]
    assert_told_and_repaired(lab, person, WORDS[backend], f"{victim}: exited, exit 137", f"{victim}.*exit 137")


@pytest.mark.parametrize("backend", ["mp", campaign("ray")])
def test_link_cut_while_serving(lab: Lab, person: Person, broken: Make, backend: str) -> None:
    """The fabric goes silent: neither rank hears the other's cord any more."""
    Person(lab, person.place, (sys.executable, "-c", HASTY)).must("up", *WORDS[backend])
    broken("spark2", "link-down")
    took = await_end_of_all(lab)
    print(f"{backend}, link cut: all ended after {took:.0f} s")
    lab.must("mend")
    assert_told_and_repaired(
        lab, person, WORDS[backend], "spark1: exited, exit 76", f"was silent for {SILENCE_S} s.*link is cut"
    )


@pytest.mark.campaign
def test_engine_of_one_rank_dies(lab: Lab, person: Person) -> None:
    """Not the container but a process of the engine in it: the rank says so, and its peer ends with it."""
    person.must("up", *MP)
    lab.tell("spark2", "sudo -n pkill -KILL -f '[V]LLM::Worker'")
    await_end_of_all(lab)
    assert_told_and_repaired(lab, person, MP, "spark2: exited, exit", "spark2.*engine exited with")


def test_both_hosts_rebooted(lab: Lab, person: Person) -> None:
    person.must("up", *MP)
    for host in HOSTS:
        lab.must("break", host, "reboot")
    assert containers(lab) == {"spark1": [], "spark2": []}
    assert_told_and_repaired(lab, person, MP, "spark1: exited", "spark2: exited", "spark[12]")


@pytest.mark.campaign
def test_one_host_off(lab: Lab, person: Person, broken: Make) -> None:
    """A host without power: `status` says which does not answer (3), its peer ends; `up` repairs when it is back."""
    person.must("up", *MP)
    broken("spark2", "killed")
    status = person("status")
    assert status.code == 3, status
    assert re.search(r"spark2 .*did not answer", status.errors[0]["error"])
    assert "spark1: running" in status.out or "spark1: exited" in status.out
    took = eventually(lambda: state_of(lab, "spark1")["Status"] == "exited", BACK_S, "the head ends")
    print(f"host off: the head ended after {took:.0f} s")
    lab.must("mend")
    assert_told_and_repaired(lab, person, MP, "spark1: exited, exit 76: .*gone, killed or rebooted", "spark2: exited")
