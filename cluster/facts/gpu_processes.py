"""Processes on the GPUs of a host: `nvidia-smi --query-compute-apps=…`, and each one's container."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds GPU memory. `used_mib` is None when not told; `container` is a full id or empty."""

    pid: int
    name: str
    used_mib: int | None
    container: str
