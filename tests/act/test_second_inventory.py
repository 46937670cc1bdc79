"""The same hosts under other names: another laptop, a renamed host, `-n user@address`, an older version's labels."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from machine import Desk
from measured_desk import RECIPE as MEASURED
from measured_desk import measurable
from typed import INVENTORY, RECIPE, UP, Ran, Typed

from cluster.argv.far import source
from cluster.deploy.spec import PROGRAMS, digest

SECOND = """\
hosts:
  left: {address: 192.168.1.41, user: nvidia}
  right: {address: 192.168.1.42, user: nvidia}
default_recipe: toy
"""
ONE = SECOND.replace("  right: {address: 192.168.1.42, user: nvidia}\n", "")
SWAPPED = SECOND.replace("left", "spark2").replace("right", "spark1")
BY_ADDRESS = "nvidia@192.168.1.41,nvidia@192.168.1.42"
WAYS = {
    "second inventory": (SECOND, (), ("left", "right")),
    "one host renamed": (INVENTORY.replace("spark2", "right"), (), ("spark1", "right")),
    "names exchanged": (SWAPPED, (), ("spark2", "spark1")),
    "user@address": (None, ("-n", BY_ADDRESS), tuple(BY_ADDRESS.split(","))),
}
Elsewhere = Callable[..., Ran]


@pytest.fixture
def pair(cluster: Typed) -> Typed:
    """A pair that was started with the usual inventory."""
    cluster.must(*UP)
    return cluster


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, pair: Typed) -> tuple[Elsewhere, tuple[str, ...]]:
    """`elsewhere("status")` types a command as somebody who calls the hosts otherwise, and the names."""
    text, nodes, names = WAYS[request.param]
    if text is not None:
        Path("second.yaml").write_text(text)
    inventory = ("-i", "second.yaml") if text is not None else ()

    def elsewhere(command: str, *words: str) -> Ran:
        return pair(command, *inventory, *nodes, *words)

    return elsewhere, names


def containers(desk: Desk) -> list[tuple[str, str]]:
    return [(machine.name, one.name) for machine in desk for one in machine.docker.containers.values()]


def test_every_command_finds_the_same_deployment(
    way: tuple[Elsewhere, tuple[str, ...]], desk: Desk, place: Path
) -> None:
    elsewhere, names = way

    def status() -> dict[str, Any]:
        [got] = json.loads(elsewhere("status", "--json").out)["deployments"]
        assert (got["hosts"], list(got["ranks"])) == (list(names), list(names))
        return dict(got)

    before = desk.state()
    assert (status()["state"], status()["ray_nodes"]) == ("ready", 2)
    ran = elsewhere(*UP, "--json")
    got = json.loads(ran.out)
    assert (ran.code, got["changed"], got["hosts"]) == (0, False, list(names))
    assert "drift" not in ran.err
    assert "warning" not in ran.err
    assert {line["host"] for line in json.loads(elsewhere("logs", "--json").out)["lines"]} == set(names)
    assert elsewhere("logs", "--explain").code == 0
    examined = elsewhere("doctor", "toy", "--json")
    assert (examined.code, json.loads(examined.out)["findings"]) == (0, [])
    if not names[0].startswith("nvidia@"):  # there -n says the order itself
        turned = elsewhere(*UP, "-n", ",".join(reversed(names)), "--dry-run")
        assert f"hosts: {json.dumps(list(names))} → {json.dumps(list(reversed(names)))}" in turned.out
    assert desk.state() == before
    # undo starts the ranks again where they are
    desk.bad_flag, old = "--max-num-seqs", containers(desk)
    ran = elsewhere(*UP, "--set", "vllm.max-num-seqs=8")
    assert ran.code == 1
    assert re.search(r"rolled back: all that this run started; toy-\w{8} was started again and serves", ran.err)
    assert containers(desk) == old
    assert status()["state"] == "ready"
    # a rank that died, and one whose container is gone, are named as they are called here, and replaced
    desk.kill_rank("spark2")
    desk.pass_time(5)
    assert status()["ranks"][names[1]].startswith("exited, exit 137")
    assert elsewhere(*UP).code == 0
    desk["spark2"].docker.containers.clear()
    assert status()["ranks"][names[1]] == "no container"
    assert elsewhere(*UP).code == 0
    # swap finds its hosts, down takes all of it down
    (place / "recipes/other.yaml").write_text(RECIPE + "shm_gib: 8\n")
    ran = elsewhere("swap", "other", "--json")
    got = json.loads(ran.out)
    assert (ran.code, got["changed"], got["hosts"]) == (0, True, list(names))
    assert [row[0] for row in containers(desk)] == ["spark1", "spark2"], "what was swapped out is gone from both"
    ran = elsewhere("down", "--json")
    assert (ran.code, list(json.loads(ran.out)["hosts"])) == (0, list(names))
    assert (containers(desk), [machine.kept() for machine in desk]) == ([], [[], []])


def test_bench_and_probe(cluster: Typed, desk: Desk, place: Path) -> None:
    """Asked in the head's container; the result has the names of the one who measured, and no machine-id."""
    (place / "recipes/toy.yaml").write_text(MEASURED.format(model="plain"))
    Path("second.yaml").write_text(SECOND)
    with measurable(desk, (60, 150)):
        cluster.must(*UP, "--no-probe")
        ran = cluster.must("bench", "-i", "second.yaml", "--results", "kept", "--json")
        manifest = json.loads(ran.out)["manifest"]
        assert [(host["name"], host["role"]) for host in manifest["hosts"]] == [("left", "head"), ("right", "worker")]
        assert list(manifest["argv"]) == ["left", "right"]
        assert [bool(host["hcas"]) for host in manifest["hosts"]] == [True, True]
        assert f"{1:032x}" not in ran.out
        asked = cluster("probe", "-i", "second.yaml", "--only", "text", "--json")
        assert json.loads(asked.out)["cases"], asked.all


