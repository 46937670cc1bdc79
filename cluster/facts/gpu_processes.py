"""Processes on the GPUs of a host: `nvidia-smi --query-compute-apps=…`, and each one's container by its control group.

On a Spark this is the only memory the driver tells. It is asked on the host: inside a container the list is empty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster.commands.question import Answer
from cluster.facts.fact import Missing
from cluster.facts.gpu import question as question
from cluster.facts.gpu import read_whole_number, refuse_smi
from cluster.facts.sections import WHY_LENGTH, plain, read_section

_ROW = re.compile(r"(?:GPU-[^,]+, )?(?P<pid>\d{1,9}), (?P<name>.*), (?P<used>[^,]*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds GPU memory. `used_mib` is None when not told; `container` is a full id or empty."""

    pid: int
    name: str
    used_mib: int | None
    container: str


@dataclass(frozen=True, slots=True)
class Said:
    """What the far program brings of the query; `containers` maps a pid's digits to its container's id."""

    exit: int
    said: str
    containers: Mapping[str, str] = field(default_factory=dict)


def parse(answer: Answer) -> tuple[GpuProcess, ...] | Missing:
    """Read the section `apps` of far/gpu; no process at all is an empty tuple."""
    told = read_section(answer, "apps", Said)
    if isinstance(told, Missing):
        return told
    return refuse_smi(told.exit, told.said) or parse_apps(told.said, told.containers)


def parse_apps(text: str, containers: Mapping[str, str]) -> tuple[GpuProcess, ...] | Missing:
    """Rows `[uuid, ]pid, name, MiB`, with or without the unit; a name may hold commas and spaces."""
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        row = _ROW.fullmatch(line)
        if row:
            used = read_whole_number(row["used"])
            found.append(GpuProcess(int(row["pid"]), row["name"], used, containers.get(row["pid"], "")))
        elif "No running" not in line:
            return Missing(f"nvidia-smi: {plain(line)[:WHY_LENGTH]}")
    return tuple(found)
