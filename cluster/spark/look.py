"""Everything one host was asked at once, what was read from its answers (one field a fact), and all checks of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from cluster import spark
from cluster.argv.docker import docker_image_inspect
from cluster.argv.far import far
from cluster.argv.question import Answer, Question
from cluster.config.find import did_you_mean
from cluster.errors import UsageError
from cluster.spark import (
    clock,
    clock_limit,
    deployments,
    disk,
    docker,
    gpu,
    identity,
    image,
    links,
    memory,
    processes,
    weights,
)
from cluster.spark.clock import Clock
from cluster.spark.clock_limit import ClockLimit
from cluster.spark.deployments import Container, Deployment, Kept, LockState
from cluster.spark.disk import Room
from cluster.spark.docker import Docker
from cluster.spark.fabric import Fabric, check_fabric
from cluster.spark.fact import NOT_ASKED, Fact, Missing, X, known, read_section
from cluster.spark.finding import Check, Finding, checks_in
from cluster.spark.gpu import Gpu, GpuProcess
from cluster.spark.identity import Identity
from cluster.spark.image import Image
from cluster.spark.links import Links
from cluster.spark.memory import GIB, Memory
from cluster.spark.processes import EngineProcess, Listener
from cluster.spark.request import Model, Wanted
from cluster.spark.weights import Weights

VERSIONS = Check("versions", "upgrade#driver-kernel-firmware")
"""Note: kernel, driver, Docker or the ConnectX's firmware differ."""
SUBJECTS = tuple(
    import_module(f"{spark.__name__}.{one.name}") for one in iter_modules(spark.__path__) if one.name != "look"
)
"""Every other file of this room: a new one is found by being there."""
CHECKS = {**checks_in(SUBJECTS), VERSIONS.name: VERSIONS}
"""All checks that `--force` knows."""
FACTS: tuple[Fact[Any], ...] = tuple(
    {one.name: one for module in SUBJECTS for one in vars(module).values() if isinstance(one, Fact)}.values()
)
IMAGE_ROOTS = ("/var/lib/docker", "/var/lib/containerd")


@dataclass(frozen=True, slots=True)
class Look:
    """What to look for on one host. `data_dir` and `hf_home` may start with `~`. An empty image is not asked for.
    `models`: a recipe's, at most two; `model_files` are paths in the first one's directory. `thorough`: also what only
    checks need: clock, GID tables, `FACTS`."""

    image: str = ""
    models: tuple[Model, ...] = ()
    model_files: tuple[str, ...] = ()
    data_dir: str = "~/.local/share/cluster"
    hf_home: str = "~/.cache/huggingface"
    thorough: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """One host as it answered. A fact that could not be read is Missing, alone. `facts`: those of `FACTS`, by name."""

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
    clock_limit: ClockLimit | Missing = NOT_ASKED
    facts: Mapping[str, Any] = field(default_factory=dict)

    def of(self, fact: Fact[X]) -> X | Missing:
        """What was read of one of `FACTS`."""
        found: X | Missing = self.facts.get(fact.name, NOT_ASKED)
        return found

    @property
    def machine(self) -> str | Missing:
        return self.identity if isinstance(self.identity, Missing) else identity.read_machine(self.identity.machine_id)

    @property
    def host_id(self) -> str:
        """By what labels know this host; empty when its machine-id cannot be read."""
        return "" if isinstance(self.machine, Missing) else identity.host_id(self.machine)

    def home(self, deployment: str) -> str:
        """A deployment's directory on this host; empty when `data_dir` is not known."""
        return "" if isinstance(self.identity, Missing) else deployments.directory(self.identity.data_dir, deployment)

    @property
    def gpu_memory(self) -> tuple[int, int] | None:
        """Bytes used and in all of GPUs with memory of their own; None where it is the host's, as on a Spark."""
        cards = [(one.memory_used_mib, one.memory_total_mib) for one in known(self.gpu) or ()]
        mib = [(used, total) for used, total in cards if used is not None and total]
        if not mib or len(mib) < len(cards):
            return None
        return sum(used for used, _ in mib) << 20, sum(total for _, total in mib) << 20

    @property
    def available(self) -> int:
        """Bytes that a model could have: free in GPUs with memory of their own, else MemAvailable; 0 when unknown."""
        if self.gpu_memory:
            return self.gpu_memory[1] - self.gpu_memory[0]
        return 0 if isinstance(self.memory, Missing) else self.memory.available or 0

    @property
    def in_all(self) -> int:
        """Bytes of the memory that models are in, used or not; 0 when unknown."""
        if self.gpu_memory:
            return self.gpu_memory[1]
        return 0 if isinstance(self.memory, Missing) else self.memory.total or 0

    @property
    def available_text(self) -> str:
        """The same in words."""
        return f"{'GPU memory free' if self.gpu_memory else 'MemAvailable'} {self.available / GIB:.1f} GiB"

    @property
    def copies(self) -> tuple[Weights | Missing, Weights | Missing]:
        """What is there of a recipe's models, in their order."""
        return self.weights, self.drafter


def questions(look: Look) -> tuple[Question, ...]:
    return tuple(_asked(look).values())


