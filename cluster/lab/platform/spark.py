# mypy: disable-error-code="import-not-found,import-untyped,misc,no-any-return"
"""The platform class: vLLM's own for CPU, with what its CPU build lacks to span hosts under Ray."""

from __future__ import annotations

from typing import ClassVar

from vllm.platforms.cpu import CpuPlatform


class SimulatedSpark(CpuPlatform):
    """A Spark whose one GPU is this machine's CPU. Ranks lie on different hosts and never share memory."""

    ray_device_key: str = "GPU"
    ray_noset_device_env_vars: ClassVar[list[str]] = []

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        """What vLLM prints about the device."""
        return "NVIDIA GB10 (simulated on CPU by cluster lab)"

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """gloo over the network, also when two ranks look as if they could share memory."""
        return "cluster_lab_platform.wire.NetworkCommunicator"
