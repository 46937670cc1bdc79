"""Everything one host was asked at once, what was read from its answers (one field a fact), and all checks of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cluster.argv.far import far
from cluster.argv.question import Answer, Question
from cluster.config.find import did_you_mean
from cluster.errors import UsageError
from cluster.spark import (
    clock,
    deployments,
    disk,
    docker,
    fabric,
    fabric_test,
    gpu,
    identity,
    image,
    links,
    memory,
    ports,
    processes,
    weights,
)
from cluster.spark.clock import Clock, check_clocks
from cluster.spark.deployments import Container, Deployment, Kept, LockState, check_containers
from cluster.spark.disk import Room, check_disk
from cluster.spark.docker import Docker, check_docker, check_stores
from cluster.spark.fabric import Fabric, check_fabric
from cluster.spark.fact import NOT_ASKED, Missing
from cluster.spark.finding import Check, Finding, checks_in
from cluster.spark.gpu import Gpu, GpuProcess, check_gpu, check_strangers
from cluster.spark.identity import (
    Identity,
    check_hostnames,
    check_kernel,
    check_machines,
    check_name,
    check_platform,
    check_sudo,
)
from cluster.spark.image import Image, check_image, check_images
from cluster.spark.links import Links
from cluster.spark.memory import Memory, check_memory
from cluster.spark.ports import Listener, check_ports
from cluster.spark.processes import EngineProcess, Firewall, Tenant, check_tenants
from cluster.spark.request import Wanted
from cluster.spark.weights import Weights, check_copies, check_weights

VERSIONS = Check("versions", "upgrade#driver-kernel-firmware")

SUBJECTS = (
    identity,
    docker,
    deployments,
    ports,
    gpu,
    processes,
    memory,
    disk,
    image,
    weights,
    clock,
    fabric,
    fabric_test,
)
CHECKS = {**checks_in(SUBJECTS), VERSIONS.name: VERSIONS}
"""All checks that `--force` knows."""
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
    by_program = dict(zip(_asked(look), answers, strict=True))
    return Seen(
        host=host,
        identity=identity.parse(by_program["look"]),
        memory=memory.parse(by_program["look"]),
        gpu=gpu.parse(by_program["gpu"]),
        gpu_processes=gpu.parse_processes(by_program["gpu"]),
        links=links.parse(by_program["links"]),
        docker=docker.parse(by_program["docker"]),
        containers=deployments.parse_containers(by_program["containers"]),
        image=image.parse(look.image, by_program["image"]) if look.image else NOT_ASKED,
        weights=weights.parse(by_program["weights"]) if look.model else NOT_ASKED,
        listening=ports.parse(by_program["look"]),
        disk=disk.parse(by_program["kept"]),
        processes=processes.parse_processes(by_program["look"]),
        deployments=deployments.parse(by_program["kept"]),
        lock=deployments.parse_lock(by_program["kept"]),
        drafter=weights.parse(by_program["drafter"]) if look.drafter else NOT_ASKED,
        clock=clock.parse(by_program["look"], asked) if look.thorough else NOT_ASKED,
        tenants=processes.parse(by_program["others"]) if look.thorough else NOT_ASKED,
        firewall=processes.parse_firewall(by_program["others"]) if look.thorough else NOT_ASKED,
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
        "containers": deployments.containers_question(),
    }
    if look.thorough:
        asked["others"] = processes.question()
    if look.image:
        asked["image"] = image.question(look.image)
    if look.model:
        asked["weights"] = weights.question(
            look.model, look.revision, look.hf_home, dummy=look.dummy_weights, files=look.model_files
        )
    if look.drafter:
        asked["drafter"] = weights.question(look.drafter, look.drafter_revision, look.hf_home, dummy=look.dummy_drafter)
    return asked


def check_host(wanted: Wanted, seen: Seen, found: Sequence[Deployment]) -> Iterator[Finding]:
    """All findings of one host. What our own ranks hold, those of `found`, counts as free: they go first."""
    yield from check_platform(wanted, seen)
    yield from check_sudo(seen)
    yield from check_kernel(wanted, seen)
    yield from check_name(seen)
    yield from check_docker(seen)
    yield from check_gpu(seen)
    yield from check_tenants(seen)
    yield from check_disk(seen)
    if isinstance(seen.containers, Missing) or isinstance(seen.docker, Missing):
        return  # what is ours cannot be told from what is not
    yield from check_strangers(seen)
    yield from check_memory(wanted, seen)
    yield from check_ports(wanted, seen, found)
    yield from check_containers(seen, found)
    yield from check_image(wanted, seen)
    yield from check_weights(wanted, seen)


def check_set(wanted: Wanted, seens: Sequence[Seen], fabric: Fabric) -> Iterator[Finding]:
    """All findings over the set of hosts: what must be equal is equal, and the fabric between them is complete."""
    yield from check_machines({seen.host: seen.machine for seen in seens})
    yield from check_hostnames(seens)
    yield from check_clocks(seens)
    yield from check_images(seens)
    yield from check_copies(seens)
    yield from check_versions(seens)
    yield from check_stores(seens)
    if len(seens) > 1:
        yield from check_fabric(wanted, seens, fabric)


def check_versions(seens: Sequence[Seen]) -> Iterator[Finding]:
    """Kernel, driver, Docker and the ConnectX's firmware are the same everywhere: else it works here and not there."""
    versions: dict[str, dict[str, str]] = {"kernel": {}, "driver": {}, "Docker": {}, "ConnectX firmware": {}}
    for seen in seens:
        if not isinstance(seen.identity, Missing):
            versions["kernel"][seen.host] = seen.identity.kernel
        if not isinstance(seen.gpu, Missing) and seen.gpu:
            versions["driver"][seen.host] = seen.gpu[0].driver or "unknown"
        if not isinstance(seen.docker, Missing):
            versions["Docker"][seen.host] = seen.docker.version
        if not isinstance(seen.links, Missing) and seen.links.links:
            versions["ConnectX firmware"][seen.host] = seen.links.links[0].firmware or "unknown"
    for what, values in versions.items():
        remedy = "bring them to one version when there is time"
        yield from VERSIONS.differ("note", values, f"the hosts differ in {what}", remedy)


def check_names(given: Iterable[str]) -> frozenset[str]:
    """Names of checks as `--force` takes them. Raises UsageError for a name that no check has."""
    given = frozenset(given)
    for name in sorted(given - CHECKS.keys()):
        known = ", ".join(CHECKS)
        near = did_you_mean(name, CHECKS)
        raise UsageError(
            f"--force {name}: unknown check",
            code="unknown-check",
            remedy=f"{near} all: {known}" if near else known,
        )
    return given
