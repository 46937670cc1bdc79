"""What a server promises: read from the recipe that it was started with, and from what it says of itself; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cluster.bench.server import Served
from cluster.probe.case import Subject


def subject_of(served: Served, recipe: Mapping[str, Any] | None, words: Sequence[str] = ()) -> Subject:
    """The server as the cases see it. `recipe` as in a deployment's spec; `words`: what was given to vLLM behind it."""
    if recipe is None:
        return Subject(served.model, served.max_tokens, engine=served.owner)
    flags = {**recipe["vllm"], **read_flags(words)}
    length = str(flags.get("max-model-len"))
    return Subject(
        served.model,
        served.max_tokens,
        configured=int(length) if length.isdigit() else None,
        tools=_on(flags, "enable-auto-tool-choice"),
        reasoning=_on(flags, "reasoning-parser"),
        vision=_sees(recipe.get("architecture", ""), flags),
        engine=served.owner,
        dummy=recipe["weights"] == "dummy",
    )


def read_flags(words: Sequence[str]) -> dict[str, Any]:
    """Flags among words of a command line: `--key value`, `--key=value`, `--key`, `--no-key`."""
    flags: dict[str, Any] = {}
    for number, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, mark, value = word[2:].partition("=")
        following = words[number + 1] if number + 1 < len(words) else "--"
        if name.startswith("no-"):
            flags[name.removeprefix("no-")] = False
        else:
            flags[name.replace("_", "-")] = value if mark else True if following.startswith("--") else following
    return flags


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
