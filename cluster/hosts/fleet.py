"""Several hosts at once: in parallel, every error kept, interrupted at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TypeVar

from cluster.argv.question import Answer, Question
from cluster.errors import about
from cluster.hosts.cancel import Cancel
from cluster.hosts.crew import in_parallel
from cluster.hosts.outcome import Outcome, values
from cluster.hosts.protocol import Host
from cluster.hosts.silence import Silence, Time

T = TypeVar("T")


class Fleet:
    """Hosts by name, in the order given, and the time they live in. Closes them at the end of a `with` block."""

    def __init__(
        self,
        hosts: Sequence[Host],
        limit: int = 32,
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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def __iter__(self) -> Iterator[Host]:
        return iter(self.hosts.values())

    def __len__(self) -> int:
        return len(self.hosts)

    @property
    def names(self) -> tuple[str, ...]:
        """The hosts' names, in order."""
        return tuple(self.hosts)

    def only(self, names: Sequence[str]) -> Fleet:
        """A fleet of some of these hosts, on the same connections and switch. Do not close it by itself."""
        return Fleet([self.hosts[name] for name in names], self.limit, self.cancel, self.time, self.silence)

    def close(self) -> None:
        """Close all connections."""
        for host in self:
            with suppress(Exception):
                host.close()

    def each(self, fn: Callable[[Host], T], names: Sequence[str] | None = None) -> dict[str, Outcome[T]]:
        """Run `fn(host)` for all hosts (or those named) at the same time, at most `limit` at once.

        The outcomes come in the hosts' order; each error names its host. Raises InterruptedByUser after Ctrl-C, when
        what had to be awaited has ended; a second Ctrl-C leaves at once. An exception that is no ClusterError is a bug
        and raised as it is.
        """

        def one(host: Host) -> T:
            with about(host.name):
                return fn(host)

        chosen = [self.hosts[name] for name in (self.names if names is None else names)]
        return in_parallel({host.name: partial(one, host) for host in chosen}, self.limit, self.cancel)

    def ask(self, questions: Mapping[str, Sequence[Question]]) -> dict[str, Outcome[list[Answer]]]:
        """Ask each named host its questions, one round trip a host."""
        return self.each(lambda host: host.ask(questions[host.name]), tuple(questions))

    def ask_all(self, questions: Sequence[Question]) -> dict[str, Outcome[list[Answer]]]:
        """Ask every host the same questions."""
        return self.each(lambda host: host.ask(questions))

    def keep_trying(
        self, fn: Callable[[Host], T], names: Sequence[str] | None = None, say: Callable[[str], None] | None = None
    ) -> dict[str, T]:
        """`each` for what can be done again: a host that cannot be asked is asked until it was silent for too long.

        `say` is told which hosts are silent, and "" when none is. Raises as `values` does.
        """
        return values(self.each(lambda host: self.silence.keep_trying(host.name, lambda: fn(host), say), names))

    def keep_asking(
        self, questions: Mapping[str, Sequence[Question]], say: Callable[[str], None] | None = None
    ) -> dict[str, list[Answer]]:
        """`ask` for questions that all have to be answered; see `keep_trying`."""
        return self.keep_trying(lambda host: host.ask(questions[host.name]), tuple(questions), say)
