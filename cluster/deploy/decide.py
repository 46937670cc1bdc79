"""Wanted × found → leave it, or start it and say what goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from cluster.deploy.spec import differing, named
from cluster.errors import RefusedError
from cluster.spark.deployments import Deployment


@dataclass(frozen=True, slots=True)
class Same:
    """What is wanted is there already, ready or on its way. `remains` are dead and only removed."""

    deployment: Deployment
    remains: tuple[Deployment, ...] = ()


@dataclass(frozen=True, slots=True)
class Start:
    """`outgoing` run now and come back when the new one fails; `remains` are dead and only removed."""

    why: tuple[str, ...]
    outgoing: tuple[Deployment, ...] = ()
    remains: tuple[Deployment, ...] = ()


def decide(
    spec: Mapping[str, Any], found: Sequence[Deployment], names: Mapping[str, str] = MappingProxyType({})
) -> Same | Start:
    """What has to happen so that `spec` runs. `names`: how this command calls the hosts, by id."""
    running = [deployment for deployment in found if deployment.running]
    remains = tuple(deployment for deployment in found if not deployment.running)
    for deployment in running:
        if not differing(deployment.spec, spec):  # its id may be an older version's
            return Same(deployment, remains)
    if len(running) > 1:
        why = [f"replace {one.id}, which runs on {', '.join(one.hosts)}" for one in running]
    elif running:
        old = running[0]
        called = {**names, **dict(zip(old.spec["hosts"], old.hosts, strict=True))}
        why = [f"replace {old.id}: {key}" for key in differing(named(old.spec, called), named(spec, called))]
    else:
        dead = [one.id for one in remains if not differing(one.spec, spec)][:1]
        why = [f"replace what is left of {id}: its containers are not all running" for id in dead]
        why = why or ["no deployment runs on these hosts"]
    return Start(tuple(why), tuple(running), remains)


def refuse_beyond(named: Sequence[str], found: Sequence[Deployment]) -> None:
    """Raise RefusedError when a rank found here belongs to a deployment with hosts that were not named."""
    for deployment in found:
        beyond = [host for host in deployment.hosts if host not in named]
        if beyond:
            raise RefusedError(
                f"{', '.join(deployment.ranks)} holds a rank of {deployment.id}, whose other ranks are on"
                f" {', '.join(beyond)}",
                code="ranks-elsewhere",
                where=f"deployment {deployment.id} on {', '.join(deployment.hosts)}",
                remedy=f"name all of its hosts with -n; cluster down -n {','.join(deployment.ranks)} ends it",
            )
