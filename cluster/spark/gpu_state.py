"""What a GPU is doing, told from utilisation, power and clock together: utilisation alone only says that a kernel is
resident.

On a Spark: idle 3–10 W, decoding 45–90 W, waiting in a kernel for a peer 15–27 W at full clocks (near 2400 MHz), held
back by its power supply 15–18 W at 630–650 MHz.
"""

from __future__ import annotations

from typing import Literal

from cluster.spark.gpu import Gpu

BUSY_PCT, IDLE_W, CAPPED_MHZ = 90, 30.0, 1000

GpuState = Literal["quiet", "working", "spinning", "capped", "slowed", "stalled", "unknown"]
"""`quiet`: not busy, at idle power. `spinning`: busy at idle power with full clocks, so a kernel waits and nothing is
computed. `capped`: the same with low clocks, so its power is limited. `stalled`: one of the two, the clock is not told.
`slowed`: at work with low clocks. `unknown`: the power is not told."""


def judge_gpu(gpu: Gpu) -> GpuState:
    """The state of one GPU at one moment."""
    if gpu.power_w is None:
        return "unknown"
    busy = (gpu.utilization_pct or 0) >= BUSY_PCT
    low = gpu.sm_clock_mhz is not None and gpu.sm_clock_mhz < CAPPED_MHZ
    if gpu.idle and gpu.power_w < IDLE_W:
        return "quiet"  # utilisation is of the last second, clocks are of now: a short job has just ended
    if gpu.power_w >= IDLE_W:
        return "slowed" if busy and low else "working"
    if not busy:
        return "quiet"
    return "stalled" if gpu.sm_clock_mhz is None else "capped" if low else "spinning"