# not all of its hosts are known here


@pytest.fixture
def half(pair: Typed) -> Elsewhere:
    """Types commands with an inventory that knows the head alone, as `left`."""
    Path("second.yaml").write_text(ONE)

    def elsewhere(command: str, *words: str) -> Ran:
        return pair(command, "-i", "second.yaml", *words)

    return elsewhere


def test_a_host_that_this_inventory_lacks_is_named_as_recorded(half: Elsewhere, desk: Desk) -> None:
    before = desk.state()
    ran = half("up", "toy", "--solo")
    assert ran.code == 4
    [error] = ran.errors()
    assert "left holds a rank of toy-" in error[0]
    assert "whose other ranks are on spark2 (192.168.1.42)" in error[0]
    assert "cluster down -n left " in error[-1]
    [got] = json.loads(half("status", "--json").out)["deployments"]
    assert got["hosts"] == ["left", "spark2 (192.168.1.42)"]
    assert got["ranks"]["spark2 (192.168.1.42)"].startswith("unknown: not among")
    assert desk.state() == before
    ended = half("down")
    assert ended.code == 0
    assert "also has ranks on spark2 (192.168.1.42)" in ended.err
    assert [row[0] for row in containers(desk)] == ["spark2"]


def test_a_host_that_does_not_answer_may_be_the_one(pair: Typed, desk: Desk) -> None:
    """Its name is another one here, so its address says that it is; `down` is not done while it is off."""
    Path("second.yaml").write_text(SECOND)
    desk.hosts["spark2"].drop()
    [got] = json.loads(pair("status", "-i", "second.yaml", "--json").out)["deployments"]
    assert got["ranks"]["right"] == "unknown: the host did not answer"
    Path("second.yaml").write_text(SECOND.replace("192.168.1.42", "spark-two.local"))
    desk.recover()
    desk.hosts["right"] = desk.hosts["spark2"]
    desk.hosts["right"].drop()
    assert pair("down", "-i", "second.yaml").code == 3, "it may be any that does not answer"


# machines that are not told apart

LOOKUPS = (
    *("up toy --tp 2", "up toy --tp 2 --dry-run", "down", "down --dry-run", "logs", "logs --explain", "bench"),
    *("probe --quick", "swap toy", "pull toy --yes", "scaling toy --yes", "status --watch"),
    "sweep toy --vary vllm.max-num-seqs=4,8 --yes",
)


NOT_TOLD = {"cloned": f"{1:032x}", "none": "", "not set up": "uninitialized"}
CONFUSED = [*((words, "cloned") for words in LOOKUPS), *((LOOKUPS[0], how) for how in NOT_TOLD if how != "cloned")]


@pytest.mark.parametrize(("words", "how"), CONFUSED)
def test_machines_that_are_not_told_apart_are_refused(words: str, how: str, pair: Typed, desk: Desk) -> None:
    """Before anything is looked up or locked; status shows it and goes on, doctor has it among its findings."""
    desk["spark2"].machine_id = NOT_TOLD[how]
    for host in desk.hosts.values():
        host.started.clear()
    before = desk.state()
    assert pair.ends(4, *words.split()).error["where"] == "spark2, check `machine-id`"
    assert desk.state() == before
    assert [host.started for host in desk.hosts.values()] == [[], []], "no lock was taken"


@pytest.mark.parametrize("machine_id", [f"{1:032x}", ""], ids=["cloned", "none"])
def test_status_and_doctor_show_machines_that_are_not_told_apart(machine_id: str, pair: Typed, desk: Desk) -> None:
    desk["spark2"].machine_id = machine_id
    ran = pair("status", "--json")
    got = json.loads(ran.out)
    assert (ran.code, [(one["check"], one["host"]) for one in got["findings"]]) == (4, [("machine-id", "spark2")])
    assert [one["state"] for one in got["deployments"]] == ["ready"]
    assert set(got["hosts"]) == {"spark1", "spark2"}
    examined = pair.ends(4, "doctor", "toy", "--json")
    assert ("fault", "machine-id") in [(one["level"], one["check"]) for one in json.loads(examined.out)["findings"]]


