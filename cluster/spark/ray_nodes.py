"""Ray's nodes and GPUs: from the program far/ray_nodes, which asks inside a container, and from `ray status` text."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cluster.argv.question import Answer
from cluster.spark.fact import Missing
from cluster.spark.sections import as_shape, last_words, load_json, refuse

ENDED_LATE = (124, 137, 142)
"""Exit codes of `timeout`, of SIGKILL, and of the program's own alarm."""

_UP = re.compile(r"^(?:Active|Idle):[ \t]*\n((?:[ \t].*\n?)*)", re.MULTILINE)
_COUNT = re.compile(r"^[ \t]+(\d{1,6}) \S", re.MULTILINE | re.ASCII)
_GPUS = re.compile(r"^[ \t]*(\d{1,6}(?:\.\d{1,6})?)/(\d{1,6}(?:\.\d{1,6})?) GPU\b", re.MULTILINE | re.ASCII)
_WAITING = re.compile(r": (\d{1,6})\+? pending placement group", re.ASCII)
_PINNED = re.compile(r"'node:([\d.]+)': [\d.]+.*pending placement group", re.ASCII)
_FAILURES = re.compile(r"^Recent failures:[ \t]*\n((?:[ \t].*\n?)*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class RayNode:
    """One node as Ray's GCS knows it: the address it registered, whether it is alive, its GPUs."""

    address: str
    alive: bool
    gpus: float


@dataclass(frozen=True, slots=True)
class RayStatus:
    """What `ray status` prints: nodes that are up (under Active or Idle, None if the text has no node list), GPUs in
    use and in all (None if not told), placement groups that wait, the node address that one of them asks for, and nodes
    that failed lately."""

    nodes: int | None
    gpus_used: float | None
    gpus_total: float | None
    pending_placement_groups: int
    pinned_to: str = ""
    failures: tuple[str, ...] = ()


def parse(answer: Answer) -> tuple[RayNode, ...] | Missing:
    """Read what far/ray_nodes prints: {"nodes": [{"address": …, "alive": …, "gpus": …}]} or {"error": …}."""
    refused = refuse(answer, "python3")
    if refused:
        return refused
    if answer.exit in ENDED_LATE and not answer.out.strip():
        return Missing("Ray did not answer in time", "timeout")
    try:
        told = load_json(answer.out)
        return (
            Missing(f"Ray: {told['error']}") if "error" in told else as_shape(told["nodes"], "Ray", tuple[RayNode, ...])
        )
    except (ValueError, KeyError, TypeError, IndexError):
        return Missing(f"Ray: {last_words(answer) or 'no answer that can be understood'}")


def parse_ray_status(text: str) -> RayStatus | Missing:
    """Read what `ray status` prints, or a part of it."""
    sections = _UP.findall(text)
    gpus = _GPUS.search(text)
    waiting = _WAITING.findall(text)
    if not sections and not gpus and not waiting:
        return Missing("this is not what `ray status` prints")
    return RayStatus(
        nodes=sum(int(count) for section in sections for count in _COUNT.findall(section)) if sections else None,
        gpus_used=float(gpus[1]) if gpus else None,
        gpus_total=float(gpus[2]) if gpus else None,
        pending_placement_groups=sum(map(int, waiting)),
        pinned_to=(_PINNED.findall(text) or [""])[0],
        failures=tuple(
            line.strip()
            for section in _FAILURES.findall(text)
            for line in section.splitlines()
            if line.strip() and "(no failures)" not in line
        ),
    )


def recognise(text: str) -> RayStatus | None:
    """`ray status` in what people paste, None when it is not there."""
    told = parse_ray_status(text) if "node_" in text or "GPU" in text or "placement group" in text else None
    return told if isinstance(told, RayStatus) and ("Usage:" in text or "Node status" in text) else None
