"""Memory of a host from /proc/meminfo (proc(5): values in kB, which are KiB), and when it is not enough.

On a Spark the GPU's memory is the host's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cluster.argv.far import far
from cluster.argv.question import Answer, Question
from cluster.spark.deployments import is_managed
from cluster.spark.fact import Missing, known, read_section
from cluster.spark.finding import Check, Finding
from cluster.spark.processes import OTHER_PROGRAMS

if TYPE_CHECKING:
    from cluster.config.recipe import Recipe
    from cluster.spark.look import Seen
    from cluster.spark.request import Wanted

MEMORY = Check("memory", "memory-is-full")
"""Fault: MemAvailable (of a GPU with memory of its own what is free there), plus what managed ranks release, is less
than the recipe needs. Silent about page cache."""
PAGE_CACHE = Check("page-cache", "memory-is-full#page-cache")
"""Note: enough is available and not free, and without sudo `up` cannot drop the cache. Silent about hosts with sudo."""
GIB = 1 << 30
FIELDS = {
    "MemTotal": "total",
    "MemAvailable": "available",
    "MemFree": "free",
    "SwapTotal": "swap_total",
    "SwapFree": "swap_free",
    "CmaTotal": "cma_total",
    "CmaFree": "cma_free",
    "Hugetlb": "huge_pages",
}
_FREE = re.compile(
    r"^\s*total\s+used\s+free\s+shared\s+buff/cache\s+available\s*\nMem:\s+(?P<cells>[^\n]+)", re.MULTILINE
)
_UNITS = {"": 10, "B": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_LINE = re.compile(r"^(\w+):[ \t]+(\d{1,18})(?: kB)?[ \t]*$", re.MULTILINE | re.ASCII)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes; None where the kernel does not say. `available` includes page cache that can be dropped, `free` does not;
    `huge_pages` are set aside, in neither."""

    total: int | None = None
    available: int | None = None
    free: int | None = None
    swap_total: int | None = None
    swap_free: int | None = None
    cma_total: int | None = None
    cma_free: int | None = None
    huge_pages: int | None = None

    @property
    def has_cma_bug(self) -> bool:
        """The kernel counts more free CMA memory than there is: there registering memory for RDMA fails."""
        return self.cma_total is not None and (self.cma_free or 0) > self.cma_total

    def hides(self, need: int, held: int = 0) -> bool:
        """Whether so many bytes are available and not free: page cache has them. `held` is released before."""
        if self.free is None or self.available is None:
            return False
        return self.free + held < need <= self.available + held


def question() -> Question:
    return far("look", {"sections": ["memory"]})


def parse(answer: Answer) -> Memory | Missing:
    text = read_section(answer, "memory", str)
    return text if isinstance(text, Missing) else parse_meminfo(text)


def parse_meminfo(text: str) -> Memory | Missing:
    """Read the text of /proc/meminfo, or an excerpt."""
    fields = {FIELDS[name]: int(kib) * 1024 for name, kib in _LINE.findall(text) if name in FIELDS}
    return Memory(**fields) if fields else Missing("memory: /proc/meminfo names none of the known fields")


def recognise(text: str) -> Memory | None:
    """/proc/meminfo or what `free` prints in what people paste; None when neither is there."""
    memory = known(parse_meminfo(text))
    if memory and any(part is not None for part in (memory.free, memory.available, memory.cma_total)):
        return memory
    table = _FREE.search(text)
    cells: list[int | None] = []
    for cell in table["cells"].split() if table else ():  # in KiB unless it says otherwise: 121Gi, 512Mi, 127607296
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGTB]?)i?B?", cell)
        cells.append(int(float(found[1]) * (1 << _UNITS[found[2]])) if found else None)
    return Memory(total=cells[0], free=cells[2], available=cells[5]) if len(cells) == 6 else None