def read(host: str, look: Look, answers: Sequence[Answer], asked: tuple[float, float]) -> Seen:
    """The answers to `questions(look)`, in their order, as facts. Never raises for what a host printed. `asked`: the
    operator's unix seconds before and after the round trip."""
    said = dict(zip(_asked(look), answers, strict=True))
    return Seen(
        host=host,
        identity=read_section(said["look"], "identity", Identity),
        memory=memory.parse(said["look"]),
        gpu=gpu.parse(said["gpu"]),
        gpu_processes=gpu.parse_processes(said["gpu"]),
        links=links.parse(said["links"]),
        docker=docker.parse(said["docker"]),
        containers=deployments.parse_containers(said["containers"]),
        image=image.parse(look.image, said["image"]) if look.image else NOT_ASKED,
        weights=weights.parse(said["weights"]) if "weights" in said else NOT_ASKED,
        listening=read_section(said["look"], "listening", tuple[Listener, ...]),
        disk=disk.parse(said["kept"]),
        processes=read_section(said["look"], "processes", tuple[EngineProcess, ...]),
        deployments=read_section(said["kept"], "deployments", tuple[Kept, ...]),
        lock=deployments.parse_lock(said["kept"]),
        drafter=weights.parse(said["drafter"]) if "drafter" in said else NOT_ASKED,
        clock=clock.parse(said["look"], asked) if look.thorough else NOT_ASKED,
        clock_limit=clock_limit.parse(said["kept"]),
        facts={fact.name: fact.parse(said[fact.name]) for fact in FACTS} if look.thorough else {},
    )


def _asked(look: Look) -> dict[str, Question]:
    """By the program that answers. What may hang (dead disks, stuck processes) comes last."""
    sections = [*(["clock"] if look.thorough else []), "memory", "identity", "listening", "processes"]
    kernel = {"sections": sections, "data_dir": look.data_dir}
    paths = [look.data_dir, look.hf_home, *IMAGE_ROOTS]
    kept = {"sections": ["lock", "deployments", "clock_limit", "disk"], "data_dir": look.data_dir, "paths": paths}
    asked = {
        "look": far("look", {**kernel, "hf_home": look.hf_home}),
        "links": links.question(gids=look.thorough),
        "kept": far("kept", kept),
        "gpu": gpu.question(),
        "docker": docker.question(),
        "containers": deployments.containers_question(),
    }
    if look.thorough:
        asked |= {fact.name: fact.question() for fact in FACTS}
    if look.image:
        asked["image"] = docker_image_inspect(look.image)
    for name, one, files in zip(("weights", "drafter"), look.models, (look.model_files, ()), strict=False):
        asked[name] = weights.question(one, look.hf_home, files)
    return asked


def check_host(wanted: Wanted, seen: Seen, found: Sequence[Deployment]) -> Iterator[Finding]:
    """All findings of one host. What our own ranks hold, those of `found`, counts as free: they go first."""
    yield from identity.check_platform(wanted, seen)
    yield from identity.check_sudo(seen)
    yield from identity.check_kernel(wanted, seen)
    yield from identity.check_name(seen)
    yield from docker.check_docker(seen)
    yield from gpu.check_gpu(seen)
    yield from clock_limit.check_clock_limit(wanted, seen)
    for fact in FACTS:
        yield from fact.check(seen)
    yield from disk.check_disk(seen)
    if isinstance(seen.containers, Missing) or isinstance(seen.docker, Missing):
        return  # managed containers cannot be distinguished from others
    yield from gpu.check_strangers(seen)
    yield from memory.check_memory(wanted, seen)
    yield from processes.check_ports(wanted, seen, found)
    yield from deployments.check_containers(seen, found)
    yield from image.check_image(wanted, seen)
    yield from weights.check_weights(wanted, seen)


def check_set(wanted: Wanted, seens: Sequence[Seen], fabric: Fabric) -> Iterator[Finding]:
    """All findings over the set of hosts: what must be equal is equal, and the fabric between them is complete."""
    yield from identity.check_machines({seen.host: seen.machine for seen in seens})
    yield from identity.check_hostnames(seens)
    yield from clock.check_clocks(seens)
    yield from image.check_images(seens)
    yield from weights.check_copies(seens)
    yield from check_versions(seens)
    yield from docker.check_stores(seens)
    if len(seens) > 1:
        yield from check_fabric(wanted, seens, fabric)


def check_versions(seens: Sequence[Seen]) -> Iterator[Finding]:
    """Kernel, driver, Docker and the ConnectX's firmware are the same everywhere: else it works here and not there."""
    versions = {
        "kernel": {seen.host: own.kernel for seen in seens if (own := known(seen.identity))},
        "driver": {seen.host: gpus[0].driver or "unknown" for seen in seens if (gpus := known(seen.gpu))},
        "Docker": {seen.host: daemon.version for seen in seens if (daemon := known(seen.docker))},
        "ConnectX firmware": {
            seen.host: cards.links[0].firmware or "unknown"
            for seen in seens
            if (cards := known(seen.links)) and cards.links
        },
    }
    for what, values in versions.items():
        remedy = "bring them to one version when there is time"
        yield from VERSIONS.differ("note", values, f"the hosts differ in {what}", remedy)


def check_names(given: Iterable[str]) -> frozenset[str]:
    """Names of checks as `--force` takes them. Raises UsageError for a name that no check has."""
    given = frozenset(given)
    for name in sorted(given - CHECKS.keys()):
        near, names = did_you_mean(name, CHECKS), ", ".join(CHECKS)
        remedy = f"{near} all: {names}" if near else names
        raise UsageError(f"--force {name}: unknown check", code="unknown-check", remedy=remedy)
    return given
