"""Checks of one host: what is a fault, what a warning, what is not known, and what is ours and goes first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from plan_tools import CONTENT, DATA, GIB, identity, names, rank_container, recipe, running, seen, stranger, wanted

from cluster.spark.deployments import deployments
from cluster.spark.disk import Room
from cluster.spark.fact import Missing
from cluster.spark.finding import Check, Finding, refusing, worst_first
from cluster.spark.gpu import GpuProcess
from cluster.spark.image import Image
from cluster.spark.look import check_host
from cluster.spark.memory import Memory
from cluster.spark.ports import Listener
from cluster.spark.processes import EngineProcess
from cluster.spark.weights import Weights

PAIR = wanted()


def check(number: int = 1, of: Any = PAIR, found: Any = (), **changes: Any) -> list[Finding]:
    return list(check_host(of, seen(number, **changes), found))


def image(**changes: Any) -> Image:
    return replace(Image("example.org/vllm:1", "sha256:1", CONTENT, "arm64", 1), **changes)


def weights(*problems: str) -> Weights:
    return Weights("example/toy", "main", "c0ffee", "/snap", 5, 60 * GIB, problems)


def test_all_is_well() -> None:
    assert check() == []


CASES: dict[str, tuple[dict[str, Any], list[tuple[str, str]]]] = {
    "another architecture": ({"identity": identity(1, arch="x86_64")}, [("fault", "platform"), ("fault", "image")]),
    "no identity": ({"identity": Missing("no")}, [("unknown", "platform")]),
    "no docker": ({"docker": Missing("refused", "refused")}, [("fault", "docker")]),
    "no list of containers": ({"containers": Missing("timeout", "timeout")}, [("fault", "docker")]),
    "no nvidia-smi": ({"gpu": Missing("nvidia-smi: not found", "absent")}, [("fault", "gpu")]),
    "driver mismatch": ({"gpu": Missing("nvidia-smi: Failed to initialize NVML: x")}, [("fault", "gpu")]),
    "GPU hangs": ({"gpu": Missing("did not answer in time", "timeout")}, [("unknown", "gpu")]),
    "no memory told": ({"memory": Missing("no")}, [("unknown", "memory")]),
    "memory without a number": ({"memory": Memory(total=1)}, []),
    "too little memory": ({"memory": Memory(available=89 * GIB)}, [("fault", "memory")]),
    "just enough memory": ({"memory": Memory(available=90 * GIB)}, []),
    "little room": ({"disk": (Room(DATA, 4 * GIB, 1),)}, [("warning", "disk")]),
    "no room told": ({"disk": Missing("no")}, [("unknown", "disk")]),
    "no ports told": ({"listening": Missing("no")}, [("unknown", "ports")]),
    "API port": ({"listening": (Listener("0.0.0.0", 8000, 812, "nginx"),)}, [("fault", "ports")]),
    "a port of Ray's workers": ({"listening": (Listener("::", 27250, None, ""),)}, [("fault", "ports")]),
    "a port beside ours": ({"listening": (Listener("0.0.0.0", 27300, 1, "x"), Listener("::", 22, 1, "sshd"))}, []),
    "a stranger": ({"containers": (stranger("webui"),)}, []),
    "a stranger with our name": ({"containers": (stranger("cluster-x-r0"),)}, [("fault", "names")]),
    "a stopped stranger": ({"containers": (stranger("cluster-x", state="exited"),)}, [("fault", "names")]),
    "image of another architecture": ({"image": image(architecture="amd64")}, [("fault", "image")]),
    "image is fetched": ({"image": Missing("not there", "absent")}, []),
    "weights are fetched": ({"weights": Missing("not there", "absent")}, []),
    "weights not readable": ({"weights": Missing("permission denied", "refused")}, [("fault", "weights")]),
    "weights not whole": ({"weights": weights("a: empty", "b: empty")}, [("fault", "weights")] * 2),
    "strangers on the GPU": (
        {"gpu_processes": (GpuProcess(9, "ollama", 512, ""), GpuProcess(10, "x", None, "e" * 64))},
        [("warning", "gpu-stranger")] * 2,
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_finding(what: str) -> None:
    changes, expected = CASES[what]
    found = check(**changes)
    assert names(found) == expected
    for finding in found:
        assert finding.host == "spark1"
        assert finding.remedy or finding.level in ("unknown", "warning")
        assert finding.evidence


def test_docker_says_what_to_do() -> None:
    remedies = {kind: check(docker=Missing("x", kind))[0].remedy for kind in ("refused", "absent", "timeout")}
    assert "usermod -aG docker" in remedies["refused"]
    assert "install Docker" in remedies["absent"]
    assert "restart docker" in remedies["timeout"]


def test_without_docker_nothing_else_is_judged() -> None:
    """What is ours cannot be told from what is not."""
    taken = (Listener("0.0.0.0", 8000, 812, "nginx"),)
    assert names(check(docker=Missing("x", "refused"), listening=taken, memory=Memory(available=0))) == [
        ("fault", "docker")
    ]


def test_ports_of_the_worker_are_fewer() -> None:
    taken = tuple(Listener("0.0.0.0", number, 5, "x") for number in (8000, 27110, 27120, 27127))
    assert names(check(2, listening=taken)) == []
    [fault] = check(1, listening=taken)
    assert fault.what.startswith("ports 8000 (OpenAI API), 27110 (cord between the ranks), 27120 (Ray GCS), 27127")
    assert fault.evidence == "x (pid 5) listens there"


def test_ports_by_backend() -> None:
    taken = (Listener("0.0.0.0", 27111, 5, "x"), Listener("0.0.0.0", 27120, 6, "y"))
    assert [fault.evidence[:1] for fault in check(listening=taken)] == ["y"]
    assert [fault.evidence[:1] for fault in check(of=wanted(backend="mp"), listening=taken)] == ["x"]
    assert check(of=wanted(1, "none"), listening=taken) == []


def test_what_our_own_rank_holds_counts_as_free() -> None:
    found = deployments(running(PAIR))
    [container] = running(PAIR)[0].containers
    held = {
        "containers": (container,),
        "memory": Memory(available=10 * GIB),
        "processes": (EngineProcess(7, "VLLM::Worker_TP0", 1 * GIB, container.id),),
        "gpu_processes": (GpuProcess(7, "VLLM::Worker_TP0", 85 * 1024, container.id),),
        "listening": (Listener("0.0.0.0", 8000, None, ""), Listener("0.0.0.0", 27120, None, "")),
    }
    assert check(found=found, **held) == []
    assert names(check(found=(), **{**held, "containers": ()})) == [
        ("warning", "orphan"),
        ("fault", "memory"),
        ("fault", "ports"),
    ]


def test_gpu_memory_and_rss_of_one_process_are_counted_once() -> None:
    """A simulated driver tells the RSS; a Spark's GPU memory is in no RSS."""
    [container] = running(PAIR)[0].containers
    both = {
        "containers": (container,),
        "processes": (EngineProcess(7, "VLLM::Worker_TP0", 50 * GIB, container.id),),
        "gpu_processes": (GpuProcess(7, "VLLM::Worker_TP0", 50 * 1024, container.id),),
    }
    found = deployments(running(PAIR))
    assert names(check(found=found, memory=Memory(available=39 * GIB), **both)) == [("fault", "memory")]
    assert check(found=found, memory=Memory(available=40 * GIB), **both) == []


