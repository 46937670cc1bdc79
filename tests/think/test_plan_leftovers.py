"""Is a host as it was before: what still holds something is named, and only what is ours."""

from __future__ import annotations

from typing import Any

import pytest
from plan_tools import GIB, rank_container, running, seen, stranger, wanted

from cluster.deploy.restart import holders
from cluster.spark.deployments import Kept, deployments
from cluster.spark.fact import Missing
from cluster.spark.memory import Memory
from cluster.spark.ports import Listener
from cluster.spark.processes import EngineProcess

PAIR = wanted()
GONE = deployments(running(PAIR))
BEFORE = (Kept("toy-1", {"available": 110 * GIB}),)
OURS = rank_container(1, PAIR)


def what(number: int = 1, gone: Any = GONE, **changes: Any) -> list[str]:
    return [one.what for one in holders(seen(number, **changes), gone)]


def test_all_is_back() -> None:
    assert what() == []
    assert what(deployments=BEFORE, memory=Memory(available=110 * GIB)) == []


CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "our container": ({"containers": (OURS,)}, [f"container {OURS.name} is still there"]),
    "our stopped container": (
        {"containers": (rank_container(1, PAIR, state="exited"),)},
        [f"container {OURS.name} is still there"],
    ),
    "our probe": (
        {"containers": (rank_container(1, PAIR, name="cluster-try-toy", labels={"cluster.try": "1"}),)},
        ["container cluster-try-toy is still there"],
    ),
    "a stranger's container": ({"containers": (stranger("webui"),)}, []),
    "containers unknown": ({"containers": Missing("no")}, ["containers could not be listed"]),
    "the API's port": (
        {"listening": (Listener("0.0.0.0", 8000, 5, "vllm"),)},
        ["port 8000 (OpenAI API) is still taken"],
    ),
    "a port of a worker process": (
        {"listening": (Listener("::", 27201, None, ""),)},
        ["port 27201 (Ray workers) is still taken"],
    ),
    "a port beside ours": ({"listening": (Listener("0.0.0.0", 8001, 5, "x"),)}, []),
    "ports unknown": ({"listening": Missing("no")}, ["listening ports could not be read"]),
    "an orphan of a container that is gone": (
        {"processes": (EngineProcess(9, "VLLM::Worker_TP0", GIB, "e" * 64),)},
        ["process VLLM::Worker_TP0 lives on"],
    ),
    "the user's own vllm": ({"processes": (EngineProcess(9, "vllm serve", GIB, ""),)}, []),
    "a stranger's engine in a container": (
        {"containers": (stranger("other"),), "processes": (EngineProcess(9, "raylet", GIB, "f" * 64),)},
        [],
    ),
    "processes unknown": ({"processes": Missing("no")}, ["processes could not be read"]),
    "memory": ({"deployments": BEFORE, "memory": Memory(available=105 * GIB)}, ["5.0 GiB less memory than before up"]),
    "memory within 2 GiB": ({"deployments": BEFORE, "memory": Memory(available=108 * GIB)}, []),
    "more memory than before": ({"deployments": BEFORE, "memory": Memory(available=119 * GIB)}, []),
    "memory before was not kept": ({"deployments": (Kept("x", None),), "memory": Memory(available=GIB)}, []),
    "memory unknown": ({"deployments": BEFORE, "memory": Missing("no")}, []),
}


@pytest.mark.parametrize("case", CASES)
def test_holder(case: str) -> None:
    changes, expected = CASES[case]
    assert what(**changes) == expected
    for one in holders(seen(1, **changes), GONE):
        assert one.evidence


def test_ports_by_rank() -> None:
    """The worker never had the API's port, so who listens there is nobody of ours."""
    taken = (Listener("0.0.0.0", 8000, 5, "nginx"), Listener("0.0.0.0", 27121, 6, "raylet"))
    assert what(2, listening=taken) == ["port 27121 (Ray node manager) is still taken"]
    assert what(2, gone=(), listening=taken) == []
    assert what(3, listening=taken) == []
