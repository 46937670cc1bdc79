"""`cluster down`: deployments go and only they; what their hosts had before is proven to be released."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from machine import IMAGE, Desk
from typed import THREE, UP, Typed

GIB = 1 << 30


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


def test_a_host_that_has_no_part_in_it_may_be_off(cluster: Typed) -> None:
    """A third Spark of the inventory is off: what ran on the other two is down, and that is all that was asked."""
    cluster.desk = Desk("spark1", "spark2", "spark3")
    Path("inventory/default.yaml").write_text(THREE)
    cluster.must("up", "toy", "-n", "spark1,spark2")
    cluster.desk.hosts["spark3"].drop()
    ran = cluster.must("down")
    assert "spark3 was left out: spark3 did not answer within 10 s" in ran.err
    assert cluster("down").code == 3, "nothing found, and one host not seen"
    shown = json.loads(cluster.ends(3, "down", "-n", "spark1,spark3", "--json").out)
    assert (shown["hosts"], shown["errors"][0]["where"]) == ({"spark1": "no deployment"}, "spark3")


@pytest.mark.parametrize("spec", [None, '{"recipe": {}}'])
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
