"""The sentinel: what counts as a drift and what as the noise of single runs."""

import dataclasses

import pytest
from bench_results import result, row

from cluster.bench.result import warnings
from cluster.bench.rows import (
    Change,
    Row,
    Sentinel,
    Shape,
    choose_sentinel,
    compare_runs,
    parse_sentinel,
    sentinel_document,
)
from cluster.bench.tables import bench_table

SHAPE = Shape(2048, 128, 0)


def runs(*rates: float) -> Row:
    return row(SHAPE, rates)


def sentinel(first: float, last: float, *rates: float) -> Sentinel:
    found = compare_runs(runs(first), runs(last), runs(*(rates or (first,))), extra=True)
    assert found is not None
    return found


def changed(found: Sentinel) -> list[str]:
    return [change.what for change in found.drifted]


def test_cheapest_row_is_repeated_with_its_longest_output() -> None:
    shapes = [Shape(pp, tg, depth, c) for depth in (4096, 0) for pp in (2048, 512) for tg in (32, 128) for c in (4, 1)]
    assert choose_sentinel(shapes) == Shape(512, 128, 0, 1)


def test_change_is_the_last_run_against_the_first() -> None:
    found = sentinel(50, 45, 50.0, 50.05, 49.95)
    assert [change.what for change in found.changes] == ["pp t/s", "tg t/s", "e2e_ttft"]
    tg = found.changes[1]
    assert (tg.begin, tg.end, tg.change) == (pytest.approx(50), pytest.approx(45), pytest.approx(-0.1))
    # std 0.05 of 50, two degrees of freedom: 4.303 × √2 × 0.001
    assert tg.noise == pytest.approx(4.303 * 2**0.5 * 0.001, rel=1e-3)
    assert tg.is_drift


@pytest.mark.parametrize(
    ("change", "noise", "drift"),
    [
        (-0.019, 0.001, False),
        (-0.021, 0.001, True),
        (0.021, 0.001, True),
        (0.1, 0.2, False),
        (0.04, None, False),
        (0.06, None, True),
    ],
)
def test_drift_is_more_than_runs_differ_by(change: float, noise: float | None, drift: bool) -> None:
    assert Change("tg t/s", 1, 1 + change, change, noise).is_drift is drift


def test_drift_is_said_first_and_steadiness_below() -> None:
    drifting = dataclasses.replace(result(), sentinel=sentinel(50, 45, 50.0, 50.05, 49.95))
    assert any(line.startswith("THE MACHINE DRIFTED: pp2048 tg128") and "-10.0%" in line for line in warnings(drifting))
    steady = dataclasses.replace(result(), sentinel=sentinel(50, 50.1, 50.0, 50.05, 49.95))
    assert warnings(steady) == ()
    assert "tg t/s +0.2%" in bench_table(steady).notes[-1]


def test_document_and_back() -> None:
    there = sentinel(50, 45)
    document = sentinel_document(there)
    assert parse_sentinel(document) == there
    assert document is not None
    assert [change["drift"] for change in document["changes"]] == [True, True, True]
    assert parse_sentinel(None) is None
