"""GPUs of a host as `nvidia-smi --query-gpu=… --format=csv,noheader,nounits` tells them.

On a Spark memory is `[N/A]` (the GPU's memory is the host's): unknown, never 0.
Throttle words: nvml.h, `nvmlClocksEventReason*`, a bit mask in hexadecimal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.argv.far import far
from cluster.argv.question import Answer, Question
from cluster.spark.fact import Missing
from cluster.spark.sections import WHY_LENGTH, plain, read_section


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. None is unknown. MiB, watts, MHz, °C, percent; `throttle` holds what lowers the clocks, idling aside;
    `idle`: the driver lowers them because nothing runs."""

    name: str
    driver: str
    memory_used_mib: int | None
    memory_total_mib: int | None
    power_w: float | None
    sm_clock_mhz: int | None
    temperature_c: int | None
    utilization_pct: int | None
    throttle: tuple[str, ...] | None
    idle: bool | None = None
    power_limit_w: float | None = None


FIELDS = (
    ("name",), ("driver_version",), ("memory.used",), ("memory.total",), ("power.draw",), ("clocks.sm",),
    ("temperature.gpu",), ("utilization.gpu",), ("clocks_event_reasons.active", "clocks_throttle_reasons.active"),
    ("power.limit",),
)  # fmt: skip
"""What is asked for, each with its names from newest to oldest; the name comes first, since it may hold commas."""

APPS = ("pid", "process_name", "used_gpu_memory")

IDLE = 0x1
THROTTLE = {
    0x2: "application clocks", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost",
    0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown", 0x80: "power brake", 0x100: "display clocks",
}  # fmt: skip
_NUMBER = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)(?: (?:MiB|W|MHz|%|C))?", re.ASCII)
_MASK = re.compile(r"0x[0-9a-fA-F]{1,16}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Said:
    """What the far program brings of one nvidia-smi query. `fields`: the names the driver knew, None for none."""

    exit: int
    said: str
    fields: tuple[str | None, ...] = ()


def question() -> Question:
    """Ask for the GPUs and for the processes on them; gpu_processes reads the same answer."""
    return far("gpu", {"fields": [list(names) for names in FIELDS], "apps": list(APPS)})


def parse(answer: Answer) -> tuple[Gpu, ...] | Missing:
    """Read the section `gpu` of far/gpu."""
    told = read_section(answer, "gpu", Said)
    if isinstance(told, Missing):
        return told
    failed = refuse_smi(told.exit, told.said)
    if failed:
        return failed
    asked = [newest for (newest, *_), name in zip(FIELDS, told.fields, strict=False) if name]
    rows = parse_query(told.said, asked)
    return rows if isinstance(rows, Missing) else tuple(_gpu(row) for row in rows)


def refuse_smi(exit_code: int, said: str) -> Missing | None:
    """Why nvidia-smi told nothing, in its own words (it prints them on stdout), or None."""
    words = " ".join(plain(said).split())[:WHY_LENGTH]
    if "No devices were found" in words or "couldn't communicate with the NVIDIA driver" in words:
        return Missing(f"nvidia-smi: {words}", "absent")
    if "Insufficient Permissions" in words and exit_code:
        return Missing(f"nvidia-smi: {words}", "refused")
    if exit_code or "Failed to initialize NVML" in words:
        return Missing(f"nvidia-smi: {words or f'exit {exit_code}'}")
    return None


def parse_query(text: str, fields: Sequence[str]) -> tuple[Mapping[str, str], ...] | Missing:
    """Rows of `--query-gpu` output, one a GPU: field → cell as printed. The first cell may hold commas."""
    rows = []
    for line in filter(str.strip, text.splitlines()):
        cells = [cell.strip() for cell in line.split(", ")]
        surplus = len(cells) - len(fields)
        if surplus < 0 or not fields:
            return Missing(f"nvidia-smi: {plain(line)[:WHY_LENGTH]}")
        cells = [", ".join(cells[: surplus + 1]), *cells[surplus + 1 :]]
        rows.append(dict(zip(fields, cells, strict=True)))
    return tuple(rows) if rows else Missing("nvidia-smi: told of no GPU", "absent")


def read_number(cell: str | None) -> float | None:
    """A cell's number; None for `[N/A]`, `Not Supported`, `[Unknown Error]` and whatever else is no number."""
    found = _NUMBER.fullmatch(cell.strip()) if cell else None
    return float(found[1]) if found else None


def read_whole_number(cell: str | None) -> int | None:
    """A cell's number as an integer; None when it is no number."""
    number = read_number(cell)
    return None if number is None else int(number)


def throttle_words(cell: str | None) -> tuple[str, ...] | None:
    """The reasons of a bit mask as words; None when the cell is no bit mask. Idling (bit 0) is no throttling."""
    if not cell or not _MASK.fullmatch(cell):
        return None
    mask = int(cell, 16)
    known = [word for bit, word in THROTTLE.items() if mask & bit]
    rest = mask & ~(IDLE | sum(THROTTLE))
    return (*known, f"unknown reason {rest:#x}") if rest else tuple(known)


def says_idle(cell: str | None) -> bool | None:
    """Whether a bit mask says that nothing runs; None when the cell is no bit mask."""
    return bool(int(cell, 16) & IDLE) if cell and _MASK.fullmatch(cell) else None


def _gpu(row: Mapping[str, str]) -> Gpu:
    return Gpu(
        name=row.get("name", ""),
        driver=row.get("driver_version", ""),
        memory_used_mib=read_whole_number(row.get("memory.used")),
        memory_total_mib=read_whole_number(row.get("memory.total")),
        power_w=read_number(row.get("power.draw")),
        sm_clock_mhz=read_whole_number(row.get("clocks.sm")),
        temperature_c=read_whole_number(row.get("temperature.gpu")),
        utilization_pct=read_whole_number(row.get("utilization.gpu")),
        throttle=throttle_words(row.get("clocks_event_reasons.active")),
        idle=says_idle(row.get("clocks_event_reasons.active")),
        power_limit_w=read_number(row.get("power.limit")),
    )
