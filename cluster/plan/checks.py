"""Checks of one host: facts → findings, judged against what is wanted. Pure; a missing fact becomes `unknown`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cluster.commands.ports import ports_used
from cluster.facts.fact import Missing
from cluster.facts.seen import Seen
from cluster.plan.deployed import DEPLOYMENT, TRY, Deployment, ours
from cluster.plan.finding import Finding, Level, unknown
from cluster.plan.wanted import Wanted

GIB = 1 << 30
MACHINES = {"aarch64": "arm64", "arm64": "arm64", "x86_64": "amd64", "amd64": "amd64"}
MIN_ROOM = 5 * GIB


def check_host(wanted: Wanted, seen: Seen, found: Sequence[Deployment]) -> Iterator[Finding]:
    """All findings of one host. What our own ranks hold, those of `found`, counts as free: they go first."""
    yield from check_platform(wanted, seen)
    without_docker = list(check_docker(seen))
    yield from without_docker
    if without_docker:
        return  # what is ours cannot be told from what is not
    yield from check_gpu(seen)
    yield from check_memory(wanted, seen)
    yield from check_disk(seen)
    yield from check_ports(wanted, seen, found)
    yield from check_names(seen, found)
    yield from check_image(wanted, seen)
    yield from check_weights(wanted, seen)


def check_platform(wanted: Wanted, seen: Seen) -> Iterator[Finding]:
    """The host's CPU architecture is the one the recipe is for."""
    if isinstance(seen.identity, Missing):
        yield unknown("platform", seen.host, seen.identity, "identity")
        return
    found = MACHINES.get(seen.identity.arch, seen.identity.arch)
    if wanted.recipe.platform not in ("any", found):
        yield Finding(
            "fault", "platform", seen.host, f"recipe {wanted.recipe.name} is for {wanted.recipe.platform} machines",
            f"uname -m: {seen.identity.arch}", "use a recipe for this architecture",
        )  # fmt: skip


def check_docker(seen: Seen) -> Iterator[Finding]:
    """Docker answers this user."""
    if not isinstance(seen.docker, Missing):
        if isinstance(seen.containers, Missing):
            yield Finding(
                "fault", "docker", seen.host, "the containers cannot be listed, so nothing can be decided",
                seen.containers.why, f"on {seen.host}: docker ps --all",
            )  # fmt: skip
        return
    remedy = {
        "refused": f"on {seen.host}: sudo usermod -aG docker $USER, then log in again",
        "absent": f"on {seen.host}: install Docker, or start it with sudo systemctl start docker",
        "timeout": f"on {seen.host}: sudo systemctl restart docker; look at journalctl -u docker",
    }.get(seen.docker.kind, f"on {seen.host}: docker info")
    yield Finding("fault", "docker", seen.host, "Docker cannot be used", seen.docker.why, remedy)


def check_gpu(seen: Seen) -> Iterator[Finding]:
    """nvidia-smi answers, and strangers on the GPU are named."""
    if isinstance(seen.gpu, Missing):
        level: Level = "fault" if seen.gpu.kind == "absent" or "NVML" in seen.gpu.why else "unknown"
        yield Finding(
            level, "gpu", seen.host, "the GPU cannot be asked", seen.gpu.why,
            f"on {seen.host}: nvidia-smi; after a driver upgrade, reboot",
        )  # fmt: skip
    if isinstance(seen.gpu_processes, Missing) or isinstance(seen.containers, Missing):
        return
    mine = {container.id for container in seen.containers if ours(container)}
    for process in seen.gpu_processes:
        if not process.container or process.container not in mine:
            held = "unknown" if process.used_mib is None else f"{process.used_mib} MiB"
            yield Finding(
                "warning", "gpu-stranger", seen.host, "a process that is not ours uses the GPU",
                f"pid {process.pid} {process.name}, {held}",
            )  # fmt: skip


def check_memory(wanted: Wanted, seen: Seen) -> Iterator[Finding]:
    """MemAvailable, plus what our own ranks will give back, covers what the recipe asks for."""
    need = needed_bytes(wanted)
    if isinstance(seen.memory, Missing):
        yield unknown("memory", seen.host, seen.memory, "memory")
        return
    if not need or seen.memory.available is None:
        return
    room = seen.memory.available + held_by_us(seen)
    if room < need:
        yield Finding(
            "fault", "memory", seen.host, f"the recipe needs {need / GIB:.1f} GiB, {room / GIB:.1f} GiB are to be had",
            f"MemAvailable {seen.memory.available / GIB:.1f} GiB; {_holders(seen)}",
            f"on {seen.host}: stop the holder, or lower gpu-memory-utilization and memory.per_host_gib with --set",
        )  # fmt: skip


def needed_bytes(wanted: Wanted) -> int:
    """Bytes one host must have available by the recipe, 0 when it does not say."""
    return int(wanted.recipe.memory.per_host_gib.get(wanted.tp, 0) * GIB)


def held_by_us(seen: Seen) -> int:
    """Bytes that the processes in our own containers hold on this host: of each the larger of RSS and GPU memory.

    On a Spark the GPU's memory is the host's but in no RSS; simulated drivers tell the RSS twice.
    """
    if isinstance(seen.containers, Missing):
        return 0
    mine = {container.id for container in seen.containers if ours(container)}
    held: dict[int, int] = {}
    for process in () if isinstance(seen.processes, Missing) else seen.processes:
        if process.container in mine:
            held[process.pid] = process.rss_bytes
    for row in () if isinstance(seen.gpu_processes, Missing) else seen.gpu_processes:
        if row.container in mine:
            held[row.pid] = max(held.get(row.pid, 0), (row.used_mib or 0) << 20)
    return sum(held.values())


