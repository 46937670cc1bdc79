"""Whose container is whose: hosts are known by their ids, whatever an inventory calls them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plan_tools import IDS, identity, one, rank_container, running, seen, spec_for, wanted

from cluster.config.inventory import ResolvedHost
from cluster.deploy.spec import Same, Start, decide, refuse_beyond
from cluster.spark.deployments import Container, Deployment, deployments
from cluster.spark.fabric import recorded
from cluster.spark.look import Seen

PAIR = wanted()
OLDER = json.loads((Path(__file__).parents[1] / "samples/labels_0_1.json").read_text())
"""Name and labels of real containers, as version 0.1 before ids made them: by command, then host."""


def renamed(hosts: Sequence[Seen], *names: str) -> list[Seen]:
    """The same hosts in an inventory that calls them otherwise."""
    return [replace(host, host=name) for host, name in zip(hosts, names, strict=True)]


@pytest.mark.parametrize("names", [("spark1", "spark2"), ("left", "right"), ("spark2", "spark1"), ("a@10.0.0.1", "b")])
def test_the_same_hosts_under_other_names(names: tuple[str, str]) -> None:
    deployment = one(deployments(renamed(running(PAIR), *names)))
    assert deployment.running
    assert (deployment.hosts, deployment.head, tuple(deployment.ranks)) == (names, names[0], names)
    assert deployment.spec == spec_for(PAIR)
    assert decide(spec_for(PAIR), (deployment,)) == Same(deployment)
    refuse_beyond(names, (deployment,))


ONLY_FIRST = rank_container(1, PAIR)


def without_second(*others: Seen, named: Sequence[ResolvedHost] = ()) -> Deployment:
    """The pair, of whose second rank no container is found."""
    return one(deployments([seen(1, containers=(ONLY_FIRST,)), *others], named))


def test_a_rank_that_is_gone_is_missed_on_its_host() -> None:
    hosts = [replace(seen(3), host="spark2"), replace(seen(2), host="other")]
    assert without_second(*hosts).hosts == ("spark1", "other"), "the id decides, not the name"


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ([], "spark2 (192.168.1.42)"),
        ([ResolvedHost("spark2", "10.9.9.9")], "spark2"),
        ([ResolvedHost("right", "192.168.1.42")], "right"),
        ([ResolvedHost("right", "10.9.9.9")], "spark2 (192.168.1.42)"),
        ([ResolvedHost("spark1", "192.168.1.42")], "spark2 (192.168.1.42)"),
    ],
)
def test_a_host_that_did_not_answer(named: list[ResolvedHost], expected: str) -> None:
    """Its id is not known: it is the one that was called so or was there; else nobody's here."""
    deployment = without_second(named=named)
    assert deployment.hosts == ("spark1", expected)
    assert not deployment.running


def test_a_name_that_another_machine_has_here_is_not_confused_with_it() -> None:
    """spark2 of the one who started it is not spark2 of this inventory."""
    other = replace(seen(3), host="spark2")
    assert without_second(other).hosts == ("spark1", "spark2 (192.168.1.42)")


def test_the_fabric_is_known_by_the_names_of_this_command() -> None:
    container = rank_container(1, PAIR)
    ends = {
        IDS[name]: {"name": name, "address": f"10.0.0.{rank}", "netdev": "eth1", "hcas": [], "mtu": 9000}
        for rank, name in enumerate(PAIR.names)
    }
    labels = {**container.labels, "cluster.seen": json.dumps({"hosts": ends, "paired": True})}
    hosts = [seen(1, containers=(replace(container, labels=labels),)), seen(2, containers=(rank_container(2, PAIR),))]
    deployment = one(deployments(renamed(hosts, "left", "right")))
    fabric = recorded(deployment.seen)
    assert {name: end.address for name, end in fabric.hosts.items()} == {"left": "10.0.0.0", "right": "10.0.0.1"}


def test_a_cloned_disk_holds_a_copy_of_the_head() -> None:
    """Its host has been given an id of its own since; the rank is where the label says."""
    clone, *pair = seen(3, containers=(replace(ONLY_FIRST, state="exited"),)), *running(PAIR)
    deployment = one(deployments([clone, *pair]))
    assert deployment.running
    assert deployment.hosts == ("spark1", "spark2")


def test_two_names_of_one_machine_are_one_rank() -> None:
    twice = [seen(1, containers=(ONLY_FIRST,)), replace(seen(1, containers=(ONLY_FIRST,)), host="again")]
    deployment = one(deployments(twice))
    assert (deployment.hosts, tuple(deployment.ranks)) == (("spark1", "spark2 (192.168.1.42)"), ("spark1",))


