"""Carry out a plan stage by stage, and roll it back when it fails: evidence, undo newest first, restart the old one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from cluster.argv.docker import is_gone, why_failed
from cluster.argv.question import Question
from cluster.config.secrets import hide_text
from cluster.deploy import evidence
from cluster.deploy.plan import Plan, Stage, Step, stop_ranks
from cluster.deploy.prove import Subject, prove_restarted, subject_of
from cluster.deploy.rank import Put
from cluster.deploy.session import Session, see
from cluster.errors import (
    UNCHANGED,
    ClusterError,
    ConnectionLostError,
    InternalError,
    InterruptedByUser,
    LockedError,
    ManyErrors,
    UnreachableError,
    joined,
)
from cluster.hosts.fleet import values
from cluster.hosts.protocol import Host
from cluster.spark.deployments import Deployment

TRIES = 5
"""How often a change is sent that may be repeated."""


@dataclass
class Applied:
    """What was begun, in order, each step before anything of it is sent; what of it was undone."""

    begun: list[Step] = field(default_factory=list)
    undone: list[Step] = field(default_factory=list)

    @property
    def stays(self) -> list[Step]:
        """What was begun and has not been undone."""
        return [step for step in self.begun if step.undo and step not in self.undone]


def apply(stages: Sequence[Stage], session: Session, applied: Applied | None = None) -> None:
    """Carry out stage after stage, the steps of one side by side; `applied` gets what was begun, whatever happens."""
    applied = Applied() if applied is None else applied

    def carry_out_all(host: Host) -> None:
        for step in by_host[host.name]:
            session.guard.note(host.name, step.what)
            applied.begun.append(step)
            try:
                for change in step.changes:
                    carry_out(host, step, change, session)
            except (InterruptedByUser, UnreachableError, LockedError):
                raise
            except ClusterError as error:
                if not step.tolerant:
                    raise
                session.screen.note(f"{host.name}: {step.what} was not possible: {error.what}")

    for stage in stages:
        session.guard.require()
        session.screen.stay()
        session.screen.note(stage.name)
        by_host: dict[str, list[Step]] = {}
        for step in stage.steps:
            by_host.setdefault(step.host, []).append(step)
        values(session.fleet.each(carry_out_all, list(by_host)))


def carry_out(host: Host, step: Step, change: Put | Question, session: Session) -> None:
    """Send a change of a step until it took effect. Raises ClusterError with the program's own words when it fails.

    When the answer is lost, continue as soon as the host answers and its lock is held: what was not sent, or may be
    carried out twice, is sent again; of the rest the step knows how to ask whether it took effect.
    """
    for tries_left in reversed(range(TRIES)):
        try:
            if isinstance(change, Put):
                host.put(change.data, change.path, change.mode)
                return
            [answer] = host.ask([change])
            if answer.exit != 0 and not is_gone(change, answer):
                what = f"could not {step.what}: {why_failed(answer)}"
                raise ClusterError(what, code="step-failed", where=host.name)
            return
        except ConnectionLostError as lost:
            settle = step.settle if change is step.changes[-1] else None
            asked = [settle or Question(("true",))]
            [settled] = session.fleet.silence.keep_trying(host.name, partial(host.ask, asked))
            session.guard.require([host.name])
            if settle and settled.exit == 0:
                return
            if not tries_left or (lost.sent and not step.repeatable):
                what = f"the connection to {host.name} was lost during: {step.what}"
                remedy = lost.remedy or "run the command again: it looks first"
                raise ConnectionLostError(what, code="connection-lost", where=host.name, remedy=remedy) from lost


def undo(applied: Applied, session: Session) -> list[str]:
    """Undo what was begun, newest first, on every host side by side; what could not be undone is returned.

    Nothing here stops at an error: the other hosts and steps are still undone. Only Ctrl-C ends it; `applied.stays`
    is what is left then. A host whose lock was lost and could not be taken again is left alone: what is there may be
    another operator's by now.
    """
    left: list[str] = []

    def roll_back_host(host: Host) -> None:
        for step in reversed(applied.begun):
            if step.host != host.name or not step.undo:
                continue
            session.guard.note(host.name, f"undo: {step.what}")
            wrong = ""
            try:
                for question in step.undo:
                    [answer] = host.ask([question])
                    wrong = wrong if answer.exit == 0 else why_failed(answer)
            except ClusterError as error:
                wrong = error.what
            if wrong:
                left.append(f"{host.name}: {step.what} ({wrong})")
            else:
                applied.undone.append(step)

    begun = [name for name in session.fleet.names if any(step.host == name and step.undo for step in applied.begun)]
    if begun:
        session.screen.note("undo")
        lost = session.guard.lost()
        left += [f"{name}: nothing was undone there ({lost[name].what})" for name in begun if name in lost]
        outcomes = session.fleet.each(roll_back_host, [name for name in begun if name not in lost])
        left += [f"{name}: {outcome.error}" for name, outcome in outcomes.items() if outcome.error is not None]
    return left


@contextmanager
def undoing(plan: Plan, subject: Subject, session: Session) -> Iterator[Applied]:
    """Whatever goes wrong in the block is rolled back after the evidence was saved; its error says so."""
    applied = Applied()
    try:
        yield applied
    except (Exception, KeyboardInterrupt) as error:
        session.fleet.cancel.renew()
        if isinstance(error, KeyboardInterrupt):
            failure: ClusterError = InterruptedByUser("interrupted before ready")
        else:
            failure = error if isinstance(error, ClusterError) else InternalError(error)
        if not applied.begun:
            failure.rolled_back = UNCHANGED
            raise failure from error
        failure, saved = roll_back(failure, plan, subject, applied, session)
        from cluster.deploy.cause import name_cause  # what reads logs is loaded on failure only

        name_cause(failure, failure.errors, saved, session.screen)
        secrets = subject.wanted.secrets.values()
        for one in failure.errors:
            one.what, one.where = hide_text(one.what, secrets), hide_text(one.where, secrets)
        raise failure from error


def roll_back(
    failure: ClusterError, plan: Plan, subject: Subject, applied: Applied, session: Session
) -> tuple[ClusterError, str]:
    """Save the evidence and undo, newest first: the error to raise, and the directory of the evidence."""
    guard, saved = session.guard, ""
    try:
        saved = evidence.save(subject, session.fleet, session.screen, failure, session.clock.passed)
        left = undo(applied, session)
    except (InterruptedByUser, KeyboardInterrupt):  # a second Ctrl-C leaves at once
        done, remedy = what_stays(plan, applied)
    else:
        stopped = [old for old in plan.replaces if stops(old, applied.begun)]
        leave = bool(left) or isinstance(failure, InterruptedByUser)
        restarted = [start_old(old, subject, applied, session, prove_it=not leave) for old in stopped]
        done = "; ".join(["all but: " + "; ".join(left) if left else "all that this run started", *restarted])
        remedy = "" if saved else "cluster status"
    if guard.taken() and not isinstance(failure, InterruptedByUser | InternalError):
        both = ManyErrors([*guard.taken(), failure])  # what another operator did may be why it failed
        failure = ManyErrors(list(dict.fromkeys(both.errors)))
    for one in failure.errors:
        one.rolled_back, one.remedy = done, joined(remedy, f"read {saved}" if saved else "", one.remedy)
    return failure, saved


def what_stays(plan: Plan, applied: Applied) -> tuple[str, str]:
    """What is on the hosts after an undo that was interrupted, or not begun; and the command that removes it."""
    hosts = tuple(dict.fromkeys(step.host for step in applied.stays))
    if not hosts:
        return "all that this run started", "cluster status"
    new = [step.host for step in applied.stays if not any(stops(old, [step]) for old in plan.replaces)]
    stays = [f"the containers of {plan.deployment} stay on {', '.join(dict.fromkeys(new))}"] if new else []
    stays += [f"{old.id} stays stopped" for old in plan.replaces if stops(old, applied.stays)]
    how_much = "only in part" if applied.undone else "nothing"
    return f"{how_much}: {'; '.join(stays)}", f"cluster down -n {','.join(hosts)} removes what is there"


def stops(old: Deployment, steps: Sequence[Step]) -> bool:
    """Whether one of the steps stops a rank of a deployment."""
    return bool({step.what for step in steps} & {step.what for step in stop_ranks(old)})


def start_old(old: Deployment, subject: Subject, applied: Applied, session: Session, *, prove_it: bool) -> str:
    """What became of a deployment that undo started: proven, unless the user wants to leave."""
    if stops(old, applied.stays):
        return f"{old.id} could not be started again on every host"
    done = f"{old.id} was started again"
    unproven = f"{done} (cluster status shows when it serves)"
    if not prove_it:
        return unproven
    hosts = [host for name in old.hosts for host in subject.wanted.hosts if host.name == name]
    within, screen = session.fleet.only(old.hosts), session.screen
    try:
        prove_restarted(subject_of(old, hosts, see(within, hosts, say=screen.trouble)), within, screen)
    except (InterruptedByUser, KeyboardInterrupt):
        return unproven
    except ClusterError as error:
        return f"{done}, but was not proven: {error.what}"
    return f"{done} and serves"
