"""The switch behind Ctrl-C: set once, everything that waits ends; renewed, undo can work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from cluster.errors import InterruptedByUser

SLICE_S = 0.2
"""The longest that a wait sleeps before it checks the switch."""


class Scope(threading.Event):
    """One stretch of work that can be interrupted once. An operation keeps the scope it began in.

    `changes`: how many changes are under way, which an interruption must await.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._closers: list[Callable[[], None]] = []
        self.changes = 0

    def set(self) -> None:
        """Interrupt: every waiter wakes up, every registered closer is called."""
        with self._lock:
            super().set()
            closers, self._closers = self._closers, []
        for close in closers:
            with suppress(Exception):
                close()

    def check(self) -> None:
        if self.is_set():
            raise InterruptedByUser()

    @contextmanager
    def closing(self, close: Callable[[], None]) -> Iterator[None]:
        """Have `close` called on interruption while the block runs. Raises InterruptedByUser when it already is."""
        with self._lock:
            self.check()
            self._closers.append(close)
        try:
            yield
        finally:
            with self._lock, suppress(ValueError):
                self._closers.remove(close)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """A change is under way while the block runs."""
        with self._lock:
            self.changes += 1
        try:
            yield
        finally:
            with self._lock:
                self.changes -= 1


class Cancel:
    """Shared by all hosts of a fleet; holds the scope in which new operations begin."""

    def __init__(self) -> None:
        self._scope = Scope()
        self._bound = threading.local()

    @property
    def scope(self) -> Scope:
        """The scope for an operation that begins now on this thread."""
        bound: Scope = getattr(self._bound, "scope", self._scope)
        return bound

    def bind(self, scope: Scope) -> None:
        """Keep this thread in `scope`: a worker that Ctrl-C left running must not continue in the scope of the undo."""
        self._bound.scope = scope

    def set(self) -> None:
        """Interrupt everything that runs in the present scope; what begins in it afterwards fails at once."""
        self._scope.set()

    def renew(self) -> None:
        """A new scope, for undo: what was interrupted stays so, new operations work."""
        self._scope = Scope()
