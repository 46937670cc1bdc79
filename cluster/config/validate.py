"""From a document to a model, or to one UsageError that says file, line, key, what was found and what is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from cluster.config.describe import kind_of, place_at
from cluster.config.find import nearest
from cluster.config.written import Document, KeyPath, shorten
from cluster.errors import UsageError

M = TypeVar("M", bound=BaseModel)

SHOWN = 4
"""Problems of one file that are shown; more are counted."""


def validate(model: type[M], document: Document) -> M:
    """The model made of a document. Raises UsageError with a line for each problem, a few at most."""
    try:
        return model.model_validate(document.values)
    except ValidationError as error:
        problems = [(_path_of(row), _message(model, row)) for row in error.errors(include_url=False)]
    problems.sort(key=lambda problem: document.place_of(problem[0]))
    lines = [f"{document.where(path)}: {dotted(path)}{message}" for path, message in problems]
    more = len(lines) - SHOWN
    if more > 0:
        lines = [*lines[:SHOWN], f"… and {more} more"]
    raise UsageError("\n".join(lines))


def dotted(path: KeyPath) -> str:
    """A path as text for the front of a message; empty for the whole file."""
    return ".".join(map(str, path)) + ": " if path else ""


def _path_of(row: Mapping[str, Any]) -> KeyPath:
    """Keys that lead to a problem; a validator may have named one below what it was given."""
    path = tuple(part for part in row["loc"] if part != "[key]")
    return path + tuple(row["ctx"]["at"]) if row["type"] == "wrong_at" else path


def _message(model: type[BaseModel], row: Mapping[str, Any]) -> str:
    path, kind = row["loc"], row["type"]
    if kind == "extra_forbidden":
        known = place_at(model, path[:-1]).keys
        return f"is no key here; {nearest(str(path[-1]), known) or 'known: ' + ', '.join(known)}"
    place = place_at(model, path)
    description = f" ({place.description})" if place.description else ""
    if kind == "missing":
        return f"is missing{description}"
    if kind == "wrong_at":
        return str(row["msg"])
    if kind == "value_error":
        return str(row["msg"]).partition(", ")[2]
    return f"found {show(row['input'])}, wanted {kind_of(place)}{description}"


def show(value: Any) -> str:
    """A value for a message: text in backquotes, mappings and lists by what they are."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "an empty list" if not value else "a list"
    return "nothing" if value is None else f"`{shorten(str(value))}`"
