"""What a model could have on a host: the host's memory, or that of a GPU with memory of its own."""

from __future__ import annotations

from typing import Any

import pytest
from plan_tools import GIB, rank_container, seen, wanted

from cluster.spark.gpu import Gpu, GpuProcess
from cluster.spark.memory import Memory, check_memory

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
