"""vLLM's own counters from the text of /metrics (Prometheus' exposition format), one or several looks in a row."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE = re.compile(
    r"^(?:\S*\s)?vllm[:_](?P<name>num_requests_running|num_requests_waiting|generation_tokens(?:_total)?"
    r"|prompt_tokens(?:_total)?|kv_cache_usage_perc)"
    r"(?P<labels>\{[^}]*\})?[ \t]+(?P<value>[\d.]+(?:e[+-]?\d+)?)",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Load:
    """One look, None where it was not shown: requests that run and wait, tokens generated and tokens of prompts taken
    in since the start, the part of the KV cache in use (0 to 1), which grows with each step of a prefill."""

    running: float | None = None
    waiting: float | None = None
    tokens: float | None = None
    prompts: float | None = None
    cache: float | None = None

    @property
    def queue(self) -> str:
        """Requests running and waiting in words, empty when they were not shown."""
        told = self.running is not None and self.waiting is not None
        return f"{self.running:g} running, {self.waiting:g} waiting" if told else ""

    @property
    def counters(self) -> tuple[float | None, ...]:
        """What moves as long as the engine does."""
        return (self.tokens, self.prompts, self.cache)


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

    names = (
        "num_requests_running",
        "num_requests_waiting",
        "generation_tokens",
        "prompt_tokens",
        "kv_cache_usage_perc",
    )
    return Load(*map(total, names))
