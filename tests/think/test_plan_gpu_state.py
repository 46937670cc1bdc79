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


@pytest.mark.parametrize(
    ("name", "busy", "power", "clock", "state"),
    [
        ("NVIDIA H200", 0, 79.0, 345, "quiet"),  # as read on one: empty, with a model, at work
        ("NVIDIA H200", 0, 126.0, 1980, "quiet"),
        ("NVIDIA H200", 100, 427.0, 1980, "working"),
        ("NVIDIA H200", 100, 120.0, 1980, "spinning"),
        ("NVIDIA GB10 (simulated)", 96, 15.0, 611, "capped"),
        ("NVIDIA H100 80GB HBM3", 0, 79.0, 345, "unknown"),
        ("Some Other GPU", 0, 12.0, 345, "unknown"),
    ],
)
def test_idle_is_the_cards(name: str, busy: int, power: float, clock: int, state: str) -> None:
    assert judge_gpu(Gpu(name, "580", None, None, power, clock, 50, busy, ())) == state
