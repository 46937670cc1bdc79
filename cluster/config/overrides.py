"""What a command line changes: `--set KEY.SUB=VALUE` and `-e KEY=VALUE`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.config.find import nearest
from cluster.config.recipe import Recipe, flag_name
from cluster.config.secrets import is_secret
from cluster.config.written import ITEM, Document, check_env_name, keys, parse_value, validate
from cluster.errors import UsageError


@dataclass(frozen=True, slots=True)
class Variables:
    """Environment given with `-e`: what may be shown, and what may not (left out of `repr`)."""

    plain: dict[str, str] = field(default_factory=dict)
    secret: dict[str, str] = field(default_factory=dict, repr=False)


def split_env(words: Sequence[str]) -> Variables:
    """Read `KEY=VALUE` words; a bare `KEY` takes its value from the environment, so that it stands in no history.

    The name or the form of the value says what is secret. The last of equal names counts.
    Raises UsageError; no message holds a value.
    """
    variables = Variables()
    for word in words:
        name, sign, value = word.partition("=")
        try:
            check_env_name(name)
        except ValueError as error:
            remedy = "-e KEY=VALUE, or -e KEY to take it from your environment"
            raise UsageError(f"-e: {error}", code="variable-invalid", remedy=remedy) from None
        if not sign and name not in os.environ:
            raise UsageError(
                f"-e {name}: not set in your environment", code="variable-not-set", remedy=f"-e {name}=VALUE"
            )
        value = value if sign else os.environ[name]
        if "\x00" in value:
            raise UsageError(f"-e {name}: the value contains a NUL character", code="variable-invalid")
        kept, other = variables.plain, variables.secret
        if is_secret(name, value):
            kept, other = other, kept
        kept[name] = value
        other.pop(name, None)
    return variables


SIGNS = tuple(">|&*!%@`")
"""What a YAML value cannot begin with unless it is quoted."""


def final_recipe(recipe: Recipe, sets: Sequence[str]) -> Recipe:
    """The recipe with each `KEY.SUB=VALUE` applied in order; VALUE is YAML, an empty one or null removes the key.

    A first key that is no recipe key but a flag the recipe gives to vLLM is taken as `vllm.<flag>`. A relative path
    of a file is meant from the current directory. Raises UsageError: unknown key (with the nearest), wrong value.
    """
    if not sets:
        return recipe
    values = recipe.model_dump(mode="json", exclude_unset=True)
    for text in sets:
        path, value = _parse(text, recipe)
        _put(values, path, value)
    changed = validate(Recipe, Document("--set", values, {}))
    mounts = [mount.model_copy(update={"source": _absolute(mount.source)}) for mount in changed.mounts]
    return changed.model_copy(update={"mounts": mounts, "dockerfile": _absolute(changed.dockerfile)})


def _absolute(path: str) -> str:
    return str(Path(path).absolute()) if path else ""


def _parse(text: str, recipe: Recipe) -> tuple[list[str], Any]:
    key, sign, written = text.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not sign or not all(path):
        raise UsageError(
            f"--set {key}: expected KEY=VALUE", code="set-invalid", remedy="e.g. --set vllm.max-model-len=32768"
        )
    if path[0] not in Recipe.model_fields and path[0].replace("_", "-") in recipe.vllm:
        path = ["vllm", *path]
    if path[0] not in Recipe.model_fields:
        word, known = path[0], [one.path for one in keys(Recipe) if ITEM not in one.path]
        by_end = {one.rpartition(".")[2]: one for one in reversed([*known, *(f"vllm.{flag}" for flag in recipe.vllm)])}
        near = by_end.get(nearest(word.replace("_", "-"), by_end) or nearest(word, by_end), "")
        remedy = f"did you mean `{near}`?" if near else "a flag of vLLM is set as vllm.FLAG=VALUE"
        raise UsageError(f"--set {key}: unknown recipe key", code="unknown-key", remedy=remedy)
    if path[0] == "vllm" and len(path) > 1:
        try:
            path[1] = flag_name(path[1])
        except ValueError as error:
            raise UsageError(f"--set {key}: {error}", code="set-invalid") from None
    try:
        return path, parse_value(written, f"--set {key}")
    except UsageError as error:
        if written[:1] in SIGNS:
            error.remedy = f"quote such a value twice: --set '{key}=\"{written}\"'"
        raise


def _put(values: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set one value in nested mappings; None removes the key."""
    target: Any = values
    for part in path[:-1]:
        if target.get(part) is None:
            target[part] = {}
        target = target[part]
        if not isinstance(target, dict):
            raise UsageError(
                f"--set {'.'.join(path)}: `{part}` is not a mapping", code="set-invalid", remedy="set it as one value"
            )
    if value is None:
        target.pop(path[-1], None)
    else:
        target[path[-1]] = value
