# mypy: disable-error-code="import-not-found,import-untyped,misc"
"""How ranks of the lab talk: always over the network."""

from __future__ import annotations

from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator


class NetworkCommunicator(CpuCommunicator):
    """vLLM's CPU communicator without its shared-memory short cut, which takes two hosts for one."""

    def _all_group_ranks_share_shm_group_name(self) -> bool:
        return False