def test_a_strangers_port_is_not_hidden_by_our_own_rank() -> None:
    found = deployments(running(PAIR))
    other = wanted(of=recipe(port=9000))
    taken = (Listener("0.0.0.0", 8000, None, ""), Listener("0.0.0.0", 9000, 3, "nginx"))
    [container] = running(PAIR)[0].containers
    [fault] = check(of=other, found=found, listening=taken, containers=(container,))
    assert fault.what == "port 9000 (OpenAI API) is taken"


def test_ports_of_a_dead_rank_are_not_ours() -> None:
    dead = rank_container(1, PAIR, state="exited")
    found = deployments([seen(1, containers=(dead,))])
    taken = (Listener("0.0.0.0", 8000, 3, "nginx"),)
    assert names(check(found=found, containers=(dead,), listening=taken)) == [("fault", "ports")]


def test_a_container_of_another_version() -> None:
    """Ours by its label, but its other labels say nothing: it is not left aside in silence."""
    unread = rank_container(1, PAIR, labels={"cluster.deployment": "toy-1", "cluster.spec": "{"})
    [fault] = check(containers=(unread,))
    assert (fault.check, fault.remedy) == ("names", "cluster down -n spark1")
    probe = rank_container(1, PAIR, labels={"cluster.try": "1"})
    assert check(containers=(probe,)) == []


def test_recipes_that_ask_for_less() -> None:
    assert (
        check(
            of=wanted(of=recipe(platform="any")), identity=identity(1, arch="x86_64"), image=image(architecture="amd64")
        )
        == []
    )
    assert check(of=wanted(of=recipe(memory={})), memory=Memory(available=0)) == []
    assert names(check(of=wanted(of=recipe(model="/models/x")), weights=Missing("gone", "absent"))) == [
        ("fault", "weights")
    ]


def test_a_snapshot_that_is_not_whole_is_removed_with_its_files() -> None:
    """Its links lead to `blobs`; a download would find the same broken file there again."""
    hub = "/hf/hub/models--example--toy"
    snapshot = replace(weights("a: empty"), path=f"{hub}/snapshots/{'c0ffee00' * 5}")
    assert check(weights=snapshot)[0].remedy == f"on spark1: rm -r {hub}, then cluster up again"
    folder = replace(weights("a: empty"), commit="", path="/models/toy")
    assert check(weights=folder)[0].remedy == "on spark1: rm -r /models/toy, then cluster up again"


def test_force_names_the_check() -> None:
    faults = check(memory=Memory(available=0), listening=(Listener("0.0.0.0", 8000, 1, "x"),))
    assert names(refusing(faults, frozenset())) == [("fault", "memory"), ("fault", "ports")]
    assert names(refusing(faults, frozenset({"memory"}))) == [("fault", "ports")]
    assert refusing([Check("ports", "").unknown("spark1", "ports", Missing("no"))], frozenset()) == []


def test_the_worst_comes_first() -> None:
    mixed = [
        Finding(level, "c", str(number), "w")
        for number, level in enumerate(("note", "warning", "fault", "unknown", "fault"))
    ]
    assert [(one.level, one.host) for one in worst_first(mixed)] == [
        ("fault", "2"),
        ("fault", "4"),
        ("unknown", "3"),
        ("warning", "1"),
        ("note", "0"),
    ]
