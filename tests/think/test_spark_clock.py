import time

import pytest
from facts_tools import run_far, said

from cluster.spark import clock
from cluster.spark.fact import Missing


@pytest.mark.parametrize(
    ("asked", "offset_s", "uncertainty_s"),
    [
        ((1000.0, 1000.4), 0.0, 0.2),
        ((700.0, 700.4), 300.0, 0.2),
        ((1060.0, 1060.4), -60.0, 0.2),
        ((1000.2, 1000.2), 0.0, 0.0),
    ],
)
def test_offset_from_the_middle_of_the_round_trip(
    asked: tuple[float, float], offset_s: float, uncertainty_s: float
) -> None:
    found = clock.parse(said({"clock": {"value": {"time_unix_s": 1000.2, "synchronised": True}}}), asked)
    assert (found.offset_s, found.uncertainty_s) == (pytest.approx(offset_s), pytest.approx(uncertainty_s))
    assert found.synchronised is True


def test_this_machines_clock_is_this_machines() -> None:
    began = time.time()
    found = clock.parse(run_far("look", {"sections": ["clock"]}), (began, time.time()))
    assert abs(found.offset_s) <= found.uncertainty_s + 0.01


def test_no_clock_is_missing() -> None:
    assert isinstance(clock.parse(said({"clock": {"value": {"time_unix_s": "noon"}}}), (0.0, 1.0)), Missing)
