"""How far a measurement is, and how long the rest of it may take. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.bench.rows import Shape

BAR = 10
TOKENS_READ = 40
"""Prompt tokens that take a server about as long as one generated token; it only weighs rows not yet measured."""


class Pace:
    """The rounds of a measurement: `runs` of each shape, or more where that is not enough."""

    def __init__(self, shapes: Sequence[Shape], runs: int) -> None:
        self._left = dict.fromkeys(shapes, runs)
        self._took: dict[Shape, float] = {}
        self._done = 0

    def end(self, shape: Shape, seconds: float) -> None:
        """A round has ended."""
        self._took[shape] = seconds
        self._left[shape] = max(0, self._left[shape] - 1)
        self._done += 1

    @property
    def left_s(self) -> float | None:
        """Seconds that the rest takes by what each shape took last, or its like; None while nothing is known."""
        if not self._took:
            return None
        each = sum(self._took.values()) / sum(map(weight, self._took))
        return sum(count * self._took.get(shape, each * weight(shape)) for shape, count in self._left.items())

    def __str__(self) -> str:
        total = self._done + sum(self._left.values())
        full = BAR * self._done // max(1, total)
        left = "" if self.left_s is None else f", {about(self.left_s)} left"
        return f"{'▰' * full}{'▱' * (BAR - full)} {self._done} of {total}{left}"


def weight(shape: Shape) -> float:
    """What a round costs, in generated tokens of one client."""
    return shape.tg + shape.concurrency * shape.prompt_tokens / TOKENS_READ


def about(seconds: float) -> str:
    """A duration in words, no finer than it can be known."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return "less than a minute"
    return f"about {minutes} min" if minutes < 60 else f"about {minutes // 60} h {minutes % 60:02} min"
