"""Everything one host was asked at once, and what was read from its answers: one field a fact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.argv.far import far
from cluster.argv.question import Answer, Question
from cluster.spark import (
    clock,
    containers,
    deployments,
    disk,
    docker,
    firewall,
    gpu,
    gpu_processes,
    identity,
    image,
    links,
    listening,
    lock,
    memory,
    processes,
    tenants,
    weights,
)
from cluster.spark.clock import Clock
from cluster.spark.containers import Container
from cluster.spark.deployments import Kept
from cluster.spark.disk import Room
from cluster.spark.docker import Docker
from cluster.spark.fact import Missing
from cluster.spark.firewall import Firewall
from cluster.spark.gpu import Gpu
from cluster.spark.gpu_processes import GpuProcess
from cluster.spark.identity import Identity
from cluster.spark.image import Image
from cluster.spark.links import Links
from cluster.spark.listening import Listener
from cluster.spark.lock import LockState
from cluster.spark.memory import Memory
from cluster.spark.processes import EngineProcess
from cluster.spark.sections import NOT_ASKED
from cluster.spark.tenants import Tenant
from cluster.spark.weights import Weights

IMAGE_ROOTS = ("/var/lib/docker", "/var/lib/containerd")


@dataclass(frozen=True, slots=True)
class Look:
    """What to look for on one host. `data_dir` and `hf_home` may start with `~`, the home there.

    An empty `image`, `model` or `drafter` is not asked for. `dummy_weights`: the model needs no weight files;
    `dummy_drafter`: nor does the drafter.
    `model_files` are paths in the model's directory that have to be there. `thorough`: also what only checks need:
    clock, GID tables, tenants, firewall.
    """

    image: str = ""
    model: str = ""
    revision: str = "main"
    data_dir: str = "~/.local/share/cluster"
    hf_home: str = "~/.cache/huggingface"
    dummy_weights: bool = False
    dummy_drafter: bool = False
    model_files: tuple[str, ...] = ()
    drafter: str = ""
    drafter_revision: str = "main"
    thorough: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """One host as it answered; a fact that could not be read is Missing with the reason, and alone."""

    host: str
    identity: Identity | Missing
    memory: Memory | Missing
    gpu: tuple[Gpu, ...] | Missing
    gpu_processes: tuple[GpuProcess, ...] | Missing
    links: Links | Missing
    docker: Docker | Missing
    containers: tuple[Container, ...] | Missing
    image: Image | Missing
    weights: Weights | Missing
    listening: tuple[Listener, ...] | Missing
    disk: tuple[Room, ...] | Missing
    processes: tuple[EngineProcess, ...] | Missing
    deployments: tuple[Kept, ...] | Missing
    lock: LockState | Missing
    drafter: Weights | Missing = NOT_ASKED
    clock: Clock | Missing = NOT_ASKED
    tenants: tuple[Tenant, ...] | Missing = NOT_ASKED
    firewall: Firewall | Missing = NOT_ASKED

    @property
    def machine(self) -> str | Missing:
        """The machine-id, which tells this host from all others."""
        return self.identity if isinstance(self.identity, Missing) else identity.read_machine(self.identity.machine_id)

    @property
    def host_id(self) -> str:
        """By what labels know this host; empty when its machine-id cannot be read."""
        return "" if isinstance(self.machine, Missing) else identity.host_id(self.machine)

    @property
    def copies(self) -> tuple[Weights | Missing, Weights | Missing]:
        """What is there of a recipe's models, in their order."""
        return self.weights, self.drafter


def questions(look: Look) -> tuple[Question, ...]:
    """All questions of a look, to be asked of a host in one `ask`."""
    return tuple(_asked(look).values())


def read(host: str, look: Look, answers: Sequence[Answer], asked: tuple[float, float]) -> Seen:
    """The answers to `questions(look)`, in their order, as facts. Never raises for what a host said.

    `asked`: the operator's unix seconds before and after the round trip.
    """
    told = dict(zip(_asked(look), answers, strict=True))
    return Seen(
        host=host,
        identity=identity.parse(told["look"]),
        memory=memory.parse(told["look"]),
        gpu=gpu.parse(told["gpu"]),
        gpu_processes=gpu_processes.parse(told["gpu"]),
        links=links.parse(told["links"]),
        docker=docker.parse(told["docker"]),
        containers=containers.parse(told["containers"]),
        image=image.parse(look.image, told["image"]) if look.image else NOT_ASKED,
        weights=weights.parse(told["weights"]) if look.model else NOT_ASKED,
        listening=listening.parse(told["look"]),
        disk=disk.parse(told["kept"]),
        processes=processes.parse(told["look"]),
        deployments=deployments.parse(told["kept"]),
        lock=lock.parse(told["kept"]),
        drafter=weights.parse(told["drafter"]) if look.drafter else NOT_ASKED,
        clock=clock.parse(told["look"], asked) if look.thorough else NOT_ASKED,
        tenants=tenants.parse(told["others"]) if look.thorough else NOT_ASKED,
        firewall=firewall.parse(told["others"]) if look.thorough else NOT_ASKED,
    )


def _asked(look: Look) -> dict[str, Question]:
    """The questions by the program that answers them. What may hang (dead disks, stuck processes) comes last."""
    sections = [*(["clock"] if look.thorough else []), "memory", "identity", "listening", "processes"]
    kernel = {"sections": sections, "data_dir": look.data_dir}
    paths = [look.data_dir, look.hf_home, *IMAGE_ROOTS]
    kept = {"sections": ["lock", "deployments", "disk"], "data_dir": look.data_dir, "paths": paths}
    asked = {
        "look": far("look", {**kernel, "hf_home": look.hf_home}),
        "links": links.question(gids=look.thorough),
        "kept": far("kept", kept),
        "gpu": gpu.question(),
        "docker": docker.question(),
        "containers": containers.question(),
    }
    if look.thorough:
        asked["others"] = tenants.question()
    if look.image:
        asked["image"] = image.question(look.image)
    if look.model:
        asked["weights"] = weights.question(
            look.model, look.revision, look.hf_home, dummy=look.dummy_weights, files=look.model_files
        )
    if look.drafter:
        asked["drafter"] = weights.question(look.drafter, look.drafter_revision, look.hf_home, dummy=look.dummy_drafter)
    return asked