# what an older version started


def older(desk: Desk, words: str, rank_program: str) -> None:
    """Give what runs the names and labels that version 0.1 gave it, and the rank program of today or another one."""
    kept = json.loads((Path(__file__).parents[1] / "samples/labels_0_1.json").read_text())[words]
    for host, was in kept.items():
        machine = desk[host]
        [container] = machine.docker.containers.values()
        now, old = container.labels["cluster.deployment"], was["labels"]["cluster.deployment"]
        spec = json.loads(was["labels"]["cluster.spec"]) | {"rank_program": rank_program}
        labels = was["labels"] | {"cluster.spec": json.dumps(spec)}
        container.name = was["name"]
        container.options["--label"] = [f"{name}={value}" for name, value in labels.items()]
        container.options["--mount"] = [word.replace(now, old) for word in container.options["--mount"]]
        machine.files = {path.replace(now, old): file for path, file in machine.files.items()}
        machine.folders = {path.replace(now, old) for path in machine.folders}


PROGRAM = digest(b"".join(map(source, PROGRAMS)))
WITH_ENV = INVENTORY.replace("192.168.1.42, user: nvidia}", "192.168.1.42, user: nvidia, env: {DEBUG: '1'}}")
STARTED = {
    "cluster up toy --tp 2": (WITH_ENV, WITH_ENV.replace("spark1", "left").replace("spark2", "right")),
    "cluster up toy --solo -n spark1": (INVENTORY, SECOND),
}


@pytest.fixture(params=STARTED)
def left(request: pytest.FixtureRequest, cluster: Typed) -> Callable[[str], tuple[str, ...]]:
    """`left(program)` starts the fixture's deployment under another rank program; the words of `up`."""
    own, other = STARTED[request.param]
    words = tuple(request.param.removeprefix("cluster ").split())

    def start(program: str) -> tuple[str, ...]:
        Path("inventory/default.yaml").write_text(own)
        cluster.must(*words)
        older(cluster.desk, request.param, program)
        Path("second.yaml").write_text(other)
        return words

    return start


BOTH = pytest.mark.parametrize("inventory", ["inventory/default.yaml", "second.yaml"])


@BOTH
def test_what_an_older_version_started_is_the_same(
    inventory: str, left: Callable[[str], tuple[str, ...]], cluster: Typed, desk: Desk
) -> None:
    """With equal inputs nothing but the form of its labels differs."""
    words = [word.replace("spark1", "left") if inventory == "second.yaml" else word for word in left(PROGRAM)]
    before = desk.state()
    got = json.loads(cluster("status", "-i", inventory, "--json").out)["deployments"]
    assert [one["state"] for one in got] == ["ready"]
    again = cluster(*words, "-i", inventory, "--json")
    assert (again.code, json.loads(again.out)["changed"]) == (0, False)
    assert desk.state() == before
    cluster.must("down", "-i", inventory)
    assert (containers(desk), [machine.kept() for machine in desk]) == ([], [[], []])


@BOTH
def test_what_an_older_version_started_with_another_rank_program_is_replaced(
    inventory: str, left: Callable[[str], tuple[str, ...]], cluster: Typed, desk: Desk
) -> None:
    """The key is named, no other one, and the memory that was recorded before it is kept."""
    words = [word.replace("spark1", "left") if inventory == "second.yaml" else word for word in left("ab" * 32)]
    before = {path: file for path, file in desk["spark1"].files.items() if path.endswith("before.json")}
    ran = cluster.must(*words, "-i", inventory)
    keys = re.findall(r"^replace toy-\w{8}: ([\w.]+):", ran.out, re.M)
    assert keys == ["rank_program"]
    assert all(one.running for one in desk.containers)
    after = [file for path, file in desk["spark1"].files.items() if path.endswith("before.json")]
    assert after == list(before.values())
    cluster.must("status", "-i", inventory)


def test_an_older_pair_that_was_swapped_out_and_failed_serves_again(cluster: Typed, desk: Desk, place: Path) -> None:
    Path("inventory/default.yaml").write_text(WITH_ENV)
    cluster.must(*UP)
    older(desk, "cluster up toy --tp 2", PROGRAM)
    desk.bad_flag = "--max-num-seqs"
    ran = cluster.ends(1, "swap", "toy", "--set", "vllm.max-num-seqs=8")
    assert "was started again and serves" in ran.err
    cluster.must("status")
    assert [name for machine in desk for name in machine.kept()] == ["toy-a5e820bb"] * 2
