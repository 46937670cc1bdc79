"""What is to be measured, as values."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.bench.rows import Shape
from cluster.bench.server import Served
from cluster.errors import UsageError


@dataclass(frozen=True, slots=True)
class BenchWanted:
    """What to measure. `model` is the name in the API; empty means the only one that is served."""

    base_url: str
    model: str = ""
    pp: tuple[int, ...] = (2048,)
    tg: tuple[int, ...] = (32, 128)
    depth: tuple[int, ...] = (0, 4096, 8192, 16384)
    runs: int = 3
    concurrency: tuple[int, ...] = (1,)
    seed: int = 1
    timeout_s: float = 600.0
    api_key_env: str = ""
    api_key_file: str = ""

    def shapes(self) -> tuple[Shape, ...]:
        """The rows in llama-benchy's order. Raises UsageError for numbers that make none."""
        for name, values, least in (
            *(("--pp", self.pp, 1), ("--tg", self.tg, 1), ("--depth", self.depth, 0)),
            *(("--concurrency", self.concurrency, 1), ("--runs", (self.runs,), 1)),
        ):
            if not values or min(values) < least:
                raise UsageError(f"{name} must be {least} or more, found {' '.join(map(str, values)) or 'nothing'}")
        return tuple(
            Shape(pp, tg, depth, concurrency)
            for depth in dict.fromkeys(self.depth)
            for pp in dict.fromkeys(self.pp)
            for tg in dict.fromkeys(self.tg)
            for concurrency in dict.fromkeys(self.concurrency)
        )


def check_limit(shapes: tuple[Shape, ...], served: Served) -> None:
    """Raises UsageError naming the rows that do not fit the model's context."""
    if served.max_tokens is None:
        return
    over = [shape for shape in shapes if shape.prompt_tokens + shape.tg > served.max_tokens]
    if over:
        names = ", ".join(shape.name for shape in over[:4]) + (", …" if len(over) > 4 else "")
        most = served.max_tokens - max(shape.pp + shape.tg for shape in over)
        raise UsageError(
            f"{served.model} serves {served.max_tokens} tokens of context; too long: {names}",
            remedy=f"--depth {most} at most with these --pp and --tg" if most >= 0 else "smaller --pp or --tg",
        )
