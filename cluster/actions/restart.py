"""Restart all ranks of a deployment: lock → look → stop → memory is back → start the same containers → prove."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cluster.actions import prove
from cluster.actions.reach import answered, look, raise_all
from cluster.apply import Applied, apply, undo
from cluster.config.names import ResolvedHost
from cluster.errors import ClusterError, RefusedError
from cluster.facts.completion import Server
from cluster.facts.fact import Missing
from cluster.facts.seen import Seen
from cluster.hosts.fleet import Fleet
from cluster.hosts.lock import Lock
from cluster.plan.back import held_by_stopped
from cluster.plan.deployed import Deployment, deployments
from cluster.plan.fabric import recorded
from cluster.plan.restart import start_ranks, stop_ranks, wanted_of
from cluster.plan.steps import Stage
from cluster.screen import Screen

BACK_S = 120.0
POLL_S = 1.0


def restart(
    deployment: Deployment, hosts: Sequence[ResolvedHost], fleet: Fleet, screen: Screen, begun: Callable[[], None]
) -> float:
    """Restart, and prove one completion; how many seconds it took. `begun` is called before the first change.

    `hosts` in rank order. Interrupted or failing while the ranks stop, it starts them again. Raises ClusterError:
    before `begun` nothing was changed; when memory does not come back the ranks stay stopped, since starting them would
    only lose more of it.
    """
    began = fleet.time.monotonic()
    within = fleet.only(deployment.hosts)
    with Lock(within, f"restart {deployment.id}", {host.name: host.data_dir for host in hosts}) as guard:
        seens = see(within, hosts)
        subject = subject_of(deployment, hosts, seens)
        now = as_before(deployment, seens)
        begun()
        screen.stay()
        applied = Applied()
        try:
            apply((Stage("stop", stop_ranks(now)),), within, guard, screen.note, applied)
            left = await_back(now, hosts, within, screen)
        except (ClusterError, KeyboardInterrupt):
            fleet.cancel.renew()
            undo(applied, within, guard, screen.note)
            raise
        if left:
            raise RefusedError(
                f"{left} after {BACK_S:.0f} s: the ranks stay stopped", remedy="cluster doctor; reboot it"
            )
        apply((Stage("start", start_ranks(now)),), within, guard, screen.note, Applied())
        with screen.waiting("containers") as line:
            prove.wait_serving(subject, within, line.update, {})
        prove.check_ray(subject, within)
        prove.complete(subject, within)
    return fleet.time.monotonic() - began


def see(fleet: Fleet, hosts: Sequence[ResolvedHost]) -> dict[str, Seen]:
    """Look at every host of it; all have to answer."""
    seens, errors = answered(look(fleet, hosts))
    raise_all(errors)
    return seens


def as_before(deployment: Deployment, seens: dict[str, Seen]) -> Deployment:
    """The deployment under the lock. Raises RefusedError when somebody changed it meanwhile."""
    now = next((one for one in deployments(seens.values()) if one.id == deployment.id), None)
    if now is None or set(now.ranks) != set(now.hosts):
        raise RefusedError("its containers are not all there", where=deployment.id, remedy="cluster up starts it anew")
    if any(rank.started_at != deployment.ranks[host].started_at for host, rank in now.ranks.items()):
        raise RefusedError("somebody started it meanwhile", where=deployment.id)
    return now


def subject_of(deployment: Deployment, hosts: Sequence[ResolvedHost], seens: dict[str, Seen]) -> prove.Subject:
    """What is to be proven. Raises RefusedError for a deployment of another version."""
    try:
        wanted = wanted_of(deployment, hosts)
    except ValueError:
        raise RefusedError("another version of cluster made it", remedy="cluster up with this one") from None
    identity = seens[deployment.head].identity
    home = "" if isinstance(identity, Missing) else f"{identity.data_dir}/deployments/{deployment.id}"
    server = Server.of_spec(deployment.spec, home)
    return prove.Subject(deployment.id, wanted, recorded(deployment.seen), server)


def await_back(deployment: Deployment, hosts: Sequence[ResolvedHost], fleet: Fleet, screen: Screen) -> str:
    """Wait until the stopped ranks hold no port, process or memory; what they still hold at the end, or nothing."""
    deadline = fleet.time.monotonic() + BACK_S
    with screen.waiting("ports, processes and memory to be back") as line:
        while True:
            held = {name: held_by_stopped(seen, [deployment]) for name, seen in see(fleet, hosts).items()}
            left = "; ".join(f"{name}: {holders[0].what}" for name, holders in held.items() if holders)
            if not left or fleet.time.monotonic() > deadline:
                return left
            line.update(left)
            fleet.time.sleep(POLL_S)
