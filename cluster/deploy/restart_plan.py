"""Stop and start the containers of a deployment as they are: the same words, environment, files and secrets."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.argv import docker
from cluster.config.names import ResolvedHost
from cluster.config.recipe import Recipe
from cluster.deploy.steps import Step
from cluster.spark.deployed import DEPLOYMENT, Deployment
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
