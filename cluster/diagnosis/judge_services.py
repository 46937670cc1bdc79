"""Conditions on what services tell: Ray's status, Docker, vLLM's counters, a completion."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.diagnosis.explanation import Explanation
from cluster.diagnosis.outputs import Outputs
from cluster.spark.docker_text import DockerText
from cluster.spark.gpu_state import IDLE_W
from cluster.spark.metrics import Load
from cluster.spark.ray_nodes import RayStatus
from cluster.spark.sanity import insane

PENDING = "pending placement group"


def judge_ray(outputs: Outputs) -> Iterator[Explanation]:
    """Placement that waits for an address nobody has, or for GPUs; a worker that never joined; nodes that failed."""
    for output in outputs.named("ray status"):
        status: RayStatus = output.value
        gpus = f"{status.gpus_total or 0:g}"
        if status.pinned_to and (status.gpus_total or 0) >= 2:
            yield output.say("ray-node-ip", (PENDING,), address=status.pinned_to, gpus=gpus)
        elif status.pending_placement_groups:
            yield output.say("ray-too-few-gpus", (PENDING,))
        elif status.nodes is not None and status.nodes < 2 and (status.gpus_total or 0) < 2 and not status.gpus_used:
            words = (" GPU",) if output.find(" GPU") else ("Node status",)
            yield output.say("ray-one-node", words, nodes=str(status.nodes), gpus=gpus)
        if status.failures:
            yield output.say("ray-node-lost", (status.failures[0],))


def judge_docker(outputs: Outputs) -> Iterator[Explanation]:
    """No runtime of NVIDIA's (normal on a stock Spark); two kinds of image store."""
    found = outputs.named("docker info")
    for output in found:
        docker: DockerText = output.value
        if docker.nvidia_runtime is False and not docker.nvidia_cdi:
            yield output.say("no-nvidia-runtime", ("runc",))
    stores = {output.value.storage_driver: output for output in found if output.value.storage_driver}
    if len(stores) > 1:
        yield list(stores.values())[-1].say("image-stores-differ", ("Storage Driver",), stores=" and ".join(stores))


def judge_load(outputs: Outputs) -> Iterator[Explanation]:
    """Requests that run while no token comes; one look alone cannot tell."""
    looks: list[tuple[str, Load]] = [
        (output.file, look) for output in outputs.named("metrics") for look in output.value
    ]
    if not looks:
        return
    first, last, output = looks[0][1], looks[-1][1], outputs.named("metrics")[-1]
    running = f"{last.running or 0:g}"
    if not last.running or last.tokens is None:
        return
    if len(looks) == 1:
        yield output.say("requests-running", ("num_requests_running",), running=running)
    elif first.running and first.tokens == last.tokens:
        powers = [gpu.power_w for one in outputs.named("gpus") for gpu in one.value if gpu.power_w is not None]
        if not powers:
            yield output.say("tokens-frozen", ("generation_tokens",), running=running)
        elif max(powers) < IDLE_W:
            yield output.say("server-wedged", ("generation_tokens",), running=running, power=f"{max(powers):g}")


def judge_completion(outputs: Outputs) -> Iterator[Explanation]:
    """Text that only a broken kernel or checkpoint writes."""
    for output in outputs.named("completion"):
        wrong = insane(output.value)
        if wrong and output.value.strip():
            yield output.say("text-insane", ('"choices"',), wrong=f"the completion {wrong}")
