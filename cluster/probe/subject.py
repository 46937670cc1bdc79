"""What a server promises: read from the recipe that it was started with, and from what it says of itself; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cluster.argv.vllm import AUTO, read_length, serve_flags, weights_of
from cluster.bench.server import Served
from cluster.probe.case import Subject


def subject_of(served: Served, recipe: Mapping[str, Any] | None, words: Sequence[str] = ()) -> Subject:
    """The server as the cases see it. `recipe` as in a deployment's spec; `words`: what was given to vLLM behind it."""
    if recipe is None:
        return Subject(served.model, served.max_tokens, engine=served.owner)
    flags = serve_flags(recipe["vllm"], words)
    try:
        length = read_length(flags.get("max-model-len"))
    except ValueError:
        length = AUTO
    return Subject(
        served.model,
        served.max_tokens,
        configured=None if length == AUTO else length,
        tools=_on(flags, "enable-auto-tool-choice"),
        reasoning=_on(flags, "reasoning-parser"),
        vision=_sees(recipe.get("architecture", ""), flags),
        engine=served.owner,
        dummy=weights_of(recipe["weights"], flags) == "dummy",
    )


def _on(flags: Mapping[str, Any], name: str) -> bool:
    return flags.get(name) not in (None, False, "")


def _sees(architecture: str, flags: Mapping[str, Any]) -> bool | None:
    """Whether it takes pictures: by its class's name (`…ForCausalLM` has text only), unless they are turned off."""
    limit = flags.get("limit-mm-per-prompt")
    if _on(flags, "language-model-only") or (isinstance(limit, Mapping) and limit.get("image") == 0):
        return False
    if architecture.endswith("ForCausalLM"):
        return False
    return True if architecture.startswith("Gemma4") and architecture.endswith("ForConditionalGeneration") else None
