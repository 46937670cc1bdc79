"""What `up` must refuse: the right exit code within seconds, one clear message with a remedy, nothing touched."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hosts_now import KEPT, assert_nothing_of_ours, assert_same, assert_serves, rank_of, snapshot
from own_lab import Lab, campaign
from person import MP, PAIR, QUICK, Person, Ran, quick

from cluster.errors import UNCHANGED

Make = Callable[[str, str], None]
SECONDS = 40
"""What an answer may take at most, on a machine that does other things too."""


def assert_refused(ran: Ran, code: int, *errors: tuple[str, str, str]) -> None:
    """The exit code, and exactly these errors: a pattern each for what, where, and the remedy."""
    assert ran.code == code, ran
    assert "Traceback" not in ran.err
    assert ran.out == "" or "ready:" not in ran.out
    assert len(ran.errors) == len(errors), ran
    for shown, (what, where, remedy) in zip(ran.errors, errors, strict=True):
        assert re.search(what, shown["error"]), ran
        assert re.search(where, shown.get("where", "")), ran
        assert re.search(remedy, shown["hint"]), ran
        assert shown.get("rolled_back", UNCHANGED) == UNCHANGED
    assert ran.seconds < SECONDS, ran


FAULTS = [
    # fault, host, exit, what, where, remedy; the others: test_doctor_on_faults.py, tests/transcripts/up
    campaign("unreachable", "spark2", 3, "spark2 .*did not answer within 5 s", "^spark2$", "is it on"),
    ("host-key", "spark2", 3, "spark2: the host key has changed", r"known_hosts:\d", "ssh-keygen -R"),
    campaign("docker-down", "spark2", 4, "Docker's daemon does not answer", "^spark2", "systemctl start docker"),
    ("no-gpu", "spark2", 4, "GPU can be started: .*could not select device driver", "^spark2", "nvidia-ctk"),
    campaign("cut-model", "spark2", 4, "not whole: model.safetensors: .* bytes", "^spark2", "then cluster up again"),
]


@pytest.mark.parametrize(("fault", "host", "code", "what", "where", "remedy"), FAULTS)
def test_refused(
    lab: Lab, person: Person, broken: Make, fault: str, host: str, code: int, what: str, where: str, remedy: str
) -> None:
    broken(host, fault)
    seen = [name for name in ("spark1", "spark2") if name != host or code != 3]
    seen = [name for name in seen if not (name == host and fault in ("no-docker", "docker-down"))]
    before = snapshot(lab, without=KEPT, hosts=seen)
    ran = person("up", *MP)
    assert_same(lab, before, without=KEPT)
    assert_refused(ran, code, (what, where, remedy))


IMAGES = [
    ("no-ray", ("spark1", "spark2"), "cluster-lab/vllm:real holds no Ray", "an image with Ray >=2.52 .*--backend mp"),
    campaign(
        "other-image", ("spark2",), r"not the same on all hosts: spark1 \w+, spark2 \w+", "docker pull .*docker save"
    ),
    campaign("no-image", ("spark2",), "image cluster-lab/vllm:real is not on spark2", "--yes fetches it"),
]


@pytest.mark.parametrize(("fault", "hosts", "what", "remedy"), IMAGES)
def test_image_refused(
    lab: Lab, person: Person, broken: Make, fault: str, hosts: tuple[str, ...], what: str, remedy: str
) -> None:
    for host in hosts:
        broken(host, fault)
    before = snapshot(lab, without=KEPT)
    ran = person("up", *PAIR)
    assert_same(lab, before, without=KEPT)
    assert_refused(ran, 4, (what, ", ".join(hosts) if fault == "no-ray" else "", remedy))


@pytest.mark.campaign
def test_every_hosts_error_is_shown(person: Person, broken: Make) -> None:
    broken("spark1", "unknown-key")
    broken("spark2", "no-ssh")
    ran = person("up", *MP)
    assert_refused(ran, 3, ("spark1: unknown host key", "spark1", "inventory add"), ("refused", "spark2", "sshd"))
    told = person("up", *MP, "--json").document["errors"]
    assert [one["where"] for one in told] == ["spark1", "spark2"]
    assert {one["exit"] for one in told} == {3}


def test_missing_image_and_model_are_fetched_when_it_was_agreed(lab: Lab, person: Person, broken: Make) -> None:
    broken("spark2", "no-model")
    lab.tell("spark2", "docker rmi -f cluster-lab/vllm:quick")
    ran = person.must("up", *MP, "--yes")
    assert "image cluster-lab/vllm:quick is not on spark2: pull it there" in ran.err
    assert re.search(r"model cluster-lab/tiny-gemma-4 is not on spark2: download 0\.\d+ GiB there", ran.err)
    assert_serves(lab)
    assert "not by root" in lab.tell("spark2", "find ~/.cache -user root | grep . || echo not by root")
    person.assert_unchanged("up", *MP)
    assert lab.tell("spark2", "docker ps -aq --filter label=cluster.try") == ""


@pytest.mark.campaign
def test_gated_model_without_token_and_unknown_model_are_refused(lab: Lab, person: Person) -> None:
    before = snapshot(lab, without=KEPT)
    ran = person("up", *MP, "--yes", "--set", "model=cluster-lab/gated-gemma-4")
    assert_refused(ran, 4, ("no access to cluster-lab/gated-gemma-4", "^spark1", "licence.*--hub-token-file"))
    ran = person("up", *MP, "--yes", "--set", "model=cluster-lab/nosuch")
    assert_refused(ran, 4, ("the hub has no cluster-lab/nosuch at revision main", "^spark1", "model and revision"))
    assert_same(lab, before, without=KEPT)
    assert_nothing_of_ours(lab)


@pytest.mark.campaign
def test_stranger_with_our_name_is_refused_and_not_touched(lab: Lab, person: Person) -> None:
    plan = person.must("up", *MP, "--dry-run").out
    [name] = re.findall(r"--name (cluster-lab-tiny-\w+-r1)", plan)
    lab.tell("spark2", f"docker run -d --name {name} --entrypoint sleep cluster-lab/vllm:quick infinity")
    before = snapshot(lab, without=KEPT)
    ran = person("up", *MP)
    assert_refused(ran, 4, (f"not ours is named {name}", "^spark2", f"docker rename {name}"))
    assert_same(lab, before, without=KEPT)
    person.must("down")
    assert_same(lab, before, without=KEPT)


def test_strangers_container_on_port_8000_is_named_and_not_touched(lab: Lab, person: Person) -> None:
    words = "--network host --entrypoint python3 cluster-lab/vllm:quick -m http.server 8000"
    lab.tell("spark1", f"docker run -d --name web {words}; sleep 1")
    before = snapshot(lab, without=KEPT)
    ran = person("up", *MP)
    assert_refused(ran, 4, (r"port 8000 \(OpenAI API\) is taken", "^spark1", r"--set port=N"))
    assert_same(lab, before, without=KEPT)
    other = person.must("up", *MP, "--set", "port=8010")
    assert f"at http://{lab.address('spark1')}:8010/v1" in other.out
    person.must("down")
    assert_same(lab, before, without=KEPT)


@pytest.mark.campaign
def test_strangers_that_are_in_nobodys_way_are_left_alone(lab: Lab, person: Person, broken: Make) -> None:
    broken("spark1", "stranger")
    broken("spark2", "gpu-stranger")
    before = snapshot(lab, without=KEPT)
    ran = person.must("up", *MP)
    assert re.search(
        r"warning: spark2: a process that is not ours uses the GPU \(pid \d+ python3, 19135 MiB\)", ran.err
    )
    person.must("down")
    assert_same(lab, before, without=KEPT)


@pytest.mark.campaign
def test_recorded_key_cures_as_the_remedy_says(lab: Lab, person: Person, broken: Make) -> None:
    """The remedy for an unknown host key, typed as it is shown (in a copy of the inventory)."""
    inventory, known = person.place / "inventory.yaml", person.place / "known_hosts"
    inventory.write_text(lab.inventory.read_text().replace(str(lab.root / "known_hosts"), str(known)))
    broken("spark2", "unknown-key")
    shutil.copy(lab.root / "known_hosts", known)
    here = {"CLUSTER_INVENTORY": str(inventory)}
    [error] = person("up", *MP, **here).errors
    command = error["hint"].partition("cluster ")[2].split()
    assert command[:3] == ["inventory", "add", "spark2"]
    person.must(*command, "--yes", **here)
    assert "docker run" in person.must("up", *MP, "--dry-run", **here).out


@pytest.mark.campaign
def test_sockets_where_rdma_was_to_be_had_are_refused(lab: Lab, person: Person, broken: Make) -> None:
    broken("spark2", "counters-still")
    words = ("up", *MP, "--set", "transport=rdma")
    ran = person(*words)
    assert ran.code == 4, ran
    assert re.search("RDMA was not used between the ranks: .*spark2", ran.errors[0]["error"]), ran
    assert "--allow-socket" in ran.errors[0]["hint"]
    assert_nothing_of_ours(lab)
    allowed = person.must(*words, "--allow-socket")
    assert "--allow-socket" in allowed.err
    assert_serves(lab)


@pytest.mark.campaign
def test_not_ready_in_time_says_what_it_waited_for(lab: Lab, person: Person) -> None:
    ran = person("up", *MP, "--set", "ready_timeout_s=3", *quick(ready_after_s=600))
    assert ran.code == 1, ran
    [error] = ran.errors
    assert re.search(r"not ready after 3 s; last: the engine", error["error"]), ran
    assert "ready_timeout_s=" in error["hint"]
    assert_nothing_of_ours(lab)


@pytest.mark.campaign
def test_head_of_a_pair_is_not_a_solo_host(lab: Lab, person: Person) -> None:
    person.must("up", *MP)
    name = rank_of(lab, "spark2").removeprefix("cluster-").removesuffix("-r1")
    before = snapshot(lab, without=KEPT)
    for words in (("--solo", "-n", "spark2"), ("--solo", "-n", "spark1"), ("-n", "spark2", "--tp", "1")):
        ran = person("up", *QUICK, *words)
        assert_refused(
            ran,
            4,
            (f"holds a rank of {name}, whose other ranks are on spark", "spark", "name all of its hosts with -n"),
        )
    assert_same(lab, before, without=KEPT)
    assert_serves(lab)


SAYS = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"


def test_failed_up_is_rolled_back_and_names_the_cause(lab: Lab, person: Person) -> None:
    """The worker says it before it serves; rank 0 only learns that a peer has ended. Evidence is kept."""
    packaged = (Path(__file__).parents[2] / "recipes/lab-tiny.yaml").read_text()
    check = f"test $VLLM_HOST_IP = 192.168.100.11 || {{ echo '{SAYS}'; exit 1; }}"
    (person.place / "own.yaml").write_text(f"{packaged}\nbefore_serve: {json.dumps([['sh', '-c', check]])}\n")
    before = snapshot(lab, without=KEPT)
    ran = person("up", "own.yaml", *MP)
    assert ran.code == 1, ran
    [error] = ran.errors
    assert "spark2: " in error["error"]
    assert "cause: the weights alone need more than gpu-memory-utilization allows" in error["error"]
    assert re.search(r"spark2-log.txt:\d+", error["where"]), ran
    assert error["rolled_back"] == "all that this run started"
    [kept] = person.evidence
    assert error["hint"].startswith("raise --gpu-memory-utilization")
    assert "docs/runbooks/memory-is-full.md #" in error["hint"]
    assert error["hint"].endswith(f"; read {kept}")
    assert "cause: the weights alone" in (kept / "diagnosis.txt").read_text()
    assert {path.stat().st_mode & 0o777 for path in kept.iterdir()} == {0o600}
    assert kept.stat().st_mode & 0o777 == 0o700
    assert "[kv-cache-none]" in person("explain", str(kept)).out
    assert_same(lab, before, without=KEPT)
    assert_nothing_of_ours(lab)
