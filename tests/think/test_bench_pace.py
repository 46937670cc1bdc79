"""How far a measurement is, and how long the rest takes."""

import pytest

from cluster.bench.rows import Shape
from cluster.bench.run import Pace, about, weight

SHORT, LONG = Shape(400, 10, 0), Shape(400, 10, 3600)


def test_rest_is_guessed_by_what_was_measured() -> None:
    pace = Pace((SHORT, LONG), 3)
    assert str(pace) == "▱▱▱▱▱▱▱▱▱▱ 0 of 6"
    pace.end(SHORT, 20.0)
    assert pace.left_s == pytest.approx(2 * 20 + 3 * 20 * weight(LONG) / weight(SHORT))
    pace.end(LONG, 100.0)
    assert pace.left_s == pytest.approx(2 * 20 + 2 * 100)
    assert str(pace) == "▰▰▰▱▱▱▱▱▱▱ 2 of 6, about 4 min left"
    for shape in (SHORT, LONG) * 2:
        pace.end(shape, 30.0)
    assert str(pace) == "▰▰▰▰▰▰▰▰▰▰ 6 of 6, less than a minute left"


def test_more_rounds_than_planned_are_counted() -> None:
    pace = Pace((SHORT,), 1)
    pace.end(SHORT, 1.0)
    pace.end(SHORT, 1.0)
    assert str(pace).startswith("▰▰▰▰▰▰▰▰▰▰ 2 of 2")


@pytest.mark.parametrize(
    ("seconds", "words"), [(20, "less than a minute"), (200, "about 3 min"), (3700, "about 1 h 02 min")]
)
def test_durations(seconds: float, words: str) -> None:
    assert about(seconds) == words
