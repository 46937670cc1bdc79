"""Words that start Ray inside a rank's container, and the environment it needs there."""

from __future__ import annotations

import re

from cluster.argv.ports import PORTS

OBJECT_STORE_BYTES = 1 << 30  # Ray's own default, 30 % of RAM, is memory the model needs on a Spark
TOKEN_SINCE = (2, 52)  # first Ray with RAY_AUTH_MODE=token


def ray_start(*, rank: int, address: str, head: str) -> tuple[str, ...]:
    """`ray start` for one rank: the head on rank 0, else a worker of the GCS at `head`, which takes the head's
    temporary directory.

    `address` and `head` are the fabric addresses of this rank and of rank 0. The program stays (`--block`)
    and ends when one of Ray's own processes does.
    """
    role = ["--address", gcs_address(head)]
    if rank == 0:
        role = ["--head", f"--port={PORTS.ray_gcs}", f"--ray-client-server-port={PORTS.ray_client}"]
        role += ["--include-dashboard=false", f"--dashboard-port={PORTS.ray_dashboard}", "--temp-dir=/tmp/ray"]
    return (
        *("ray", "start", *role, "--node-ip-address", address, "--num-gpus=1"),
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        f"--node-manager-port={PORTS.ray_node_manager}",
        f"--object-manager-port={PORTS.ray_object_manager}",
        f"--runtime-env-agent-port={PORTS.ray_runtime_env_agent}",
        f"--dashboard-agent-grpc-port={PORTS.ray_dashboard_agent_grpc}",
        f"--dashboard-agent-listen-port={PORTS.ray_dashboard_agent_http}",
        f"--metrics-export-port={PORTS.ray_metrics}",
        f"--min-worker-port={PORTS.ray_worker_first}",
        f"--max-worker-port={PORTS.ray_worker_last}",
        "--disable-usage-stats",
        "--block",
    )


def ray_environment(*, head: str, ray_version: str) -> dict[str, str]:
    """Environment of every rank on the ray backend, equal on all hosts.

    The memory monitor is off because it kills workers at 95 % of memory, which a Spark's unified memory
    reaches by design. Lines are not deduplicated, since NCCL's lines differ only in digits. The port of the
    autoscaler's metrics has no flag, and by default lies in the ephemeral range.
    """
    env = {
        "RAY_ADDRESS": gcs_address(head),
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "AUTOSCALER_METRIC_PORT": str(PORTS.ray_autoscaler_metrics),
    }
    numbers = re.match(r"(\d+)\.(\d+)", ray_version)
    if numbers and (int(numbers[1]), int(numbers[2])) >= TOKEN_SINCE:
        env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/cluster/ray-token"}
    return env


def gcs_address(head: str) -> str:
    """host:port of Ray's GCS, IPv6 in brackets."""
    return f"[{head}]:{PORTS.ray_gcs}" if ":" in head else f"{head}:{PORTS.ray_gcs}"
