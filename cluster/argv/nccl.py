"""Environment that ties one rank's traffic to its own links. Names of links differ between hosts: never shared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

NON_CARRY_FILE = "ray_non_carry_over_env_vars.json"  # lies in $VLLM_CONFIG_ROOT; read by vllm/ray/ray_env.py


def fabric_environment(*, address: str, netdev: str, hcas: Sequence[str] = ()) -> dict[str, str]:
    """Environment of one host's rank.

    `address` is the rank's own on `netdev`; `hcas` are only those whose netdev shares a subnet with the peer.
    NCCL's two names take `=` for an exact match (`mlx5_1` alone also means `mlx5_10`); gloo and tensorpipe
    take exact names as they are. The GID index is never set: it moves, and NCCL finds it. Without HCAs
    NCCL_IB_HCA stays unset, since an empty value is not the same.
    """
    env = {
        "VLLM_HOST_IP": address,
        "NCCL_SOCKET_IFNAME": f"={netdev}",
        "GLOO_SOCKET_IFNAME": netdev,
        "TP_SOCKET_IFNAME": netdev,
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET",
    }
    if hcas:
        env["NCCL_IB_HCA"] = "=" + ",".join(hcas)
    return env


def non_carry(envs: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    """Names whose value differs between hosts, or that are absent on one; sorted. `envs` is by host.

    vLLM's Ray executors copy the head's variables to the workers except those named in a file.
    """
    everywhere = list(envs.values())
    names = {name for env in everywhere for name in env}
    return tuple(sorted(name for name in names if len({env.get(name) for env in everywhere}) > 1))


def non_carry_file(names: Sequence[str]) -> bytes:
    """What is written to `NON_CARRY_FILE`: a JSON array of names."""
    return (json.dumps(list(names)) + "\n").encode()
