"""vLLM platform of the lab: CPU, but counted by Ray as the GPU that a Spark has. Runs in the lab's containers only."""

from __future__ import annotations


def register() -> str:
    """Entry point of group `vllm.platform_plugins`: the class to use."""
    return "cluster_lab_platform.spark.SimulatedSpark"
