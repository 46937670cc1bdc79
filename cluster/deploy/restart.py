"""Restart all ranks of a deployment: lock → look → stop → memory is released → start the same containers → prove."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cluster.config.inventory import ResolvedHost
from cluster.deploy.apply import Applied, apply, undo
from cluster.deploy.plan import Stage, filled, limits, start_ranks, stop_ranks
from cluster.deploy.prove import prove_restarted, subject_of
from cluster.deploy.released import await_released, say_held
from cluster.deploy.session import Session, find, locked, see
from cluster.errors import ClusterError, InterruptedByUser, RefusedError
from cluster.hosts.fleet import Fleet
from cluster.screen import Screen
from cluster.spark.deployments import Deployment
from cluster.spark.look import Seen


def restart(
    deployment: Deployment, hosts: Sequence[ResolvedHost], fleet: Fleet, screen: Screen, begun: Callable[[], None]
) -> float:
    """Restart, and prove one completion; how many seconds it took. `begun` is called before the first change.

    `hosts` in rank order. Interrupted or failing while the ranks stop, it starts them again; a second Ctrl-C leaves
    them as they are. Raises ClusterError: before `begun` nothing was changed; when memory is not released the ranks
    stay stopped, since starting them would only use more of it.
    """
    start = fleet.time.monotonic()
    within = fleet.only(deployment.hosts)
    with locked(within, hosts, f"restart {deployment.id}") as guard:
        session = Session(within, guard, screen)
        seens = see(within, hosts, say=screen.trouble)
        subject = subject_of(deployment, hosts, seens)
        now = as_before(deployment, seens)
        begun()
        applied = Applied()
        try:
            apply((Stage("stop", stop_ranks(now)),), session, applied)
            _, held = await_released([now], hosts, within, screen)
        except (ClusterError, KeyboardInterrupt) as error:
            fleet.cancel.renew()
            failure = error if isinstance(error, ClusterError) else InterruptedByUser("interrupted before it serves")
            try:
                left = undo(applied, session)
            except (InterruptedByUser, KeyboardInterrupt):
                left = [f"{step.host}: {step.what} (interrupted)" for step in applied.stays]
            failure.rolled_back = "all but: " + "; ".join(left) if left else "all ranks were started again"
            raise failure from error
        if held:
            what = f"{say_held(held)}: the ranks stay stopped"
            raise RefusedError(what, code="not-released", remedy="run cluster doctor; reboot the host")
        apply(filled(limits(hosts, seens), Stage("start", start_ranks(now))), session)
        prove_restarted(subject, within, screen)
    return fleet.time.monotonic() - start


def as_before(deployment: Deployment, seens: dict[str, Seen]) -> Deployment:
    """The deployment under the lock. Raises RefusedError when somebody changed it meanwhile."""
    now = next((one for one in find(seens, ()) if one.id == deployment.id), None)
    if now is None or set(now.ranks) != set(now.hosts):
        what = "not all of its containers are there"
        remedy = "run cluster up to start it again"
        raise RefusedError(what, code="rank-missing", where=deployment.id, remedy=remedy)
    if any(rank.started_at != deployment.ranks[host].started_at for host, rank in now.ranks.items()):
        raise RefusedError("it was restarted meanwhile by another command", code="restarted", where=deployment.id)
    return now
