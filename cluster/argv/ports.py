"""The ports a deployment listens on: all fixed, unusual, below the ephemeral range (32768)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ports:
    """One port for each listener of a deployment; the engine's API port is the recipe's own. From `perftest_first` on,
    one for each link that `--fabric-test` measures at the same time."""

    cord: int = 27110
    mp_master: int = 27111
    ray_gcs: int = 27120
    ray_node_manager: int = 27121
    ray_object_manager: int = 27122
    ray_runtime_env_agent: int = 27123
    ray_dashboard_agent_grpc: int = 27124
    ray_dashboard_agent_http: int = 27125
    ray_metrics: int = 27126
    ray_client: int = 27127
    ray_dashboard: int = 27128
    ray_autoscaler_metrics: int = 27129
    perftest_first: int = 27130
    ray_worker_first: int = 27200
    ray_worker_last: int = 27299


PORTS = Ports()


@dataclass(frozen=True, slots=True)
class PortUse:
    """The ports `first` to `last`, both included, and who listens there."""

    first: int
    last: int
    what: str


def ports_used(*, backend: str, size: int, rank: int, api_port: int) -> tuple[PortUse, ...]:
    """What one rank of a deployment of `size` ranks listens on, in the order of the plan. `backend` is "ray", "mp" or
    "none". Only rank 0 has the API, the cord's end and Ray's GCS."""
    head, ray = rank == 0, backend == "ray"
    uses = (
        (head, api_port, "OpenAI API"),
        (head and size > 1, PORTS.cord, "cord between the ranks"),
        (head and size > 1 and backend == "mp", PORTS.mp_master, "torch rendezvous"),
        (head and ray, PORTS.ray_gcs, "Ray GCS"),
        (ray, PORTS.ray_node_manager, "Ray node manager"),
        (ray, PORTS.ray_object_manager, "Ray object manager"),
        (ray, PORTS.ray_runtime_env_agent, "Ray runtime-env agent"),
        (ray, PORTS.ray_dashboard_agent_grpc, "Ray dashboard agent (grpc)"),
        (ray, PORTS.ray_dashboard_agent_http, "Ray dashboard agent (http)"),
        (ray, PORTS.ray_metrics, "Ray metrics"),
        (ray, PORTS.ray_worker_first, "Ray workers"),
        (head and ray, PORTS.ray_client, "Ray client server"),
        (head and ray, PORTS.ray_dashboard, "Ray dashboard (off; its port is kept)"),
        (head and ray, PORTS.ray_autoscaler_metrics, "Ray autoscaler metrics"),
    )
    last = {PORTS.ray_worker_first: PORTS.ray_worker_last}
    return tuple(PortUse(port, last.get(port, port), what) for used, port, what in uses if used)
