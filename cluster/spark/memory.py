"""Memory of a host from /proc/meminfo (proc(5): values in kB, which are KiB). On a Spark the GPU's is the same."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cluster.argv.far import far
from cluster.argv.question import Answer, Question
from cluster.spark.fact import Missing
from cluster.spark.sections import read_section

FIELDS = {
    "MemTotal": "total", "MemAvailable": "available", "MemFree": "free", "Cached": "cached",
    "SwapTotal": "swap_total", "SwapFree": "swap_free", "CmaTotal": "cma_total", "CmaFree": "cma_free",
    "Hugetlb": "huge_pages",
}  # fmt: skip
_FREE = re.compile(
    r"^\s*total\s+used\s+free\s+shared\s+buff/cache\s+available\s*\nMem:\s+(?P<cells>[^\n]+)", re.MULTILINE
)
_UNITS = {"": 10, "B": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_LINE = re.compile(r"^(\w+):[ \t]+(\d{1,18})(?: kB)?[ \t]*$", re.MULTILINE | re.ASCII)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes; None where the kernel did not tell. `available` counts page cache that can be given back, `free` not;
    `huge_pages` are set aside, in neither."""

    total: int | None = None
    available: int | None = None
    free: int | None = None
    cached: int | None = None
    swap_total: int | None = None
    swap_free: int | None = None
    cma_total: int | None = None
    cma_free: int | None = None
    huge_pages: int | None = None

    @property
    def has_cma_bug(self) -> bool:
        """The kernel counts more free CMA memory than there is: registering memory for RDMA fails on such a one."""
        return self.cma_total is not None and (self.cma_free or 0) > self.cma_total


def question() -> Question:
    """Ask for the memory alone."""
    return far("look", {"sections": ["memory"]})


def parse(answer: Answer) -> Memory | Missing:
    """Read the section `memory` of far/look, which is the text of /proc/meminfo."""
    text = read_section(answer, "memory", str)
    return text if isinstance(text, Missing) else parse_meminfo(text)


def parse_meminfo(text: str) -> Memory | Missing:
    """Read the text of /proc/meminfo, whole or an excerpt."""
    told = {FIELDS[name]: int(kib) * 1024 for name, kib in _LINE.findall(text) if name in FIELDS}
    return Memory(**told) if told else Missing("memory: /proc/meminfo names none of the known fields")


def recognise(text: str) -> Memory | None:
    """/proc/meminfo or what `free` prints in what people paste; None when neither is there."""
    told = parse_meminfo(text)
    if isinstance(told, Memory) and (told.free is not None or told.available is not None or told.cma_total is not None):
        return told
    found = _FREE.search(text)
    cells = [_bytes(cell) for cell in found["cells"].split()] if found else []
    if len(cells) != 6:
        return None
    return Memory(total=cells[0], free=cells[2], cached=cells[4], available=cells[5])


def _bytes(cell: str) -> int | None:
    """A cell of `free`, in KiB unless it says otherwise: 121Gi, 512Mi, 127607296."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGTB]?)i?B?", cell)
    return int(float(found[1]) * (1 << _UNITS[found[2]])) if found else None
