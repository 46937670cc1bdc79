"""Whether the machine stayed the same from begin to end: one row is measured again when all others are done. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cluster.bench.rows import Row, Shape
from cluster.bench.statistics import Stat, t95

WHAT = {"pp_throughput": "pp t/s", "tg_throughput": "tg t/s", "e2e_ttft": "e2e_ttft"}
NOTABLE = 0.02
NOTABLE_ALONE = 0.05
"""Change from which on a drift is said aloud; the second where no repetition tells how much runs differ anyway."""


@dataclass(frozen=True, slots=True)
class Change:
    """One number of the sentinel in its first and its last run. `change` is a part of the first.

    `noise`: what two single runs differ by in 95 of 100 cases, by the spread of the row's runs; None for one run.
    """

    what: str
    begin: float
    end: float
    change: float
    noise: float | None

    @property
    def is_drift(self) -> bool:
        """Whether it is more than runs differ by anyway."""
        return abs(self.change) > (NOTABLE_ALONE if self.noise is None else max(NOTABLE, self.noise))


@dataclass(frozen=True, slots=True)
class Sentinel:
    """The row `test` at the begin and at the end; `extra` says that it was measured once more for this."""

    test: str
    extra: bool
    changes: tuple[Change, ...]

    @property
    def drifted(self) -> tuple[Change, ...]:
        """The numbers that changed."""
        return tuple(change for change in self.changes if change.is_drift)

    def __str__(self) -> str:
        said = ", ".join(f"{change.what} {change.change:+.1%}" for change in self.changes)
        return f"{self.test} at the end, against its first run: {said}"


def choose_sentinel(shapes: Sequence[Shape]) -> Shape:
    """The shape that costs the server least, with the longest output of those."""
    return min(shapes, key=lambda shape: (shape.depth, shape.concurrency, shape.pp, -shape.tg))


def compare_runs(first: Row, last: Row, all_runs: Row, *, extra: bool) -> Sentinel | None:
    """The sentinel of two rows of one run each; None when they have no number in common."""
    changes = []
    for key, what in WHAT.items():
        begin, end, spread = getattr(first, key), getattr(last, key), getattr(all_runs, key)
        if begin is None or end is None or not begin.mean:
            continue
        changes.append(Change(what, begin.mean, end.mean, end.mean / begin.mean - 1, _noise(spread)))
    return Sentinel(first.shape.name, extra, tuple(changes)) if changes else None


def _noise(spread: Stat | None) -> float | None:
    """How far two single runs lie apart by chance: the spread of a difference is √2 times that of one."""
    if spread is None or spread.std is None or not spread.mean:
        return None
    return t95(len(spread.values) - 1) * math.sqrt(2) * spread.std / spread.mean


def sentinel_document(sentinel: Sentinel | None) -> dict[str, Any] | None:
    """As JSON holds it; whether a change is a drift stands beside it."""
    if sentinel is None:
        return None
    changes = [asdict(change) | {"drift": change.is_drift} for change in sentinel.changes]
    return {"test": sentinel.test, "extra": sentinel.extra, "changes": changes}


def parse_sentinel(document: Mapping[str, Any] | None) -> Sentinel | None:
    """The inverse. Raises KeyError or TypeError."""
    if document is None:
        return None
    names = ("what", "begin", "end", "change", "noise")
    changes = tuple(Change(**{name: one[name] for name in names}) for one in document["changes"])
    return Sentinel(document["test"], document["extra"], changes)
