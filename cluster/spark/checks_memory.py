"""Checks of a host's memory, which on a Spark is the GPU's too: what the recipe needs, and what is to be had."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.spark.deployed import ours
from cluster.spark.fact import Missing
from cluster.spark.finding import Finding, unknown
from cluster.spark.look import Seen
from cluster.spark.memory import Memory
from cluster.spark.request import Wanted

GIB = 1 << 30


def check_memory(wanted: Wanted, seen: Seen) -> Iterator[Finding]:
    """MemAvailable, plus what our own ranks will give back, covers what the recipe asks for.

    Page cache counts as available. `up` drops it where it may; elsewhere an older vLLM, which asks for free memory,
    could refuse to start.
    """
    need, memory = needed_bytes(wanted), seen.memory
    if isinstance(memory, Missing):
        yield unknown("memory", seen.host, memory, "memory")
        return
    if not need or memory.available is None:
        return
    room = memory.available + held_by_us(seen)
    if room < need:
        yield Finding(
            "fault", "memory", seen.host, f"the recipe needs {need / GIB:.1f} GiB, {room / GIB:.1f} GiB are to be had",
            f"MemAvailable {memory.available / GIB:.1f} GiB; {_holders(seen, memory)}",
            f"{_free_it(seen)}, or lower gpu-memory-utilization and memory.per_host_gib with --set",
        )  # fmt: skip
    elif hides_in_cache(wanted, seen) and not (isinstance(seen.identity, Missing) or seen.identity.sudo):
        yield Finding(
            "note", "page-cache", seen.host, "page cache takes memory that an older vLLM counts as used",
            f"MemFree {(memory.free or 0) / GIB:.1f} GiB, MemAvailable {memory.available / GIB:.1f} GiB",
            f"on {seen.host}: sync; echo 3 | sudo tee /proc/sys/vm/drop_caches",
        )  # fmt: skip


def _free_it(seen: Seen) -> str:
    """How to come by more."""
    rows = () if isinstance(seen.gpu_processes, Missing) else seen.gpu_processes
    tenants = () if isinstance(seen.tenants, Missing) else seen.tenants
    if any("ollama" in row.name for row in rows) or any(one.kind == "ollama" for one in tenants):
        return f"on {seen.host}: ollama ps; ollama stop NAME (sudo systemctl stop ollama keeps its models away)"
    return f"on {seen.host}: stop the holder"


def hides_in_cache(wanted: Wanted, seen: Seen) -> bool:
    """Whether enough memory is available for the recipe, but not free: page cache has it."""
    need, memory = needed_bytes(wanted), seen.memory
    if isinstance(memory, Missing) or not need or memory.free is None or memory.available is None:
        return False
    held = held_by_us(seen)  # is given back before
    return memory.free + held < need <= memory.available + held


def needed_bytes(wanted: Wanted) -> int:
    """Bytes one host must have available by the recipe, 0 when it does not say."""
    return int(wanted.recipe.memory.per_host_gib.get(wanted.tp, 0) * GIB)


def held_by_us(seen: Seen) -> int:
    """Bytes that the processes in our own containers hold on this host: of each the larger of RSS and GPU memory.

    On a Spark the GPU's memory is the host's but in no RSS; simulated drivers tell the RSS twice.
    """
    if isinstance(seen.containers, Missing):
        return 0
    mine = {container.id for container in seen.containers if ours(container)}
    held: dict[int, int] = {}
    for process in () if isinstance(seen.processes, Missing) else seen.processes:
        if process.container in mine:
            held[process.pid] = process.rss_bytes
    for row in () if isinstance(seen.gpu_processes, Missing) else seen.gpu_processes:
        if row.container in mine:
            held[row.pid] = max(held.get(row.pid, 0), (row.used_mib or 0) << 20)
    return sum(held.values())


def _holders(seen: Seen, memory: Memory) -> str:
    """The three largest on the GPU, and memory that is set aside or has been swapped out."""
    if isinstance(seen.gpu_processes, Missing) or not seen.gpu_processes:
        told = "no GPU process; see `ps aux --sort -rss`"
    else:
        rows = sorted(seen.gpu_processes, key=lambda row: -(row.used_mib or 0))[:3]
        told = ", ".join(f"{row.name} (pid {row.pid}, {row.used_mib} MiB)" for row in rows)
    huge = f"; {memory.huge_pages / GIB:.1f} GiB are huge pages" if memory.huge_pages else ""
    swapped = (memory.swap_total or 0) - (memory.swap_free or 0)
    return told + huge + (f"; {swapped / GIB:.1f} GiB are swapped out" if swapped >= GIB else "")
