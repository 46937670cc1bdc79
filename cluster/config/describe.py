"""The keys of the models in words: for error messages, `recipes show`, and the generated docs."""

from __future__ import annotations

import textwrap
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from cluster.config.written import KeyPath

NAME, ITEM = "NAME", "[]"


@dataclass(frozen=True, slots=True)
class Key:
    """One key: its dotted path (NAME stands for a name of yours, [] for an item), type, default, description."""

    path: str
    kind: str
    default: str
    required: bool
    description: str


@dataclass(frozen=True, slots=True)
class Place:
    """A type with its constraints, and the description of the key it belongs to."""

    annotation: Any
    constraints: tuple[Any, ...]
    description: str

    @property
    def keys(self) -> list[str]:
        """Keys that may stand there; empty when it is not a mapping of known keys."""
        annotation, _ = _bare(self.annotation, ())
        return list(annotation.model_fields) if _is_model(annotation) else []


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[Key]:
    """Every key of a model, depth first, in the order it is declared."""
    for name, info in model.model_fields.items():
        path = f"{prefix}{name}"
        kind = _kind(info.annotation, info.metadata)
        yield Key(path, kind, default_of(info), info.is_required(), info.description or "")
        inner, mark = _inner_model(info.annotation)
        if inner:
            yield from keys(inner, f"{path}{mark}.")


def kind_of(place: Place) -> str:
    """The type in words: `a whole number from 0 to 65535`."""
    return _kind(place.annotation, place.constraints)


def default_of(info: FieldInfo) -> str:
    """The default as YAML would write it; empty when there is none or it is empty itself."""
    value = info.get_default()
    if info.is_required() or value is None or isinstance(value, BaseModel) or value in ("", [], {}):
        return ""
    return str(value)


def place_at(model: type[BaseModel], path: KeyPath) -> Place:
    """What stands at a path of keys, names and list positions; `[key]` at its end means the name itself."""
    place = Place(model, (), "")
    for part, following in zip(path, (*path, "")[1:], strict=True):
        annotation, _ = _bare(place.annotation, ())
        args = get_args(annotation)
        if _is_model(annotation) and part in annotation.model_fields:
            info = annotation.model_fields[str(part)]
            place = Place(info.annotation, tuple(info.metadata), info.description or "")
        elif get_origin(annotation) is dict:
            place = Place(args[0 if following == "[key]" else 1], (), place.description)
        elif get_origin(annotation) is list:
            place = Place(args[0], (), place.description)
    return place


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _inner_model(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """The model inside a mapping or list, and how its place is written in a dotted path."""
    annotation, _ = _bare(annotation, ())
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is dict:
        return _inner_model(args[1])[0], f".{NAME}"
    if origin is list:
        return _inner_model(args[0])[0], ITEM
    return (annotation, "") if _is_model(annotation) else (None, "")


def _bare(annotation: Any, metadata: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    """A type without Annotated and without `| None`, and its constraints."""
    while True:
        if hasattr(annotation, "__metadata__"):
            annotation, metadata = annotation.__origin__, _constraints(annotation.__metadata__)
        elif get_origin(annotation) in (Union, types.UnionType):
            annotation = next(arg for arg in get_args(annotation) if arg is not types.NoneType)
        else:
            return annotation, metadata


def _kind(annotation: Any, metadata: Sequence[Any]) -> str:
    annotation, metadata = _bare(annotation, metadata)
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in args)
    if origin is dict:
        names = "names" if _bare(args[0], ())[0] is str else "whole numbers"
        return f"a mapping of {names} to {_many(args[1])}"
    if origin is list:
        return f"a list of {_many(args[0])}"
    if _is_model(annotation):
        return f"a mapping with {', '.join(annotation.model_fields)}"
    words = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
    return words.get(annotation, "any value") + _range(metadata)


def _constraints(metadata: Sequence[Any]) -> list[Any]:
    """Constraints of an Annotated type; pydantic keeps those given as Field(…) one level deeper."""
    return [inner for outer in metadata for inner in (outer.metadata if isinstance(outer, FieldInfo) else [outer])]


def _many(annotation: Any) -> str:
    kind = _kind(annotation, [])
    for one, many in (("a whole number", "whole numbers"), ("a number", "numbers"), ("a mapping", "mappings")):
        if kind.startswith(one):
            return many + kind[len(one) :]
    if kind.startswith("a list of "):
        return f"lists of {kind[len('a list of ') :]}"
    return kind.replace("any value", "values")


def _range(metadata: Sequence[Any]) -> str:
    bounds = {name: getattr(item, name) for item in metadata for name in ("ge", "gt", "le") if hasattr(item, name)}
    if "ge" in bounds and "le" in bounds:
        return f" from {bounds['ge']} to {bounds['le']}"
    if "ge" in bounds:
        return f", {bounds['ge']} or more"
    return f" above {bounds['gt']}" if "gt" in bounds else ""


def annotated(value: BaseModel, width: int = 110) -> str:
    """A model as YAML, each key under its description; keys that hold their default say so. Loads again as it is."""
    import yaml

    blocks = []
    for name, info in type(value).model_fields.items():
        given = value.model_dump(mode="json", include={name}, exclude_none=True)
        note = (info.description or "") + ("" if name in value.model_fields_set else " (default)")
        comment = "\n".join(f"# {line}" for line in textwrap.wrap(note, width - 2))
        body = yaml.safe_dump(given, sort_keys=False, allow_unicode=True, width=width).rstrip() if given else f"{name}:"
        blocks.append(f"{comment}\n{body}")
    return "\n\n".join(blocks) + "\n"
