"""One small tree of errors; each knows its exit code.

ClusterError                     1   the job failed
├── UsageError                   2   a command line, inventory or recipe that cannot be carried out
├── UnreachableError             3   a host could not be reached, for a reason that trying again does not cure
│   └── SilentError              3   it does not answer now: its state is unknown, and whoever waits goes on
│       └── ConnectionLostError  3   the connection failed or ended, and may be tried again at once
├── RefusedError                 4   checks refused to go on, or what runs is not healthy
├── LockedError                  5   somebody else is changing these hosts
├── InternalError                1   a fault of this program
├── InterruptedByUser          130   Ctrl-C
└── ManyErrors                       errors of several hosts, all shown; the exit code is that of the gravest

`rolled back:` is shown by the commands that change hosts (up, swap, pull, down, scaling, sweep), from the first
question to a host on: that no changes were made until the first change, then what was undone. Commands that only read,
and what is refused before any host is asked, have nothing to say there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from enum import IntEnum

UNCHANGED = "no changes were made"
"""What `rolled back:` shows of a refusal before the first change."""


class ExitCode(IntEnum):
    DONE = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    REFUSED = 4
    LOCKED = 5
    PARTIAL = 6
    INTERRUPTED = 130


@dataclass(eq=False, repr=False)
class ClusterError(Exception):
    """An error a user can meet: what, where, what was rolled back, what to do (four lines at most).

    `code` names the kind of error for scripts, tests and pages, and outlives its words: lower case, words joined by
    hyphens. `where` is for people: a host, a login, a file and its line. `host` is the one host it is about.
    """

    what: str
    _: KW_ONLY
    code: str
    where: str = ""
    rolled_back: str = ""
    remedy: str = ""
    host: str = ""
    exit_code = ExitCode.FAILED

    def __str__(self) -> str:
        return self.what

    @property
    def errors(self) -> tuple[ClusterError, ...]:
        return (self,)

    def lines(self) -> list[tuple[str, str]]:
        """The lines to print, as (label, text); empty ones are left out."""
        what = f"{self.what} [{self.code}]"
        rows = {"error": what, "where": self.where, "rolled back": self.rolled_back, "hint": self.remedy}
        return [(label, text) for label, text in rows.items() if text]

    def as_dict(self) -> dict[str, str]:
        """For a JSON document: code, error, where, rolled_back, hint, host; those that are not empty."""
        rows = {"code": self.code, "error": self.what, "where": self.where, "rolled_back": self.rolled_back}
        rows |= {"hint": self.remedy, "host": self.host}
        return {name: text for name, text in rows.items() if text}


class UsageError(ClusterError):
    exit_code = ExitCode.USAGE


class UnreachableError(ClusterError):
    exit_code = ExitCode.UNREACHABLE


class SilentError(UnreachableError):
    pass


class ConnectionLostError(SilentError):
    """`sent` is false when it is certain that the host was sent nothing."""

    sent = True


class RefusedError(ClusterError):
    exit_code = ExitCode.REFUSED


class LockedError(ClusterError):
    exit_code = ExitCode.LOCKED


class InternalError(ClusterError):
    """What was raised and nobody expected is its `bug`."""

    def __init__(self, bug: BaseException, *, rolled_back: str = "") -> None:
        text = " ".join(("internal error:", f"{type(bug).__name__}:", *str(bug).split())).removesuffix(":")
        what = text[:300] + "…" * (len(text) > 300)
        remedy = "--debug shows the details; please report them"
        super().__init__(what, code="internal", rolled_back=rolled_back, remedy=remedy)
        self.bug = bug


class InterruptedByUser(ClusterError):
    exit_code = ExitCode.INTERRUPTED

    def __init__(self, what: str = "interrupted", **more: str) -> None:
        super().__init__(what, code="interrupted", **more)


class ManyErrors(ClusterError):
    """Code and exit code are those of the gravest; there is one at least."""

    def __init__(self, errors: Sequence[ClusterError]) -> None:
        gravest = max(errors, key=lambda error: error.exit_code)
        super().__init__("; ".join(error.what for error in errors), code=gravest.code)
        self._errors = tuple(one for error in errors for one in error.errors)
        self.exit_code = gravest.exit_code

    @property
    def errors(self) -> tuple[ClusterError, ...]:
        return self._errors


def raise_all(errors: Sequence[ClusterError]) -> None:
    """Raise the one error, or all of them together; nothing when there is none."""
    if errors:
        raise errors[0] if len(errors) == 1 else ManyErrors(errors)


def joined(*texts: str) -> str:
    """Several wheres or remedies in one line; each may be empty."""
    return "; ".join(filter(None, texts))


@contextmanager
def about(host: str) -> Iterator[None]:
    """Errors that leave the block are about this host, unless they name one already."""
    try:
        yield
    except ClusterError as error:
        error.host = error.host or host
        raise
