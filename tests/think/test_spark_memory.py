"""What a model could have on a host: the host's memory, or that of a GPU with memory of its own."""

from __future__ import annotations

from typing import Any

import pytest
from plan_tools import GIB, rank_container, recipe, seen, wanted

from cluster.spark.gpu import Gpu, GpuProcess
from cluster.spark.memory import Memory, check_memory, more_room

LITTLE, MUCH = Memory(total=64 * GIB, available=60 * GIB, free=50 * GIB), Memory(total=256 * GIB, available=250 * GIB)
RANK = rank_container(1, wanted())
MINE = GpuProcess(7, "VLLM::EngineCore", 120 << 10, RANK.id)


def card(used_gib: int) -> tuple[Gpu, ...]:
    return (Gpu("NVIDIA H200", "580.159.04", used_gib << 10, 143771, 79.0, 345, 30, 0, ()),)


@pytest.mark.parametrize(
    ("changes", "evidence"),
    [
        ({"gpu": card(0), "memory": LITTLE}, ""),
        ({"gpu": card(120), "memory": MUCH}, "GPU memory free 20.4 GiB"),
        ({"gpu": card(120), "memory": MUCH, "gpu_processes": (MINE,), "containers": (RANK,)}, ""),
        ({"memory": LITTLE}, "MemAvailable 60.0 GiB"),
        ({"memory": MUCH}, ""),
    ],
)
def test_need_is_held_against_the_memory_that_a_model_gets(changes: dict[str, Any], evidence: str) -> None:
    found = [one for one in check_memory(wanted(), seen(1, **changes)) if one.level == "fault"]
    assert [one.evidence.partition(";")[0] for one in found] == ([evidence] if evidence else [])


@pytest.mark.parametrize(
    ("flags", "missing", "words"),
    [
        ({"gpu-memory-utilization": 0.85}, GIB // 10, "by at least 0.01 (--set vllm.gpu-memory-utilization=0.84)"),
        ({"gpu-memory-utilization": 0.85}, 2 * GIB, "by at least 0.02 (--set vllm.gpu-memory-utilization=0.83)"),
        ({"gpu-memory-utilization": 0.85}, 0, "by at least 0.01 (--set vllm.gpu-memory-utilization=0.84)"),
        ({}, 2 * GIB, "lower gpu-memory-utilization by at least 0.02, or max-num-batched-tokens"),
        (
            {"kv-cache-memory-bytes": "20G", "gpu-memory-utilization": 0.8},
            2 * GIB,
            "bytes by at least 2.0 GiB (now 20G)",
        ),
    ],
)
def test_a_flag_gives_the_memory_that_was_missing(flags: dict[str, Any], missing: int, words: str) -> None:
    assert words in more_room(recipe(vllm=flags), missing, 121 * GIB)
