"""Carry out a plan stage by stage, remember what was begun, and take it back, newest first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from cluster.argv.docker import is_gone, why_failed
from cluster.argv.question import Question
from cluster.deploy.steps import Put, Stage, Step
from cluster.errors import ClusterError, ConnectionLostError, InterruptedByUser, LockedError, UnreachableError
from cluster.hosts.fleet import Fleet, Silence, values
from cluster.hosts.protocol import Host

Say = Callable[[str], None]

TRIES = 5
"""How often a change is sent that can be sent again."""


class Guard(Protocol):
    """The lock as apply sees it."""

    def require(self, names: Sequence[str] | None = None) -> None:
        """Hold the lock of all hosts, or of those named, again if it was lost. Raises LockedError, UnreachableError."""
        ...

    def lost(self) -> Mapping[str, ClusterError]:
        """The hosts whose lock is not held now, and why."""
        ...

    def taken(self) -> Sequence[ClusterError]:
        """Of the hosts whose lock somebody else took meanwhile, who did."""
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

    def require(self, names: Sequence[str] | None = None) -> None:
        """Nothing to be held."""

    def lost(self) -> Mapping[str, ClusterError]:
        """Nothing to be lost."""
        return {}

    def taken(self) -> Sequence[ClusterError]:
        """Nothing to be taken."""
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
        outcomes = fleet.each(partial(_steps, by_host, fleet, guard, applied, say), list(by_host))
        applied.seconds[stage.name] = time.monotonic() - began
        values(outcomes)


def _steps(
    by_host: Mapping[str, Sequence[Step]], fleet: Fleet, guard: Guard, applied: Applied, say: Say, host: Host
) -> None:
    for step in by_host[host.name]:
        guard.note(host.name, step.what)
        applied.note(step)
        try:
            for change in step.changes:
                carry_out(host, step, change, fleet.silence, guard)
        except (InterruptedByUser, UnreachableError, LockedError):
            raise
        except ClusterError as error:
            if not step.tolerant:
                raise
            say(f"{host.name}: {step.what} was not possible: {error.what}")


def carry_out(host: Host, step: Step, change: Put | Question, silence: Silence, guard: Guard) -> None:
    """Send a change of a step, to the end of it. Raises ClusterError with the program's own words when it fails.

    When the answer is lost, go on as soon as the host answers again and its lock is ours: what was not sent, or may be
    carried out twice, is sent again; of the rest the step knows how to ask whether it took effect.
    """
    for tries_left in reversed(range(TRIES)):
        try:
            if isinstance(change, Put):
                host.put(change.data, change.path, change.mode)
            else:
                _run(host, step, change)
            return
        except ConnectionLostError as lost:
            settle = step.settle if change is step.changes[-1] else None
            asked = [settle or Question(("true",))]
            [settled] = silence.keep_trying(host.name, partial(host.ask, asked))
            guard.require([host.name])
            if settle and settled.exit == 0:
                return
            if not tries_left or (lost.sent and not step.repeatable):
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
    tells what is left then. A host whose lock was lost and could not be taken again is left alone: what is there may be
    another operator's by now.
    """
    left: list[str] = []

    def rolled_back(host: Host) -> None:
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
        left += [f"{name}: nothing was undone there ({lost[name].what})" for name in hosts if name in lost]
        for name, outcome in fleet.each(rolled_back, [name for name in hosts if name not in lost]).items():
            if outcome.error is not None:
                left.append(f"{name}: {outcome.error}")
    return left
