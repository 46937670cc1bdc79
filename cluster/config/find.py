"""Which file is read: one inventory, one recipe; never a merge, never the example."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from cluster.errors import UsageError

DEFAULT_RECIPE = "gemma-4-31b-fp8"
VARIABLE = "CLUSTER_INVENTORY"
_ENDINGS = (".yaml", ".yml")


def usual_inventories() -> tuple[Path, Path]:
    """Where an inventory is looked for when none is named, in this order."""
    return Path("inventory/default.yaml"), Path.home() / ".config" / "cluster" / "inventory.yaml"


def find_inventory(option: str | None = None) -> Path | None:
    """`-i FILE`, else `$CLUSTER_INVENTORY`, else the first usual place that exists, else None.

    Raises UsageError when a file that was named does not exist.
    """
    given, origin = (option, "-i") if option else (os.environ.get(VARIABLE), f"${VARIABLE}")
    if not given:
        return next((path for path in usual_inventories() if path.exists()), None)
    path = expand(given)
    if not path.exists():
        remedy = _neighbor(path)
        raise UsageError(f"inventory not found: {path} (from {origin})", code="inventory-not-found", remedy=remedy)
    return path


def inventory_to_change(option: str | None = None) -> Path:
    """The inventory that `inventory add` writes to: as `find_inventory`, but a file that is named may yet be made.

    Without any: `~/.config/cluster/inventory.yaml`.
    """
    named = option or os.environ.get(VARIABLE)
    return expand(named) if named else find_inventory() or usual_inventories()[1]


def shipped(folder: str) -> Path:
    """Folder of files that come with the product: inside the wheel, or beside the package in a checkout."""
    package = Path(__file__).resolve().parent.parent
    packed = package / "shipped" / folder
    return packed if packed.is_dir() else package.parent / folder


def recipe_files(child: Path | None = None) -> dict[str, Path]:
    """Every recipe that a name finds, by name; `./recipes` hides packaged ones of the same name.

    In the recipe `child`, a name finds files in its folder first, and never the child itself. Raises UsageError for a
    folder that cannot be read.
    """
    found: dict[str, Path] = {}
    for folder in (*([child.parent] if child else ()), Path("recipes"), shipped("recipes")):
        for path in _files_in(folder):
            if (
                path.suffix in _ENDINGS
                and path.name[0] != "."
                and not (child and path.exists() and path.samefile(child))
            ):
                found.setdefault(path.stem, path)
    return dict(sorted(found.items()))


def _files_in(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        what, remedy = f"{folder}: cannot be read: {error.strerror}", "recipes are looked for in this folder by name"
        raise UsageError(what, code="file-unreadable", remedy=remedy) from error


def find_recipe(wanted: str, child: Path | None = None) -> Path:
    """The file of a recipe given as a path (has a `/` or ends in .yaml) or as a name. Raises UsageError.

    A relative path that is written in the recipe `child` starts at its folder.
    """
    if is_path(wanted):
        path = child.parent / expand(wanted) if child else expand(wanted)
        if not path.exists():
            raise UsageError(f"recipe not found: {path}", code="recipe-not-found", remedy=_neighbor(path))
        return path
    files = recipe_files(child)
    if wanted not in files:
        remedy = did_you_mean(wanted, files) or f"one of: {', '.join(files)}"
        what = f"recipe not found: `{wanted}`, neither in ./recipes nor among the packaged ones"
        raise UsageError(what, code="recipe-not-found", remedy=remedy)
    return files[wanted]


def expand(text: str) -> Path:
    """A path with `~` expanded. Raises UsageError for the home of a user who does not exist."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise UsageError(f"{text}: no such user on this machine", code="user-not-found") from None


def is_path(wanted: str) -> bool:
    """Whether a recipe is given as a file, not as a name."""
    return "/" in wanted or wanted.endswith(_ENDINGS)


def nearest(word: str, known: Iterable[str]) -> str:
    """The one of `known` that a word is nearly; empty for none."""
    import difflib  # here: it costs as much as the rest of this file, and only errors need it

    by_folded = {name.casefold(): name for name in known}
    return next((by_folded[name] for name in difflib.get_close_matches(word.casefold(), by_folded, n=1)), "")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The same as a hint; empty for none."""
    near = nearest(word, known)
    return f"did you mean `{near}`?" if near else ""


def _neighbor(path: Path) -> str:
    if path.is_symlink():
        return f"it is a link to {path.readlink()}, which does not exist"
    return did_you_mean(path.name, [entry.name for entry in path.parent.glob("*") if entry.suffix in _ENDINGS])


def runbook_path(runbook: str) -> str:
    """A path that opens, and the section: `docs/runbooks/it-is-slow.md #one-twin` in a checkout, else absolute.

    The space ends the path for a shell, which takes the rest for a comment.
    """
    stem, mark, anchor = runbook.partition("#")
    pages = shipped("docs/runbooks")
    shown = pages.relative_to(Path.cwd()) if pages == Path.cwd() / "docs/runbooks" else pages
    return f"{shown}/{stem}.md" + (f" #{anchor}" if mark else "")
