"""Is a host as it was before: what still holds something is named, and only what is ours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from plan_tools import GIB, rank_container, running, seen, stranger, wanted

from cluster.deploy.released import holders
from cluster.spark.deployments import Kept, deployments
from cluster.spark.fact import Missing
from cluster.spark.gpu import Gpu
from cluster.spark.memory import Memory
from cluster.spark.processes import EngineProcess, Listener

PAIR = wanted()
GONE = deployments(running(PAIR))
BEFORE = (Kept("toy-1", {"available": 110 * GIB}),)
OWN = (Kept("toy-1", {"available": 143771 << 20}),)
OURS = rank_container(1, PAIR)
PROBE = replace(OURS, name="cluster-try-toy", labels={"cluster.try": "1"})
ORPHAN = EngineProcess(9, "VLLM::Worker_TP0", GIB, "e" * 64)


def card(used_mib: int) -> tuple[Gpu, ...]:
    """A GPU with memory of its own; the host's is not looked at."""
    return (Gpu("NVIDIA H200", "580.159.04", used_mib, 143771, 79.0, 345, 30, 0, ()),)


def what(number: int = 1, gone: Any = GONE, **changes: Any) -> list[str]:
    return [one.what for one in holders(seen(number, **changes), gone)]


def test_all_is_back() -> None:
    assert what() == []
    assert what(deployments=BEFORE, memory=Memory(available=110 * GIB)) == []


HELD: list[tuple[str, dict[str, Any], str]] = [
    ("our container", {"containers": (OURS,)}, f"container {OURS.name} is still there"),
    ("our stopped one", {"containers": (replace(OURS, state="exited"),)}, f"container {OURS.name} is still there"),
    ("our probe", {"containers": (PROBE,)}, "container cluster-try-toy is still there"),
    ("a stranger's container", {"containers": (stranger("webui"),)}, ""),
    ("containers unknown", {"containers": Missing("no")}, "containers could not be listed"),
    ("the API's port", {"listening": (Listener("0.0.0.0", 8000, 5, "vllm"),)}, "port 8000 (OpenAI API) is still taken"),
    ("a worker's", {"listening": (Listener("::", 27201, None, ""),)}, "port 27201 (Ray workers) is still taken"),
    ("a port beside ours", {"listening": (Listener("0.0.0.0", 8001, 5, "x"),)}, ""),
    ("ports unknown", {"listening": Missing("no")}, "listening ports could not be read"),
    ("an orphan of a container that is gone", {"processes": (ORPHAN,)}, "process VLLM::Worker_TP0 lives on"),
    ("the user's own vllm", {"processes": (replace(ORPHAN, container=""),)}, ""),
    ("a stranger's", {"containers": (stranger("x"),), "processes": (replace(ORPHAN, container="f" * 64),)}, ""),
    ("processes unknown", {"processes": Missing("no")}, "processes could not be read"),
    ("memory", {"deployments": BEFORE, "memory": Memory(available=105 * GIB)}, "5.0 GiB less memory than before up"),
    ("memory within 2 GiB", {"deployments": BEFORE, "memory": Memory(available=108 * GIB)}, ""),
    ("more memory than before", {"deployments": BEFORE, "memory": Memory(available=119 * GIB)}, ""),
    ("memory before was not kept", {"deployments": (Kept("x", None),), "memory": Memory(available=GIB)}, ""),
    ("a card's own memory, empty", {"deployments": OWN, "gpu": card(0)}, ""),
    ("a card's own memory, used", {"deployments": OWN, "gpu": card(2048)}, "2.0 GiB less memory than before up"),
    ("memory unknown", {"deployments": BEFORE, "memory": Missing("no")}, ""),
]


@pytest.mark.parametrize(("changes", "expected"), [row[1:] for row in HELD], ids=[row[0] for row in HELD])
def test_holder(changes: dict[str, Any], expected: str) -> None:
    assert what(**changes) == ([expected] if expected else [])
    assert all(one.evidence for one in holders(seen(1, **changes), GONE))


def test_ports_by_rank() -> None:
    """The worker never had the API's port, so who listens there is nobody of ours."""
    taken = (Listener("0.0.0.0", 8000, 5, "nginx"), Listener("0.0.0.0", 27121, 6, "raylet"))
    assert what(2, listening=taken) == ["port 27121 (Ray node manager) is still taken"]
    assert what(2, gone=(), listening=taken) == []
    assert what(3, listening=taken) == []
