"""What a stopped or removed deployment still holds on a host: ports, processes, memory; the wait for its release."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cluster.argv.ports import ports_used
from cluster.config.inventory import ResolvedHost
from cluster.deploy.session import see
from cluster.hosts.fleet import Fleet
from cluster.screen import Screen
from cluster.spark.deployments import Deployment, is_managed
from cluster.spark.fact import Missing, known
from cluster.spark.gpu import end_process
from cluster.spark.look import Seen
from cluster.spark.memory import GIB

SLACK_BYTES = 2 << 30
"""MemAvailable may be this much below the value recorded at `up`."""
CARD_SLACK_BYTES = 256 << 20
"""The same of a GPU's own memory, which nothing but programs on it uses."""
RELEASE_S = 120.0
STEADY_S = 10.0
"""Memory that is short, though no deployment holds it, counts as another program's after this long."""
STIR_BYTES = 256 << 20
POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class Holder:
    """One thing that is not released yet; `memory_only`: memory is short, and no deployment is seen to hold it."""

    what: str
    evidence: str
    remedy: str = ""
    memory_only: bool = False


def holders(seen: Seen, gone: Sequence[Deployment]) -> Iterator[Holder]:
    """What still holds something on this host after the deployments in `gone` were removed."""
    if isinstance(seen.containers, Missing):
        yield Holder("containers could not be listed", seen.containers.why, "docker ps -a")
    for one in filter(is_managed, known(seen.containers) or ()):
        yield Holder(f"container {one.name} is still there", one.state, f"docker rm -f {one.name}")
    yield from held_by_stopped(seen, gone)


def held_by_stopped(seen: Seen, stopped: Sequence[Deployment]) -> Iterator[Holder]:
    """What still holds something on this host after the containers of these deployments were stopped.

    Engine processes count when their container is gone or managed by cluster; those of unmanaged containers do not.
    """
    for fact, what in ((seen.listening, "listening ports"), (seen.processes, "processes")):
        if isinstance(fact, Missing):
            yield Holder(f"{what} could not be read", fact.why)
    for deployment in [one for one in stopped if seen.host in one.hosts]:
        rank, size = deployment.hosts.index(seen.host), len(deployment.hosts)
        uses = ports_used(backend=deployment.spec["backend"], size=size, rank=rank, api_port=deployment.port)
        for listener in known(seen.listening) or ():
            for use in [use for use in uses if use.first <= listener.port <= use.last][:1]:
                holder = f"{listener.process} pid {listener.pid}" if listener.pid else "holder not visible"
                remedy = f"sudo ss -ltnp sport = :{listener.port}"
                yield Holder(f"port {listener.port} ({use.what}) is still taken", holder, remedy)
    unmanaged = {one.id for one in known(seen.containers) or () if not is_managed(one)}
    for process in known(seen.processes) or ():
        if process.container and process.container not in unmanaged:
            evidence = f"pid {process.pid}, {process.rss_bytes / GIB:.1f} GiB"
            yield Holder(f"process {process.name} lives on", evidence, end_process(process.pid))
    before = max((kept.available_before or 0 for kept in known(seen.deployments) or ()), default=0)
    if seen.available and before - seen.available > (CARD_SLACK_BYTES if seen.gpu_memory else SLACK_BYTES):
        what = f"{(before - seen.available) / GIB:.1f} GiB less memory than before up"
        evidence = f"{seen.available_text}, was {before / GIB:.1f} GiB"
        yield Holder(what, evidence, "ps aux --sort -rss | head; nvidia-smi", memory_only=True)


def await_released(
    stopped: Sequence[Deployment], hosts: Sequence[ResolvedHost], fleet: Fleet, screen: Screen, *, removed: bool = False
) -> tuple[dict[str, Seen], dict[str, list[Holder]]]:
    """Wait until the stopped ranks hold no port, process or memory, 120 s at most; if `removed`, no container either.

    Returns the hosts as they are then, and by host what is still held. Unless `removed`, the wait ends early when only
    memory is short, and stays so.
    """
    held_on, what = (holders, "containers, ports") if removed else (held_by_stopped, "ports")
    deadline, moved, level = fleet.time.monotonic() + RELEASE_S, fleet.time.monotonic(), dict[str, int]()
    with screen.waiting(f"{what}, processes and memory to be back") as line:
        while True:
            seens, now = see(fleet, hosts, say=line.beside), fleet.time.monotonic()
            held = {name: rows for name, seen in seens.items() if (rows := list(held_on(seen, stopped)))}
            free = {name: seen.available for name, seen in seens.items()}
            stirs = any(abs(value - level.get(name, 0)) > STIR_BYTES for name, value in free.items())
            if stirs or not all(row.memory_only for rows in held.values() for row in rows):
                level, moved = free, now
            if not held or now > deadline or (not removed and now - moved >= STEADY_S):
                return seens, held
            line.update(say_held(held))
            fleet.time.sleep(POLL_S)


def say_held(held: Mapping[str, Sequence[Holder]]) -> str:
    """The first thing held on each host, in one line."""
    return "; ".join(f"{name}: {rows[0].what}" for name, rows in held.items())
