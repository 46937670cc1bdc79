"""What lies in `<data_dir>/deployments` on a host: the directories `up` made, and the state recorded before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.argv.far import far
from cluster.argv.question import Answer, Question
from cluster.spark.fact import Missing
from cluster.spark.sections import read_section


@dataclass(frozen=True, slots=True)
class Kept:
    """One deployment's directory: its id, its file names, and before.json (None when absent or not readable)."""

    id: str
    files: tuple[str, ...]
    before: Mapping[str, Any] | None

    @property
    def available_before(self) -> int | None:
        """Bytes that the host had available before `up`; None where it was not recorded."""
        told = (self.before or {}).get("available")
        return int(told) if isinstance(told, int | float) else None


def question(data_dir: str) -> Question:
    """Ask for the deployments' directories alone."""
    return far("kept", {"sections": ["deployments"], "data_dir": data_dir})


def parse(answer: Answer) -> tuple[Kept, ...] | Missing:
    """Read the section `deployments` of far/kept; no directory at all reads as none kept."""
    return read_section(answer, "deployments", tuple[Kept, ...])
