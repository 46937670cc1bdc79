"""vLLM's own counters from the text of /metrics (Prometheus' exposition format), one or several looks in a row."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE = re.compile(
    r"^(?:\S*\s)?vllm[:_](?P<name>num_requests_running|num_requests_waiting|generation_tokens(?:_total)?)"
    r"(?P<labels>\{[^}]*\})?[ \t]+(?P<value>[\d.]+(?:e\+?\d+)?)",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Load:
    """One look: requests that run and wait, and tokens generated since the start; None where it was not shown."""

    running: float | None = None
    waiting: float | None = None
    tokens: float | None = None


def recognise(text: str) -> tuple[Load, ...] | None:
    """The looks in a text; a counter that comes again begins the next one. None when vLLM's counters are not there."""
    looks: list[dict[tuple[str, str], float]] = []
    for found in _LINE.finditer(text):
        key = (found["name"].removesuffix("_total"), found["labels"] or "")
        if not looks or key in looks[-1]:
            looks.append({})
        looks[-1][key] = float(found["value"])
    return tuple(map(_load, looks)) or None


def _load(look: dict[tuple[str, str], float]) -> Load:
    def total(name: str) -> float | None:
        values = [value for (known, _), value in look.items() if known == name]
        return sum(values) if values else None

    return Load(total("num_requests_running"), total("num_requests_waiting"), total("generation_tokens"))
