"""Apply a plan and prove it; what fails before the proof is put back after the evidence was saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cluster.cli.cause import name_cause
from cluster.config.redact import hide_text
from cluster.deploy import evidence, gate, prove
from cluster.deploy.again import await_back, prove_again, say_held, subject_of
from cluster.deploy.apply import Applied, Guard, apply, undo
from cluster.deploy.restart_plan import stop_ranks
from cluster.deploy.session import see
from cluster.deploy.steps import Plan, Step
from cluster.errors import (
    ClusterError,
    ExitCode,
    InternalError,
    InterruptedByUser,
    ManyErrors,
    RefusedError,
)
from cluster.hosts.fleet import Fleet
from cluster.screen import Screen
from cluster.spark.checks_memory import check_memory
from cluster.spark.deployed import Deployment


def carry_through(
    plan: Plan, subject: prove.Subject, fleet: Fleet, guard: Guard, screen: Screen, clock: prove.Clock
) -> prove.Proof:
    """Apply and prove; whatever goes wrong before the proof is put back after the evidence was saved."""
    applied = Applied()
    screen.stay()
    try:
        with clock.stage("stop the old" if plan.replaces else "apply"):
            apply(plan.first, fleet, guard, screen.note, applied)
        if plan.replaces:
            with clock.stage("memory back"):
                subject = replace(subject, idle=prove_back(plan.replaces, subject, fleet, screen))
        with clock.stage("apply"):
            apply(plan.stages, fleet, guard, screen.note, applied)
        proof = prove.wait_ready(subject, fleet, screen, clock)
    except (Exception, KeyboardInterrupt) as error:
        raise put_back(error, plan, subject, applied, fleet, guard, screen, clock) from error
    try:
        apply(plan.after, fleet, guard, screen.note, Applied())
    except InterruptedByUser as error:
        error.put_back = f"nothing: {plan.deployment} serves"
        raise
    except ClusterError as error:
        screen.warn(f"what was replaced could not be removed ({error.what}); the next cluster up or down removes it")
    return proof


def prove_back(
    old: Sequence[Deployment], subject: prove.Subject, fleet: Fleet, screen: Screen
) -> dict[str, prove.Held]:
    """Wait until what was stopped holds nothing; what each host holds then. Raises RefusedError with the holder.

    Memory that somebody else took meanwhile is a warning while the rest is enough for what comes.
    """
    wanted = subject.wanted
    seens, held = await_back(old, wanted.hosts, fleet, screen)
    if any(not row.memory_only for rows in held.values() for row in rows):
        holder = next(row for rows in held.values() for row in rows if not row.memory_only)
        raise RefusedError(
            f"what was stopped is not gone: {say_held(held)} ({holder.evidence})",
            where=", ".join(held),
            remedy=holder.remedy,
        )
    gate.judge([finding for name in held for finding in check_memory(wanted, seens[name])], wanted, screen)
    for name, rows in held.items():
        screen.warn(f"{name}: {rows[0].what} ({rows[0].evidence}); what is left is enough")
    return {name: prove.held_of(seen.memory, seen.gpu_processes) for name, seen in seens.items()}


def put_back(
    error: Exception | KeyboardInterrupt,
    plan: Plan,
    subject: prove.Subject,
    applied: Applied,
    fleet: Fleet,
    guard: Guard,
    screen: Screen,
    clock: prove.Clock,
) -> ClusterError:
    """Save the evidence, undo newest first, and return the error to raise, with its cause and what was put back."""
    fleet.cancel.renew()
    failure = as_failure(error)
    if not applied.begun:
        failure.put_back = "nothing was changed"
        return failure
    saved = ""
    try:
        saved = evidence.save(subject, fleet, screen, failure, clock.passed)
        left = undo(applied, fleet, guard, screen.note)
    except (InterruptedByUser, KeyboardInterrupt):  # a second Ctrl-C leaves at once
        told, remedy = what_stays(plan, applied)
    else:
        stopped = [old for old in plan.replaces if told_to_stop(old, applied.begun)]
        back = [started_again(old, failure, left, subject, applied, fleet, screen) for old in stopped]
        told = "; ".join(["all but: " + "; ".join(left) if left else "all that this run started", *back])
        remedy = "" if saved else "cluster status"
    if guard.taken() and not isinstance(failure, InterruptedByUser | InternalError):
        both = ManyErrors([*guard.taken(), failure])  # what another operator did may be why it failed
        failure = ManyErrors(list(dict.fromkeys(both.errors)))
    errors = failure.errors if isinstance(failure, ManyErrors) else (failure,)
    for one in errors:
        one.put_back, one.remedy = told, also(remedy, also(f"read {saved}" if saved else "", one.remedy))
    name_cause(failure, errors, saved, screen)
    secrets = subject.wanted.secrets.values()
    for one in errors:
        one.what, one.where = hide_text(one.what, secrets), hide_text(one.where, secrets)
    return failure


def as_failure(error: Exception | KeyboardInterrupt) -> ClusterError:
    """What ended a start, as an error to show; what nobody expected is put back like everything else."""
    if isinstance(error, KeyboardInterrupt):
        return InterruptedByUser("interrupted before ready")
    return error if isinstance(error, ClusterError) else InternalError(error)


def what_stays(plan: Plan, applied: Applied) -> tuple[str, str]:
    """What is on the hosts after an undo that was interrupted, or not begun; and the command that removes it."""
    hosts = tuple(dict.fromkeys(step.host for step in applied.stays))
    if not hosts:
        return "all that this run started", "cluster status"
    new = [step.host for step in applied.stays if not any(told_to_stop(old, [step]) for old in plan.replaces)]
    stays = [f"the containers of {plan.deployment} stay on {', '.join(dict.fromkeys(new))}"] if new else []
    stays += [f"{old.id} stays stopped" for old in plan.replaces if told_to_stop(old, applied.stays)]
    how_much = "only in part" if applied.undone else "nothing"
    return f"{how_much}: {'; '.join(stays)}", f"cluster down -n {','.join(hosts)} removes what is there"


def told_to_stop(old: Deployment, steps: Sequence[Step]) -> bool:
    """Whether one of the steps stops a rank of a deployment."""
    return bool({step.what for step in steps} & {step.what for step in stop_ranks(old)})


def started_again(
    old: Deployment,
    failure: ClusterError,
    left: Sequence[str],
    subject: prove.Subject,
    applied: Applied,
    fleet: Fleet,
    screen: Screen,
) -> str:
    """What became of a deployment that was started again: proven, unless the user wants to leave."""
    if told_to_stop(old, applied.stays):
        return f"{old.id} could not be started again on every host"
    told = f"{old.id} was started again"
    if left or isinstance(failure, InterruptedByUser):
        return f"{told} (cluster status shows when it serves)"
    hosts = [host for name in old.hosts for host in subject.wanted.hosts if host.name == name]
    within, begun = fleet.only(old.hosts), False
    try:
        again = subject_of(old, hosts, see(within, hosts, say=screen.trouble))
        begun = True
        prove_again(again, within, screen)
    except (InterruptedByUser, KeyboardInterrupt):
        return f"{told} (cluster status shows when it serves)"
    except ClusterError as error:
        known = begun and error.exit_code != ExitCode.UNREACHABLE
        return f"{told} and does not serve: {error.what}" if known else f"{told}, but was not proven: {error.what}"
    return f"{told} and serves"


def also(remedy: str, another: str) -> str:
    """Two remedies in one line; either may be empty."""
    return "; ".join(filter(None, (remedy, another)))
