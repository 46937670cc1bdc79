"""`cluster down`: load → connect → lock → look → plan → apply → prove that all is released → forget."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from cluster.config.inventory import ResolvedHost
from cluster.deploy.apply import apply
from cluster.deploy.plan import Plan, filled, forget, plan_down, reset_limits
from cluster.deploy.released import RELEASE_S, await_released
from cluster.deploy.session import (
    Connect,
    Named,
    Session,
    choose_one,
    find,
    finish,
    locked,
    look,
    note_unchanged,
    open_fleet,
    read_named,
    see,
    unchanged,
)
from cluster.errors import ClusterError, ExitCode, RefusedError, raise_all
from cluster.hosts.connect import connect
from cluster.screen import Screen
from cluster.spark.deployments import Deployment
from cluster.spark.fact import Missing
from cluster.spark.look import Seen
from cluster.spark.memory import GIB


def run(args: argparse.Namespace, screen: Screen, connect: Connect = connect) -> ExitCode:
    return take(read_named(args), screen, connect, dry_run=args.dry_run)


def take(named: Named, screen: Screen, connect: Connect = connect, *, dry_run: bool) -> ExitCode:
    """From the hosts that are meant to the proof that no deployment is left."""
    with unchanged(screen), open_fleet(named.hosts, connect) as fleet:
        seens, silent = look(fleet, named.hosts)
        if not seens:
            raise_all(silent)
        choose_one(find(seens, named.hosts), named)
        within = fleet.only(list(seens))
        answering = [host for host in named.hosts if host.name in seens]
        with locked(within, answering, "down", dry_run=dry_run) as guard:
            if not dry_run:  # whoever held the lock until now may have changed everything
                seens = see(within, answering, say=screen.trouble)
            blind = []
            for name, seen in list(seens.items()):
                if isinstance(seen.containers, Missing):
                    what = f"the containers cannot be listed: {seen.containers.why}"
                    remedy = "run cluster down again when docker ps works there"
                    blind.append(RefusedError(what, code="containers-not-listed", where=name, remedy=remedy))
                    del seens[name]
            found = find(seens, named.hosts)
            removed = take_down(answering, seens, found, Session(within, guard, screen, dry_run))
    errors = [*concerned(silent, named, found, screen), *blind]
    note_unchanged(errors, screen)
    screen.document({"deployments": [one.id for one in found], **removed, "errors": [one.as_dict() for one in errors]})
    return finish(errors, screen, ExitCode.DONE)  # what could be taken down was; the others are named


def concerned(
    silent: Sequence[ClusterError], named: Named, found: Sequence[Deployment], screen: Screen
) -> list[ClusterError]:
    """Errors of hosts that were named or may have a rank of what was found; of others only a warning."""
    ranks = {host for deployment in found for host in deployment.hosts}
    unknown = ranks - {host.name for host in named.hosts}  # one that is not known by name may be any that is silent
    if named.explicit or not found or unknown:
        return list(silent)
    for error in silent:
        if error.host not in ranks:
            screen.warn(f"{error.host} was left out: {error.what}")
    return [error for error in silent if error.host in ranks]


def take_down(
    answering: Sequence[ResolvedHost], seens: dict[str, Seen], found: tuple[Deployment, ...], session: Session
) -> dict[str, Any]:
    """Remove all deployments on these hosts and prove that they are as before. Returns what `--json` shows of it."""
    screen = session.screen
    for deployment in found:
        beyond = ", ".join(host for host in deployment.hosts if host not in seens)
        if beyond:  # a rank ends by itself when its peers are gone
            end = "they end by themselves within a minute; their containers stay until cluster down is run for them too"
            screen.warn(f"{deployment.id} also has ranks on {beyond}: {end}")
    plan, last = plan_down(found, seens), filled(forget(seens), reset_limits(seens))
    if session.dry_run:
        lines = [*plan.lines(), *Plan("", (), last).lines()]
        for line in lines:
            screen.line(line)
        return {"plan": lines}
    if not plan.stages and not last:
        screen.line(f"no deployment on {', '.join(seens)}")
        return {"hosts": dict.fromkeys(seens, "no deployment")}
    apply(plan.stages, session)
    hosts = [host for host in answering if host.name in seens]
    seens, held = await_released(found, hosts, session.fleet, screen, removed=True)
    not_released = []
    for name, rows in held.items():
        what = f"not released after {RELEASE_S:.0f} s: {'; '.join(f'{one.what} ({one.evidence})' for one in rows[:4])}"
        not_released.append(RefusedError(what, code="not-released", where=name, remedy=rows[0].remedy))
    raise_all(not_released)
    apply(last, session)
    proven = {}
    for name, seen in seens.items():
        memory = f"{seen.available / GIB:.1f} GiB available{' on the GPU' if seen.gpu_memory else ''}"
        memory = memory if seen.available else "memory could not be read"
        proven[name] = f"containers, ports and processes are released; {memory}"
        screen.good(f"{name}: {proven[name]}")
    return {"hosts": proven}