def check_memory(wanted: Wanted, seen: Seen) -> Iterator[Finding]:
    """What is available, plus what our own ranks release, covers the recipe: MemAvailable, or what is free in GPUs with
    memory of their own. Page cache counts as available: `up` drops it where it may; elsewhere an older vLLM, which asks
    for free memory, could refuse to start."""
    need, memory = needed_bytes(wanted), seen.memory
    if isinstance(memory, Missing):
        yield MEMORY.unknown(seen.host, "memory", memory)
        return
    if not need or (memory.available is None and not seen.gpu_memory):
        return
    room = seen.available + held_by_us(seen)
    if room < need:
        what = f"not enough memory: {need / GIB:.1f} GiB required, {room / GIB:.1f} GiB available"
        rows = sorted(known(seen.gpu_processes) or (), key=lambda row: -(row.used_mib or 0))
        holders = ", ".join(f"{row.name} (pid {row.pid}, {row.used_mib} MiB)" for row in rows[:3])
        holders = holders or "no GPU process; see `ps aux --sort -rss`"
        evidence = f"{seen.available_text}; {holders}"
        evidence += f"; {memory.huge_pages / GIB:.1f} GiB are huge pages" if memory.huge_pages else ""
        swapped = (memory.swap_total or 0) - (memory.swap_free or 0)
        evidence += f"; {swapped / GIB:.1f} GiB are swapped out" if swapped >= GIB else ""
        tenants = seen.of(OTHER_PROGRAMS)
        others = [*(row.name for row in rows), *(one.name for one in known(tenants) or ())]
        ollama = any("ollama" in name for name in others)
        stop = "ollama ps; ollama stop NAME (sudo systemctl stop ollama keeps its models away)"
        lower = "lower gpu-memory-utilization and memory.per_host_gib with --set"
        remedy = f"on {seen.host}: {stop if ollama else 'stop the holder'}, or {lower}"
        yield MEMORY.fault(seen.host, what, evidence, remedy)
    elif hides_in_cache(wanted, seen) and (account := known(seen.identity)) and not account.sudo:
        what = "page cache takes memory that an older vLLM counts as used"
        evidence = f"MemFree {(memory.free or 0) / GIB:.1f} GiB, {seen.available_text}"
        remedy = f"on {seen.host}: sync; echo 3 | sudo tee /proc/sys/vm/drop_caches"
        yield PAGE_CACHE.note(seen.host, what, evidence, remedy)


def hides_in_cache(wanted: Wanted, seen: Seen) -> bool:
    """Whether enough memory is available for the recipe, but not free: page cache has it."""
    need, memory = needed_bytes(wanted), known(seen.memory)
    return bool(need and memory and not seen.gpu_memory and memory.hides(need, held_by_us(seen)))


def needed_bytes(wanted: Wanted) -> int:
    """Bytes that one host must have available by the recipe, 0 when unknown."""
    return int(wanted.recipe.memory.per_host_gib.get(wanted.tp, 0) * GIB)


def more_room(recipe: Recipe, missing: int, total: int) -> str:
    """Which flags of vLLM leave so many more bytes to a host that has `total`; at least so many, since the guard ends a
    rank before it has all that it wants. With kv-cache-memory-bytes vLLM ignores gpu-memory-utilization."""
    flags = recipe.vllm
    if "kv-cache-memory-bytes" in flags:
        gib = max(1, math.ceil(missing / GIB * 10)) / 10
        lower = f"lower kv-cache-memory-bytes by at least {gib} GiB (now {flags['kv-cache-memory-bytes']})"
    else:
        share, given = max(1, math.ceil(100 * missing / (total or GIB))) / 100, flags.get("gpu-memory-utilization")
        lower = f"lower gpu-memory-utilization by at least {share:.2f}"
        if isinstance(given, int | float):
            lower += f" (--set vllm.gpu-memory-utilization={given - share:.2f})"
    return f"{lower}, or max-num-batched-tokens"


def held_by_us(seen: Seen) -> int:
    """Bytes of the processes in our own containers on this host: of each the larger of RSS and GPU memory. On a
    Spark the GPU's memory is the host's but in no RSS; simulated drivers report the RSS twice. Where GPUs have memory
    of their own, only that counts."""
    mine = {container.id for container in known(seen.containers) or () if is_managed(container)}
    processes = () if seen.gpu_memory else known(seen.processes) or ()
    held = {one.pid: one.rss_bytes for one in processes if one.container in mine}
    for row in known(seen.gpu_processes) or ():
        if row.container in mine:
            held[row.pid] = max(held.get(row.pid, 0), (row.used_mib or 0) << 20)
    return sum(held.values())


def moment_names(*backends: str) -> dict[str, str]:
    """The moments of a start at which memory is read, in order, as tables of these backends call them."""
    up = "Ray up" if "ray" in backends else "started"
    return {"idle": "idle", "ray_up": up, "loaded": "loaded", "ready": "ready"}
