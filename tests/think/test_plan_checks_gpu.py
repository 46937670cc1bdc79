"""Checks of GPU and memory: pairs that look alike are told apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from facts_tools import sample
from plan_tools import GIB, identity, names, rank_container, recipe, seen, stranger, wanted

from cluster.spark import memory
from cluster.spark.fact import Missing
from cluster.spark.finding import Finding
from cluster.spark.gpu import Gpu, GpuProcess, end_process
from cluster.spark.look import check_host
from cluster.spark.memory import Memory

PAIR = wanted()
GB10 = Gpu("NVIDIA GB10", "580.95.05", None, None, 45.0, 2411, 60, 95, (), False)


def check(of: Any = PAIR, **changes: Any) -> list[Finding]:
    return list(check_host(of, seen(1, **changes), ()))


def gpu(**changes: Any) -> tuple[Gpu, ...]:
    return (replace(GB10, **changes),)


CASES: dict[str, tuple[dict[str, Any], list[tuple[str, str]]]] = {
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


@pytest.mark.parametrize("what", CASES)
def test_state(what: str) -> None:
    changes, expected = CASES[what]
    assert names(check(gpu=gpu(**changes))) == expected


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


def test_whose_a_process_is_comes_before_its_end() -> None:
    """It may be a server in somebody's virtual environment, or a service of systemd."""
    words = end_process("7 8")
    assert words.index("ps -o user,ppid,lstart,cmd -p '7 8'") < words.index("systemctl status 7 8")
    assert words.index("systemctl status 7 8") < words.index("sudo kill 7 8")


def test_processes_that_could_not_be_read_are_told_once() -> None:
    assert names(check(gpu_processes=Missing("no"))) == [("unknown", "gpu-stranger")]
    assert names(check(gpu=Missing("no"), gpu_processes=Missing("no"))) == [("unknown", "gpu")]


def test_a_strangers_container_with_the_gpu_is_noted() -> None:
    [note] = check(containers=(stranger("webui", gpu=True),))
    assert (note.level, note.check) == ("note", "stranger")
    assert check(containers=(stranger("webui"), stranger("old", gpu=True, state="exited"))) == []


# memory


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


def test_free_memory_needs_no_word() -> None:
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
