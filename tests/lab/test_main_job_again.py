"""`up` again: what is the same stays, what is changed is replaced, what fails comes back. On the quick image."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hosts_now import HOSTS, assert_nothing_of_ours, assert_same, assert_serves, containers, rank_of, snapshot
from own_lab import Lab
from person import MP, PAIR, Person, quick
from waiting import eventually

MOVING = "cluster-lab-test/vllm:moving"


@pytest.fixture
def running(resident: Person) -> Person:
    """A pair runs, that of an earlier test or a new one."""
    resident.must("up", *MP)
    return resident


def test_up_again_changes_nothing(lab: Lab, running: Person) -> None:
    """Nor does what was only observed: another address on the fabric, a machine that does not tell its name."""
    before = snapshot(lab, without=r"\.local/share/cluster")
    again = running.assert_unchanged("up", *MP)
    assert_same(lab, before, without=r"\.local/share/cluster")
    assert again.seconds < 20, again
    lab.tell("spark2", "sudo -n ip addr add 169.254.7.7/16 dev enp1s0f1np1")
    lab.tell("spark2", "sudo -n chmod 0 /sys/class/dmi/id/product_name 2>/dev/null; true")
    try:
        again = running.assert_unchanged("up", *MP)
    finally:
        lab.tell("spark2", "sudo -n ip addr del 169.254.7.7/16 dev enp1s0f1np1")
        lab.tell("spark2", "sudo -n chmod 444 /sys/class/dmi/id/product_name 2>/dev/null; true")
    assert again.document["completion"]["tokens"] > 0
    assert_same(lab, before, without=r"\.local/share/cluster")


def test_dry_run_of_a_replacement_leaves_all_as_it_was(lab: Lab, running: Person) -> None:
    before = snapshot(lab)
    ran = running.must("up", *MP, "--dry-run", "-e", "VLLM_LOGGING_LEVEL=DEBUG")
    assert "env.VLLM_LOGGING_LEVEL" in ran.out
    assert "docker stop" in ran.out
    down = running.must("down", "--dry-run")
    assert "docker rm" in down.out
    assert_same(lab, before)
    assert_serves(lab)


def test_old_one_serves_again_when_the_new_one_fails(lab: Lab, running: Person) -> None:
    before = containers(lab)
    ran = running("up", *MP, *quick(fail="CUDA error: out of patience"))
    assert ran.code == 1, ran
    [error] = ran.errors
    assert "CUDA error: out of patience" in error["error"]
    assert re.search("spark[12]", error["where"])  # both ranks' engines fail, at the same moment
    assert re.search(r"all that this run started; lab-tiny-[0-9a-f]{8} was started again", error["rolled_back"])
    assert containers(lab) == before
    eventually(lambda: lab.ssh("spark1", "curl -sf http://127.0.0.1:8000/health").returncode == 0, 60, "old serves")
    assert_serves(lab)
    running.assert_unchanged("up", *MP)
    [*_, kept] = running.evidence
    assert b"CUDA error: out of patience" in (kept / "spark1-log.txt").read_bytes()
    assert (kept / "spark1-inspect.json").stat().st_mode & 0o777 == 0o600
    running.must("down")
    assert_nothing_of_ours(lab)


def assert_replaced(lab: Lab, before: dict[str, list[str]]) -> None:
    """Every rank is another container, the old ones are gone, and the new ones serve."""
    now = containers(lab)
    for host in HOSTS:
        assert len(now[host]) == 1
        assert now[host] != before[host]
    assert lab.tell("spark1", "docker ps -aq | wc -l") == "1"
    assert_serves(lab)


def test_dockerfile_and_mounted_files_replace(lab: Lab, person: Person) -> None:
    recipe = person.own_recipe(
        "dockerfile: own.Dockerfile",
        "mounts: [{model_file: config.json, target: /opt/of-the-model.json},"
        " {source: patch.py, target: /opt/patch.py}]",
        "before_serve: [[grep, -H, -e, built, -e, model_type, /opt/built, /opt/of-the-model.json]]",
        "expect_log: {require: ['/opt/built:built (once|again)', 'of-the-model.json:.*gemma4'], forbid: [Traceback]}",
    )
    dockerfile, patch = (Path(recipe).with_name(name) for name in ("own.Dockerfile", "patch.py"))
    dockerfile.write_text("ARG IMAGE\nFROM $IMAGE\nRUN echo built once > /opt/built\n")
    patch.write_text("one = 1\n")
    words = ("up", recipe, *MP)
    try:
        person.must(*words)
        before = containers(lab)
        person.assert_unchanged(*words)
        refused = person(*words, "--set", "expect_log.require=[built twice]")
        assert refused.code == 4, refused
        assert "no log has `built twice`, but: /opt/built:built once" in refused.err
        assert containers(lab) == before
        dockerfile.write_text("ARG IMAGE\nFROM $IMAGE\nRUN echo built again > /opt/built\n")
        patch.write_text("one = 2\n")
        ran = person.must(*words)
        assert re.search(r"replace own-[0-9a-f]{8}: .*dockerfile: ", ran.out), ran
        assert re.search(r"replace own-[0-9a-f]{8}: .*mounts\./opt/patch\.py: ", ran.out), ran
        assert_replaced(lab, before)
        assert (
            lab.tell("spark2", f"docker exec {rank_of(lab, 'spark2')} cat /opt/built /opt/patch.py")
            == "built again\none = 2"
        )
        person.must("down")
        assert_nothing_of_ours(lab)
        assert lab.tell("spark1", "docker images -q cluster-built/own | wc -l") == "2", "images stay"
    finally:
        for host in HOSTS:
            lab.tell(host, "docker ps -aq | xargs -r docker rm -f >/dev/null")
            lab.tell(host, "docker images -q cluster-built/own | xargs -r docker rmi -f >/dev/null")


@pytest.mark.campaign
def test_content_behind_the_tag_replaces(lab: Lab, person: Person) -> None:
    for host in HOSTS:
        lab.tell(host, f"docker tag cluster-lab/vllm:quick {MOVING}")
    words = (*PAIR, "--backend", "mp", "--set", f"image={MOVING}")
    try:
        person.must("up", *words)
        before = containers(lab)
        for host in HOSTS:
            lab.tell(host, f"printf 'FROM {MOVING}\\nENV MOVED=1\\n' | docker build -q -t {MOVING} -")
        ran = person.must("up", *words)
        assert re.search(r"replace lab-tiny-[0-9a-f]{8}: image_content: ", ran.out), ran
        assert_replaced(lab, before)
        assert lab.tell("spark2", f"docker exec {rank_of(lab, 'spark2')} printenv MOVED") == "1"
    finally:
        for host in HOSTS:
            lab.tell(host, f"docker ps -aq | xargs -r docker rm -f >/dev/null; docker rmi -f {MOVING} >/dev/null")


def test_lines_of_the_dry_run_can_be_pasted(lab: Lab, person: Person) -> None:
    """It leaves nothing itself; its `docker run` is accepted by a shell and by docker, and ends without its files."""
    before = snapshot(lab)
    lines = person.must("up", *MP, "--dry-run").out.splitlines()
    assert_same(lab, before)
    [first, _] = [line for line in lines if line.startswith("docker run ")]
    made = [line for line in lines if line.startswith("mkdir ")]
    try:
        lab.tell("spark1", made[0])
        lab.tell("spark1", first)
        assert "can't open file '/cluster/rank.py'" in lab.tell(
            "spark1", f"sleep 1; docker logs {rank_of(lab, 'spark1')} 2>&1"
        )
    finally:
        person.must("down")
    assert_nothing_of_ours(lab)
