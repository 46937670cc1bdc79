"""`cluster down`: what is ours goes and only that, and it is proven that all is back."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from machine import IMAGE, Desk
from typed import THREE, UP, Typed

GIB = 1 << 30


def test_it_removes_what_is_ours_and_proves_it(cluster: Typed, desk: Desk) -> None:
    before = desk.state()
    desk["spark2"].docker.answer(("run", "--detach", "--name", "webui", "--entrypoint", "sleep", IMAGE, "infinity"))
    cluster.must(*UP)
    ran = cluster.must("down")
    assert "spark2: containers, ports and processes are released; 116.0 GiB available" in ran.out
    after = desk.state()
    for name in before:
        assert after[name].images == before[name].images
        assert after[name].models == before[name].models
        assert after[name].files == {}
    assert [(name, state) for name, state, _ in after["spark2"].containers.values()] == [("webui", "running")]
    assert cluster("down").out.strip() == "no deployment on spark1, spark2"


def test_what_a_dry_run_shows_is_what_is_done(cluster: Typed, desk: Desk, running: str) -> None:
    before = desk.state()
    shown = cluster("down", "--dry-run")
    assert (shown.code, desk.state()) == (0, before)
    sent = {name: len(line.asked) for name, line in desk.hosts.items()}
    cluster("down")
    for name, line in desk.hosts.items():
        done = [shlex.join(one.argv) for one in line.asked[sent[name] :] if one.changes]
        lines = re.findall(rf"^# {name}: .*\n(.*)$", shown.out, re.MULTILINE)
        assert done == lines


def test_it_waits_until_memory_is_back(cluster: Typed, desk: Desk, running: str) -> None:
    desk["spark2"].lingering_bytes = 30 * GIB
    began = desk.now
    desk.on_sleep.append(lambda: setattr(desk["spark2"], "lingering_bytes", 0) if desk.now > began + 20 else None)
    ran = cluster.must("down")
    assert 20 < desk.now - began < 30
    assert "waiting: spark2: 30.0 GiB less memory than before up" in ran.err


def test_a_failed_proof_keeps_what_tells_the_memory_before(cluster: Typed, desk: Desk, running: str) -> None:
    """The next `down` proves against the same number, and the next `up` records it again."""
    for machine in desk:
        machine.lingering_bytes = 20 * GIB
    ran = cluster.ends(4, "down")
    assert [lines[1] for lines in ran.errors()] == ["where: spark1", "where: spark2"]
    assert [name for name in desk["spark2"].files if name.endswith("before.json")]
    cluster.ends(4, "down")
    cluster.must(*UP)
    cluster.ends(4, "down")
    for machine in desk:
        machine.lingering_bytes = 0
    cluster.must("down")
    assert desk["spark2"].kept() == []


def test_two_deployments_on_two_hosts(cluster: Typed, desk: Desk) -> None:
    cluster("up", "toy", "--solo", "-n", "spark1")
    cluster("up", "toy", "--solo", "-n", "spark2", "-e", "SEED=2")
    [kept] = [name for name, hosts in desk.serving().items() if hosts == ["spark2"]]
    cluster.must("down", "-n", "spark1")
    assert list(desk.serving()) == [kept]
    cluster.must("down")
    assert desk.serving() == {}


def test_half_a_pair_leaves_nothing_that_lives_on(cluster: Typed, desk: Desk, running: str) -> None:
    ran = cluster.must("down", "-n", "spark1")
    assert "also has ranks on spark2" in ran.err
    desk.pass_time(5)
    assert desk.lives() == []
    cluster.ends(4, "status")
    cluster.must("down")
    assert desk["spark2"].kept() == []


def test_a_host_that_has_no_part_in_it_may_be_off(cluster: Typed) -> None:
    """A third Spark of the inventory is off: what ran on the other two is down, and that is all that was asked."""
    cluster.desk = Desk("spark1", "spark2", "spark3")
    Path("inventory/default.yaml").write_text(THREE)
    cluster.must("up", "toy", "-n", "spark1,spark2")
    cluster.desk.hosts["spark3"].drop()
    ran = cluster.must("down")
    assert "spark3 was left out: spark3 did not answer within 10 s" in ran.err
    assert cluster("down").code == 3, "nothing found, and one host not seen"
    cluster.ends(3, "down", "-n", "spark1,spark3")


def test_one_host_unreachable(cluster: Typed, desk: Desk, running: str) -> None:
    desk.hosts["spark2"].drop()
    told = json.loads(cluster("logs", "--json").out)
    assert told["lines"]
    assert told["errors"][0]["where"] == "spark2"
    told = json.loads(cluster.ends(3, "down", "--json").out)
    assert list(told["hosts"]) == ["spark1"]
    assert told["errors"][0]["where"] == "spark2"
    assert desk["spark1"].docker.containers == {}
    assert desk["spark1"].kept() == []
    desk.recover()
    assert json.loads(cluster.must("down", "--json").out)["errors"] == []
    assert desk["spark2"].docker.containers == {}


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
    ran = cluster.ends(4, *UP)
    assert "another version of cluster made it" in ran.err
    for words in (("swap", "toy"), ("swap", "toy", "-n", "spark1"), ("bench",)):
        ran = cluster.ends(4, *words)
        assert "nothing of ours runs" not in ran.err
        assert "hint: cluster down -n spark1" in ran.err
    cluster.must("down")
    assert desk["spark1"].docker.containers == {}
    cluster.must(*UP)


def test_docker_refused_on_one_host_does_not_hold_up_the_other(cluster: Typed, desk: Desk, running: str) -> None:
    desk["spark1"].docker.trouble = (1, "permission denied while trying to connect to the Docker daemon socket")
    began = desk.now
    cluster.ends(4, "down")
    assert desk.now == began, "nothing to wait for"
    assert desk["spark2"].docker.containers == {}
    assert len(desk["spark1"].kept()) == 1, "what tells the memory before stays where nothing was removed"


@pytest.mark.parametrize("state", ["created", "exited", "running"])
def test_containers_in_any_state(state: str, cluster: Typed, desk: Desk, running: str) -> None:
    [one] = desk["spark2"].docker.containers.values()
    if state != "running":
        one.end(1, desk.now)
        one.state = state
    cluster.must("down")
    assert desk["spark2"].docker.containers == {}
