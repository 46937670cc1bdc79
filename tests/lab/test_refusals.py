"""What `up` must refuse: the right exit code within seconds, one clear message with a remedy, nothing touched.

One check of each kind that only real parts can fail; the others: test_doctor_on_faults.py, tests/transcripts/up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from hosts_now import KEPT, assert_nothing_of_ours, assert_same, assert_serves, snapshot
from own_lab import Lab
from person import MP, Person, Ran

from cluster.errors import UNCHANGED

Make = Callable[[str, str], None]
SECONDS = 40
"""What an answer may take at most, on a machine that does other things too."""


def assert_refused(ran: Ran, code: int, where: str, shown: str) -> None:
    """The exit code and one error: patterns for where it is, and for what and its remedy together."""
    assert ran.code == code, ran
    assert "Traceback" not in ran.err
    assert "ready:" not in ran.out
    [error] = ran.errors
    assert re.search(where, error.get("where", "")), ran
    assert re.search(shown, f"{error['error']} {error['hint']}"), ran
    assert error.get("rolled_back", UNCHANGED) == UNCHANGED
    assert ran.seconds < SECONDS, ran


def test_no_gpu_in_containers_is_refused(lab: Lab, person: Person, broken: Make) -> None:
    broken("spark2", "no-gpu")
    before = snapshot(lab, without=KEPT)
    ran = person("up", *MP)
    assert_same(lab, before, without=KEPT)
    assert_refused(ran, 4, "^spark2", "could not select device driver.*nvidia-ctk")


def test_missing_image_and_model_are_fetched_when_it_was_agreed(lab: Lab, person: Person, broken: Make) -> None:
    broken("spark2", "no-model")
    lab.tell("spark2", "docker rmi -f cluster-lab/vllm:quick")
    ran = person.must("up", *MP, "--yes")
    assert re.search(r"cluster-lab/vllm:quick .*spark2: pull", ran.err), ran
    assert re.search(r"cluster-lab/tiny-gemma-4 .*spark2: download 0\.\d+ GiB", ran.err), ran
    assert_serves(lab)
    assert "not by root" in lab.tell("spark2", "find ~/.cache -user root | grep . || echo not by root")
    person.assert_unchanged("up", *MP)
    assert lab.tell("spark2", "docker ps -aq --filter label=cluster.try") == ""


def test_strangers_container_on_port_8000_is_named_and_not_touched(lab: Lab, person: Person) -> None:
    words = "--network host --entrypoint python3 cluster-lab/vllm:quick -m http.server 8000"
    lab.tell("spark1", f"docker run -d --name web {words}; sleep 1")
    before = snapshot(lab, without=KEPT)
    ran = person("up", *MP)
    assert_refused(ran, 4, "^spark1", "port 8000 .*--set port=N")
    assert_same(lab, before, without=KEPT)
    other = person.must("up", *MP, "--set", "port=8010")
    assert f"at http://{lab.address('spark1')}:8010/v1" in other.out
    person.must("down")
    assert_same(lab, before, without=KEPT)


SAYS = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"


def test_failed_up_is_rolled_back_and_names_the_cause(lab: Lab, person: Person) -> None:
    """The worker says it before it serves; rank 0 only learns that a peer has ended. Evidence is kept."""
    check = f"test $VLLM_HOST_IP = 192.168.100.11 || {{ echo '{SAYS}'; exit 1; }}"
    recipe = person.own_recipe(f"before_serve: {json.dumps([['sh', '-c', check]])}")
    before = snapshot(lab, without=KEPT)
    ran = person("up", recipe, *MP)
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
