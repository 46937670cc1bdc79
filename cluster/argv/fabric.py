"""Environment that ties one rank's traffic to its own links, whose names differ between hosts, and words for perftest's
`ib_write_bw`, which measures RDMA between two HCAs; both ends are given the same options."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from cluster.argv.question import Question

NON_CARRY_FILE = "ray_non_carry_over_env_vars.json"  # lies in $VLLM_CONFIG_ROOT; read by vllm/ray/ray_env.py
VERSION = Question(("ib_write_bw", "--version"))
"""Whether ib_write_bw is there; it exits 1 also when it answers."""


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


def non_carry_file(envs: Mapping[str, Mapping[str, str]]) -> bytes:
    """What is written to `NON_CARRY_FILE`: a JSON array of the names whose value differs between hosts, or that are
    absent on one; sorted. `envs` is by host. vLLM's Ray executors copy the head's other variables to the workers."""
    names = {name for env in envs.values() for name in env}
    differing = sorted(name for name in names if len({env.get(name) for env in envs.values()}) > 1)
    return (json.dumps(differing) + "\n").encode()


def ib_write_bw(hca: str, gid_index: int, *, port: int, seconds: int) -> tuple[str, ...]:
    """One end of a test; the sender's words go on with the other's address. `gid_index` is that of the RoCE
    v2 GID of this end's own address; every host has its own. `port` is where the two ends agree on the test by TCP. A
    test of fixed `seconds` has no peak, only an average."""
    ends = ("--ib-dev", hca, "--gid-index", f"{gid_index}", "--port", f"{port}", "--duration", f"{seconds}")
    return ("ib_write_bw", *ends, "--report_gbits", "--CPU-freq")


def listening(words: tuple[str, ...], deadline_s: int) -> tuple[str, ...]:
    """The end that waits for the other, no longer than that; its output comes by line, so that one sees it wait."""
    return ("timeout", "--foreground", "-k", "1", str(deadline_s), "stdbuf", "-oL", *words)
