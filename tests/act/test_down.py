"""`cluster down`: what is ours goes and only that, and it is proven that all is back."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from machine import DATA, IMAGE, Desk, Stranger
from typed import INVENTORY, Typed

UP = ("up", "toy", "--tp", "2")
GIB = 1 << 30


def test_it_removes_what_is_ours_and_proves_it(cluster: Typed, desk: Desk) -> None:
    before = desk.state()
    desk["spark2"].docker.answer(("run", "--detach", "--name", "webui", "--entrypoint", "sleep", IMAGE, "infinity"))
    assert cluster(*UP).code == 0
    ran = cluster("down")
    assert ran.code == 0
    assert "spark2: containers, ports and processes are released; 116.0 GiB available" in ran.out
    after = desk.state()
    for name in before:
        assert after[name].images == before[name].images
        assert after[name].models == before[name].models
        assert after[name].files == {}
    assert [(name, state) for name, state, _ in after["spark2"].containers.values()] == [("webui", "running")]
    assert cluster("down").out.strip() == "no deployment on spark1, spark2"


def test_what_a_dry_run_shows_is_what_is_done(cluster: Typed, desk: Desk) -> None:
    cluster(*UP)
    before = desk.state()
    shown = cluster("down", "--dry-run")
    assert (shown.code, desk.state()) == (0, before)
    sent = {name: len(line.asked) for name, line in desk.hosts.items()}
    cluster("down")
    for name, line in desk.hosts.items():
        done = [shlex.join(one.argv) for one in line.asked[sent[name] :] if one.changes]
        lines = re.findall(rf"^# {name}: .*\n(.*)$", shown.out, re.MULTILINE)
        assert done == lines


def test_it_waits_until_memory_is_back(cluster: Typed, desk: Desk) -> None:
    cluster(*UP)
    desk["spark2"].lingering_bytes = 30 * GIB
    began = desk.now
    desk.on_sleep.append(lambda: setattr(desk["spark2"], "lingering_bytes", 0) if desk.now > began + 20 else None)
    ran = cluster("down")
    assert ran.code == 0
    assert 20 < desk.now - began < 30
    assert "waiting: spark2: 30.0 GiB less memory than before up" in ran.err


def test_memory_within_two_gib_counts_as_back(cluster: Typed, desk: Desk) -> None:
    cluster(*UP)
    desk["spark2"].lingering_bytes = 2 * GIB - 1
    assert cluster("down").code == 0


def test_a_failed_proof_keeps_what_tells_the_memory_before(cluster: Typed, desk: Desk) -> None:
    """The next `down` proves against the same number, and the next `up` records it again."""
    cluster(*UP)
    desk["spark2"].lingering_bytes = 20 * GIB
    assert cluster("down").code == 4
    assert [name for name in desk["spark2"].files if name.endswith("before.json")]
    assert cluster("down").code == 4
    assert cluster(*UP).code == 0
    assert cluster("down").code == 4
    desk["spark2"].lingering_bytes = 0
    assert cluster("down").code == 0
    assert desk["spark2"].kept() == []


def test_every_host_is_said(cluster: Typed, desk: Desk) -> None:
    cluster(*UP)
    for machine in desk:
        machine.lingering_bytes = 20 * GIB
    ran = cluster("down")
    assert ran.code == 4
    assert [lines[1] for lines in ran.errors()] == ["where: spark1", "where: spark2"]


def test_two_deployments_on_two_hosts(cluster: Typed, desk: Desk) -> None:
    cluster("up", "toy", "--solo", "-n", "spark1")
    cluster("up", "toy", "--solo", "-n", "spark2", "-e", "SEED=2")
    [kept] = [name for name, hosts in desk.serving().items() if hosts == ["spark2"]]
    assert cluster("down", "-n", "spark1").code == 0
    assert list(desk.serving()) == [kept]
    assert cluster("down").code == 0
    assert desk.serving() == {}


def test_half_a_pair_leaves_nothing_that_lives_on(cluster: Typed, desk: Desk) -> None:
    cluster(*UP)
    ran = cluster("down", "-n", "spark1")
    assert ran.code == 0
    assert "also has ranks on spark2" in ran.err
    desk.pass_time(5)
    assert desk.lives() == []
    assert cluster("status").code == 4
    assert cluster("down").code == 0
    assert desk["spark2"].kept() == []


def test_one_host_unreachable(cluster: Typed, desk: Desk) -> None:
    cluster(*UP)
    desk.hosts["spark2"].drop()
    ran = cluster("down")
    assert ran.code == 3
    assert desk["spark1"].docker.containers == {}
    assert desk["spark1"].kept() == []
    desk.recover()
    assert cluster("down").code == 0
    assert desk["spark2"].docker.containers == {}


def test_a_host_that_has_no_part_in_it_may_be_off(cluster: Typed) -> None:
    """A third Spark of the inventory is off: what ran on the other two is down, and that is all that was asked."""
    cluster.desk = Desk("spark1", "spark2", "spark3")
    text = INVENTORY.replace("default_recipe", "  spark3: {address: 192.168.1.43}\ndefault_recipe")
    Path("inventory/default.yaml").write_text(text)
    assert cluster("up", "toy", "-n", "spark1,spark2").code == 0
    cluster.desk.hosts["spark3"].drop()
    ran = cluster("down")
    assert ran.code == 0
    assert "spark3 was left out: spark3 did not answer within 10 s" in ran.err
    assert cluster("down").code == 3, "nothing found, and one host not seen"
    assert cluster("down", "-n", "spark1,spark3").code == 3


def test_one_document_also_when_a_host_is_unreachable(cluster: Typed, desk: Desk) -> None:
    assert cluster(*UP).code == 0
    desk.hosts["spark2"].drop()
    told = json.loads(cluster("logs", "--json").out)
    assert told["lines"]
    assert told["errors"][0]["where"] == "spark2"
    ran = cluster("down", "--json")
    told = json.loads(ran.out)
    assert ran.code == 3
    assert list(told["hosts"]) == ["spark1"]
    assert told["errors"][0]["where"] == "spark2"
    desk.recover()
    told = json.loads(cluster("down", "--json").out)
    assert told["errors"] == []


@pytest.mark.parametrize("spec", [None, "not JSON", "[]", '{"recipe": {}}'])
def test_a_container_whose_labels_cannot_be_read_goes_too(spec: str | None, cluster: Typed, desk: Desk) -> None:
    """What another version made: `up` and `swap` say so, `status` bears it, `down` removes it."""
    labels = {"cluster.deployment": "toy-1", "cluster.hosts": "spark1", "cluster.seen": '{"hosts": {}}'}
    if spec is not None:
        labels["cluster.spec"] = spec
    words = [word for name, value in labels.items() for word in ("--label", f"{name}={value}")]
    words += ["--entrypoint", "sleep", IMAGE, "infinity"]
    desk["spark1"].docker.answer(("run", "--detach", "--name", "cluster-toy-1-r0", *words))
    assert cluster("status").code in (0, 4)
    ran = cluster(*UP)
    assert ran.code == 4
    assert "another version of cluster made it" in ran.err
    for words in (("swap", "toy"), ("swap", "toy", "-n", "spark1"), ("bench",)):
        ran = cluster(*words)
        assert ran.code == 4
        assert "nothing of ours runs" not in ran.err
        assert "hint: cluster down -n spark1" in ran.err
    assert cluster("down").code == 0
    assert desk["spark1"].docker.containers == {}
    assert cluster(*UP).code == 0


def test_docker_refused_on_one_host_does_not_hold_up_the_other(cluster: Typed, desk: Desk) -> None:
    cluster(*UP)
    desk["spark1"].docker.trouble = (1, "permission denied while trying to connect to the Docker daemon socket")
    began = desk.now
    ran = cluster("down")
    assert ran.code == 4
    assert desk.now == began, "nothing to wait for"
    assert desk["spark2"].docker.containers == {}
    assert len(desk["spark1"].kept()) == 1, "what tells the memory before stays where nothing was removed"


def test_folders_that_a_killed_up_left(cluster: Typed, desk: Desk) -> None:
    for name in ("toy-0123abcd", "hub-token"):
        desk["spark1"].make_folder(f"{DATA}/deployments/{name}")
        desk["spark1"].files[f"{DATA}/deployments/{name}/token"] = (b"hf_x", 0o600)
    assert cluster("down").code == 0
    assert desk["spark1"].kept() == []
    assert desk["spark1"].files == {}


@pytest.mark.parametrize("state", ["created", "exited", "running"])
def test_containers_in_any_state(state: str, cluster: Typed, desk: Desk) -> None:
    cluster(*UP)
    [one] = desk["spark2"].docker.containers.values()
    if state != "running":
        one.end(1, desk.now)
        one.state = state
    assert cluster("down").code == 0
    assert desk["spark2"].docker.containers == {}


def test_a_strangers_port_and_processes_are_his(cluster: Typed, desk: Desk) -> None:
    desk["spark1"].strangers = [Stranger(50, "vllm serve", 11434, 8 * GIB, on_gpu=True)]
    cluster(*UP)
    assert cluster("down").code == 0
    assert len(desk["spark1"].strangers) == 1
