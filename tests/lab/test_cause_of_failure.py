"""`up` that fails names the cause; `logs --explain` is silent about what is well and names what is not."""

from __future__ import annotations

import json
import re
from pathlib import Path

from hosts_now import assert_nothing_of_ours, rank_of
from own_lab import Lab
from person import MP, Person
from waiting import eventually

SAYS = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"


def test_an_up_that_fails_names_the_cause(lab: Lab, person: Person) -> None:
    """The worker says it; rank 0 only hears that a peer has ended."""
    packaged = (Path(__file__).parents[2] / "recipes/lab-tiny.yaml").read_text()
    check = f"test $VLLM_HOST_IP = 192.168.100.11 || {{ echo '{SAYS}'; exit 1; }}"
    (person.place / "own.yaml").write_text(f"{packaged}\nbefore_serve: {json.dumps([['sh', '-c', check]])}\n")
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
    assert "[kv-cache-none]" in person("explain", str(kept)).out
    assert_nothing_of_ours(lab)


def test_logs_explain_what_runs_and_what_was_killed(lab: Lab, person: Person) -> None:
    person.must("up", *MP)
    well = person.must("logs", "--explain")
    assert re.match(r"nothing wrong found in \d+ lines of the logs of spark1, spark2\n", well.out)
    lab.tell("spark2", f"docker kill {rank_of(lab, 'spark2')}")
    eventually(lambda: lab.tell("spark1", "docker ps -q") == "", 30, "rank 0 has ended")
    told = person("logs", "--explain", "--json")
    assert told.code == 4, told
    [one] = told.document["deployments"]
    assert (one["root"]["id"], one["root"]["host"]) == ("rank-lost", "spark1")
    assert "is gone without a word" in one["root"]["evidence"]
