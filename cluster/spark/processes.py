"""Processes of an engine on a host: what runs in our containers, and what somebody left behind."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.argv.far import far
from cluster.argv.question import Answer, Question
from cluster.spark.fact import Missing
from cluster.spark.sections import read_section


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """A process of vLLM or Ray. `name` is its title (`VLLM::Worker_TP0`, `ray::RayWorkerProc`, `raylet`,
    `gcs_server`, `vllm serve`, `ray agent`), `container` the container's full id, empty outside of one."""

    pid: int
    name: str
    rss_bytes: int
    container: str


def question() -> Question:
    """Ask for the engine processes alone."""
    return far("look", {"sections": ["processes"]})


def parse(answer: Answer) -> tuple[EngineProcess, ...] | Missing:
    """Read the section `processes` of far/look."""
    return read_section(answer, "processes", tuple[EngineProcess, ...])
