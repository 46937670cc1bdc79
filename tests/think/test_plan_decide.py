"""Wanted × found → leave it, or start it and say what goes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan_tools import one, rank_container, running, seen, spec_for, spec_id, stranger, wanted

from cluster.deploy.spec import Same, Start, decide, refuse_beyond
from cluster.errors import RefusedError
from cluster.spark.deployments import deployments
from cluster.spark.fact import Missing

PAIR = wanted()
OTHER = replace(PAIR, env={"SEED": "2"})
SPEC = spec_for(PAIR)


def test_nothing_is_there_or_the_same_runs() -> None:
    assert decide(SPEC, ()) == Start(("no deployment runs on these hosts",))
    found = deployments(running(PAIR))
    assert decide(SPEC, found) == Same(one(found))


def test_hosts_in_another_order_are_named() -> None:
    """As this command calls them, whatever they were called at the start."""
    hosts = [replace(one, host=name) for one, name in zip(running(PAIR), ("left", "right"), strict=True)]
    turned = spec_for(replace(PAIR, hosts=tuple(reversed(PAIR.hosts))))
    [why] = decide(turned, deployments(hosts)).why
    assert why == f'replace {spec_id(PAIR)}: hosts: ["left", "right"] → ["right", "left"]'


def test_another_runs() -> None:
    found = deployments(running(OTHER))
    decision = decide(SPEC, found)
    assert decision == Start((f"replace {spec_id(OTHER)}: env.SEED: 2 → (none)",), outgoing=found)


@pytest.mark.parametrize("state", ["exited", "created", "dead", "paused", ""])
def test_one_rank_does_not_run_or_is_not_there(state: str) -> None:
    second = (rank_container(2, PAIR, state=state),) if state else ()
    found = deployments([seen(1, containers=(rank_container(1, PAIR),)), seen(2, containers=second)])
    assert not one(found).running
    decision = decide(SPEC, found)
    assert isinstance(decision, Start)
    assert (decision.outgoing, decision.remains) == ((), found)
    assert spec_id(PAIR) in decision.why[0]


def test_the_same_runs_beside_what_is_left_of_another() -> None:
    dead = rank_container(2, OTHER, state="exited", id="d" * 64)
    hosts = list(running(PAIR))
    hosts[1] = seen(2, containers=(rank_container(2, PAIR), dead))
    decision = decide(SPEC, deployments(hosts))
    assert isinstance(decision, Same)
    assert [remains.id for remains in decision.remains] == [spec_id(OTHER)]


def test_two_deployments_of_one_host_each() -> None:
    first, second = wanted(1, "none"), wanted(1, "none", env={"SEED": "2"})
    on_second = replace(second, hosts=(replace(second.hosts[0], name="spark2"),))
    hosts = [seen(1, containers=(rank_container(1, first),)), seen(2, containers=(rank_container(1, on_second),))]
    decision = decide(SPEC, deployments(hosts))
    assert isinstance(decision, Start)
    assert {deployment.hosts for deployment in decision.outgoing} == {("spark1",), ("spark2",)}
    assert len(decision.why) == 2


def test_what_is_ours_and_what_is_not() -> None:
    broken = rank_container(1, PAIR, labels={"cluster.deployment": "x", "cluster.spec": "{", "cluster.hosts": "spark1"})
    other = stranger("webui")
    assert deployments([seen(1, containers=(broken, other))]) == ()
    assert deployments([seen(1, containers=Missing("no"))]) == ()


def test_hosts_that_were_not_named() -> None:
    found = deployments(running(PAIR))
    refuse_beyond(("spark1", "spark2", "spark3"), found)
    only_second = deployments([seen(2, containers=(rank_container(2, PAIR),))])  # nobody here knows spark1
    for ranks, remedy in ((found, "cluster down -n spark1,spark2 "), (only_second, "cluster down -n spark2 ")):
        with pytest.raises(RefusedError) as caught:
            refuse_beyond(("spark2",), ranks)
        assert caught.value.code == "ranks-elsewhere"
        assert remedy in caught.value.remedy


def test_ports_of_a_rank() -> None:
    [deployment] = deployments(running(PAIR))
    assert 8000 in {use.first for use in deployment.ports_on("spark1")}
    assert 8000 not in {use.first for use in deployment.ports_on("spark2")}
    assert deployment.ports_on("spark3") == ()
    [stopped] = deployments([seen(1, containers=(rank_container(1, PAIR, state="exited"),))])
    assert stopped.ports_on("spark1") == ()