def _holders(seen: Seen) -> str:
    if isinstance(seen.gpu_processes, Missing) or not seen.gpu_processes:
        return "no GPU process; see `ps aux --sort -rss`"
    rows = sorted(seen.gpu_processes, key=lambda row: -(row.used_mib or 0))[:3]
    return ", ".join(f"{row.name} (pid {row.pid}, {row.used_mib} MiB)" for row in rows)


def check_disk(seen: Seen) -> Iterator[Finding]:
    """Some room where images, weights and caches live."""
    if isinstance(seen.disk, Missing):
        yield unknown("disk", seen.host, seen.disk, "disk room")
        return
    for room in seen.disk:
        if room.free_bytes < MIN_ROOM:
            yield Finding(
                "warning", "disk", seen.host, f"little room under {room.path}", f"{room.free_bytes / GIB:.1f} GiB free",
                "docker system df; remove what is not needed",
            )  # fmt: skip


def check_ports(wanted: Wanted, seen: Seen, found: Sequence[Deployment]) -> Iterator[Finding]:
    """The ports a rank needs are free, or held by a rank of ours that goes first."""
    if isinstance(seen.listening, Missing):
        yield unknown("ports", seen.host, seen.listening, "listening ports")
        return
    mine = [use for deployment in found for use in deployment.ports_on(seen.host)]
    rank = wanted.names.index(seen.host)
    uses = ports_used(backend=wanted.backend, size=wanted.size, rank=rank, api_port=wanted.recipe.port)
    taken: dict[str, dict[int, str]] = {}
    for listener in sorted(seen.listening, key=lambda row: row.port):
        use = next((use.what for use in uses if use.first <= listener.port <= use.last), None)
        if use and not any(own.first <= listener.port <= own.last for own in mine):
            holder = (
                f"{listener.process} (pid {listener.pid})" if listener.pid else "a process this user may not look at"
            )
            taken.setdefault(holder, {})[listener.port] = use
    for holder, ports in taken.items():
        yield _taken(seen.host, holder, ports, wanted.recipe.port)


def _taken(host: str, holder: str, ports: Mapping[int, str], api_port: int) -> Finding:
    """All ports that one process holds."""
    rows = ", ".join(f"{port} ({use})" for port, use in ports.items())
    what = f"port {rows} is taken" if len(ports) == 1 else f"ports {rows} are taken"
    other = ", or take another with --set port=N" if api_port in ports else ""
    see = f"sudo ss -ltnp sport = :{next(iter(ports))}"
    return Finding("fault", "ports", host, what, f"{holder} listens there", f"on {host}: {see}; stop it{other}")


def check_names(seen: Seen, found: Sequence[Deployment]) -> Iterator[Finding]:
    """No stranger's container has a name of ours, and every one of ours can be read."""
    known = {deployment.id for deployment in found}
    if isinstance(seen.containers, Missing):
        return
    for container in seen.containers:
        if container.name.startswith("cluster-") and not ours(container):
            yield Finding(
                "fault", "names", seen.host, f"a container that is not ours is named {container.name}",
                f"{container.id[:12]} of image {container.image}, {container.state}",
                f"on {seen.host}: docker rename {container.name} another-name",
            )  # fmt: skip
        elif container.labels.get(DEPLOYMENT, "") not in known and TRY not in container.labels and ours(container):
            yield Finding(
                "fault", "names", seen.host, f"the labels of {container.name} cannot be read",
                "another version of cluster made it", f"cluster down -n {seen.host}",
            )  # fmt: skip


def check_image(wanted: Wanted, seen: Seen) -> Iterator[Finding]:
    """The image that is there is for this machine; one that is not there is fetched, not a fault."""
    if isinstance(seen.image, Missing) or isinstance(seen.identity, Missing):
        return
    machine = MACHINES.get(seen.identity.arch, seen.identity.arch)
    if MACHINES.get(seen.image.architecture, seen.image.architecture) != machine:
        yield Finding(
            "fault", "image", seen.host, f"image {wanted.recipe.image} is for {seen.image.architecture}",
            f"uname -m: {seen.identity.arch}", f"docker pull --platform linux/{machine} {wanted.recipe.image}",
        )  # fmt: skip


def check_weights(wanted: Wanted, seen: Seen) -> Iterator[Finding]:
    """Weights that are there are whole; missing ones are fetched, but a missing directory cannot be."""
    for model, copy in zip(wanted.recipe.models, seen.copies, strict=False):
        if not isinstance(copy, Missing):
            for problem in copy.problems:
                yield Finding(
                    "fault", "weights", seen.host, f"the weights of {model.id} are not whole", problem,
                    f"on {seen.host}: remove {copy.path} and run cluster up again",
                )  # fmt: skip
        elif model.id.startswith("/") or copy.kind != "absent":
            yield Finding(
                "fault", "weights", seen.host, f"the model {model.id} cannot be read", copy.why,
                "put the model on every host under the same path",
            )  # fmt: skip
