"""Is a host as it was before `up`: what of ours still holds something."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cluster.argv.ports import ports_used
from cluster.spark.deployments import Deployment, ours
from cluster.spark.fact import Missing
from cluster.spark.gpu import end_process
from cluster.spark.look import Seen
from cluster.spark.memory import GIB

SLACK_BYTES = 2 << 30
"""MemAvailable may be this much below the value recorded at `up`."""


@dataclass(frozen=True, slots=True)
class Holder:
    """One thing that is not back yet; `memory_only`: memory is short, and nothing of ours is seen to hold it."""

    what: str
    evidence: str
    remedy: str = ""
    memory_only: bool = False


def holders(seen: Seen, gone: Sequence[Deployment]) -> list[Holder]:
    """What still holds something on this host after the deployments in `gone` were removed; empty when all is back."""
    return [*_containers(seen), *held_by_stopped(seen, gone)]


def held_by_stopped(seen: Seen, stopped: Sequence[Deployment]) -> list[Holder]:
    """What still holds something on this host after the containers of these deployments were stopped."""
    return [*_ports(seen, stopped), *_processes(seen), *_memory(seen)]


def _containers(seen: Seen) -> Iterator[Holder]:
    if isinstance(seen.containers, Missing):
        yield Holder("containers could not be listed", seen.containers.why, "docker ps -a")
        return
    for container in seen.containers:
        if ours(container):
            yield Holder(
                f"container {container.name} is still there", container.state, f"docker rm -f {container.name}"
            )


def _ports(seen: Seen, gone: Sequence[Deployment]) -> Iterator[Holder]:
    if isinstance(seen.listening, Missing):
        yield Holder("listening ports could not be read", seen.listening.why)
        return
    for deployment in gone:
        if seen.host not in deployment.hosts:
            continue
        rank = deployment.hosts.index(seen.host)
        uses = ports_used(
            backend=deployment.spec["backend"], size=len(deployment.hosts), rank=rank, api_port=deployment.port
        )
        for listener in seen.listening:
            use = next((use for use in uses if use.first <= listener.port <= use.last), None)
            if use:
                holder = f"{listener.process} pid {listener.pid}" if listener.pid else "holder not visible"
                remedy = f"sudo ss -ltnp sport = :{listener.port}"
                yield Holder(f"port {listener.port} ({use.what}) is still taken", holder, remedy)


def _processes(seen: Seen) -> Iterator[Holder]:
    """Engine processes of a container that is gone, or is ours, live on; others are strangers'."""
    if isinstance(seen.processes, Missing):
        yield Holder("processes could not be read", seen.processes.why)
        return
    strangers = set() if isinstance(seen.containers, Missing) else {one.id for one in seen.containers if not ours(one)}
    for process in seen.processes:
        if process.container not in strangers and process.container:
            evidence = f"pid {process.pid}, {process.rss_bytes / GIB:.1f} GiB"
            yield Holder(f"process {process.name} lives on", evidence, end_process(process.pid))


def _memory(seen: Seen) -> Iterator[Holder]:
    if isinstance(seen.memory, Missing) or isinstance(seen.deployments, Missing) or seen.memory.available is None:
        return
    for kept in seen.deployments:
        was = kept.available_before or 0
        short = was - seen.memory.available
        if short > SLACK_BYTES:
            yield Holder(
                f"{short / GIB:.1f} GiB less memory than before up",
                f"MemAvailable {seen.memory.available / GIB:.1f} GiB, was {was / GIB:.1f} GiB",
                "ps aux --sort -rss | head; nvidia-smi",
                memory_only=True,
            )
