"""Measuring a server that is not vLLM: which fields it does not look at, what replaces them, and what must be said.

Fields as the engines read them: llama.cpp b11434 (tools/server/server-schema.cpp), Ollama 0.33 (openai/openai.go),
LM Studio 0.4 (its OpenAI page), SGLang 0.5.23 (entrypoints/openai/protocol.py: all of ours).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cluster.bench.engine import TITLES

IGNORED = {
    "llamacpp": ("min_tokens", "continuous_usage_stats"),
    "ollama": ("min_tokens", "ignore_eos", "continuous_usage_stats"),
    "lmstudio": ("min_tokens", "ignore_eos", "continuous_usage_stats"),
}
"""Fields that an engine takes without a word and does not look at: not sent."""
INSTEAD: Mapping[str, Mapping[str, Any]] = {"llamacpp": {"timings_per_token": True}}
"""What it has in their place: llama.cpp counts its tokens in each event so."""
COLD: Mapping[str, Mapping[str, Any]] = {"llamacpp": {"cache_prompt": False}}
"""What keeps a prompt out of the engine's cache where none of it may be there."""
EFFECTS = {
    "min_tokens": "outputs may end early",
    "ignore_eos": "outputs may end early",
    "continuous_usage_stats": "tokens are counted at the end only",
    "include_usage": "tokens may not be counted",
    "cache_salt": "prompts have new beginnings instead",
    "temperature": "sampling is the server's own",
}
"""What a measurement lacks without a field."""


def lacking(fields: Sequence[str]) -> str:
    """Fields by what is lost without them: `min_tokens, ignore_eos: outputs may end early; …`."""
    by_effect: dict[str, list[str]] = {}
    for name in fields:
        by_effect.setdefault(EFFECTS.get(name, "measured without"), []).append(name)
    return "; ".join(f"{', '.join(names)}: {effect}" for effect, names in by_effect.items())


def ignored(engine: str) -> tuple[str, ...]:
    """Fields of ours that this engine is known not to look at, and has nothing else for."""
    made_up_for = ("min_tokens", "continuous_usage_stats") if engine == "llamacpp" else ()
    return tuple(name for name in IGNORED.get(engine, ()) if name not in made_up_for)


def loud(engine: Mapping[str, Any], model: str) -> Iterator[str]:
    """What must be said before the numbers of this engine (`Engine.document`)."""
    whole, on_gpu = engine.get("model_bytes", 0), engine.get("gpu_bytes", 0)
    if on_gpu < whole:
        others = f" (also loaded: {', '.join(engine['others'])})" if engine.get("others") else ""
        yield (
            f"SPLIT OVER CPU AND GPU: {1 - on_gpu / whole:.0%} of {model} is on the CPU: {on_gpu / 1e9:.1f} of "
            f"{whole / 1e9:.1f} GB are in GPU memory, and the speed is not the GPU's. Unload it (`ollama stop "
            f"{model}`, or keep_alive 0), stop what holds GPU memory{others}, and load it again"
        )
    if router := engine.get("router"):
        yield f"A ROUTER ({router}) stands before the model: its time is in the numbers, and another model may answer"
    if engine.get("answers_as"):
        yield f"asked for {model}, the answers are of {engine['answers_as']}: the numbers are of whatever that is"


def notes(engine: Mapping[str, Any], *, concurrency: int, prefix_caching: bool) -> Iterator[str]:
    """What a reader must know of an engine's rows."""
    name = engine.get("name", "")
    title, slots = TITLES.get(name, name), engine.get("slots")
    if name:
        yield f"served by {title} {engine.get('version', '')}".rstrip()
    if engine.get("ignored"):
        yield f"{title} does not look at {lacking(engine['ignored'])}"
    if slots and concurrency > slots:
        yield f"{title} takes {slots} requests at a time: of {concurrency} the others wait, and that is in the numbers"
    elif name == "ollama" and concurrency > 1:
        yield "Ollama takes OLLAMA_NUM_PARALLEL requests at a time (1 unless set) and does not tell how many that is"
    if prefix_caching and engine.get("tells_cache") is False:
        how = ": start it with --enable-cache-report" if name == "sglang" else ""
        yield f"{title} does not tell what was in its prefix cache, so no hit can be verified{how}"
