"""What Ollama on a host holds in memory, from its own API (GET /api/ps, ollama's docs/api.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.commands.ollama import api_ps
from cluster.commands.question import Answer, Question
from cluster.facts.fact import Missing
from cluster.facts.sections import last_words, load_json, refuse


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in Ollama's memory: `gpu_bytes` of its `bytes` are GPU memory; `context` in tokens where it is told."""

    name: str
    bytes: int
    gpu_bytes: int
    context: int | None = None

    @property
    def split(self) -> bool:
        """Whether a part of it is computed by the CPU."""
        return self.gpu_bytes < self.bytes


def question() -> Question:
    """Ask for the models in memory."""
    return api_ps()


def parse(answer: Answer) -> tuple[Loaded, ...] | Missing:
    """Read what /api/ps told; Missing when no Ollama answers."""
    refused = refuse(answer, "curl")
    if refused:
        return refused
    if answer.exit:
        return Missing(last_words(answer))
    try:
        told = load_json(answer.out)
    except ValueError:
        told = None
    return read_loaded(told) if isinstance(told, dict) and "models" in told else Missing("/api/ps told something else")


def read_loaded(told: Mapping[str, Any]) -> tuple[Loaded, ...]:
    """The models of /api/ps. `context_length` is there since Ollama 0.10; `size_vram` is left out when it is 0."""
    models = told.get("models")
    return tuple(
        Loaded(
            str(one.get("model") or one.get("name") or ""),
            _number(one, "size") or 0,
            _number(one, "size_vram") or 0,
            _number(one, "context_length"),
        )
        for one in (models if isinstance(models, list) else ())
        if isinstance(one, dict)
    )


def _number(told: Mapping[str, Any], key: str) -> int | None:
    value = told.get(key)
    return value if isinstance(value, int) else None
