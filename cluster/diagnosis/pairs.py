"""Pairs of causes that look alike in one text and are told apart by another: what more is known settles a finding."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from cluster.diagnosis.explanation import Explanation, settled
from cluster.diagnosis.judge_machine import GIB, gib
from cluster.diagnosis.outputs import Outputs
from cluster.diagnosis.rules import OF_PAIRS
from cluster.spark.checks_machine import BAD_KERNEL
from cluster.spark.gids import Gid
from cluster.spark.gpu_state import IDLE_W
from cluster.spark.memory import Memory

Settle = Callable[[Explanation, Outputs], Explanation | None]
"""The finding as more is known, the same finding when nothing is, None when it turned out to be nothing."""

SMALL_MEMLOCK = 64 * GIB
FULL = 4 * GIB


def settle(found: Sequence[Explanation], outputs: Outputs) -> list[Explanation]:
    """Every finding as it stands beside all outputs."""
    known = [SETTLERS[one.id](one, outputs) if one.id in SETTLERS else one for one in found]
    return [one for one in known if one is not None]


def settle_free_memory(found: Explanation, outputs: Outputs) -> Explanation:
    """Page cache or a holder: MemAvailable tells."""
    memory = _memory(found, outputs)
    if memory is None or memory.available is None:
        return found
    wanted = re.search(r"\(0?\.\d+, ([\d.]+) GiB\)", found.finding.evidence)
    need = float(wanted[1]) * GIB if wanted else 0.8 * (memory.total or 0)
    id = "free-memory-page-cache" if memory.available >= need else "free-memory-held"
    return settled(found, OF_PAIRS[id], available=gib(memory.available))


def settle_rdma_memory(found: Explanation, outputs: Outputs) -> Explanation:
    """The kernel's regression, a limit of locked memory, or memory that is full."""
    kernels: list[str] = [output.value for output in outputs.named("kernel")]
    limits: list[int] = [output.value for output in outputs.named("memlock")]
    memory = _memory(found, outputs)
    if (memory and memory.has_cma_bug) or any(BAD_KERNEL.match(kernel) for kernel in kernels):
        told = f"kernel {kernels[0]}" if kernels else "CmaFree is more than CmaTotal"
        return settled(found, OF_PAIRS["rdma-enomem-kernel"], told=told)
    if any(0 <= limit < SMALL_MEMLOCK for limit in limits):
        return settled(found, OF_PAIRS["rdma-enomem-memlock"], limit=str(limits[0] >> 10))
    if memory and memory.available is not None and memory.available < FULL:
        return settled(found, OF_PAIRS["rdma-enomem-full"], available=gib(memory.available))
    if kernels and not limits:
        return settled(found, OF_PAIRS["rdma-enomem-other-kernel"], kernel=kernels[0])
    return found


def settle_broadcast(found: Explanation, outputs: Outputs) -> Explanation | None:
    """Compiling or hanging: power tells."""
    powers = [gpu.power_w for output in outputs.named("gpus") for gpu in output.value if gpu.power_w is not None]
    if not powers:
        return found
    return None if max(powers) >= IDLE_W else settled(found, OF_PAIRS["ranks-hang"], power=f"{max(powers):g}")


def settle_image(found: Explanation, outputs: Outputs) -> Explanation:
    """Different images, or only different stores."""
    stores = [output.value.storage_driver for output in outputs.named("docker info") if output.value.storage_driver]
    if len(stores) < 2:
        return found
    id = "image-stores-differ" if len(set(stores)) > 1 else "image-really-differs"
    return settled(found, OF_PAIRS[id], stores=" and ".join(dict.fromkeys(stores)))


def settle_env(found: Explanation, outputs: Outputs) -> Explanation | None:
    """The head's names on a worker are harmless where those ports are up too."""
    named = re.search(r" to '([^']*)'", found.finding.evidence)
    names = re.split(r"[,:=^]", named[1]) if named else []
    ports = [port for output in outputs.named("ports") for port in output.value]
    states = [port.is_up for port in ports if port.hca in names or port.netdev in names]
    return None if states and all(states) else found


def settle_gid(found: Explanation, outputs: Outputs) -> Explanation:
    """The index that would be right, where a table is at hand."""
    gids: list[Gid] = [gid for output in outputs.named("gids") for gid in output.value]
    right = sorted({gid.index for gid in gids if gid.is_v2 and gid.ipv4})
    if not right:
        return found
    told = f"{found.finding.what}; the table shows it at {' and '.join(map(str, right))}"
    return replace(found, finding=replace(found.finding, what=told))


SETTLERS: dict[str, Settle] = {
    "free-memory-check": settle_free_memory,
    "rdma-enomem": settle_rdma_memory,
    "shm-broadcast": settle_broadcast,
    "image-differs": settle_image,
    "env-overwritten": settle_env,
    "nccl-gid-hole": settle_gid,
}


def _memory(found: Explanation, outputs: Outputs) -> Memory | None:
    """The memory of the same file, else of any."""
    known = outputs.named("memory")
    return next((output.value for output in known if output.file == found.file), known[0].value if known else None)
