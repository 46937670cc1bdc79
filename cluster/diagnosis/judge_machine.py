"""Conditions on outputs about one machine: memory, GPU, processes, disk, identity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from cluster.diagnosis.explanation import Explanation
from cluster.diagnosis.outputs import Outputs
from cluster.spark.gpu import Gpu
from cluster.spark.gpu_processes import GpuProcess
from cluster.spark.gpu_state import BUSY_PCT, IDLE_W, judge_gpu
from cluster.spark.host_text import Filled
from cluster.spark.memory import Memory

GIB = 1 << 30
OF_STATE = {"stalled": "gpu-stalled", "capped": "gpu-power-capped", "spinning": "gpu-wedged"}
HELD_SHARE, CACHE_SHARE = 0.5, 0.8
FULL_PCT, NEARLY_FULL_PCT = 100, 95
NOT_STORAGE = ("/boot", "/snap", "/run", "/sys", "/proc", "/cdrom", "/media")
NOT_DISKS = ("/dev/loop", "squashfs", "efivarfs")


def judge_memory(outputs: Outputs) -> Iterator[Explanation]:
    """The kernel's CMA bug; memory that is held; page cache that looks like use."""
    for output in outputs.named("memory"):
        memory: Memory = output.value
        if memory.has_cma_bug:
            yield output.say("cma-bug", ("CmaFree",))
        if not memory.total or memory.available is None:
            continue
        share = memory.available / memory.total
        if share < HELD_SHARE:
            words = ("MemAvailable",) if output.find("MemAvailable") else ("Mem:",)
            yield output.say("memory-held", words, available=gib(memory.available), total=gib(memory.total))
        elif share > CACHE_SHARE and memory.free is not None and memory.free < memory.total // 2:
            words = ("MemFree",) if output.find("MemFree") else ("Mem:",)
            yield output.say("page-cache", words, cache=gib(memory.available - memory.free))


def gib(value: int) -> str:
    """Bytes as GiB."""
    return f"{value / GIB:.0f}"


def judge_gpus(outputs: Outputs) -> Iterator[Explanation]:
    """Busy and drawing little: capped when the clocks are low, a kernel that spins when they are high."""
    for output in outputs.named("gpus"):
        gpus: tuple[Gpu, ...] = output.value
        busy = [gpu for gpu in gpus if (gpu.utilization_pct or 0) >= BUSY_PCT and gpu.power_w is not None]
        if not busy or any((gpu.power_w or 0.0) >= IDLE_W for gpu in busy):
            continue
        gpu, clock, power = busy[0], busy[0].sm_clock_mhz, f"{busy[0].power_w:g}"
        words = (str(clock),) if clock else (power,)
        busy_pct = str(gpu.utilization_pct)
        id = OF_STATE.get(judge_gpu(gpu))
        if id:
            yield output.say(id, words, busy=busy_pct, power=power, clock=str(clock))


def judge_processes(outputs: Outputs) -> Iterator[Explanation]:
    """Engine processes that hold memory where no container runs."""
    for output in outputs.named("gpu processes"):
        processes: tuple[GpuProcess, ...] = output.value
        engines = [one for one in processes if one.is_engine]
        if not engines:
            continue
        running = [other.value for other in outputs.named("docker ps") if other.file == output.file]
        held = sum(one.used_mib or 0 for one in engines) << 20
        pids = " ".join(str(one.pid) for one in engines)
        id = "orphan-workers" if running == [0] else "engine-holds-memory"
        yield output.say(id, (str(engines[0].pid),), name=engines[0].name, held=gib(held), pids=pids)


def judge_disk(outputs: Outputs) -> Iterator[Explanation]:
    """A file system without room, images and pseudo ones aside."""
    for output in outputs.named("disk"):
        rows: tuple[Filled, ...] = output.value
        for row in rows:
            if row.path.startswith(NOT_STORAGE) or row.device.startswith(NOT_DISKS) or row.used_pct < NEARLY_FULL_PCT:
                continue
            id = "disk-full" if row.used_pct >= FULL_PCT or row.free_bytes < GIB else "disk-nearly-full"
            yield output.say(id, (f"{row.used_pct}%", row.path), path=row.path, used=str(row.used_pct))


def judge_machines(outputs: Outputs) -> Iterator[Explanation]:
    """Two hosts with one machine-id or one name."""
    ids = [(output, id) for output in outputs.named("machine-ids") for id in output.value]
    counts = Counter(id for _, id in ids)
    twice = [(output, id) for output, id in ids[1:] if counts[id] > 1]
    if twice:
        yield twice[-1][0].say("machine-id-twice", (twice[-1][1],))
    names = [(output, name) for output in outputs.named("hostnames") for name in output.value]
    if len(names) > 1 and names[0][1] == names[-1][1] and len(counts) != 1:
        yield names[-1][0].say("hostname-twice", (names[-1][1],), name=names[-1][1])
