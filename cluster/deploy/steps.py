"""A plan as values: stages of steps, each with the words that carry it out and those that undo it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from cluster.argv.question import Question
from cluster.spark.deployments import Deployment


@dataclass(frozen=True, slots=True)
class Put:
    """A file to write on a host. The bytes of a `secret` one are shown nowhere; `says` is what a plan shows of it."""

    path: str
    data: bytes = field(repr=False)
    mode: int = 0o600
    secret: bool = False
    says: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """What one host does in one stage.

    `undo` takes back what `changes` did, whether they were carried out whole, in part or not at all; empty when
    there is nothing to take back. `settle`, asked when an answer was lost, exits 0 when the step took effect.
    Each change of a `repeatable` step may be carried out twice, also at the same time, with the same result as once.
    A `tolerant` step that fails is noted and nothing more.
    """

    host: str
    what: str
    changes: tuple[Put | Question, ...]
    undo: tuple[Question, ...] = ()
    settle: Question | None = None
    repeatable: bool = False
    tolerant: bool = False


@dataclass(frozen=True, slots=True)
class Stage:
    """Steps that run side by side; the next stage begins when all have ended."""

    name: str
    steps: tuple[Step, ...]


def filled(*stages: Stage) -> tuple[Stage, ...]:
    """The stages that have something to do."""
    return tuple(stage for stage in stages if stage.steps)


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be done: `stages` until the containers run, `after` once the deployment is proven.

    `why` says what differs from what is there. `replaces` is stopped by the last of `first`, whose memory has to be
    back before `stages` begin, and is started again by undo.
    """

    deployment: str
    why: tuple[str, ...]
    stages: tuple[Stage, ...]
    after: tuple[Stage, ...] = ()
    replaces: tuple[Deployment, ...] = ()
    first: tuple[Stage, ...] = ()

    def lines(self) -> Iterator[str]:
        """Every host's argv in order, copy-pasteable."""
        for stage in (*self.first, *self.stages, *self.after):
            yield f"# stage: {stage.name}"
            for step in stage.steps:
                yield f"# {step.host}: {step.what}"
                for change in step.changes:
                    yield show(change)


def show(change: Put | Question) -> str:
    """A change as a line for a shell; the bytes of files are named, not shown."""
    if isinstance(change, Put):
        content = "secret" if change.secret else f"{len(change.data)} bytes"
        head = f"# write {shlex.quote(change.path)} mode {change.mode:04o} ({content})"
        return "\n".join((head, *(f"#   {line}" for line in change.says)))
    return shlex.join(change.argv)
