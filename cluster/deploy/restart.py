"""Restart all ranks of a deployment: lock → look → stop → memory is released → start the same containers → prove."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cluster.config.inventory import ResolvedHost
from cluster.deploy import prove
from cluster.deploy.apply import Applied, Guard, apply, undo
from cluster.deploy.leftovers import Holder, held_by_stopped, holders
from cluster.deploy.plan import start_ranks, stop_ranks, wanted_of
from cluster.deploy.session import find, locked, see
from cluster.deploy.steps import Stage
from cluster.errors import ClusterError, InterruptedByUser, RefusedError
from cluster.hosts.fleet import Fleet
from cluster.screen import Screen
from cluster.spark.deployments import Deployment, directory
from cluster.spark.fabric import recorded
from cluster.spark.fact import Missing
from cluster.spark.look import Seen
from cluster.spark.server import Server

BACK_S = 120.0
STEADY_S = 10.0
"""Memory that is short, though nothing of ours holds it, is somebody else's when it stays so for so long."""
STIR_BYTES = 256 << 20
POLL_S = 1.0


def await_released(
    stopped: Sequence[Deployment], hosts: Sequence[ResolvedHost], fleet: Fleet, screen: Screen, *, removed: bool = False
) -> tuple[dict[str, Seen], dict[str, list[Holder]]]:
    """Wait until the stopped ranks hold no port, process or memory, 120 s at most; if `removed`, no container either.

    Returns the hosts as they are then, and by host what is still held. Unless `removed`, the wait ends early when only
    memory is short, and stays so.
    """
    held_on, what = (holders, "containers, ports") if removed else (held_by_stopped, "ports")
    deadline, moved, level = fleet.time.monotonic() + BACK_S, fleet.time.monotonic(), dict[str, int]()
    with screen.waiting(f"{what}, processes and memory to be back") as line:
        while True:
            seens, now = see(fleet, hosts, say=line.beside), fleet.time.monotonic()
            held = {name: held_on(seen, stopped) for name, seen in seens.items()}
            held = {name: rows for name, rows in held.items() if rows}
            if stirs(level, available(seens)) or not all(row.memory_only for rows in held.values() for row in rows):
                level, moved = available(seens), now
            if not held or now > deadline or (not removed and now - moved >= STEADY_S):
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
    home = "" if isinstance(identity, Missing) else directory(identity.data_dir, deployment.id)
    server = Server.of_spec(deployment.spec, home)
    return prove.Subject(deployment.id, wanted, recorded(deployment.seen), server)


def prove_again(subject: prove.Subject, fleet: Fleet, screen: Screen) -> None:
    """Wait until ranks that were started again serve: all there, one completion. Raises ClusterError when not."""
    with screen.waiting(f"{subject.deployment} to serve again") as line:
        prove.wait_serving(subject, fleet, line.update, {})
        prove.check_ray(subject, fleet, line.beside)
        prove.complete(subject, fleet, line.beside)


def restart(
    deployment: Deployment, hosts: Sequence[ResolvedHost], fleet: Fleet, screen: Screen, begun: Callable[[], None]
) -> float:
    """Restart, and prove one completion; how many seconds it took. `begun` is called before the first change.

    `hosts` in rank order. Interrupted or failing while the ranks stop, it starts them again; a second Ctrl-C leaves
    them as they are. Raises ClusterError:
    before `begun` nothing was changed; when memory does not come back the ranks stay stopped, since starting them would
    only lose more of it.
    """
    began = fleet.time.monotonic()
    within = fleet.only(deployment.hosts)
    with locked(within, hosts, f"restart {deployment.id}") as guard:
        seens = see(within, hosts, say=screen.trouble)
        subject = subject_of(deployment, hosts, seens)
        now = as_before(deployment, seens)
        begun()
        screen.stay()
        applied = Applied()
        try:
            apply((Stage("stop", stop_ranks(now)),), within, guard, screen.note, applied)
            _, held = await_released([now], hosts, within, screen)
        except (ClusterError, KeyboardInterrupt) as error:
            fleet.cancel.renew()
            failure = error if isinstance(error, ClusterError) else InterruptedByUser("interrupted before it serves")
            failure.rolled_back = start_again(applied, within, guard, screen)
            raise failure from error
        if held:
            raise RefusedError(f"{say_held(held)}: the ranks stay stopped", remedy="cluster doctor; reboot it")
        apply((Stage("start", start_ranks(now)),), within, guard, screen.note, Applied())
        prove_again(subject, within, screen)
    return fleet.time.monotonic() - began


def start_again(applied: Applied, fleet: Fleet, guard: Guard, screen: Screen) -> str:
    """Start the ranks that were told to stop; what came of it."""
    try:
        left = undo(applied, fleet, guard, screen.note)
    except (InterruptedByUser, KeyboardInterrupt):
        left = [f"{step.host}: {step.what} (interrupted)" for step in applied.stays]
    return "all but: " + "; ".join(left) if left else "all ranks were started again"


def as_before(deployment: Deployment, seens: dict[str, Seen]) -> Deployment:
    """The deployment under the lock. Raises RefusedError when somebody changed it meanwhile."""
    now = next((one for one in find(seens, ()) if one.id == deployment.id), None)
    if now is None or set(now.ranks) != set(now.hosts):
        raise RefusedError("its containers are not all there", where=deployment.id, remedy="cluster up starts it anew")
    if any(rank.started_at != deployment.ranks[host].started_at for host, rank in now.ranks.items()):
        raise RefusedError("somebody started it meanwhile", where=deployment.id)
    return now
