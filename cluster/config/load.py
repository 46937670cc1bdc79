"""From files to values: the inventory and the recipe that are meant."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cluster.config.extend import read_extended
from cluster.config.find import DEFAULT_RECIPE, expand, find_inventory, find_recipe, is_path
from cluster.config.inventory import Defaults, HostEntry, Inventory, InventoryFile
from cluster.config.names import ResolvedHost, resolve_hosts
from cluster.config.recipe import Mount, Recipe
from cluster.config.validate import dotted, validate
from cluster.config.written import Document, KeyPath, read_document
from cluster.errors import UsageError

__all__ = [
    "InventoryFile", "RecipeFile", "ResolvedHost", "choose_recipe", "load_inventory", "load_recipe", "read_dockerfile",
    "read_inventory", "read_mounts", "read_recipe", "read_secret", "resolve_hosts",
]  # fmt: skip

Entry = TypeVar("Entry", HostEntry, Defaults)


@dataclass(frozen=True, slots=True)
class RecipeFile:
    """A recipe, the file it was read from, and the file of the recipe that it extends."""

    recipe: Recipe
    path: Path
    parent: Path | None = None


def load_inventory(option: str | None = None) -> InventoryFile:
    """Read the one inventory that counts (see `find_inventory`); without any, an empty one.

    Raises UsageError that names file, line and key.
    """
    path = find_inventory(option)
    return InventoryFile(Inventory()) if path is None else InventoryFile(read_inventory(path), path)


def read_inventory(path: Path) -> Inventory:
    """Read an inventory file; relative paths in it are meant from its folder. Raises UsageError."""
    inventory = validate(Inventory, read_document(path))
    hosts = {name: _anchored(entry, path.parent) for name, entry in inventory.hosts.items()}
    changes: dict[str, object] = {"hosts": hosts, "defaults": _anchored(inventory.defaults, path.parent)}
    if is_path(inventory.default_recipe):
        changes["default_recipe"] = _absolute(inventory.default_recipe, path.parent)
    return inventory.model_copy(update=changes)


def choose_recipe(positional: str | None, option: str | None, inventory: Inventory) -> str:
    """Name or path of the recipe meant: the command line, else the inventory's default, else ours.

    Raises UsageError when RECIPE and --recipe differ.
    """
    if positional and option and positional != option:
        raise UsageError(f"two recipes are named: {positional} and --recipe {option}", remedy="leave one out")
    return positional or option or inventory.default_recipe or DEFAULT_RECIPE


def load_recipe(wanted: str) -> RecipeFile:
    """Find a recipe by name or path and read it; see `read_recipe`."""
    return read_recipe_file(find_recipe(wanted))


def read_recipe(path: Path) -> Recipe:
    """Read a recipe file: its name filled in, mount sources made absolute and found to be files.

    Raises UsageError that names file, line and key.
    """
    return read_recipe_file(path).recipe


def read_recipe_file(path: Path) -> RecipeFile:
    """A recipe as `read_recipe` reads it, with the files it is made of."""
    document, parent = read_extended(path)
    document.values.setdefault("name", path.stem)
    recipe = validate(Recipe, document)
    sources = {number: mount.source for number, mount in enumerate(recipe.mounts) if mount.source}
    found = {number: _file_of(document, ("mounts", number, "source"), text) for number, text in sources.items()}
    changes: dict[str, object] = {
        "mounts": [
            mount.model_copy(update={"source": found.get(number, "")}) for number, mount in enumerate(recipe.mounts)
        ]
    }
    if recipe.dockerfile:
        changes["dockerfile"] = _file_of(document, ("dockerfile",), recipe.dockerfile)
    return RecipeFile(recipe.model_copy(update=changes), path, parent)


def _file_of(document: Document, key: KeyPath, text: str) -> str:
    """The file that a key names; a relative path is meant from the folder of the file that the key stands in."""
    path = _absolute(text, Path(document.place_of(key)[0]).parent)
    if not Path(path).is_file():
        raise UsageError(f"{document.where(key)}: {dotted(key)}there is no file `{path}`")
    return path


def read_mounts(mounts: Sequence[Mount]) -> dict[str, bytes]:
    """Content by target path of files mounted from this machine. Raises UsageError when one cannot be read."""
    return {mount.target: _content(mount.source, "mounts") for mount in mounts if mount.source}


def read_dockerfile(path: str) -> bytes:
    """Text of a recipe's Dockerfile; empty without one.

    Raises UsageError when it cannot be read, or does not begin with the recipe's image, which is what was checked.
    """
    text = _content(path, "dockerfile") if path else b""
    bases = re.findall(rb"^\s*FROM\s+(\S+)", text, re.MULTILINE | re.IGNORECASE)
    if path and (not bases or bases[-1] not in (b"$IMAGE", b"${IMAGE}")):
        raise UsageError(
            f"{path}: does not end in an image made of the recipe's own",
            remedy="begin it with `ARG IMAGE` and `FROM $IMAGE`",
        )
    return text


def read_secret(path: str, option: str) -> str:
    """First line of a file that holds a key or token. Raises UsageError when it cannot be read or is empty."""
    try:
        text = expand(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UsageError(f"{option} {path}: {error.strerror or error}") from None
    except ValueError:
        raise UsageError(f"{option} {path}: the file is not UTF-8 text") from None
    if not text:
        raise UsageError(f"{option} {path}: the file is empty")
    return text.splitlines()[0].strip()


def _content(path: str, key: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error} ({key})") from error


def _anchored(entry: Entry, folder: Path) -> Entry:
    changes = {
        key: _absolute(getattr(entry, key), folder)
        for key in ("identity_file", "known_hosts_file")
        if getattr(entry, key)
    }
    return entry.model_copy(update=changes)


def _absolute(text: str, folder: Path) -> str:
    """`~` expanded; a relative path is meant from `folder`. Links are kept."""
    return str((folder / expand(text)).absolute())
