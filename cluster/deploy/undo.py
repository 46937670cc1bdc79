"""Take back a start that failed: evidence first, then undo, then the old deployment again, and say what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from cluster.config.secrets import hide_text
from cluster.deploy import evidence, prove
from cluster.deploy.apply import Applied, undo
from cluster.deploy.plan import stop_ranks
from cluster.deploy.restart import prove_again, subject_of
from cluster.deploy.session import Session, see
from cluster.deploy.steps import Plan, Step
from cluster.errors import UNCHANGED, ClusterError, ExitCode, InternalError, InterruptedByUser, ManyErrors
from cluster.screen import Screen
from cluster.spark.deployments import Deployment

NameCause = Callable[[ClusterError, Sequence[ClusterError], str, Screen], None]
"""Says in one of a failure's errors what the evidence in a directory names as the cause."""


@contextmanager
def undoing(plan: Plan, subject: prove.Subject, session: Session, name_cause: NameCause) -> Iterator[Applied]:
    """Whatever goes wrong in the block is put back after the evidence was saved; its error says so.

    What the block has begun stands in the value that it is given.
    """
    applied = Applied()
    session.screen.stay()
    try:
        yield applied
    except (Exception, KeyboardInterrupt) as error:
        failure, saved = roll_back(error, plan, subject, applied, session)
        if applied.begun:
            name_cause(failure, errors_of(failure), saved, session.screen)
            secrets = subject.wanted.secrets.values()
            for one in errors_of(failure):
                one.what, one.where = hide_text(one.what, secrets), hide_text(one.where, secrets)
        raise failure from error


def errors_of(failure: ClusterError) -> Sequence[ClusterError]:
    """The errors of a failure, one or many."""
    return failure.errors if isinstance(failure, ManyErrors) else (failure,)


def roll_back(
    error: Exception | KeyboardInterrupt,
    plan: Plan,
    subject: prove.Subject,
    applied: Applied,
    session: Session,
) -> tuple[ClusterError, str]:
    """Save the evidence and undo, newest first: the error to raise, with what was put back, and where evidence lies."""
    fleet, guard, screen = session.fleet, session.guard, session.screen
    fleet.cancel.renew()
    failure = as_failure(error)
    if not applied.begun:
        failure.rolled_back = UNCHANGED
        return failure, ""
    saved = ""
    try:
        saved = evidence.save(subject, fleet, screen, failure, session.clock.passed)
        left = undo(applied, fleet, guard, screen.note)
    except (InterruptedByUser, KeyboardInterrupt):  # a second Ctrl-C leaves at once
        told, remedy = what_stays(plan, applied)
    else:
        stopped = [old for old in plan.replaces if told_to_stop(old, applied.begun)]
        leave = bool(left) or isinstance(failure, InterruptedByUser)
        back = [started_again(old, subject, applied, session, prove_it=not leave) for old in stopped]
        told = "; ".join(["all but: " + "; ".join(left) if left else "all that this run started", *back])
        remedy = "" if saved else "cluster status"
    if guard.taken() and not isinstance(failure, InterruptedByUser | InternalError):
        both = ManyErrors([*guard.taken(), failure])  # what another operator did may be why it failed
        failure = ManyErrors(list(dict.fromkeys(both.errors)))
    for one in errors_of(failure):
        one.rolled_back, one.remedy = told, also(remedy, also(f"read {saved}" if saved else "", one.remedy))
    return failure, saved


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
    old: Deployment, subject: prove.Subject, applied: Applied, session: Session, *, prove_it: bool
) -> str:
    """What became of a deployment that was started again: proven, unless the user wants to leave."""
    if told_to_stop(old, applied.stays):
        return f"{old.id} could not be started again on every host"
    told = f"{old.id} was started again"
    if not prove_it:
        return f"{told} (cluster status shows when it serves)"
    hosts = [host for name in old.hosts for host in subject.wanted.hosts if host.name == name]
    within, screen, begun = session.fleet.only(old.hosts), session.screen, False
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
