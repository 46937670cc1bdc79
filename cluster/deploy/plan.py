"""The stages of `up`, `down` and a restart, as values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from cluster.argv import docker
from cluster.argv.question import Question
from cluster.config.inventory import ResolvedHost
from cluster.config.recipe import Recipe
from cluster.deploy.decide import Start
from cluster.deploy.rank import Ingredients, container, container_name, rank_files
from cluster.deploy.steps import Plan, Put, Stage, Step, filled
from cluster.spark.deployments import DEPLOYMENT, TRY, Container, Deployment, directory
from cluster.spark.fact import Missing
from cluster.spark.look import Seen
from cluster.spark.memory import hides_in_cache
from cluster.spark.request import Wanted


def stop_ranks(deployment: Deployment) -> tuple[Step, ...]:
    """Stop all ranks; undo starts them again."""
    return tuple(
        Step(
            host,
            f"stop {rank.name}",
            (docker.docker_stop(rank.name),),
            undo=(docker.docker_start(rank.name),),
            settle=docker.docker_has_stopped(rank.name),
            repeatable=True,
        )
        for host, rank in deployment.ranks.items()
    )


def start_ranks(deployment: Deployment) -> tuple[Step, ...]:
    """Start the stopped containers of all ranks."""
    label = f"{DEPLOYMENT}={deployment.id}"
    return tuple(
        Step(
            host,
            f"start {rank.name}",
            (docker.docker_start(rank.name),),
            settle=docker.docker_has_started(rank.name, label),
            repeatable=True,
        )
        for host, rank in deployment.ranks.items()
    )


def wanted_of(deployment: Deployment, hosts: Sequence[ResolvedHost]) -> Wanted:
    """What a deployment was asked to be, as far as its proof needs it; the labels hold no secrets.

    `hosts` in rank order. Raises ValueError when the recipe in the label is none of this version's.
    """
    spec = deployment.spec
    recipe = Recipe.model_validate(spec["recipe"])
    return Wanted(recipe, tuple(hosts), spec["tp"], spec["pp"], spec["backend"], bind=spec["bind"])


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
        for path in (directory(seen.identity.data_dir, kept.id) for kept in seen.deployments)
    ]
    return Stage("forget", tuple(steps))


def removal(deployment: Deployment, seens: Mapping[str, Seen]) -> Iterator[Step]:
    """Remove a deployment's containers and its directory on each host."""
    for host, rank in deployment.ranks.items():
        changes = [docker.docker_rm(rank.name, force=True)]
        identity = seens[host].identity
        if not isinstance(identity, Missing):
            path = directory(identity.data_dir, deployment.id)
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
        yield from (directory(seen.identity.data_dir, one.id) for one in seen.deployments if one.id not in ids)


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


DROP_CACHES = ("sudo", "-n", "sh", "-c", "sync; echo 3 > /proc/sys/vm/drop_caches")


def plan_up(made_of: Ingredients, start: Start) -> Plan:
    """All stages from what is there to running containers, and the clean-up after the proof."""
    ranks = range(made_of.wanted.size)
    first = (
        clean_up(start.remains, made_of.seens),
        Stage(
            "build the image",
            tuple(_build(made_of, host) for host in made_of.wanted.names if made_of.wanted.dockerfile),
        ),
        Stage("stop the old", tuple(step for old in start.outgoing for step in stop_ranks(old))),
    )
    stages = (
        Stage("free page cache", tuple(_drop(host) for host in made_of.wanted.names if _cached(made_of, host))),
        Stage("prepare", tuple(_prepare(made_of, rank) for rank in ranks)),
        Stage("start containers", tuple(_run(made_of, rank) for rank in ranks)),
    )
    after = (Stage("remove the old", tuple(step for old in start.outgoing for step in removal(old, made_of.seens))),)
    return Plan(made_of.id, start.why, filled(*stages), filled(*after), start.outgoing, filled(*first))


def _build(made_of: Ingredients, host: str) -> Step:
    """Build the derived image while the old deployment still serves. Undo removes the Dockerfile, never an image."""
    home = made_of.home(host)
    changes = (
        Question(("mkdir", "-p", "-m", "0700", f"{home}/build"), changes=True),
        Put(f"{home}/build/Dockerfile", made_of.wanted.dockerfile, 0o644),
        docker.docker_build(made_of.image, made_of.wanted.recipe.image, f"{home}/build"),
    )
    remove = Question(("rm", "-rf", "--", home), changes=True)
    built = docker.docker_image_inspect(made_of.image)
    return Step(host, f"build {made_of.image}", changes, undo=(remove,), settle=built, repeatable=True)


def _cached(made_of: Ingredients, host: str) -> bool:
    """Whether page cache stands in the way: enough is available, but it is not free, and older vLLM asks for free."""
    return hides_in_cache(made_of.wanted, made_of.seens[host])


def _drop(host: str) -> Step:
    drop = Question(DROP_CACHES, timeout_s=60, changes=True)
    return Step(host, "drop the page cache", (drop,), repeatable=True, tolerant=True)


def _prepare(made_of: Ingredients, rank: int) -> Step:
    host = made_of.wanted.names[rank]
    home, cache, hub = made_of.home(host), made_of.cache(host), made_of.identity(host).hf_home
    make = Question(("mkdir", "-p", "-m", "0700", home, f"{home}/config", cache, hub), changes=True)
    remove = Question(("rm", "-rf", "--", home), changes=True)
    return Step(host, f"write {home}", (make, *rank_files(made_of, rank)), undo=(remove,), repeatable=True)


def _run(made_of: Ingredients, rank: int) -> Step:
    """Start a rank's container. Undo removes only a container that carries our label: a name may be a stranger's."""
    host, name = made_of.wanted.names[rank], container_name(made_of.id, rank)
    label = f"{DEPLOYMENT}={made_of.id}"
    return Step(
        host,
        f"start {name}",
        (docker.docker_run(container(made_of, rank)),),
        undo=(docker.docker_end(label),),
        settle=docker.docker_has_started(name, label),
    )
