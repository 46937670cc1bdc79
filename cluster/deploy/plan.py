"""A plan as values: the stages of `up`, `down` and a restart, each step with what carries it out and what undoes it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from cluster.argv import docker
from cluster.argv.clocks import limit_clocks, reset_clocks
from cluster.argv.question import Question
from cluster.config.inventory import ResolvedHost
from cluster.deploy.rank import Ingredients, Put, container, container_name, rank_files
from cluster.deploy.spec import Start
from cluster.spark import clock_limit
from cluster.spark.deployments import DEPLOYMENT, TRY, Container, Deployment
from cluster.spark.fact import known
from cluster.spark.look import Seen
from cluster.spark.memory import hides_in_cache


@dataclass(frozen=True, slots=True)
class Step:
    """What one host does in one stage.

    `undo` reverses what `changes` did, whether they were carried out completely, in part or not at all; empty when
    there is nothing to reverse. `settle`, asked when an answer was lost, exits 0 when the step took effect.
    Each change of a `repeatable` step may be carried out twice, also at the same time, with the same result as once.
    A `tolerant` step that fails is noted and nothing more.
    """

    host: str
    what: str
    changes: tuple[Put | Question, ...]
    undo: tuple[Question, ...] = ()
    settle: Question | None = None
    repeatable: bool = True
    tolerant: bool = False


@dataclass(frozen=True, slots=True)
class Stage:
    """Steps that run side by side; the next stage begins when all have ended."""

    name: str
    steps: tuple[Step, ...]


def filled(*stages: Stage) -> tuple[Stage, ...]:
    return tuple(stage for stage in stages if stage.steps)


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be done: `stages` until the containers run, `after` once the deployment is proven.

    `why` says what differs from what is there. `replaces` is stopped by the last of `first` and started again by undo;
    its memory has to be released before `stages` begin.
    """

    deployment: str
    why: tuple[str, ...]
    stages: tuple[Stage, ...]
    after: tuple[Stage, ...] = ()
    replaces: tuple[Deployment, ...] = ()
    first: tuple[Stage, ...] = ()

    def lines(self) -> Iterator[str]:
        """Every host's argv in order, copy-pasteable; the bytes of files are named, not shown."""
        for stage in (*self.first, *self.stages, *self.after):
            yield f"# stage: {stage.name}"
            for step in stage.steps:
                yield f"# {step.host}: {step.what}"
                for change in step.changes:
                    if isinstance(change, Question):
                        yield shlex.join(change.argv)
                        continue
                    content = "secret" if change.secret else f"{len(change.data)} bytes"
                    head = f"# write {shlex.quote(change.path)} mode {change.mode:04o} ({content})"
                    yield "\n".join((head, *(f"#   {line}" for line in change.shown)))


def stop_ranks(deployment: Deployment) -> tuple[Step, ...]:
    """Stop all ranks; undo starts them again."""
    steps = []
    for host, rank in deployment.ranks.items():
        stop, start = docker.docker_stop(rank.name), docker.docker_start(rank.name)
        steps.append(Step(host, f"stop {rank.name}", (stop,), (start,), docker.docker_has_stopped(rank.name)))
    return tuple(steps)


def start_ranks(deployment: Deployment) -> tuple[Step, ...]:
    steps = []
    for host, rank in deployment.ranks.items():
        settle = docker.docker_has_started(rank.name, f"{DEPLOYMENT}={deployment.id}")
        steps.append(Step(host, f"start {rank.name}", (docker.docker_start(rank.name),), settle=settle))
    return tuple(steps)


HUB_TOKEN = "deployments/hub-token"
"""Where the hub token lies below a host's data directory while it downloads."""


def plan_down(found: tuple[Deployment, ...], seens: Mapping[str, Seen]) -> Plan:
    """Stop and remove all managed containers of these hosts. What each host had before is removed last, by `forget`."""
    ranks = list(_containers(seens, DEPLOYMENT))
    running = [(host, rank.name) for host, rank in ranks if rank.state == "running"]
    stop = tuple(Step(host, f"stop {name}", (docker.docker_stop(name),)) for host, name in running)
    remove = [_remove(host, rank) for host, rank in ranks]
    names = ", ".join(deployment.id for deployment in found) or "(none)"
    return Plan(names, (), filled(Stage("stop", stop), Stage("remove", (*remove, *remove_probes(seens).steps))))


def _containers(seens: Mapping[str, Seen], label: str) -> Iterator[tuple[str, Container]]:
    for host, seen in seens.items():
        yield from ((host, container) for container in known(seen.containers) or () if label in container.labels)


def _rm(path: str) -> Question:
    return Question(("rm", "-rf", "--", path), changes=True)


def _remove(host: str, container: Container, home: str = "", *, tolerant: bool = False) -> Step:
    """Remove a container, and its deployment's directory."""
    changes = (docker.docker_rm(container.name, force=True), *([_rm(home)] if home else ()))
    return Step(host, f"remove {container.name}", changes, tolerant=tolerant)


def _remove_directories(seens: Mapping[str, Seen], *, strays: bool) -> tuple[Step, ...]:
    """Remove all deployments' directories, or only those that belong to no container of their host."""
    steps = []
    for host, seen in seens.items():
        containers = known(seen.containers)
        ids = {one.labels.get(DEPLOYMENT) for one in containers or ()}
        for kept in known(seen.deployments) or ():
            if (path := seen.home(kept.id)) and (not strays or (containers is not None and kept.id not in ids)):
                steps.append(Step(host, f"remove {path}", (_rm(path),)))
    return tuple(steps)


