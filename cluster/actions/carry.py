"""Apply a plan and prove it; what fails before the proof is put back after the evidence was saved."""

from __future__ import annotations

from cluster.actions import evidence, prove
from cluster.actions.cause import name_cause
from cluster.apply import Applied, Guard, apply, undo
from cluster.config.redact import hide_text
from cluster.errors import ClusterError, InterruptedByUser, ManyErrors
from cluster.hosts.fleet import Fleet
from cluster.plan.steps import Plan
from cluster.screen import Screen


def carry_through(
    plan: Plan, subject: prove.Subject, fleet: Fleet, guard: Guard, screen: Screen, clock: prove.Clock
) -> prove.Proof:
    """Apply and prove; whatever goes wrong before the proof is put back after the evidence was saved."""
    applied = Applied()
    screen.stay()
    try:
        with clock.stage("apply"):
            apply(plan.stages, fleet, guard, screen.note, applied)
        proof = prove.wait_ready(subject, fleet, screen, clock)
    except (ClusterError, KeyboardInterrupt) as error:
        raise put_back(error, plan, subject, applied, fleet, guard, screen, clock) from error
    try:
        apply(plan.after, fleet, guard, screen.note, Applied())
    except InterruptedByUser as error:
        error.put_back = f"nothing: {plan.deployment} serves"
        raise
    except ClusterError as error:
        screen.warn(f"what was replaced could not be removed ({error.what}); the next cluster up or down removes it")
    return proof


def put_back(
    error: ClusterError | KeyboardInterrupt,
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
    failure = error if isinstance(error, ClusterError) else InterruptedByUser("interrupted before ready")
    if not applied.begun:
        failure.put_back = "nothing was changed"
        return failure
    saved = evidence.save(subject, fleet, screen, failure, clock.passed)
    left = undo(applied, fleet, guard, screen.note)
    back = [f"{old} was started again" for old in plan.replaces]
    errors = failure.errors if isinstance(failure, ManyErrors) else (failure,)
    for one in errors:
        one.put_back = "all but: " + "; ".join(left) if left else "; ".join(["all that this run started", *back])
        one.remedy = also(f"read {saved}" if saved else "cluster status", one.remedy)
    name_cause(failure, errors, saved, screen)
    secrets = subject.wanted.secrets.values()
    for one in errors:
        one.what, one.where = hide_text(one.what, secrets), hide_text(one.where, secrets)
    return failure


def also(remedy: str, another: str) -> str:
    """Two remedies in one line; either may be empty."""
    return "; ".join(filter(None, (remedy, another)))
