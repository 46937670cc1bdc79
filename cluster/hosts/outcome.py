"""What one host made of its part: a value or an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from cluster.errors import ClusterError, ManyErrors

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """A value, or the error in its place."""

    value: T | None = None
    error: ClusterError | None = None

    def get(self) -> T:
        """The value. Raises the error."""
        if self.error is not None:
            raise self.error
        return cast(T, self.value)  # not `assert`: T may itself be optional


def errors(outcomes: Mapping[str, Outcome[T]]) -> list[ClusterError]:
    """The errors, in the hosts' order."""
    return [outcome.error for outcome in outcomes.values() if outcome.error is not None]


def values(outcomes: Mapping[str, Outcome[T]]) -> dict[str, T]:
    """All values by host. Raises the single error, or ManyErrors with every one."""
    failed = errors(outcomes)
    if len(failed) == 1:
        raise failed[0]
    if failed:
        raise ManyErrors(failed)
    return {name: outcome.get() for name, outcome in outcomes.items()}
