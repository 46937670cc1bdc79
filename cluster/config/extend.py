"""`extends:` of a recipe: one level. Scalars and lists replace, mappings merge, a key without a value is removed."""

from __future__ import annotations

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
    wanted = child.values.get(KEY)
    if wanted is None:
        return child, None
    at = f"{child.where((KEY,))}: {KEY}"
    if not isinstance(wanted, str):
        raise UsageError(f"{at}: expected the name or path of one recipe", code="extends-invalid")
    try:
        parent_path = find_recipe(wanted, child=path)
    except UsageError as error:
        raise UsageError(f"{at}: {error.what}", code=error.code, remedy=error.remedy) from None
    if parent_path.samefile(path):
        raise UsageError(f"{at}: `{wanted}` is this recipe itself", code="extends-invalid")
    parent = read_document(parent_path)
    if parent.values.get(KEY) is not None:
        raise UsageError(
            f"{at}: {parent_path} extends another recipe itself; one level is allowed",
            code="extends-invalid",
            where=parent.where((KEY,)),
            remedy=f"extend `{parent.values[KEY]}`, and repeat the keys that {path.name} needs",
        )
    return merge(parent, child), parent_path


def merge(parent: Document, child: Document) -> Document:
    """The child's keys over the parent's; neither the parent's name nor `extends` is among them."""
    under = {key: value for key, value in parent.values.items() if key != "name"}
    over = {key: value for key, value in child.values.items() if key != KEY}
    gone: set[KeyPath] = set()
    values = _merged(under, over, (), gone)
    kept = {path for path in parent.lines if not any(path[:end] in gone for end in range(1, len(path) + 1))}
    kept -= set(child.lines)
    lines = {path: parent.lines[path] for path in kept} | dict(child.lines)
    return Document(child.name, values, lines, dict.fromkeys(kept, parent.name))


def _merged(under: dict[str, Any], over: dict[str, Any], at: KeyPath, gone: set[KeyPath]) -> dict[str, Any]:
    """The values; paths of the parent's keys that nothing is left of are added to `gone`."""
    values = dict(under)
    for key, value in over.items():
        twin = key
        if at == ("vllm",):  # flags of vLLM may be written with - or with _
            twin = next((known for known in under if known.replace("_", "-") == key.replace("_", "-")), key)
        below = values.pop(twin, None) if twin != key else values.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            values[key] = _merged(below, value, (*at, twin), gone)
            continue
        if twin in under:
            gone.add((*at, twin))
        if value is None and twin in under:
            values.pop(key, None)
        else:
            values[key] = value
    return values
