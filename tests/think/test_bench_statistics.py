"""Spread and ratios, against values worked out by hand and by simulation."""

import random

import pytest

from cluster.bench.statistics import Ratio, Stat, half_width, ratio, spread, stat, t95


def of(*values: float) -> Stat:
    found = stat(values)
    assert found
    return found


def test_spread_is_that_of_a_sample() -> None:
    assert (of(6.0, 7.0, 8.0).mean, of(6.0, 7.0, 8.0).std) == (7.0, 1.0)
    assert of(7.0).std is None
    assert stat([]) is None


@pytest.mark.parametrize(
    ("freedom", "t"), [(0.5, 12.706), (1, 12.706), (2.9, 4.303), (4, 2.776), (30.9, 2.042), (39, 2.042), (1e9, 1.980)]
)
def test_quantile_is_rounded_to_the_safe_side(freedom: float, t: float) -> None:
    assert t95(freedom) == t


def test_interval_of_a_ratio() -> None:
    # sd/mean are 0.05 and 0.02: se = sqrt(0.0025/3 + 0.0004/3) = 0.0310913;
    # freedom = 0.00096667² / ((0.00083333² + 0.00013333²) / 2) = 2.62, so t = 4.303
    gain = ratio(of(19.0, 20.0, 21.0), of(9.8, 10.0, 10.2))
    assert (gain.value, gain.low, gain.high) == pytest.approx((2.0, 2.0 / 1.14314, 2.0 * 1.14314), rel=1e-4)
    assert gain.significant


@pytest.mark.parametrize(
    ("given", "significant"), [(Ratio(1.05, 0.9, 1.2), False), (Ratio(2.0), False), (Ratio(0.5, 0.4, 0.6), True)]
)
def test_interval_that_spans_one_is_not_significant(given: Ratio, significant: bool) -> None:
    assert given.significant is significant


def test_ratio_of_single_runs_and_of_nothing() -> None:
    assert ratio(of(20.0, 21.0), of(10.0)) == Ratio(2.05)
    assert ratio(of(1.0, 1.0), of(0.0, 0.0)) is None


def test_interval_holds_the_truth_in_95_of_100() -> None:
    chance = random.Random(7)
    hits = 0
    for _ in range(2000):
        old, new = (of(*(chance.gauss(mean, sd) for _ in range(3))) for mean, sd in ((6.5, 0.1), (11.0, 0.7)))
        gain = ratio(new, old)
        hits += (gain.low or 0) <= 11.0 / 6.5 <= (gain.high or 0)
    assert 0.94 <= hits / 2000 <= 0.99


@pytest.mark.parametrize(
    ("count", "known"),
    [
        (1, {"p50": 0}),
        (4, {"p50": 1.5}),
        (9, {"p50": 4}),
        (11, {"p50": 5, "p90": 9}),
        (12, {"p50": 5.5, "p90": 9.9}),  # numpy's
        (21, {"p50": 10, "p90": 18, "p95": 19}),
        (101, {"p50": 50, "p90": 90, "p95": 95, "p99": 99}),
    ],
)
def test_percentile_needs_a_value_beyond_it(count: int, known: dict[str, float]) -> None:
    found = spread([float(n) for n in range(count)][::-1])
    given = {name: value for name, value in found.items() if name.startswith("p") and value is not None}
    assert given == pytest.approx(known)
    assert (found["n"], found["max"]) == (count, count - 1)
    assert spread([]) is None


def test_half_width_of_the_interval() -> None:
    assert half_width(of(9.0, 10.0, 11.0)) == pytest.approx(4.303 * 1.0 / 3**0.5 / 10, rel=1e-3)
    assert half_width(of(9.0)) is None
