"""Several hosts at once: in parallel, every error kept, interrupted at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar, cast

from cluster.argv.question import Answer, Question
from cluster.errors import ClusterError, InterruptedByUser, SilentError, UnreachableError, about, raise_all
from cluster.hosts.cancel import SLICE_S, Cancel
from cluster.hosts.protocol import Host

T = TypeVar("T")
Say = Callable[[str], None] | None
"""Shows which hosts are unreachable while all are waited for; "" when none is."""


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """A value, or the error in its place."""

    value: T | None = None
    error: ClusterError | None = None

    def get(self) -> T:
        if self.error is not None:
            raise self.error
        return cast(T, self.value)  # not `assert`: T may itself be optional


def errors(outcomes: Mapping[str, Outcome[T]]) -> list[ClusterError]:
    return [outcome.error for outcome in outcomes.values() if outcome.error is not None]


def values(outcomes: Mapping[str, Outcome[T]]) -> dict[str, T]:
    """All values by host. Raises the single error, or ManyErrors with every one."""
    raise_all(errors(outcomes))
    return {name: outcome.get() for name, outcome in outcomes.items()}


AT_ONCE = 32  # hosts, unless a fleet is made for fewer
LEAVE_S = 1.0  # after Ctrl-C, for what was interrupted to notice
LEAVE_CHANGE_S = 12.0  # when a change is under way: it gets 10 s, the rest is for closing


def in_parallel(jobs: Mapping[str, Callable[[], T]], limit: int, cancel: Cancel) -> dict[str, Outcome[T]]:
    """Run the jobs, at most `limit` at once; the outcomes in the jobs' order.

    Ctrl-C sets `cancel`, waits for changes under way (12 s at most) and raises InterruptedByUser; a second Ctrl-C
    leaves at once. An exception that is no ClusterError is a bug and raised as it is, after the rest.
    """
    scope, changed, slots = cancel.scope, threading.Condition(), threading.Semaphore(limit)
    outcomes: dict[str, Outcome[T]] = {}
    bugs: list[BaseException] = []

    def work(name: str) -> None:
        cancel.bind(scope)
        with slots:
            try:
                scope.check()
                outcome = Outcome(jobs[name]())
            except ClusterError as error:
                outcome = Outcome(error=error)
            except BaseException as error:
                bugs.append(error)
                outcome = Outcome()
        with changed:
            outcomes[name] = outcome
            changed.notify()

    def interrupted() -> bool:
        return any(isinstance(bug, KeyboardInterrupt) for bug in bugs)

    try:
        for name in jobs:  # daemons: a job that hangs cannot hold up the program's end
            threading.Thread(target=work, args=[name], name=f"host-{name}", daemon=True).start()
        with changed:
            while len(outcomes) < len(jobs) and not interrupted():
                changed.wait(SLICE_S)
        if interrupted():
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        cancel.set()
        start = time.monotonic()
        with changed:
            while len(outcomes) < len(jobs) and time.monotonic() < start + (
                LEAVE_CHANGE_S if scope.changes else LEAVE_S
            ):
                changed.wait(SLICE_S)
        raise InterruptedByUser() from None
    if bugs:
        raise bugs[-1]
    if any(isinstance(outcome.error, InterruptedByUser) for outcome in outcomes.values()):
        raise InterruptedByUser()
    return {name: outcomes[name] for name in jobs}


HOST_SILENCE_S = 180.0
"""How long a host may be silent before a command gives it up: a laptop's Wi-Fi returns, a host boots."""
PAUSE_S = 1.0
LONG_S = 30.0
"""What took longer before its connection was lost had one for most of that time."""


class Time(Protocol):
    """What waits read and pass; the module `time` is one, tests have their own."""

    def monotonic(self) -> float: ...
    def time(self) -> float: ...
    def sleep(self, seconds: float, /) -> None: ...


