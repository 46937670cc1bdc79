"""Jobs on threads while the main thread only waits, so that Ctrl-C is heard at once."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from cluster.errors import ClusterError, InterruptedByUser
from cluster.hosts.cancel import Cancel
from cluster.hosts.outcome import Outcome

T = TypeVar("T")

SLICE_S = 0.2
LEAVE_S = 1.0  # after Ctrl-C, for what was interrupted to notice
LEAVE_CHANGE_S = 12.0  # when a change is under way: it gets 10 s, the rest is for closing


def in_parallel(jobs: Mapping[str, Callable[[], T]], limit: int, cancel: Cancel) -> dict[str, Outcome[T]]:
    """Run the jobs, at most `limit` at once; the outcomes in the jobs' order.

    Ctrl-C sets `cancel`, waits for changes under way (12 s at most) and raises InterruptedByUser; a second Ctrl-C
    leaves at once. An exception that is no ClusterError is a bug and raised as it is, after the rest.
    """
    crew = _Crew(jobs, cancel)
    try:
        crew.start(limit)
        crew.wait()
    except KeyboardInterrupt:
        cancel.set()
        crew.wait_for_changes()
        raise InterruptedByUser("interrupted") from None
    if crew.bug is not None:
        raise crew.bug
    if any(isinstance(outcome.error, InterruptedByUser) for outcome in crew.outcomes.values()):
        raise InterruptedByUser("interrupted")
    return {name: crew.outcomes[name] for name in jobs}


class _Crew(Generic[T]):
    """Daemon threads, so that a job that hangs cannot hold up the end of the program."""

    def __init__(self, jobs: Mapping[str, Callable[[], T]], cancel: Cancel) -> None:
        self.outcomes: dict[str, Outcome[T]] = {}
        self.bug: BaseException | None = None
        self._jobs = jobs
        self._cancel = cancel
        self._scope = cancel.scope
        self._left = deque(jobs)
        self._changed = threading.Condition()
        self._ctrl_c = False

    def start(self, limit: int) -> None:
        for number in range(min(limit, len(self._jobs))):
            threading.Thread(target=self._work, name=f"host-{number}", daemon=True).start()

    def wait(self) -> None:
        """Until all jobs have ended. Raises KeyboardInterrupt, also one that a job met."""
        with self._changed:
            while self._is_busy() and not self._ctrl_c:
                self._changed.wait(SLICE_S)
        if self._ctrl_c:
            raise KeyboardInterrupt

    def wait_for_changes(self) -> None:
        """After an interruption: until the jobs have noticed it and no change is under way."""
        began = time.monotonic()
        with self._changed:
            while self._is_busy():
                patience = LEAVE_CHANGE_S if self._scope.is_changing else LEAVE_S
                if time.monotonic() > began + patience:
                    return
                self._changed.wait(SLICE_S)

    def _is_busy(self) -> bool:
        return len(self.outcomes) < len(self._jobs)

    def _work(self) -> None:
        self._cancel.bind(self._scope)
        while True:
            with self._changed:
                if not self._left:
                    return
                name = self._left.popleft()
            outcome = self._run(self._jobs[name])
            with self._changed:
                self.outcomes[name] = outcome
                self._changed.notify()

    def _run(self, job: Callable[[], T]) -> Outcome[T]:
        try:
            self._scope.check()
            return Outcome(job())
        except ClusterError as error:
            return Outcome(error=error)
        except KeyboardInterrupt:
            self._ctrl_c = True
            return Outcome(error=InterruptedByUser("interrupted"))
        except BaseException as error:
            self.bug = error
            return Outcome(error=ClusterError(f"a bug: {error!r}"))