def limit_of(host: ResolvedHost | None, seen: Seen) -> Iterator[Step]:
    """Set the limit of GPU clocks that a host is to have; reset one that cluster set and nobody asks for any more,
    as after a command that was killed. `host`: None where no deployment is to be."""
    account, before = known(seen.identity), clock_limit.noted(seen)
    mhz = clock_limit.to_set(host, seen) if host else 0
    if account is None or not (mhz or before.mhz):
        return
    reset = reset_clocks(account.data_dir)
    undo = limit_clocks(account.data_dir, before.set_mhz) if before.set_mhz else reset
    if mhz:
        set_it = limit_clocks(account.data_dir, mhz)
        yield Step(seen.host, f"limit the GPU's clocks to {mhz} MHz", (set_it,), (undo,))
    elif not before.set_mhz or clock_limit.may_set(seen) or host is None:
        yield Step(seen.host, "reset the GPU's clocks", (reset,), (undo,) if before.set_mhz else ())


def limits(hosts: Iterable[ResolvedHost], seens: Mapping[str, Seen]) -> Stage:
    """The limits of GPU clocks that hosts are to have while a deployment is on them."""
    return Stage("limit GPU clocks", tuple(step for host in hosts for step in limit_of(host, seens[host.name])))


def reset_limits(seens: Mapping[str, Seen]) -> Stage:
    """The clocks as they were before `up`."""
    return Stage("reset GPU clocks", tuple(step for seen in seens.values() for step in limit_of(None, seen)))


def forget(seens: Mapping[str, Seen]) -> Stage:
    """Remove the deployments' directories; the last step of `down`, after the proof."""
    return Stage("forget", _remove_directories(seens, strays=False))


def removal(deployment: Deployment, seens: Mapping[str, Seen]) -> Iterator[Step]:
    yield from (_remove(host, rank, seens[host].home(deployment.id)) for host, rank in deployment.ranks.items())


def clean_up(remains: Iterable[Deployment], seens: Mapping[str, Seen]) -> Stage:
    """Remove what an `up` or `down` that was killed left: dead deployments, and directories without a container."""
    dead = [step for deployment in remains for step in removal(deployment, seens)]
    return Stage("remove remains", (*dead, *_remove_directories(seens, strays=True)))


def remove_probes(seens: Mapping[str, Seen]) -> Stage:
    """End the probes and downloads of an operator that was killed: the lock is held, so nobody else runs them."""
    return Stage("remove probes", tuple(_remove(host, one, tolerant=True) for host, one in _containers(seens, TRY)))


def remove_token(seens: Mapping[str, Seen]) -> Stage:
    """Remove the hub token that lies on a host since an operator was killed during a download."""
    strays = _remove_directories(seens, strays=True)
    return Stage("remove the hub token", tuple(step for step in strays if step.what.endswith(HUB_TOKEN)))


DROP_CACHES = ("sudo", "-n", "sh", "-c", "sync; echo 3 > /proc/sys/vm/drop_caches")


def plan_up(made_of: Ingredients, start: Start) -> Plan:
    wanted, seens, outgoing = made_of.wanted, made_of.seens, start.outgoing
    drop = Question(DROP_CACHES, timeout_s=60, changes=True)
    full = [host for host in wanted.names if hides_in_cache(wanted, seens[host])]
    builds = wanted.names if wanted.dockerfile else ()
    first = (
        clean_up(start.remains, seens),
        Stage("build the image", tuple(_build(made_of, host) for host in builds)),
        Stage("stop the old", tuple(step for old in outgoing for step in stop_ranks(old))),
    )
    stages = (
        Stage("free page cache", tuple(Step(host, "drop the page cache", (drop,), tolerant=True) for host in full)),
        limits(wanted.hosts, seens),
        Stage("prepare", tuple(_prepare(made_of, rank) for rank in range(wanted.size))),
        Stage("start containers", tuple(_run(made_of, rank) for rank in range(wanted.size))),
    )
    after = Stage("remove the old", tuple(step for old in outgoing for step in removal(old, seens)))
    return Plan(made_of.id, start.why, filled(*stages), filled(after), outgoing, filled(*first))


def _build(made_of: Ingredients, host: str) -> Step:
    """Build the derived image while the old deployment still serves. Undo removes the Dockerfile, never an image."""
    home = made_of.home(host)
    changes = (
        Question(("mkdir", "-p", "-m", "0700", f"{home}/build"), changes=True),
        Put(f"{home}/build/Dockerfile", made_of.wanted.dockerfile, 0o644),
        docker.docker_build(made_of.image, made_of.wanted.recipe.image, f"{home}/build"),
    )
    return Step(host, f"build {made_of.image}", changes, (_rm(home),), docker.docker_image_inspect(made_of.image))


def _prepare(made_of: Ingredients, rank: int) -> Step:
    host = made_of.wanted.names[rank]
    home, cache, hub = made_of.home(host), made_of.cache(host), made_of.identity(host).hf_home
    make = Question(("mkdir", "-p", "-m", "0700", home, f"{home}/config", cache, hub), changes=True)
    return Step(host, f"write {home}", (make, *rank_files(made_of, rank)), (_rm(home),))


def _run(made_of: Ingredients, rank: int) -> Step:
    """Start a rank's container. Undo removes only a container with our label: the name may be another's."""
    host, name = made_of.wanted.names[rank], container_name(made_of.id, rank)
    label, run = f"{DEPLOYMENT}={made_of.id}", docker.docker_run(container(made_of, rank))
    settle = docker.docker_has_started(name, label)
    return Step(host, f"start {name}", (run,), (docker.docker_end(label),), settle, repeatable=False)
