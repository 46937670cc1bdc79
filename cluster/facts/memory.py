"""Memory of a host from /proc/meminfo (proc(5): values in kB, which are KiB). On a Spark the GPU's is the same."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cluster.commands.far import far
from cluster.commands.question import Answer, Question
from cluster.facts.fact import Missing
from cluster.facts.sections import read_section

FIELDS = {
    "MemTotal": "total", "MemAvailable": "available", "MemFree": "free", "Cached": "cached",
    "SwapTotal": "swap_total", "SwapFree": "swap_free", "CmaTotal": "cma_total", "CmaFree": "cma_free",
}  # fmt: skip
_LINE = re.compile(r"^(\w+):[ \t]+(\d{1,18})(?: kB)?[ \t]*$", re.MULTILINE | re.ASCII)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes; None where the kernel did not tell. `available` counts page cache that can be given back, `free` not."""

    total: int | None = None
    available: int | None = None
    free: int | None = None
    cached: int | None = None
    swap_total: int | None = None
    swap_free: int | None = None
    cma_total: int | None = None
    cma_free: int | None = None


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
