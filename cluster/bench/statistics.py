"""Means with their spread, and ratios of means with a 95 % interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Student's t, two-sided 95 %, for 1…30 degrees of freedom and some more; between them the next lower one is used.
_T95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_T95_AT = {**dict(enumerate(_T95, 1)), 40: 2.021, 60: 2.000, 120: 1.980}
PERCENTILES = {"p50": 50, "p90": 90, "p95": 95, "p99": 99}


@dataclass(frozen=True, slots=True)
class Stat:
    """A mean over runs. `std` is the sample standard deviation (n − 1); None for a single value."""

    mean: float
    std: float | None
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two means with its 95 % interval; `low` and `high` are None when a side was measured once."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def significant(self) -> bool:
        """Whether the interval is known and leaves out 1."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


def stat(values: Sequence[float]) -> Stat | None:
    """Mean and sample standard deviation; None for no values."""
    if not values:
        return None
    std = statistics.stdev(values) if len(values) > 1 else None
    return Stat(statistics.fmean(values), std, tuple(values))


def spread(values: Sequence[float]) -> dict[str, float | None] | None:
    """Count, mean, percentiles (Hyndman and Fan's type 7, as numpy's) and maximum; None for no values.

    A percentile is given only when enough values are there for one of them to lie beyond it: p90 of three values would
    be their maximum with a better name.
    """
    if not values:
        return None
    count = len(values)
    cuts = statistics.quantiles(values, n=100, method="inclusive") if count > 1 else [*values] * 99
    found = {
        name: cuts[part - 1] if part == 50 or count * (100 - part) >= 100 else None
        for name, part in PERCENTILES.items()
    }
    return {"n": count, "mean": statistics.fmean(values), **found, "max": max(values)}


def half_width(value: Stat) -> float | None:
    """Half the width of the mean's 95 % interval as a part of the mean; None for a single value or a mean of 0."""
    if value.std is None or not value.mean:
        return None
    count = len(value.values)
    return t95(count - 1) * value.std / math.sqrt(count) / abs(value.mean)


def t95(freedom: float) -> float:
    """Two-sided 95 % quantile of Student's t, rounded to the safe side for degrees of freedom between the tabled."""
    return _T95_AT[max(least for least in _T95_AT if least <= max(1, freedom))]


def ratio(upper: Stat | None, lower: Stat | None) -> Ratio | None:
    """upper.mean ÷ lower.mean; None when one is not known or a mean is not positive.

    Interval: the logarithm of the ratio has the variance s₁²/(n₁m₁²) + s₂²/(n₂m₂²) (delta method); its ± is
    Student's t at the degrees of freedom of Welch and Satterthwaite, since the two spreads need not be equal.
    """
    if upper is None or lower is None or upper.mean <= 0 or lower.mean <= 0:
        return None
    value = upper.mean / lower.mean
    if upper.std is None or lower.std is None:
        return Ratio(value)
    parts = [(side.std or 0.0) ** 2 / (len(side.values) * side.mean**2) for side in (upper, lower)]
    variance = sum(parts)
    if variance == 0:
        return Ratio(value, value, value)
    sizes = (len(side.values) for side in (upper, lower))
    freedom = variance**2 / sum(part**2 / (size - 1) for part, size in zip(parts, sizes, strict=True))
    factor = math.exp(t95(freedom) * math.sqrt(variance))
    return Ratio(value, value / factor, value * factor)
