"""The stages that take a deployment away, as values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from cluster.argv import docker
from cluster.argv.question import Question
from cluster.deploy.steps import Plan, Stage, Step
from cluster.spark.containers import Container
from cluster.spark.deployed import DEPLOYMENT, TRY, Deployment
from cluster.spark.fact import Missing
from cluster.spark.look import Seen

HUB_TOKEN = "deployments/hub-token"
"""Where the hub token lies below a host's data directory while it downloads."""


def plan_down(found: tuple[Deployment, ...], seens: Mapping[str, Seen]) -> Plan:
    """Stop and remove everything of ours on these hosts. What each host had before is removed last, by `forget`."""
    ranks = list(_ranks(seens))
    stop = [
        Step(host, f"stop {rank.name}", (docker.docker_stop(rank.name),), repeatable=True)
        for host, rank in ranks
        if rank.state == "running"
    ]
    remove = [
        Step(host, f"remove {rank.name}", (docker.docker_rm(rank.name, force=True),), repeatable=True)
        for host, rank in ranks
    ]
    stages = (Stage("stop", tuple(stop)), Stage("remove", (*remove, *remove_probes(seens).steps)))
    names = ", ".join(deployment.id for deployment in found) or "(none)"
    return Plan(names, (), tuple(stage for stage in stages if stage.steps))


def _ranks(seens: Mapping[str, Seen]) -> Iterator[tuple[str, Container]]:
    """All containers of deployments, whatever their other labels say."""
    for host, seen in seens.items():
        if not isinstance(seen.containers, Missing):
            yield from ((host, container) for container in seen.containers if DEPLOYMENT in container.labels)


def forget(seens: Mapping[str, Seen]) -> Stage:
    """Remove the deployments' directories; the last step of `down`, after the proof."""
    steps = [
        _remove_path(host, path)
        for host, seen in seens.items()
        if not isinstance(seen.identity, Missing) and not isinstance(seen.deployments, Missing)
        for path in (f"{seen.identity.data_dir}/deployments/{kept.id}" for kept in seen.deployments)
    ]
    return Stage("forget", tuple(steps))


def removal(deployment: Deployment, seens: Mapping[str, Seen]) -> Iterator[Step]:
    """Remove a deployment's containers and its directory on each host."""
    for host, rank in deployment.ranks.items():
        changes = [docker.docker_rm(rank.name, force=True)]
        identity = seens[host].identity
        if not isinstance(identity, Missing):
            path = f"{identity.data_dir}/deployments/{deployment.id}"
            changes.append(Question(("rm", "-rf", "--", path), changes=True))
        yield Step(host, f"remove {rank.name}", tuple(changes), repeatable=True)


def clean_up(remains: Iterable[Deployment], seens: Mapping[str, Seen]) -> Stage:
    """Take away what an `up` or `down` that was killed left: dead deployments, and directories without a container."""
    dead = [step for deployment in remains for step in removal(deployment, seens)]
    strays = [_remove_path(host, path) for host, seen in seens.items() for path in _stray_paths(seen)]
    return Stage("remove remains", (*dead, *strays))


def _stray_paths(seen: Seen) -> Iterator[str]:
    """Deployments' directories that belong to no container of this host."""
    if isinstance(seen.identity, Missing) or isinstance(seen.deployments, Missing):
        return
    if not isinstance(seen.containers, Missing):
        ids = {container.labels.get(DEPLOYMENT) for container in seen.containers}
        yield from (f"{seen.identity.data_dir}/deployments/{one.id}" for one in seen.deployments if one.id not in ids)


def _remove_path(host: str, path: str) -> Step:
    return Step(host, f"remove {path}", (Question(("rm", "-rf", "--", path), changes=True),), repeatable=True)


def remove_probes(seens: Mapping[str, Seen]) -> Stage:
    """End the probes and downloads of an operator that was killed. Whoever holds the lock may be sure that it was."""
    return Stage("remove probes", tuple(_remove_probe(host, name) for host, name in _probes(seens)))


def _probes(seens: Mapping[str, Seen]) -> Iterator[tuple[str, str]]:
    """Probe and download containers that a killed operator left behind."""
    for host, seen in seens.items():
        if not isinstance(seen.containers, Missing):
            for container in seen.containers:
                if TRY in container.labels:
                    yield host, container.name


def remove_token(seens: Mapping[str, Seen]) -> Stage:
    """Remove the hub token that lies on a host since an operator was killed during a download."""
    steps = [
        _remove_path(host, path)
        for host, seen in seens.items()
        for path in _stray_paths(seen)
        if path.endswith(HUB_TOKEN)
    ]
    return Stage("remove the hub token", tuple(steps))


def _remove_probe(host: str, name: str) -> Step:
    return Step(host, f"remove {name}", (docker.docker_rm(name, force=True),), repeatable=True, tolerant=True)
