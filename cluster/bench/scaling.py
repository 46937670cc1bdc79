"""What more hosts bought: a result beside the single-node baseline and beside the published numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster.bench.result import Result
from cluster.bench.rows import Row, suffix
from cluster.bench.statistics import Ratio, Stat, ratio, stat
from cluster.config.recipe import Reference, ReferenceRow

PP, TG, TTFR = "prompt processing", "token generation", "time to first response"


@dataclass(frozen=True, slots=True)
class Published:
    """The recipe's numbers for one row at both sizes; None where nothing was published in this measuring mode.

    `is_time`: less is better, so the speed-up is the other way round.
    """

    base: float | None = None
    now: float | None = None
    is_time: bool = False

    @property
    def speed_up(self) -> float | None:
        """As published; above 1 is better."""
        if not self.base or not self.now:
            return None
        return self.base / self.now if self.is_time else self.now / self.base


@dataclass(frozen=True, slots=True)
class ScalingRow:
    """One number at both sizes. Rates in tokens a second, the time in ms; a speed-up above 1 is always the better.

    `efficiency` is the speed-up ÷ the growth in hosts.
    """

    what: str
    test: str
    depth: int
    base: Stat | None
    now: Stat | None
    speed_up: Ratio | None
    efficiency: float | None
    published: Published


def scaling_rows(base: Result, now: Result, references: Sequence[Reference] = ()) -> tuple[ScalingRow, ...]:
    """Compare what both results have. The caller has asked `differences` whether they may be compared.

    Prompt processing and time to first response of the same prompt length are pooled over the lengths of output:
    they are measured before the first token.
    """
    growth = (now.manifest.nodes or 1) / (base.manifest.nodes or 1)
    usable = [ref for ref in references if ref.depth_mode == now.manifest.depth_mode]
    both = {row.shape for row in base.rows} & {row.shape for row in now.rows}
    before, after = (_numbers([row for row in side.rows if row.shape in both]) for side in (base, now))
    rows = []
    for (what, test, depth), new in after.items():
        old = before.get((what, test, depth))
        gain = None
        if old is not None and new is not None:
            gain = ratio(old, new) if what == TTFR else ratio(new, old)
        first, second = (_published(usable, what, test, side.manifest.tp) for side in (base, now))
        published = Published(first, second, is_time=what == TTFR)
        efficiency = gain.value / growth if gain else None
        rows.append(ScalingRow(what, test, depth, old, new, gain, efficiency, published))
    order = (TG, PP, TTFR)
    return tuple(sorted(rows, key=lambda row: order.index(row.what)))


def _numbers(rows: Sequence[Row]) -> dict[tuple[str, str, int], Stat | None]:
    """The numbers of a result by (what, row name, depth)."""
    found: dict[tuple[str, str, int], list[Stat | None]] = {}
    for row in rows:
        tail = suffix(row.context_size, row.concurrency, row.concurrency)
        prompt, output = (name + tail for name in row.shape.names)
        found.setdefault((TG, output, row.context_size), []).append(row.tg_throughput)
        found.setdefault((PP, prompt, row.context_size), []).append(row.pp_throughput)
        found.setdefault((TTFR, prompt, row.context_size), []).append(row.ttfr)
    return {key: _pool(stats) for key, stats in found.items()}


def _pool(stats: Sequence[Stat | None]) -> Stat | None:
    """All values of some stats as one."""
    return stat([value for one in stats if one is not None for value in one.values])


def _published(references: Sequence[Reference], what: str, test: str, tp: int | None) -> float | None:
    """The first published number for this row and size."""
    pick: Callable[[ReferenceRow], float | None] = (lambda row: row.ttfr_ms) if what == TTFR else (lambda row: row.t_s)
    for reference in references:
        for row in reference.rows:
            if row.test.removesuffix(" (c1)") == test and row.tp == tp and pick(row) is not None:
                return pick(row)
    return None
