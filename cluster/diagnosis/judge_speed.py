"""Conditions on measured bandwidth, by the numbers of a Spark: a twin gives 92–98 Gb/s, NCCL 19–24 GB/s."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.diagnosis.explanation import Explanation
from cluster.diagnosis.outputs import Output, Outputs
from cluster.spark.bandwidth import Bandwidth
from cluster.spark.fabric_speed import judge_rdma

OF_RDMA = {"degraded": "nic-degraded", "slow": "rdma-slow", "": ""}
ONE_TWIN_GBYTES_S = (10.0, 14.0)
GOOD_GBYTES_S = 20.0
ENOUGH_BYTES = 64 << 20
"""With smaller messages NCCL's bandwidth says nothing."""
SLOW_TCP_GBPS = (10.5, 40.0)
"""Less is the 10G port, which is as fast as it should be."""


def judge_bandwidth(outputs: Outputs) -> Iterator[Explanation]:
    """Wrong data, a degraded card, one twin instead of two, small MTU."""
    for output in outputs.named("bandwidth"):
        test: Bandwidth = output.value
        if test.wrong:
            yield output.say("data-corrupt", ("Out of bounds",))
        id = judge(test)
        if id:
            value = test.gbps / 8 if test.tool == "nccl-tests" else test.gbps
            yield output.say(id, (_shown(output, value),), gbps=f"{value:.1f}", speed=f"{value:.1f}")


def judge(test: Bandwidth) -> str:
    """Which rule a result falls under, empty when it is as it should be."""
    if test.tool == "perftest":
        return OF_RDMA[judge_rdma(test.gbps)]
    if test.tool == "iperf3":
        return "tcp-slow" if SLOW_TCP_GBPS[0] < test.gbps < SLOW_TCP_GBPS[1] else ""
    if test.hosts == 1 or 0 < test.size < ENOUGH_BYTES:
        return ""
    speed = test.gbps / 8
    if speed < ONE_TWIN_GBYTES_S[0]:
        return "nccl-slow"
    return "nccl-one-twin" if speed < ONE_TWIN_GBYTES_S[1] else "nccl-mtu" if speed < GOOD_GBYTES_S else ""


def _shown(output: Output, value: float) -> str:
    """The number as it is printed, to find its line; else the heading above it."""
    words = (f"{value:.2f}", "BW average", "bus bandwidth", "busbw", "bits/sec")
    return next((word for word in words if output.find(word)), words[0])
