"""GPUs of a host as `nvidia-smi --query-gpu=… --format=csv,noheader,nounits` tells them.

On a Spark memory is `[N/A]` (the GPU's memory is the host's): unknown, never 0.
Throttle words: nvml.h, `nvmlClocksEventReason*`, a bit mask in hexadecimal.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. None is unknown. MiB, watts, MHz, °C, percent; `throttle` holds what lowers the clocks, idling aside."""

    name: str
    driver: str
    memory_used_mib: int | None
    memory_total_mib: int | None
    power_w: float | None
    sm_clock_mhz: int | None
    temperature_c: int | None
    utilization_pct: int | None
    throttle: tuple[str, ...] | None
