"""The stages that start a deployment, as values."""

from __future__ import annotations

from cluster.argv import docker
from cluster.argv.question import Question
from cluster.deploy.decide import Start
from cluster.deploy.plan_down import clean_up, removal
from cluster.deploy.rank import Ingredients, container, container_name, rank_files
from cluster.deploy.restart_plan import stop_ranks
from cluster.deploy.steps import Plan, Put, Stage, Step, filled
from cluster.spark.checks_memory import hides_in_cache
from cluster.spark.deployed import DEPLOYMENT

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
