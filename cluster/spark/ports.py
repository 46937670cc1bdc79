"""Which TCP ports are taken (/proc/net/tcp and tcp6, proc(5)), and whether a rank has a place on a host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cluster.argv.far import far
from cluster.argv.ports import ports_used
from cluster.spark.deployments import DEPLOYMENT, TRY, Deployment, ours
from cluster.spark.fact import Missing, read_section
from cluster.spark.finding import Finding, unknown

if TYPE_CHECKING:
    from cluster.argv.question import Answer, Question
    from cluster.spark.look import Seen
    from cluster.spark.request import Wanted


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket in LISTEN. `pid` is None and `process` empty when this user may not see whose it is; `uid` owns it."""

    address: str
    port: int
    pid: int | None
    process: str
    uid: int = 0


def question() -> Question:
    """Ask for the listening sockets alone."""
    return far("look", {"sections": ["listening"]})


def parse(answer: Answer) -> tuple[Listener, ...] | Missing:
    """Read the section `listening` of far/look."""
    return read_section(answer, "listening", tuple[Listener, ...])


def check_docker(seen: Seen) -> Iterator[Finding]:
    """Docker answers this user, and lists its containers."""
    if not isinstance(seen.docker, Missing):
        if isinstance(seen.containers, Missing):
            yield Finding(
                "fault",
                "docker",
                seen.host,
                "the containers cannot be listed, so nothing can be decided",
                seen.containers.why,
                f"on {seen.host}: docker ps --all",
            )
        return
    remedy = {
        "refused": f"on {seen.host}: sudo usermod -aG docker $USER, then log in again",
        "absent": f"on {seen.host}: install Docker, or start it with sudo systemctl start docker",
        "timeout": f"on {seen.host}: sudo systemctl restart docker; look at journalctl -u docker",
    }.get(seen.docker.kind, f"on {seen.host}: docker info")
    yield Finding("fault", "docker", seen.host, "Docker cannot be used", _why(seen, seen.docker), remedy)


def _why(seen: Seen, docker: Missing) -> str:
    """Docker's words, with what of the account explains them: its groups, or where programs are looked for."""
    if isinstance(seen.identity, Missing):
        return docker.why
    if docker.kind == "refused":
        return f"{docker.why}; groups of {seen.identity.user}: {' '.join(seen.identity.groups)}"
    return f"{docker.why}: {seen.identity.path}" if docker.why.endswith("PATH of a non-login shell") else docker.why


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


def check_containers(seen: Seen, found: Sequence[Deployment]) -> Iterator[Finding]:
    """No stranger's container has a name of ours, and every one of ours can be read; strangers with a GPU are noted."""
    known = {deployment.id for deployment in found}
    if isinstance(seen.containers, Missing):
        return
    for container in seen.containers:
        if container.name.startswith("cluster-") and not ours(container):
            yield Finding(
                "fault",
                "names",
                seen.host,
                f"a container that is not ours is named {container.name}",
                f"{container.id[:12]} of image {container.image}, {container.state}",
                f"on {seen.host}: docker rename {container.name} another-name",
            )
        elif container.labels.get(DEPLOYMENT, "") not in known and TRY not in container.labels and ours(container):
            yield Finding(
                "fault",
                "names",
                seen.host,
                f"the labels of {container.name} cannot be read",
                "another version of cluster made it",
                f"cluster down -n {seen.host}",
            )
        if container.gpu and container.state == "running" and not ours(container):
            yield Finding(
                "note",
                "stranger",
                seen.host,
                f"a container that is not ours has the GPU too: {container.name}",
                f"{container.id[:12]} of image {container.image}, running since {container.started_at}",
                f"on {seen.host}: docker stop {container.name}, if nobody needs it",
            )
