"""Words that start Ray inside a rank's container, and the environment it needs there."""

from __future__ import annotations

import re

from cluster.argv.ports import PORTS

OBJECT_STORE_BYTES = 1 << 30  # Ray's own default, 30 % of RAM, is memory the model needs on a Spark
TEMP_DIR = "/tmp/ray"
TOKEN_SINCE = (2, 52)  # first Ray with RAY_AUTH_MODE=token


def ray_start(*, rank: int, address: str, head: str, gpus: int = 1, temp_dir: str = TEMP_DIR) -> tuple[str, ...]:
    """`ray start` for one rank: the head on rank 0, else a worker of the GCS at `head`.

    `address` and `head` are the fabric addresses of this rank and of rank 0. The program stays (`--block`)
    and ends when one of Ray's own processes does.
    """
    role = _head_words(temp_dir) if rank == 0 else ("--address", gcs_address(head))
    return ("ray", "start", *role, "--node-ip-address", address, *_node_words(gpus), "--block")


def _head_words(temp_dir: str) -> tuple[str, ...]:
    """What only the head is told; a worker takes the head's temporary directory."""
    return (
        "--head",
        f"--port={PORTS.ray_gcs}",
        f"--ray-client-server-port={PORTS.ray_client}",
        "--include-dashboard=false",
        f"--dashboard-port={PORTS.ray_dashboard}",
        f"--temp-dir={temp_dir}",
    )


def _node_words(gpus: int) -> tuple[str, ...]:
    return (
        f"--num-gpus={gpus}",
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
    )


def ray_environment(*, head: str, ray_version: str, token_path: str = "/cluster/ray-token") -> dict[str, str]:
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
    if knows_tokens(ray_version):
        env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": token_path}
    return env


def knows_tokens(ray_version: str) -> bool:
    """Whether this Ray can demand a token of its clients (2.52 and later); an unreadable version counts as no."""
    numbers = re.match(r"(\d+)\.(\d+)", ray_version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= TOKEN_SINCE


def gcs_address(head: str) -> str:
    """host:port of Ray's GCS, IPv6 in brackets."""
    return f"[{head}]:{PORTS.ray_gcs}" if ":" in head else f"{head}:{PORTS.ray_gcs}"