class Silence:
    """Since when hosts do not answer; shared by all waits of a command, so that each host is given up once.

    What trying again cannot cure (a wrong key, a changed host key) is raised at once.
    """

    def __init__(self, clock: Time) -> None:
        self._time = clock
        self._since: dict[str, float] = {}

    def __str__(self) -> str:
        """`spark2 unreachable for 12 s`; empty when all answer."""
        now = self._time.monotonic()
        return "; ".join(f"{name} unreachable for {now - self._since[name]:.0f} s" for name in self.hosts)

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(sorted(self._since))

    def answered(self, outcomes: Mapping[str, Outcome[T]], asked_at: float) -> dict[str, T]:
        """The answers to what was asked at `asked_at`, without silent hosts. Raises every other error."""
        judged = {name: self._judge(name, outcome, asked_at) for name, outcome in outcomes.items()}
        return values({name: outcome for name, outcome in judged.items() if not isinstance(outcome.error, SilentError)})

    def keep_trying(self, name: str, act: Callable[[], T], say: Say = None) -> T:
        """Repeat what may be repeated until it does not fail for a lost or missing connection."""
        said = ""
        while True:
            asked_at = self._time.monotonic()
            try:
                tried = Outcome(act())
            except ClusterError as error:
                tried = Outcome(error=error)
            outcome = self._judge(name, tried, asked_at)
            if say and (str(self) or said):
                said = str(self)
                say(said)
            if not isinstance(outcome.error, SilentError):
                return outcome.get()
            self._time.sleep(PAUSE_S)

    def _judge(self, name: str, outcome: Outcome[T], asked_at: float) -> Outcome[T]:
        """Note whether a host answered; the error of one that is given up replaces that of the last try."""
        if not isinstance(outcome.error, SilentError):
            self._since.pop(name, None)
            return outcome
        now = self._time.monotonic()
        self._since[name] = self._since.get(name, asked_at) if now - asked_at < LONG_S else now
        silent_s = now - self._since[name]
        if silent_s < HOST_SILENCE_S:
            return outcome
        what = f"{name} was unreachable for {silent_s:.0f} s: {outcome.error.what}"
        remedy = outcome.error.remedy
        return Outcome(error=UnreachableError(what, code="host-unreachable", where=name, remedy=remedy, host=name))


class Fleet:
    """Hosts by name, in the order given, and the time they live in. Closes them at the end of a `with` block."""

    def __init__(
        self,
        hosts: Sequence[Host],
        limit: int = AT_ONCE,
        cancel: Cancel | None = None,
        clock: Time = time,
        silence: Silence | None = None,
    ) -> None:
        self.hosts: dict[str, Host] = {host.name: host for host in hosts}
        self.limit = limit
        self.cancel = cancel or Cancel()
        self.time = clock
        self.silence = silence or Silence(clock)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def __iter__(self) -> Iterator[Host]:
        return iter(self.hosts.values())

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.hosts)

    def only(self, names: Sequence[str]) -> Fleet:
        """A fleet of some of these hosts, on the same connections and switch. Do not close it by itself."""
        return Fleet([self.hosts[name] for name in names], self.limit, self.cancel, self.time, self.silence)

    def close(self) -> None:
        for host in self.hosts.values():
            with suppress(Exception):
                host.close()

    def each(self, fn: Callable[[Host], T], names: Sequence[str] | None = None) -> dict[str, Outcome[T]]:
        """`fn(host)` for all hosts, or those named, as `in_parallel` runs jobs; each error names its host."""

        def one(host: Host) -> T:
            with about(host.name):
                return fn(host)

        chosen = self.names if names is None else names
        return in_parallel({name: partial(one, self[name]) for name in chosen}, self.limit, self.cancel)

    def ask(self, questions: Mapping[str, Sequence[Question]]) -> dict[str, Outcome[list[Answer]]]:
        """Ask each named host its questions, one round trip a host."""
        return self.each(lambda host: host.ask(questions[host.name]), tuple(questions))

    def ask_all(self, questions: Sequence[Question]) -> dict[str, Outcome[list[Answer]]]:
        return self.each(lambda host: host.ask(questions))

    def keep_trying(self, fn: Callable[[Host], T], names: Sequence[str] | None = None, say: Say = None) -> dict[str, T]:
        """`each` for what may be repeated: a host that does not answer is asked until it was silent for too long.

        Raises as `values` does.
        """
        return values(self.each(lambda host: self.silence.keep_trying(host.name, lambda: fn(host), say), names))

    def keep_asking(self, questions: Mapping[str, Sequence[Question]], say: Say = None) -> dict[str, list[Answer]]:
        """`ask` for questions that all have to be answered; see `keep_trying`."""
        return self.keep_trying(lambda host: host.ask(questions[host.name]), tuple(questions), say)
