"""The routes and models of other engines, for the server of known timing: what `engine.py` reads. Pure.

Shapes as seen from llama.cpp b11434 and LiteLLM 1.108.7, and as in the source of Ollama 0.33 and SGLang 0.5.23; the
values are our own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.bench.known_ways import WAYS, Way

GB = 1_000_000_000
OLLAMA = Way(owner="library", tokenizes=False, usage="zeros")


@dataclass(frozen=True)
class Engine:
    """`loaded`: models as /api/ps tells them once they were asked; `counts`: it has vLLM's /metrics."""

    ways: Mapping[str, Way] = field(default_factory=lambda: WAYS)
    routes: Mapping[str, Any] = field(default_factory=dict)
    loaded: Mapping[str, Mapping[str, Any]] | None = None
    counts: bool = False

    def tell(self, path: str, asked: Collection[str]) -> Any:
        """The answer of a route, None where it is not there."""
        if path == "/api/ps" and self.loaded is not None:
            return {"models": [model for name, model in self.loaded.items() if name in asked]}
        return self.routes.get(path)


def in_memory(name: str, size: int, on_gpu: int, context: int | None) -> dict[str, Any]:
    """A model as Ollama tells it; before 0.10 without its context."""
    told = {"name": name, "model": name, "size": size, "size_vram": on_gpu, "expires_at": "2026-11-28T12:05:00Z"}
    return told | ({"context_length": context} if context else {})


ENGINES = {
    "": Engine(counts=True),
    "vllm": Engine({"plain": WAYS["plain"]}, {"/version": {"version": "0.32.0"}}, counts=True),
    "ollama": Engine(
        {
            "whole:26b": OLLAMA,
            "split:26b": OLLAMA,
            "short:26b": OLLAMA,
            "cutting:26b": Way(owner="library", tokenizes=False, usage="zeros", context=1024),
        },
        {"/api/version": {"version": "0.33.0"}},
        {
            "whole:26b": in_memory("whole:26b", 19 * GB, 19 * GB, 32768),
            "split:26b": in_memory("split:26b", 19 * GB, 6 * GB, 32768),
            "short:26b": in_memory("short:26b", 19 * GB, 19 * GB, 4096),
            "cutting:26b": in_memory("cutting:26b", 19 * GB, 19 * GB, None),
        },
    ),
    "llamacpp": Engine(
        {"toy.gguf": Way(owner="llamacpp", caches=True, usage="last")},
        {
            "/props": {
                "default_generation_settings": {"n_ctx": 4096},
                "total_slots": 2,
                "model_alias": "toy.gguf",
                "build_info": "b11434-0badcafe",
            }
        },
    ),
    "sglang": Engine(
        {"plain": Way(owner="sglang")},
        {
            "/server_info": {
                "version": "0.5.23",
                "context_length": None,
                "max_total_num_tokens": 90000,
                "enable_cache_report": False,
            }
        },
    ),
    "litellm": Engine(
        {
            "steady": Way(owner="openai", tokenizes=False),
            "daily": Way(owner="openai", tokenizes=False, answers_as="spare", other_every=4),
        },
        {"/health/liveliness": '"I\'m alive!"'},
    ),
}
