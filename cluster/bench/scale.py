"""Round numbers for axes, and numbers as labels. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence


def nice_step(span: float, about: int = 5) -> float:
    """A round number of which about so many make a span."""
    raw = span / about
    size: float = 10.0 ** math.floor(math.log10(raw))
    return next(one * size for one in (1, 2, 2.5, 5, 10) if one * size >= raw * 0.999)


def nice_ticks(low: float, high: float) -> list[float]:
    """Round numbers from `low` to at most `high`."""
    if high <= low:
        return [low]
    step = nice_step(high - low)
    first = math.ceil(low / step - 1e-9)
    return [round((first + count) * step, 10) for count in range(int(high / step + 1e-9) - first + 1)]


def nice_low(lowest: float, highest: float) -> float:
    """Where an axis begins that need not begin at 0: 0, unless all values lie in a narrow band far above it."""
    if lowest < 0.5 * highest:
        return 0.0
    step = nice_step(max(highest - lowest, 0.02 * highest))
    return max(0.0, (math.floor(lowest / step) - 1) * step)


def number(value: float) -> str:
    """A number with as many digits as can be told apart: 0.25, 6.5, 11.2, 873, 12,400."""
    if value == 0:
        return "0"
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 2 else f"{value:.2g}"


def time_ticks(high: float, steps: Sequence[float] = (1, 2, 5, 10, 15, 30, 60, 120, 300)) -> list[float]:
    """Ticks of a time axis from 0: the smallest listed step that gives at most eight."""
    step = next((one for one in steps if high / one <= 8), steps[-1])
    return [count * step for count in range(int(high / step + 1e-9) + 1)]
