"""What a deployment is meant to be: equal intent gives an equal name, any difference is named; and what follows."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from plan_tools import CONTENT, IDS, one, rank_container, recipe, running, seen, spec_for, spec_id, stranger, wanted

from cluster.config.inventory import ResolvedHost
from cluster.deploy.spec import (
    Same,
    Start,
    built_image,
    canonical,
    decide,
    deployment_id,
    differing,
    fingerprint,
    named,
    refuse_beyond,
    spec_like,
    spec_of,
)
from cluster.errors import RefusedError
from cluster.spark.deployments import deployments
from cluster.spark.fact import Missing

SPEC = spec_for(wanted(), CONTENT)


def test_equal_intent_has_equal_names() -> None:
    again = spec_for(wanted(), CONTENT)
    assert deployment_id(again) == deployment_id(SPEC)
    assert differing(SPEC, again) == []
    assert differing(SPEC, json.loads(canonical(SPEC))) == [], "a label read back is the same"
    assert fingerprint(json.loads(canonical(SPEC))) == fingerprint(SPEC)


def test_the_name_is_one_that_docker_takes() -> None:
    for name in ("Gemma 4 31B!", "-x-", "..", "ünï", "a" * 40, "A_b.c-d"):
        got = deployment_id(SPEC | {"recipe": {**SPEC["recipe"], "name": name}})
        assert re.fullmatch(r"[a-z0-9][a-z0-9.-]*-[0-9a-f]{8}", got), got


FIRST, SECOND = wanted().hosts
MOUNT: dict[str, Any] = {"mounted": {"/opt/x.py": b"print(1)"}}
CHANGES: list[tuple[dict[str, Any], list[str]]] = [
    ({"recipe": recipe(vllm={"max-model-len": 8192})}, ["recipe.vllm.max-model-len: 4096 → 8192"]),
    ({"recipe": recipe(vllm={})}, ["recipe.vllm.max-model-len: 4096 → (none)"]),
    ({"env": {"SEED": "2"}}, ["env.SEED: (none) → 2"]),
    ({"env": {"LONG": "x" * 100}}, [f"env.LONG: (none) → {'x' * 12}…"]),
    ({"secrets": {"HF_TOKEN": "hf_planted"}}, ['secrets: [] → ["HF_TOKEN"]']),
    ({"words": ("--max-num-seqs", "8")}, ['words: [] → ["--max-num-seqs", "8"]']),
    ({"hosts": (SECOND, FIRST)}, ['hosts: ["spark1", "spark2"] → ["spark2", "spark1"]']),
    ({"hosts": (replace(FIRST, env={"A": "1"}), SECOND)}, ['host_env.spark1: (none) → {"A": "1"}']),
    ({"bind": "127.0.0.1"}, ["bind: 0.0.0.0 → 127.0.0.1"]),
    ({"backend": "mp"}, ["backend: ray → mp"]),
    ({"tp": 1, "pp": 2}, ["pp: 1 → 2", "tp: 2 → 1"]),
    ({"recipe": recipe(image="x:2")}, ["recipe.image: example.org/vllm:1 → x:2"]),
    ({"recipe": recipe(revision="v2")}, ["recipe.revision: main → v2"]),
    ({"recipe": recipe(before_serve=[["true"]])}, ['recipe.before_serve: [] → [["true"]]']),
    ({"recipe": recipe(shm_gib=4)}, ["recipe.shm_gib: 16.0 → 4.0"]),
]


@pytest.mark.parametrize(("change", "rows"), CHANGES)
def test_a_difference_is_named(change: dict[str, Any], rows: list[str]) -> None:
    other = spec_for(replace(wanted(), **change), CONTENT)
    names = {id: name for name, id in IDS.items()}
    assert differing(named(SPEC, names), named(other, names)) == rows
    assert deployment_id(other) != deployment_id(SPEC)


def test_content_is_named_by_its_digest() -> None:
    other = spec_for(replace(wanted(), **MOUNT), "cd" * 32)
    assert differing(SPEC, other)[0] == "image_content: abababababab… → cdcdcdcdcdcd…"
    assert re.fullmatch(r"mounts./opt/x.py: \(none\) → [0-9a-f]{12}…", differing(SPEC, other)[1])
    changed = spec_for(replace(wanted(), mounted={"/opt/x.py": b"print(2)"}), "cd" * 32)
    assert len(differing(other, changed)) == 1


def test_what_an_image_is_built_from() -> None:
    of = replace(wanted(), dockerfile=b"FROM $IMAGE")
    assert re.fullmatch(r"dockerfile: \(none\) → [0-9a-f]{12}…", *differing(SPEC, spec_for(of, CONTENT)))
    tag = built_image(of, CONTENT)
    assert re.fullmatch(r"cluster-built/toy:[0-9a-f]{12}", tag)
    assert built_image(of, "cd" * 32) != tag, "another base"
    assert built_image(replace(of, dockerfile=b"FROM $IMAGE "), CONTENT) != tag


def test_without_dockers_profiles_is_another_deployment() -> None:
    assert differing(SPEC, spec_for(wanted(of=recipe(unconfined=True)), CONTENT)) == ["unconfined: (none) → yes"]


def test_a_file_of_the_model_is_named_by_its_path_or_content() -> None:
    of = wanted(of=recipe(mounts=[{"model_file": "fix.py", "target": "/opt/x.py"}]))
    assert differing(SPEC, spec_for(of, CONTENT)) == ["mounts./opt/x.py: (none) → model: fix.py"]
    there = spec_for(of, CONTENT, {"fix.py": "ab" * 32, "other.py": "ef" * 32})
    assert there["mounts"] == {"/opt/x.py": "ab" * 32}
    assert fingerprint(spec_for(of, CONTENT, {"fix.py": "cd" * 32})) != fingerprint(there)
    assert spec_like(of, there, of.names) == there, "without asking a host"
    assert spec_like(wanted(), there, of.names) != there
    assert spec_like(of, there, ("spark1", "spark3")) != there


def test_names_of_hosts_are_the_inventorys() -> None:
    """Renamed, or named by another inventory: the same hosts, the same deployment."""
    first, second = (replace(host, env={"A": host.address}) for host in wanted().hosts)
    here = replace(wanted(), hosts=(first, second))
    there = replace(here, hosts=(replace(first, name="left"), replace(second, name="eve@right")))
    ids = {"left": IDS["spark1"], "eve@right": IDS["spark2"]}
    assert differing(spec_for(here), spec_of(there, ids, CONTENT)) == []
    assert set(spec_for(here)["host_env"]) == set(ids.values())


DESCRIBED = {
    "summary": "x",
    "needs": {"vllm": ">=1"},
    "ready_timeout_s": 9,
    "bench": {"runs": 9},
    "problems": [{"what": "p"}],
    "memory": {"per_host_gib": {2: 1}},
    "weights_gib": 9,
    "transport": "socket",
    "backend": "mp",
    "mounts": [{"source": "/elsewhere", "target": "/t"}],
}
ELSEWHERE: dict[str, Any] = {"address": "10.0.0.9", "user": "eve", "fabric": ("eth9",), "data_dir": "/x"}


@pytest.mark.parametrize(
    "change",
    [
        {"hosts": tuple(replace(host, **ELSEWHERE) for host in (FIRST, SECOND))},
        *({"recipe": recipe(**{key: value})} for key, value in DESCRIBED.items()),
        {"allow_socket": True, "force": frozenset({"ping"})},
    ],
)
def test_what_is_no_intent_is_no_difference(change: dict[str, Any]) -> None:
    """Addresses, where files lie, what only describes, what only lets checks pass."""
    assert differing(SPEC, spec_for(replace(wanted(), **change), CONTENT)) == []


def test_tokens_are_not_in_it() -> None:
    of = wanted(secrets={"HF_TOKEN": "hf_planted"})
    assert "hf_planted" not in canonical(spec_for(of, CONTENT)) + repr(of)
    other = replace(of, secrets={"HF_TOKEN": "another"})
    assert fingerprint(spec_for(of, CONTENT)) == fingerprint(spec_for(other, CONTENT))


def test_host_names_of_any_kind_survive_the_label() -> None:
    of = replace(wanted(), hosts=(ResolvedHost("spärk-1", "a"), ResolvedHost("box 2", "b")))
    assert json.loads(canonical(spec_for(of, CONTENT)))["hosts"] == ["spärk-1", "box 2"]


PAIR = wanted()
WANTED = spec_for(PAIR)
OTHER = replace(PAIR, env={"SEED": "2"})


def test_nothing_is_there_or_the_same_runs() -> None:
    assert decide(WANTED, ()) == Start(("no deployment runs on these hosts",))
    found = deployments(running(PAIR))
    assert decide(WANTED, found) == Same(one(found))


def test_hosts_in_another_order_are_named() -> None:
    """As this command calls them, whatever they were called at the start."""
    hosts = [replace(one, host=name) for one, name in zip(running(PAIR), ("left", "right"), strict=True)]
    turned = spec_for(replace(PAIR, hosts=tuple(reversed(PAIR.hosts))))
    [why] = decide(turned, deployments(hosts)).why
    assert why == f'replace {spec_id(PAIR)}: hosts: ["left", "right"] → ["right", "left"]'


def test_another_runs() -> None:
    found = deployments(running(OTHER))
    decision = decide(WANTED, found)
    assert decision == Start((f"replace {spec_id(OTHER)}: env.SEED: 2 → (none)",), outgoing=found)


@pytest.mark.parametrize("state", ["exited", "created", "dead", "paused", ""])
def test_one_rank_does_not_run_or_is_not_there(state: str) -> None:
    second = (rank_container(2, PAIR, state=state),) if state else ()
    found = deployments([seen(1, containers=(rank_container(1, PAIR),)), seen(2, containers=second)])
    assert not one(found).running
    decision = decide(WANTED, found)
    assert isinstance(decision, Start)
    assert (decision.outgoing, decision.remains) == ((), found)
    assert spec_id(PAIR) in decision.why[0]


def test_the_same_runs_beside_what_is_left_of_another() -> None:
    dead = rank_container(2, OTHER, state="exited", id="d" * 64)
    hosts = list(running(PAIR))
    hosts[1] = seen(2, containers=(rank_container(2, PAIR), dead))
    decision = decide(WANTED, deployments(hosts))
    assert isinstance(decision, Same)
    assert [remains.id for remains in decision.remains] == [spec_id(OTHER)]


def test_two_deployments_of_one_host_each() -> None:
    first, second = wanted(1, "none"), wanted(1, "none", env={"SEED": "2"})
    on_second = replace(second, hosts=(replace(second.hosts[0], name="spark2"),))
    hosts = [seen(1, containers=(rank_container(1, first),)), seen(2, containers=(rank_container(1, on_second),))]
    decision = decide(WANTED, deployments(hosts))
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
