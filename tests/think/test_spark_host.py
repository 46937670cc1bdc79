"""Checks of one host: what is a fault, a warning or not known; pairs that look alike; what is ours goes first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from facts_tools import sample
from plan_tools import CONTENT, DATA, GIB, identity, names, rank_container, recipe, running, seen, stranger, wanted

from cluster.spark import memory
from cluster.spark.deployments import deployments
from cluster.spark.disk import Room
from cluster.spark.fact import Missing
from cluster.spark.finding import Check, Finding, refusing
from cluster.spark.gpu import Gpu, GpuProcess, end_process
from cluster.spark.image import Image
from cluster.spark.look import check_host
from cluster.spark.memory import Memory
from cluster.spark.processes import EngineProcess, Listener, Tenant
from cluster.spark.weights import Weights

PAIR = wanted()


def check(of: Any = PAIR, found: Any = (), number: int = 1, **changes: Any) -> list[Finding]:
    return list(check_host(of, seen(number, **changes), found))


def image(**changes: Any) -> Image:
    return replace(Image("example.org/vllm:1", "sha256:1", CONTENT, "arm64", 1), **changes)


def weights(*problems: str) -> Weights:
    return Weights("example/toy", "main", "c0ffee", "/snap", 5, 60 * GIB, problems)


ROOM = Room(DATA, 900 * GIB, 1 << 20, 1)
CMA_BUG = Memory(120 * GIB, 110 * GIB, 100 * GIB, cma_total=0, cma_free=940604 << 10)
GB10 = Gpu("NVIDIA GB10", "580.95.05", None, None, 45.0, 2411, 60, 95, (), False)


def tenant(kind: str, name: str) -> tuple[Tenant, ...]:
    return (Tenant(kind, name, 812, 1000),)


def gpu(**changes: Any) -> tuple[Gpu, ...]:
    return (replace(GB10, **changes),)


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
    "read-only": ({"disk": (replace(ROOM, read_only=True),)}, [("warning", "disk")]),
    "little room": ({"disk": (Room(DATA, 4 * GIB, 1),)}, [("warning", "disk")]),
    "no room told": ({"disk": Missing("no")}, [("unknown", "disk")]),
    "no ports told": ({"listening": Missing("no")}, [("unknown", "ports")]),
    "API port": ({"listening": (Listener("0.0.0.0", 8000, 812, "nginx"),)}, [("fault", "ports")]),
    "a port of Ray's workers": ({"listening": (Listener("::", 27250, None, ""),)}, [("fault", "ports")]),
    "a port beside ours": ({"listening": (Listener("0.0.0.0", 27300, 1, "x"), Listener("::", 22, 1, "sshd"))}, []),
    "a stranger": ({"containers": (stranger("webui"),)}, []),
    "a stranger with the GPU": ({"containers": (stranger("webui", gpu=True),)}, [("note", "stranger")]),
    "one with the GPU that is stopped": ({"containers": (stranger("old", gpu=True, state="exited"),)}, []),
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
    "no sudo": ({"identity": identity(1, sudo=False)}, [("note", "sudo")]),
    "a kernel of the bad series": ({"identity": identity(1, kernel="7.0.0-1019-nvidia")}, [("warning", "kernel")]),
    "its other name": ({"identity": identity(1, kernel="7.0.0-31-generic")}, [("warning", "kernel")]),
    "that kernel with kho=off": (
        {
            "identity": identity(1, kernel="7.0.0-1019-nvidia"),
            "memory": replace(CMA_BUG, cma_total=GIB, cma_free=GIB // 2),
        },
        [],
    ),
    "an earlier kernel": ({"identity": identity(1, kernel="6.17.0-1032-nvidia")}, []),
    "a later one of that number": ({"identity": identity(1, kernel="7.0.0-310-generic")}, []),
    "CMA counts more free than there is": ({"memory": CMA_BUG}, [("fault", "kernel")]),
    "no CMA": ({"memory": replace(CMA_BUG, cma_free=0)}, []),
    "a CMA pool in use": ({"memory": replace(CMA_BUG, cma_total=GIB, cma_free=GIB // 2)}, []),
    "Ubuntu's name for itself": ({"identity": identity(1, named_addresses=("127.0.1.1",))}, []),
    "its own address": ({"identity": identity(1, named_addresses=("192.168.1.41", "::1"))}, []),
    "an address of its fabric": ({"identity": identity(1, named_addresses=("192.168.100.11",))}, []),
    "an address of before": ({"identity": identity(1, named_addresses=("192.168.1.99",))}, [("warning", "hostname")]),
    "no address to compare": ({"identity": identity(1, named_addresses=("10.9.9.9",)), "links": Missing("x")}, []),
    "its mDNS name": ({"tenants": tenant("mdns", "spark1.local")}, []),
    "another mDNS name": ({"tenants": tenant("mdns", "spark1-30.local")}, [("note", "hostname")]),
    "Ollama with a model": ({"tenants": tenant("ollama", "ollama")}, [("warning", "tenants")]),
    "earlyoom": ({"tenants": tenant("killer", "earlyoom")}, [("warning", "tenants")]),
    "a desktop": ({"tenants": tenant("desktop", "gnome-shell")}, [("note", "tenants")]),
    "one session": ({"tenants": tenant("desktop", "gnome-shell") + tenant("desktop", "Xorg")}, [("note", "tenants")]),
    "tenants not told": ({"tenants": Missing("no")}, [("unknown", "tenants")]),
    "Ollama on the GPU is told once": (
        {"tenants": tenant("ollama", "ollama"), "gpu_processes": (GpuProcess(812, "/usr/bin/ollama", 9000, ""),)},
        [("warning", "gpu-stranger")],
    ),
    "few inodes": ({"disk": (replace(ROOM, free_inodes=900),)}, [("warning", "disk")]),
    "inodes are not counted": ({"disk": (replace(ROOM, free_inodes=None),)}, []),
    "two paths of one disk": (
        {"disk": (replace(ROOM, free_bytes=GIB), replace(ROOM, path="/var/lib/docker", free_bytes=GIB))},
        [("warning", "disk")],
    ),
    "two disks": (
        {"disk": (replace(ROOM, free_bytes=GIB), replace(ROOM, path="/var/lib/docker", free_bytes=GIB, device=2))},
        [("warning", "disk")] * 2,
    ),
}


GPUS: dict[str, tuple[dict[str, Any], list[tuple[str, str]]]] = {
    "decoding": ({}, []),
    "at rest": ({"power_w": 4.0, "sm_clock_mhz": 208, "utilization_pct": 0, "idle": True}, []),
    "decoding under the power cap of its design": ({"power_w": 90.0, "throttle": ("power cap",)}, []),
    "a wedge": ({"power_w": 20.3, "sm_clock_mhz": 2405}, [("warning", "wedged")]),
    "a power cap": ({"power_w": 16.4, "sm_clock_mhz": 611}, [("fault", "power-cap")]),
    "which of the two is not told": ({"power_w": 16.4, "sm_clock_mhz": None}, [("warning", "wedged")]),
    "a short job has just ended": ({"power_w": 12.0, "sm_clock_mhz": 208, "idle": True}, []),
    "too hot": ({"throttle": ("software thermal slowdown",)}, [("warning", "throttle")]),
    "too hot and slow is no cap": (
        {"power_w": 18.0, "sm_clock_mhz": 600, "throttle": ("hardware thermal slowdown",)},
        [("warning", "throttle")],
    ),
    "slow at work": ({"power_w": 60.0, "sm_clock_mhz": 700}, [("warning", "throttle")]),
    "clocks fixed by somebody": ({"throttle": ("application clocks", "sync boost")}, []),
    "power not told": ({"power_w": None}, []),
    "reasons not told": ({"throttle": None}, []),
}
CASES |= {f"GPU: {what}": ({"gpu": gpu(**changes)}, found) for what, (changes, found) in GPUS.items()}


@pytest.mark.parametrize("what", CASES)
def test_finding(what: str) -> None:
    changes, expected = CASES[what]
    found = check(**changes)
    assert names(found) == expected
    for finding in found:
        assert (finding.host, bool(finding.evidence)) == ("spark1", True)
        assert finding.remedy or finding.level in ("unknown", "warning")


def test_without_docker_only_the_machine_is_judged() -> None:
    """What is ours cannot be told from what is not."""
    gone, taken = Missing("Docker's daemon does not answer", "absent"), (Listener("0.0.0.0", 8000, 812, "nginx"),)
    full = (replace(ROOM, free_bytes=0),)
    found = check(docker=gone, containers=gone, disk=full, listening=taken, memory=Memory(available=0))
    assert names(found) == [("fault", "docker"), ("warning", "disk")]


def test_ports_by_rank_and_backend() -> None:
    taken = tuple(Listener("0.0.0.0", number, 5, "x") for number in (8000, 27110, 27120, 27127))
    assert names(check(number=2, listening=taken)) == []
    [fault] = check(listening=taken)
    assert fault.what.startswith("ports 8000 (OpenAI API), 27110 (cord between the ranks), 27120 (Ray GCS), 27127")
    assert fault.evidence == "x (pid 5) listens there"
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
    both = {
        "containers": (container,),
        "processes": (EngineProcess(7, "VLLM::Worker_TP0", 50 * GIB, container.id),),
        "gpu_processes": (GpuProcess(7, "VLLM::Worker_TP0", 50 * 1024, container.id),),
    }  # a simulated driver reports the RSS; a Spark's GPU memory is in no RSS
    assert names(check(found=found, memory=Memory(available=39 * GIB), **both)) == [("fault", "memory")]
    assert check(found=found, memory=Memory(available=40 * GIB), **both) == []


def test_a_strangers_port_is_hidden_by_no_rank_of_ours_nor_by_a_dead_one() -> None:
    found = deployments(running(PAIR))
    other = wanted(of=recipe(port=9000))
    taken = (Listener("0.0.0.0", 8000, None, ""), Listener("0.0.0.0", 9000, 3, "nginx"))
    [container] = running(PAIR)[0].containers
    [fault] = check(of=other, found=found, listening=taken, containers=(container,))
    assert fault.what == "port 9000 (OpenAI API) is taken"
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


def test_memory_that_ollama_holds_is_freed_with_its_own_command() -> None:
    """Also where its processes are seen and the GPU does not list them."""
    found = check(memory=Memory(available=2 * GIB), tenants=tenant("ollama", "ollama"))
    [fault] = [one for one in found if one.check == "memory"]
    assert "ollama stop NAME" in fault.remedy


def test_the_kernels_bug_stops_only_what_needs_rdma() -> None:
    """One host registers nothing; sockets neither. The recorded /proc/meminfo of the field fires."""
    recorded = memory.parse_meminfo(sample("proc_meminfo_cma_bug.txt"))
    bug = replace(CMA_BUG, cma_total=recorded.cma_total, cma_free=recorded.cma_free)
    [fault] = check(memory=bug)
    assert fault.evidence == "uname -r: 6.11, CmaTotal 0 kB, CmaFree 940604 kB"
    assert "kho=off" in fault.remedy
    assert names(check(wanted(1, "none"), memory=bug)) == [("warning", "kernel")]
    assert names(check(wanted(allow_socket=True), memory=bug)) == [("warning", "kernel")]
    assert names(check(wanted(of=recipe(transport="socket")), memory=bug)) == [("warning", "kernel")]


def test_docker_is_explained_by_the_account() -> None:
    remedies = {kind: check(docker=Missing("x", kind))[0].remedy for kind in ("refused", "absent", "timeout")}
    words = {"refused": "usermod -aG docker", "absent": "install Docker", "timeout": "restart docker"}
    assert all(words[kind] in remedy for kind, remedy in remedies.items())
    refused = Missing("permission denied while trying to connect", "refused")
    [fault] = check(docker=refused, containers=refused, identity=identity(1, groups=("ada", "video")))
    assert fault.evidence == "permission denied while trying to connect; groups of ada: ada video"
    absent = Missing("docker: not found on the PATH of a non-login shell", "absent")
    [fault] = check(docker=absent, containers=absent)
    assert fault.evidence == "docker: not found on the PATH of a non-login shell: /usr/bin"


def test_evidence_is_the_numbers() -> None:
    [fault] = check(gpu=gpu(power_w=16.4, sm_clock_mhz=611, throttle=("power cap",), power_limit_w=140.0))
    assert fault.evidence == "95 % busy, 16.4 W, of at most 140 W, 611 MHz, 60 °C, power cap"
    assert "unplug the power brick" in fault.remedy


def test_who_is_on_the_gpu() -> None:
    mine, other = rank_container(1, PAIR), stranger("webui")
    rows = (
        GpuProcess(1, "VLLM::EngineCore", 90_000, mine.id),
        GpuProcess(2, "VLLM::Worker_TP0", 70_000, "e" * 64),
        GpuProcess(3, "ray::RayWorkerProc", None, ""),
        GpuProcess(4, "python3", 512, other.id),
        GpuProcess(5, "/usr/local/bin/ollama", 9_000, ""),
    )
    found = [one for one in check(containers=(mine, other), gpu_processes=rows) if one.check != "names"]
    assert names(found) == [("warning", "orphan")] * 2 + [("warning", "gpu-stranger")] * 2
    assert [one.evidence for one in found] == [
        "pid 2 VLLM::Worker_TP0, 70000 MiB",
        "pid 3 ray::RayWorkerProc, memory unknown",
        "pid 4 python3, 512 MiB, container webui",
        "pid 5 /usr/local/bin/ollama, 9000 MiB",
    ]
    assert [one.remedy.split(": ", 1)[1] for one in found] == [
        end_process(2),
        end_process(3),
        "docker stop webui, if nobody needs it",
        "ollama ps; ollama stop NAME",
    ]
    order = [end_process("7 8").index(words) for words in ("ps -o user", "systemctl status 7 8", "sudo kill 7 8")]
    assert order == sorted(order), "whose a process is comes before its end"


def test_processes_that_could_not_be_read_are_told_once() -> None:
    assert names(check(gpu_processes=Missing("no"))) == [("unknown", "gpu-stranger")]
    assert names(check(gpu=Missing("no"), gpu_processes=Missing("no"))) == [("unknown", "gpu")]


def test_page_cache_is_no_holder() -> None:
    """Two recorded hosts with little free: MemAvailable tells them apart."""
    needs = wanted(of=recipe(memory={"per_host_gib": {2: 90}}))
    no_sudo = identity(1, sudo=False)
    cache, full = (memory.parse_meminfo(sample(f"meminfo_{name}.txt")) for name in ("page_cache_full", "really_full"))
    assert names(check(needs, memory=full)) == [("fault", "memory")]
    assert check(needs, memory=cache) == []  # up drops it
    found = check(needs, memory=cache, identity=no_sudo)
    assert names(found) == [("note", "sudo"), ("note", "page-cache")]
    assert "drop_caches" in found[1].remedy
    roomy = Memory(120 * GIB, 115 * GIB, 100 * GIB)
    assert names(check(memory=roomy, identity=identity(1, sudo=False))) == [("note", "sudo")]
    assert names(check(memory=replace(roomy, free=None), identity=identity(1, sudo=False))) == [("note", "sudo")]


def test_memory_says_who_has_it() -> None:
    held = (GpuProcess(9, "python3", 60_000, ""),)
    short = Memory(120 * GIB, 50 * GIB, 50 * GIB, huge_pages=16 * GIB)
    fault = next(one for one in check(memory=short, gpu_processes=held) if one.check == "memory")
    assert fault.evidence == "MemAvailable 50.0 GiB; python3 (pid 9, 60000 MiB); 16.0 GiB are huge pages"
    swapping = replace(short, huge_pages=0, swap_total=16 * GIB, swap_free=4 * GIB)
    fault = next(one for one in check(memory=swapping) if one.check == "memory")
    assert fault.evidence.endswith("; 12.0 GiB are swapped out")
