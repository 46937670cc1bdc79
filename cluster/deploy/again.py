"""Ranks that were stopped: wait until they hold nothing any more; prove them when they were started again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cluster.config.names import ResolvedHost
from cluster.deploy import prove
from cluster.deploy.leftovers import Holder, held_by_stopped
from cluster.deploy.restart_plan import wanted_of
from cluster.deploy.session import see
from cluster.errors import RefusedError
from cluster.hosts.fleet import Fleet
from cluster.screen import Screen
from cluster.spark.completion import Server
from cluster.spark.deployed import Deployment
from cluster.spark.fabric import recorded
from cluster.spark.fact import Missing
from cluster.spark.look import Seen

BACK_S = 120.0
STEADY_S = 10.0
"""Memory that is short, though nothing of ours holds it, is somebody else's when it stays so for so long."""
STIR_BYTES = 256 << 20
POLL_S = 1.0


def await_back(
    stopped: Sequence[Deployment], hosts: Sequence[ResolvedHost], fleet: Fleet, screen: Screen
) -> tuple[dict[str, Seen], dict[str, list[Holder]]]:
    """Wait until the stopped ranks hold no port, process or memory, 120 s at most.

    Returns the hosts as they are then, and by host what is still held.
    """
    deadline, moved, level = fleet.time.monotonic() + BACK_S, fleet.time.monotonic(), dict[str, int]()
    with screen.waiting("ports, processes and memory to be back") as line:
        while True:
            seens, now = see(fleet, hosts, say=line.beside), fleet.time.monotonic()
            held = {name: held_by_stopped(seen, stopped) for name, seen in seens.items()}
            held = {name: rows for name, rows in held.items() if rows}
            if stirs(level, available(seens)) or not all(row.memory_only for rows in held.values() for row in rows):
                level, moved = available(seens), now
            if not held or now > deadline or now - moved >= STEADY_S:
                return seens, held
            line.update(say_held(held))
            fleet.time.sleep(POLL_S)


def available(seens: Mapping[str, Seen]) -> dict[str, int]:
    """Bytes that each host has available, 0 where it does not say."""
    return {name: 0 if isinstance(seen.memory, Missing) else seen.memory.available or 0 for name, seen in seens.items()}


def stirs(was: Mapping[str, int], now: Mapping[str, int]) -> bool:
    """Whether memory still comes back on some host."""
    return any(abs(value - was.get(name, 0)) > STIR_BYTES for name, value in now.items())


def say_held(held: Mapping[str, Sequence[Holder]]) -> str:
    """The first thing held on each host, in one line."""
    return "; ".join(f"{name}: {rows[0].what}" for name, rows in held.items())


def subject_of(deployment: Deployment, hosts: Sequence[ResolvedHost], seens: Mapping[str, Seen]) -> prove.Subject:
    """What is to be proven; `hosts` in rank order. Raises RefusedError for a deployment of another version."""
    try:
        wanted = wanted_of(deployment, hosts)
    except ValueError:
        raise RefusedError("another version of cluster made it", remedy="cluster up with this one") from None
    identity = seens[deployment.head].identity
    home = "" if isinstance(identity, Missing) else f"{identity.data_dir}/deployments/{deployment.id}"
    server = Server.of_spec(deployment.spec, home)
    return prove.Subject(deployment.id, wanted, recorded(deployment.seen), server)


def prove_again(subject: prove.Subject, fleet: Fleet, screen: Screen) -> None:
    """Wait until ranks that were started again serve: all there, one completion. Raises ClusterError when not."""
    with screen.waiting(f"{subject.deployment} to serve again") as line:
        prove.wait_serving(subject, fleet, line.update, {})
        prove.check_ray(subject, fleet, line.beside)
        prove.complete(subject, fleet, line.beside)
