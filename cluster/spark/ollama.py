"""What Ollama holds in memory, read from its own API (GET /api/ps, ollama's docs/api.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
