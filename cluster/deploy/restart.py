"""Restart all ranks of a deployment: lock → look → stop → memory is back → start the same containers → prove."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cluster.config.names import ResolvedHost
from cluster.deploy.again import await_back, prove_again, say_held, subject_of
from cluster.deploy.apply import Applied, Guard, apply, undo
from cluster.deploy.restart_plan import start_ranks, stop_ranks
from cluster.deploy.session import find, see
from cluster.deploy.steps import Stage
from cluster.errors import ClusterError, InterruptedByUser, RefusedError
from cluster.hosts.fleet import Fleet
from cluster.hosts.lock import Lock
from cluster.screen import Screen
from cluster.spark.deployed import Deployment
from cluster.spark.look import Seen


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
    with Lock(within, f"restart {deployment.id}", {host.name: host.data_dir for host in hosts}) as guard:
        seens = see(within, hosts, say=screen.trouble)
        subject = subject_of(deployment, hosts, seens)
        now = as_before(deployment, seens)
        begun()
        screen.stay()
        applied = Applied()
        try:
            apply((Stage("stop", stop_ranks(now)),), within, guard, screen.note, applied)
            _, held = await_back([now], hosts, within, screen)
        except (ClusterError, KeyboardInterrupt) as error:
            fleet.cancel.renew()
            failure = error if isinstance(error, ClusterError) else InterruptedByUser("interrupted before it serves")
            failure.put_back = start_again(applied, within, guard, screen)
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
