"""How much TCP a link let through, as the two ends of far/flood say it."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.spark.fact import Missing
from cluster.spark.sections import WHY_LENGTH, as_shape, load_json, plain


@dataclass(frozen=True, slots=True)
class Flood:
    """Bytes that arrived, and the seconds from the first to the last of them.

    `busiest_core` is the busy share (0 to 1) of the busiest core of the two machines meanwhile, None when neither says.
    """

    bytes: int
    seconds: float
    busiest_core: float | None = None

    @property
    def gbps(self) -> float:
        """In Gb/s."""
        return self.bytes * 8 / self.seconds / 1e9


@dataclass(frozen=True, slots=True)
class _Line:
    """What either end says in its one line."""

    port: int | None = None
    bytes: int | None = None
    seconds: float | None = None
    cpu: float | None = None
    error: str = ""


def parse_port(line: str) -> int | Missing:
    """Where the receiver listens."""
    told = _read(line)
    return told if isinstance(told, Missing) else told.port or Missing("it does not say where it listens")


def parse(line: str) -> Flood | Missing:
    """What the sender says."""
    told = _read(line)
    if isinstance(told, Missing):
        return told
    if told.bytes is None or not told.seconds:
        return Missing("it does not say what arrived")
    return Flood(told.bytes, told.seconds, told.cpu)


def _read(line: str) -> _Line | Missing:
    """A line of either end; its error, or words that are none of ours (python3's own), are the reason."""
    try:
        told = as_shape(load_json(line), "flood", _Line)
    except ValueError:
        return Missing(" ".join(plain(line).split())[:WHY_LENGTH] or "it ended without a result")
    return Missing(told.error) if isinstance(told, _Line) and told.error else told
