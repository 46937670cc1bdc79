"""All containers of a host, running or not, from `docker ps -aq` and one `docker inspect`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cluster.argv.far import far
from cluster.argv.question import Answer, Question
from cluster.spark.docker import explain
from cluster.spark.fact import Missing
from cluster.spark.sections import as_shape, find_section, read_section, refuse


@dataclass(frozen=True, slots=True)
class Container:
    """One container. `id` and `image_id` are full ids, `name` without the slash, `image` as it was named at start.

    `state` is docker's word (`created`, `running`, `paused`, `restarting`, `removing`, `exited`, `dead`). `exit_code`
    and `finished_at` are None and empty while it has never ended. Times are RFC 3339 as docker prints them, empty
    for never. `pid` of the first process on the host, 0 when it does not run. `argv`: entrypoint and words.
    `gpu`: it was given a GPU.
    """

    id: str
    name: str
    image: str
    image_id: str
    state: str
    exit_code: int | None
    labels: Mapping[str, str]
    started_at: str
    finished_at: str
    pid: int
    argv: tuple[str, ...]
    gpu: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """How the docker command ended when it did not give a list."""

    exit: int
    said: str


NEVER = "0001-01-01T00:00:00Z"
NEVER_ENDED = ("created", "running", "paused", "restarting")


def question() -> Question:
    """Ask for all containers, those of others too."""
    return far("containers", {}, limit=8 << 20)


def parse(answer: Answer) -> tuple[Container, ...] | Missing:
    """Read what far/containers brings: the containers, or how docker failed."""
    failed = _failure(answer)
    if failed:
        return failed
    found = read_section(answer, "containers", tuple[Container, ...])
    return found if isinstance(found, Missing) else tuple(_tidy(container) for container in found)


def _failure(answer: Answer) -> Missing | None:
    told = find_section(answer, "failed")
    if told is None:
        return None
    failed = as_shape(told, "containers", Failed)
    if isinstance(failed, Missing):
        return failed
    return refuse(Answer(failed.exit), "docker") or explain(failed.said)


def _tidy(container: Container) -> Container:
    """Docker's way of saying never, made plain."""
    ended = container.state not in NEVER_ENDED
    return replace(
        container,
        exit_code=container.exit_code if ended else None,
        started_at="" if container.started_at == NEVER else container.started_at,
        finished_at="" if container.finished_at == NEVER else container.finished_at,
    )
