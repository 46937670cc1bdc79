"""Processes on the GPUs of a host: `nvidia-smi --query-compute-apps=…`, and each one's container by its control group.

On a Spark this is the only memory the driver tells. It is asked on the host: inside a container the list is empty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster.argv.question import Answer
from cluster.spark.fact import Missing
from cluster.spark.gpu import question as question
from cluster.spark.gpu import read_whole_number, refuse_smi
from cluster.spark.sections import WHY_LENGTH, plain, read_section

_ROW = re.compile(r"(?:GPU-[^,]+, )?(?P<pid>\d{1,9}), (?P<name>.*), (?P<used>[^,]*)", re.ASCII)

_TABLE_ROW = re.compile(
    r"^\|\s+\d+\s+(?:N/A\s+N/A\s+)?(?P<pid>\d+)\s+[CGM+]+\s+(?P<name>.+?)\s+(?P<used>\d+MiB|N/A)\s+\|", re.ASCII
)
_NAME = re.compile(r"^[/\[.]?[A-Za-z][\w./:\[\] -]*$", re.ASCII)
_UNIT = re.compile(r"^\d+ ?Mi?B$|^\[.*\]$|^N/A$")
_MEMORY = re.compile(r"\d+(?: ?Mi?B)?|\[N/A\]|N/A|\[Not Supported\]")


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds GPU memory. `used_mib` is None when not told; `container` is a full id or empty.

    `cpu_s`: CPU time so far of it and of all processes below it, None when not told.
    """

    pid: int
    name: str
    used_mib: int | None
    container: str
    cpu_s: float | None = None

    @property
    def is_engine(self) -> bool:
        """Whether it is a process of vLLM or of one of its ranks under Ray."""
        return "VLLM::" in self.name or "ray::" in self.name


@dataclass(frozen=True, slots=True)
class Said:
    """What the far program brings of the query; `containers` and `cpu_s` are by a pid's digits."""

    exit: int
    said: str
    containers: Mapping[str, str] = field(default_factory=dict)
    cpu_s: Mapping[str, float] = field(default_factory=dict)


def parse(answer: Answer) -> tuple[GpuProcess, ...] | Missing:
    """Read the section `apps` of far/gpu; no process at all is an empty tuple."""
    told = read_section(answer, "apps", Said)
    if isinstance(told, Missing):
        return told
    return refuse_smi(told.exit, told.said) or parse_apps(told.said, told.containers, told.cpu_s)


def parse_apps(
    text: str, containers: Mapping[str, str], cpu_s: Mapping[str, float] | None = None
) -> tuple[GpuProcess, ...] | Missing:
    """Rows `[uuid, ]pid, name, MiB`, with or without the unit; a name may hold commas and spaces."""
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        row = _ROW.fullmatch(line)
        if row:
            used, pid = read_whole_number(row["used"]), row["pid"]
            spent = (cpu_s or {}).get(pid)
            found.append(GpuProcess(int(pid), row["name"], used, containers.get(pid, ""), spent))
        elif "No running" not in line:
            return Missing(f"nvidia-smi: {plain(line)[:WHY_LENGTH]}")
    return tuple(found)


def recognise(text: str) -> tuple[GpuProcess, ...] | None:
    """`nvidia-smi --query-compute-apps` in any order of columns, or the table's process list; None when neither."""
    found = []
    for line in text.splitlines():
        row = _TABLE_ROW.match(line)
        cells = [cell.strip() for cell in line.split(",")]
        if row:
            used = read_whole_number(row["used"].removesuffix("MiB"))
            found.append(GpuProcess(int(row["pid"]), row["name"].strip(), used, ""))
        elif 3 <= len(cells) <= 4 and all(cells):
            process = _of_cells([cell for cell in cells if not cell.startswith("GPU-")])
            found += [process] if process else []
    return tuple(found) or None


def _of_cells(cells: list[str]) -> GpuProcess | None:
    """Cells by what they look like: the first number is the pid, a name has letters and no unit, the rest is memory."""
    pid = next((cell for cell in cells if cell.isdecimal()), None)
    name = next((cell for cell in cells if _NAME.search(cell) and not _UNIT.search(cell)), None)
    if pid is None or name is None or len(cells) != 3:
        return None
    used = next((cell for cell in cells if cell not in (pid, name)), "")
    return GpuProcess(int(pid), name, read_whole_number(used), "") if used and _MEMORY.fullmatch(used) else None
