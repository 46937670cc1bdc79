"""Ray's nodes and GPUs: from the program far/ray_nodes, which asks inside a container, and from `ray status` text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RayNode:
    """One node as Ray's GCS knows it: the address it registered, whether it is alive, its GPUs."""

    address: str
    alive: bool
    gpus: float


@dataclass(frozen=True, slots=True)
class RayStatus:
    """What `ray status` prints: nodes that are up (under Active or Idle, None if the text has no node list), GPUs in
    use and in all (None if not told), placement groups that wait."""

    nodes: int | None
    gpus_used: float | None
    gpus_total: float | None
    pending_placement_groups: int
