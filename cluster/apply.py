"""Carry out a plan stage by stage, remember what was begun, and take it back, newest first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cluster.commands.docker import is_gone, why_failed
from cluster.commands.question import Question
from cluster.errors import ClusterError, ConnectionLostError, InterruptedByUser
from cluster.hosts.fleet import Fleet
from cluster.hosts.outcome import values
from cluster.hosts.protocol import Host
from cluster.plan.steps import Put, Stage, Step

Say = Callable[[str], None]


class Guard(Protocol):
    """The lock as apply sees it."""

    def require(self) -> None:
        """Raise LockedError when the lock is no longer held."""
        ...

    def lost(self) -> tuple[str, ...]:
        """The hosts whose lock is no longer held."""
        ...

    def note(self, host: str, text: str) -> None:
        """Write a line to the host's audit file."""
        ...


class Unlocked:
    """Stands in for the lock where nothing is changed (`--dry-run`)."""

    def __enter__(self) -> Unlocked:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def require(self) -> None:
        """Nothing to be held."""

    def lost(self) -> tuple[str, ...]:
        """Nothing to be lost."""
        return ()

    def note(self, host: str, text: str) -> None:
        """Nothing to be noted."""


@dataclass
class Applied:
    """What was begun, in order; a step is noted here before its first word is sent. `undone` is what was taken back."""

    begun: list[Step] = field(default_factory=list)
    undone: list[Step] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, step: Step) -> None:
        """Remember a step that is about to be sent."""
        with self._lock:
            self.begun.append(step)

    @property
    def stays(self) -> list[Step]:
        """What was begun and has not been taken back."""
        return [step for step in self.begun if step.undo and step not in self.undone]


def apply(stages: Sequence[Stage], fleet: Fleet, guard: Guard, say: Say, applied: Applied) -> None:
    """Carry out stages in order; the steps of one run side by side and all end before the next stage.

    What was begun is added to `applied`, also when this raises. Raises the first failing stage's errors.
    """
    for stage in stages:
        guard.require()
        began = time.monotonic()
        say(stage.name)
        by_host: dict[str, list[Step]] = {}
        for step in stage.steps:
            by_host.setdefault(step.host, []).append(step)
        outcomes = fleet.each(_stage_of(by_host, guard, applied, say), list(by_host))
        applied.seconds[stage.name] = time.monotonic() - began
        values(outcomes)


def _stage_of(by_host: Mapping[str, list[Step]], guard: Guard, applied: Applied, say: Say) -> Callable[[Host], None]:
    return lambda host: _steps(host, by_host[host.name], guard, applied, say)


def _steps(host: Host, steps: Sequence[Step], guard: Guard, applied: Applied, say: Say) -> None:
    for step in steps:
        guard.note(host.name, step.what)
        applied.note(step)
        try:
            carry_out(host, step)
        except (InterruptedByUser, ConnectionLostError):
            raise
        except ClusterError as error:
            if not step.tolerant:
                raise
            say(f"{host.name}: {step.what} was not possible: {error.what}")


def carry_out(host: Host, step: Step) -> None:
    """Send a step's changes. A lost answer is settled by asking whether the step took effect.

    Raises ClusterError with the program's own words when a change fails.
    """
    for change in step.changes:
        try:
            if isinstance(change, Put):
                host.put(change.data, change.path, change.mode)
            else:
                _run(host, step, change)
        except ConnectionLostError as lost:
            if step.settle is None or change is not step.changes[-1] or host.ask([step.settle])[0].exit != 0:
                raise ConnectionLostError(
                    f"the connection was lost while {host.name} was told to {step.what}",
                    where=host.name,
                    remedy=lost.remedy or "run the command again: it looks first",
                ) from lost


def _run(host: Host, step: Step, question: Question) -> None:
    [answer] = host.ask([question])
    if answer.exit != 0 and not is_gone(question, answer):
        raise ClusterError(f"could not {step.what}: {why_failed(answer)}", where=host.name)


def undo(applied: Applied, fleet: Fleet, guard: Guard, say: Say) -> list[str]:
    """Take back what was begun, newest first, on every host side by side; what could not be taken back is returned.

    Nothing here stops at an error: the other hosts and steps are still put back. Only Ctrl-C ends it; `applied.stays`
    tells what is left then. A host whose lock was lost, because this machine slept or was cut off, is left alone: what
    is there may be another operator's by now.
    """
    left: list[str] = []

    def put_back(host: Host) -> None:
        for step in reversed(applied.begun):
            if step.host != host.name or not step.undo:
                continue
            guard.note(host.name, f"undo: {step.what}")
            wrong = ""
            for question in step.undo:
                try:
                    [answer] = host.ask([question])
                except ClusterError as error:
                    wrong = error.what
                    break
                wrong = wrong if answer.exit == 0 else why_failed(answer)
            if wrong:
                left.append(f"{host.name}: {step.what} ({wrong})")
            else:
                applied.undone.append(step)

    hosts = [name for name in fleet.names if any(step.host == name and step.undo for step in applied.begun)]
    if hosts:
        say("undo")
        lost = guard.lost()
        left += [f"{name}: its lock was lost, so nothing was undone there" for name in hosts if name in lost]
        for name, outcome in fleet.each(put_back, [name for name in hosts if name not in lost]).items():
            if outcome.error is not None:
                left.append(f"{name}: {outcome.error}")
    return left
