"""What a GPU is doing: the pairs that one figure alone would confuse."""

import pytest

from cluster.spark.gpu import Gpu, judge_gpu


@pytest.mark.parametrize(
    ("busy", "power", "clock", "state"),
    [
        (0, 4.2, 208, "quiet"),
        (0, 12.0, 2411, "quiet"),
        (96, 45.0, 2411, "working"),
        (10, 62.0, 2411, "working"),
        (96, 15.0, 2411, "spinning"),
        (96, 15.0, 611, "capped"),
        (96, 15.0, None, "stalled"),
        (96, 41.0, 650, "slowed"),
        (None, 15.0, 2411, "quiet"),
        (96, None, 2411, "unknown"),
        (96, 29.99, 1000, "spinning"),
        (96, 30.0, 999, "slowed"),
    ],
)
def test_states(busy: int | None, power: float | None, clock: int | None, state: str) -> None:
    assert judge_gpu(Gpu("NVIDIA GB10", "580", None, None, power, clock, 50, busy, ())) == state


def test_the_driver_calls_it_idle() -> None:
    """Utilisation is of the last second, the clock is of now."""
    assert judge_gpu(Gpu("NVIDIA GB10", "580", None, None, 12.0, 208, 50, 96, (), idle=True)) == "quiet"
    assert judge_gpu(Gpu("NVIDIA GB10", "580", None, None, 45.0, 2411, 50, 96, (), idle=True)) == "working"
