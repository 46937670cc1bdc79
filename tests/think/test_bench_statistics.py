"""Spread and ratios, against values worked out by hand and by simulation."""

import random

import pytest

from cluster.bench.statistics import Ratio, half_width, quantile, ratio, spread, stat, t95


def test_spread_is_that_of_a_sample() -> None:
    value = stat([6.0, 7.0, 8.0])
    assert value is not None
    assert (value.mean, value.std) == (7.0, 1.0)


def test_one_value_has_no_spread() -> None:
    assert stat([]) is None
    value = stat([7.0])
    assert value is not None
    assert value.std is None


@pytest.mark.parametrize(
    ("freedom", "t"), [(0.5, 12.706), (1, 12.706), (2.9, 4.303), (4, 2.776), (30.9, 2.042), (39, 2.042), (1e9, 1.980)]
)
def test_quantile_is_rounded_to_the_safe_side(freedom: float, t: float) -> None:
    assert t95(freedom) == t


def test_interval_of_a_ratio() -> None:
    # sd/mean are 0.05 and 0.02: se = sqrt(0.0025/3 + 0.0004/3) = 0.0310913;
    # freedom = 0.00096667² / ((0.00083333² + 0.00013333²) / 2) = 2.62, so t = 4.303
    old, new = stat([9.8, 10.0, 10.2]), stat([19.0, 20.0, 21.0])
    assert old is not None
    assert new is not None
    gain = ratio(new, old)
    assert gain is not None
    assert gain.value == pytest.approx(2.0)
    assert gain.high == pytest.approx(2.0 * 1.14314, rel=1e-4)
    assert gain.low == pytest.approx(2.0 / 1.14314, rel=1e-4)
    assert gain.significant


def test_interval_that_spans_one_is_not_significant() -> None:
    assert not Ratio(1.05, 0.9, 1.2).significant
    assert not Ratio(2.0).significant
    assert Ratio(0.5, 0.4, 0.6).significant


def test_single_runs_give_a_ratio_without_interval() -> None:
    one, more = stat([10.0]), stat([20.0, 21.0])
    assert one is not None
    assert more is not None
    assert ratio(more, one) == Ratio(2.05)


def test_no_ratio_with_nothing() -> None:
    zero, one = stat([0.0, 0.0]), stat([1.0, 1.0])
    assert zero is not None
    assert one is not None
    assert ratio(one, zero) is None


def test_interval_holds_the_truth_in_95_of_100() -> None:
    chance = random.Random(7)
    hits = 0
    for _ in range(2000):
        old = stat([chance.gauss(6.5, 0.1) for _ in range(3)])
        new = stat([chance.gauss(11.0, 0.7) for _ in range(3)])
        assert old is not None
        assert new is not None
        gain = ratio(new, old)
        assert gain is not None
        assert gain.low is not None
        assert gain.high is not None
        hits += gain.low <= 11.0 / 6.5 <= gain.high
    assert 0.94 <= hits / 2000 <= 0.99


@pytest.mark.parametrize(("part", "value"), [(0.0, 1.0), (0.5, 2.5), (0.9, 3.7), (1.0, 4.0)])
def test_quantile_is_numpys(part: float, value: float) -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], part) == pytest.approx(value)


@pytest.mark.parametrize(
    ("count", "told"), [(1, {"p50"}), (9, {"p50"}), (10, {"p50", "p90"}), (20, {"p50", "p90", "p95"})]
)
def test_percentile_needs_a_value_beyond_it(count: int, told: set[str]) -> None:
    found = spread([float(n) for n in range(count)])
    assert found is not None
    assert {name for name, value in found.items() if name.startswith("p") and value is not None} == told
    assert (found["n"], found["max"]) == (count, count - 1)


def test_percentiles_of_a_hundred() -> None:
    found = spread([float(n) for n in range(101)][::-1])
    assert found is not None
    assert [found[name] for name in ("p50", "p90", "p95", "p99")] == [50, 90, 95, 99]
    assert spread([]) is None


def test_half_width_of_the_interval() -> None:
    value = stat([9.0, 10.0, 11.0])
    assert value is not None
    assert half_width(value) == pytest.approx(4.303 * 1.0 / 3**0.5 / 10, rel=1e-3)
    assert half_width(stat([9.0]) or value) is None
