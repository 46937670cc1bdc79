"""Checks of a host's GPU: it answers, its clocks and power are as they should be, and who else is on it."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.spark.deployed import ours
from cluster.spark.fact import Missing
from cluster.spark.finding import Finding, Level, unknown
from cluster.spark.gpu import Gpu
from cluster.spark.gpu_processes import GpuProcess
from cluster.spark.gpu_state import judge_gpu
from cluster.spark.look import Seen

HELD_BACK = ("hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "power brake")
"""Reasons for low clocks that are no matter of the load; a power cap is one on a busy GPU."""


def check_gpu(seen: Seen) -> Iterator[Finding]:
    """nvidia-smi answers, and what it tells of a busy GPU's power and clocks makes sense."""
    if isinstance(seen.gpu, Missing):
        level: Level = "fault" if seen.gpu.kind == "absent" or "NVML" in seen.gpu.why else "unknown"
        yield Finding(
            level, "gpu", seen.host, "the GPU cannot be asked", seen.gpu.why,
            f"on {seen.host}: nvidia-smi; after a driver upgrade, reboot",
        )  # fmt: skip
        return
    for gpu in seen.gpu:
        yield from check_state(seen.host, gpu)


def check_state(host: str, gpu: Gpu) -> Iterator[Finding]:
    """Power capped (every number measured would be of the cap), spinning in a kernel, or held back by heat."""
    state, numbers = judge_gpu(gpu), _numbers(gpu)
    held_back = [reason for reason in gpu.throttle or () if reason in HELD_BACK]
    if held_back or state == "slowed":
        yield Finding(
            "warning", "throttle", host, f"the GPU's clocks are lowered: {', '.join(held_back) or 'no reason told'}",
            numbers, f"on {host}: nvidia-smi -q -d PERFORMANCE,TEMPERATURE; free the air's way, let it cool",
        )  # fmt: skip
    elif state == "capped":
        yield Finding(
            "fault", "power-cap", host, "the GPU is busy at low clocks: its power is capped by supply or firmware",
            numbers, f"on {host}: shut down, unplug the power brick for a minute; else sudo fwupdmgr update",
        )  # fmt: skip
    elif state == "spinning":
        yield Finding(
            "warning", "wedged", host, "the GPU is busy at idle power with full clocks: a kernel spins and waits",
            numbers, f"cluster status: do tokens move? if not, cluster down; on {host}: nvidia-smi names the holder",
        )  # fmt: skip
    elif state == "stalled":
        yield Finding(
            "warning", "wedged", host, "the GPU is busy at idle power: a kernel spins, or the power is capped", numbers,
            f"on {host}: nvidia-smi -q -d CLOCK,POWER; low SM clocks mean a cap",
        )  # fmt: skip


def _numbers(gpu: Gpu) -> str:
    """What was read, as far as it was told."""
    rows = [
        ("{} % busy", gpu.utilization_pct),
        ("{:g} W", gpu.power_w),
        ("of at most {:g} W", gpu.power_limit_w),
        ("{} MHz", gpu.sm_clock_mhz),
        ("{} °C", gpu.temperature_c),
    ]
    told = [text.format(value) for text, value in rows if value is not None]
    return ", ".join([*told, *(gpu.throttle or ())])


def check_strangers(seen: Seen) -> Iterator[Finding]:
    """Processes on the GPU that are not in a container of ours: strangers', and engines that outlived theirs."""
    if isinstance(seen.gpu_processes, Missing):
        if not isinstance(seen.gpu, Missing):
            yield unknown("gpu-stranger", seen.host, seen.gpu_processes, "processes on the GPU")
        return
    if isinstance(seen.containers, Missing):
        return
    names = {container.id: container.name for container in seen.containers}
    mine = {container.id for container in seen.containers if ours(container)}
    for process in seen.gpu_processes:
        if process.container in mine:
            continue
        if process.is_engine and process.container not in names:
            yield Finding(
                "warning", "orphan", seen.host, f"{process.name} uses the GPU and is in no container that Docker has",
                _held(process), f"on {seen.host}: {end_process(process.pid)}",
            )  # fmt: skip
            continue
        place = names.get(process.container, "")
        yield Finding(
            "warning", "gpu-stranger", seen.host, "a process that is not ours uses the GPU",
            _held(process) + (f", container {place}" if place else ""), f"on {seen.host}: {_stop(process, place)}",
        )  # fmt: skip


def _held(process: GpuProcess) -> str:
    held = "memory unknown" if process.used_mib is None else f"{process.used_mib} MiB"
    return f"pid {process.pid} {process.name}, {held}"


def _stop(process: GpuProcess, container: str) -> str:
    if "ollama" in process.name:
        return "ollama ps; ollama stop NAME"
    return f"docker stop {container}, if nobody needs it" if container else end_process(process.pid)


def end_process(pids: int | str) -> str:
    """How to end processes that may be a person's or a service's: first whose they are, and only then a kill."""
    whose = f"ps -o user,ppid,lstart,cmd -p '{pids}'; systemctl status {pids}"
    return f"{whose}; only if they are no user's and no service's: sudo kill {pids}"