def test_hosts_that_do_not_say_who_they_are_keep_what_is_recorded() -> None:
    silent = [replace(host, identity=identity(1, machine_id="")) for host in running(PAIR)]
    deployment = one(deployments(silent))
    assert deployment.running
    assert deployment.spec == spec_for(PAIR)


@pytest.mark.parametrize("label", ["cluster.rank", "cluster.hosts", "cluster.seen", "cluster.spec"])
@pytest.mark.parametrize("text", [None, "", "[]", "x", "{}", '{"hosts": []}', '{"hosts": {"a": 1}}'])
def test_labels_of_another_kind_are_no_deployment(label: str, text: str | None) -> None:
    labels = {key: value for key, value in ONLY_FIRST.labels.items() if key != label}
    container = replace(ONLY_FIRST, labels=labels if text is None else labels | {label: text})
    found = deployments([seen(1, containers=(container,))])
    assert len(found) == (label == "cluster.hosts" and text is not None), "any text is a list of hosts"


# what an older version started


def older(words: str, rank_program: str | None = None, **changes: str) -> dict[str, Container]:
    """Its containers by host; `rank_program` and `changes` in place of what its spec holds."""
    found = {}
    for number, (host, kept) in enumerate(OLDER[words].items(), 1):
        spec = json.loads(kept["labels"]["cluster.spec"]) | changes
        spec |= {"rank_program": rank_program} if rank_program else {}
        labels = kept["labels"] | {"cluster.spec": json.dumps(spec)}
        found[host] = rank_container(number, PAIR, name=kept["name"], labels=labels)
    return found


def on_hosts(containers: dict[str, Container], *names: str) -> list[Seen]:
    return renamed([seen(rank, containers=(one,)) for rank, one in enumerate(containers.values(), 1)], *names)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("cluster up toy --tp 2", ("spark1", "spark2")),
        ("cluster up toy --tp 2", ("left", "right")),
        ("cluster up toy --tp 2", ("spark2", "spark1")),
        ("cluster up toy --solo -n spark1", ("spark1",)),
        ("cluster up toy --solo -n spark1", ("left",)),
    ],
)
def test_older_labels_are_complete_when_all_ranks_are_found(words: str, names: tuple[str, ...]) -> None:
    deployment = one(deployments(on_hosts(older(words), *names)))
    ids = [IDS[f"spark{number}"] for number in range(1, len(names) + 1)]
    assert deployment.running
    assert (deployment.hosts, deployment.spec["hosts"]) == (names, ids)
    assert set(recorded(deployment.seen).hosts) == set(names)
    assert deployment.spec["host_env"] == ({ids[1]: {"DEBUG": "1"}} if len(names) > 1 else {})
    refuse_beyond(names, (deployment,))


def wanted_now(**changes: Any) -> dict[str, Any]:
    """The same of this version: equal inputs, ids in place of names."""
    spec = json.loads(OLDER["cluster up toy --tp 2"]["spark1"]["labels"]["cluster.spec"])
    ids = [IDS["spark1"], IDS["spark2"]]
    return spec | {"hosts": ids, "host_env": {ids[1]: {"DEBUG": "1"}}} | changes


def test_older_labels_are_compared_key_by_key() -> None:
    """Where nothing but the form differs, nothing differs; else the key is named. The id is the older one's."""
    [found] = deployments(on_hosts(older("cluster up toy --tp 2"), "left", "right"))
    assert decide(wanted_now(), (found,)) == Same(found)
    changed = decide(wanted_now(bind="::1", rank_program="ab"), (found,))
    assert isinstance(changed, Start)
    assert changed.outgoing == (found,)
    assert [why.split(": ")[1] for why in changed.why] == ["bind", "rank_program"]


def test_older_labels_of_which_a_rank_is_gone() -> None:
    """Without its container only the recorded name says which host it was on."""
    first = older("cluster up toy --tp 2")["spark1"]
    here = seen(1, containers=(first,))
    assert one(deployments([here, seen(2)])).hosts == ("spark1", "spark2")
    assert one(deployments([here], [ResolvedHost("spark2", "10.9.9.9")])).hosts == ("spark1", "spark2")
    assert one(deployments([here, replace(seen(2), host="right")])).hosts == ("spark1", "spark2 (192.168.100.12)")
    swapped = [replace(here, host="spark2"), replace(seen(2), host="spark1")]
    assert one(deployments(swapped)).hosts == ("spark2", "spark2 (192.168.100.12)")
    dead = decide(wanted_now(), deployments([here, seen(2)]))
    assert isinstance(dead, Start)
    assert first.labels["cluster.deployment"] in dead.why[0]
