"""How long hosts have not answered: one that cannot be asked is unknown, until it was silent for too long."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from cluster.errors import ClusterError, SilentError, UnreachableError
from cluster.hosts.outcome import Outcome, values

T = TypeVar("T")

SILENCE_S = 180.0
"""How long a host may be silent before a command gives it up: a laptop's Wi-Fi comes back, a host boots."""
PAUSE_S = 1.0
LONG_S = 30.0
"""What took longer before its connection was lost had one for most of that time."""


class Time(Protocol):
    """What waits read and pass; the module `time` is one, tests have their own."""

    def monotonic(self) -> float:
        """Seconds that only grow."""
        ...

    def time(self) -> float:
        """Unix seconds."""
        ...

    def sleep(self, seconds: float, /) -> None:
        """Let time pass."""
        ...


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
        """Those that are silent now."""
        return tuple(sorted(self._since))

    def answered(self, outcomes: Mapping[str, Outcome[T]], began: float) -> dict[str, T]:
        """What was answered to what was asked at `began`; hosts that cannot be asked now are left out.

        Raises every other error, and that of a host that was silent for too long.
        """
        judged = {name: self._judge(name, outcome, began) for name, outcome in outcomes.items()}
        return values({name: outcome for name, outcome in judged.items() if not isinstance(outcome.error, SilentError)})

    def keep_trying(self, name: str, act: Callable[[], T], say: Callable[[str], None] | None = None) -> T:
        """Do what can be done again until it does not fail for want of a connection. `say` is told who is silent."""
        said = ""
        while True:
            began = self._time.monotonic()
            try:
                tried = Outcome(act())
            except ClusterError as error:
                tried = Outcome(error=error)
            outcome = self._judge(name, tried, began)
            if say and (str(self) or said):
                said = str(self)
                say(said)
            if not isinstance(outcome.error, SilentError):
                return outcome.get()
            self._time.sleep(PAUSE_S)

    def _judge(self, name: str, outcome: Outcome[T], began: float) -> Outcome[T]:
        """Note whether a host answered; the error of one that is given up replaces that of the last try."""
        if not isinstance(outcome.error, SilentError):
            self._since.pop(name, None)
            return outcome
        now = self._time.monotonic()
        if now - began < LONG_S:
            self._since.setdefault(name, began)
        else:
            self._since[name] = now
        silent_s = now - self._since[name]
        if silent_s < SILENCE_S:
            return outcome
        error = outcome.error
        what = f"{name} was unreachable for {silent_s:.0f} s: {error.what}"
        return Outcome(error=UnreachableError(what, where=name, remedy=error.remedy, host=name))
