"""`extends:` of a recipe: one level. Scalars and lists replace, mappings merge, a key without a value is taken away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster.config.find import find_recipe
from cluster.config.written import Document, KeyPath, read_document
from cluster.errors import UsageError

KEY = "extends"


def read_extended(path: Path) -> tuple[Document, Path | None]:
    """A recipe's document, merged into the one that it extends, and the file of that one.

    Every key keeps the file and line it stands in. Raises UsageError: there is no such recipe (with the nearest),
    or it extends another one itself.
    """
    child = read_document(path)
    if child.values.get(KEY) is None:
        return child, None
    parent_path = _find_parent(child, path)
    parent = read_document(parent_path)
    if parent.values.get(KEY) is not None:
        raise UsageError(
            f"{child.where((KEY,))}: {KEY}: {parent_path} extends another recipe itself; one level is allowed",
            where=parent.where((KEY,)),
            remedy=f"extend `{parent.values[KEY]}`, and repeat the keys that {path.name} needs",
        )
    return merge(parent, child), parent_path


def _find_parent(child: Document, path: Path) -> Path:
    wanted = child.values[KEY]
    if not isinstance(wanted, str):
        raise UsageError(f"{child.where((KEY,))}: {KEY}: the name or path of one recipe is wanted")
    try:
        found = find_recipe(wanted, child=path)
    except UsageError as error:
        raise UsageError(f"{child.where((KEY,))}: {KEY}: {error.what}", remedy=error.remedy) from None
    if found.samefile(path):
        raise UsageError(f"{child.where((KEY,))}: {KEY}: {wanted} is this recipe itself")
    return found


def merge(parent: Document, child: Document) -> Document:
    """The child's keys over the parent's; neither the parent's name nor `extends` is among them."""
    under = {key: value for key, value in parent.values.items() if key != "name"}
    over = {key: value for key, value in child.values.items() if key != KEY}
    gone = set(_replaced(under, over, ()))
    kept = {path for path in parent.lines if not any(path[:end] in gone for end in range(1, len(path) + 1))}
    kept -= set(child.lines)
    lines = {path: parent.lines[path] for path in kept} | dict(child.lines)
    return Document(child.name, _merged(under, over, ()), lines, dict.fromkeys(kept, parent.name))


def _merged(under: dict[str, Any], over: dict[str, Any], at: KeyPath) -> dict[str, Any]:
    values = dict(under)
    for key, value in over.items():
        twin = _twin(under, key, at)
        below = values.pop(twin, None) if twin != key else values.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            values[key] = _merged(below, value, (*at, key))
        elif value is None and twin in under:
            values.pop(key, None)
        else:
            values[key] = value
    return values


def _replaced(under: dict[str, Any], over: dict[str, Any], at: KeyPath) -> Iterator[KeyPath]:
    """Paths of the parent's keys that nothing is left of."""
    for key, value in over.items():
        twin = _twin(under, key, at)
        if twin in under:
            if isinstance(under[twin], dict) and isinstance(value, dict):
                yield from _replaced(under[twin], value, (*at, twin))
            else:
                yield (*at, twin)


def _twin(under: dict[str, Any], key: str, at: KeyPath) -> str:
    """The parent's spelling of a key: flags of vLLM may be written with - or with _."""
    if at != ("vllm",):
        return key
    return next((known for known in under if known.replace("_", "-") == key.replace("_", "-")), key)
