"""YAML as it was written, and how it becomes a model: every error names file, line and key.

Scalars stay text until a model says what they are. The keys of the models are described in words here, for messages,
for `recipes show` and for the generated docs.
"""

from __future__ import annotations

import re
import textwrap
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from cluster.config.find import did_you_mean
from cluster.config.secrets import is_secret
from cluster.errors import UsageError

KeyPath = tuple[str | int, ...]
M = TypeVar("M", bound=BaseModel)

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_NODES = 50_000
SHOWN = 4
"""Problems of one file that are shown; more are counted."""
NAME, ITEM = "NAME", "[]"

_TAGS = ("str", "int", "float", "bool", "null", "map", "seq", "timestamp", "merge", "value")
_NULLS = ("", "~", "null", "Null", "NULL")
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SWITCH = re.compile(r"(yes|no|on|off)", re.IGNORECASE)
_PLAIN_WORDS = {
    "'\\t'": "indented with a tab; use spaces",
    "but found another document": "expected one document, found a second one (`---`)",
    "mapping values are not allowed": "unexpected `:` (wrong indentation, or text that needs quotes)",
}
"""Instead of a problem that has this in PyYAML's words."""


class Written(str):
    """A scalar without quotes: text that a model may read as a number or as true and false."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Document:
    """One mapping read from `name`; `values` holds dict, list, str, Written and None; `lines` count from 1.

    `files` names the file of keys that stand in another one than `name`.
    """

    name: str
    values: dict[str, Any]
    lines: Mapping[KeyPath, int]
    files: Mapping[KeyPath, str] = field(default_factory=dict)

    def place_of(self, path: KeyPath) -> tuple[str, int]:
        """File and line of the key, or of the nearest key above it that stands in a text; line 0 when none does."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.lines:
                return self.files.get(path[:end], self.name), self.lines[path[:end]]
        return self.name, 0

    def where(self, path: KeyPath) -> str:
        """`file:line` for messages."""
        file, line = self.place_of(path)
        return f"{file}:{line}" if line else file


def read_document(path: Path) -> Document:
    """Read one YAML mapping from a file. Raises UsageError: unreadable, not YAML, empty, not a mapping."""
    return parse_document(read_text(path), str(path))


def read_text(path: Path) -> str:
    """Text of a file, without a byte-order mark. Raises UsageError that says what is wrong with the file."""

    def unreadable(why: str, place: object = path) -> UsageError:
        return UsageError(f"{place}: {why}", code="file-unreadable")

    try:
        data = path.read_bytes() if path.is_file() or not path.exists() else None
    except OSError as error:
        raise unreadable(f"cannot be read: {error.strerror or error}") from error
    if data is None:
        raise unreadable(f"expected a YAML file, got {'a directory' if path.is_dir() else 'a special file'}")
    if len(data) > MAX_BYTES:
        raise unreadable(f"expected a YAML file of at most {MAX_BYTES} bytes, got {len(data)} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise unreadable(f"not UTF-8 text (byte 0x{data[error.start]:02x})", f"{path}:{line}") from error


def parse_document(text: str, name: str) -> Document:
    """Read one YAML mapping from text; `name` stands in messages. Raises UsageError."""
    node = compose(text, name)
    if node is None or _is_null(node):
        raise _not_yaml(name, "expected a mapping of keys to values, got nothing")
    reader = _Reader(name)
    values = reader.value(node, ())
    if not isinstance(values, dict):
        found = "a list" if isinstance(values, list) else show(values)
        raise _not_yaml(f"{name}:{_line(node)}", f"expected a mapping of keys to values, got {found}")
    return Document(name, values, reader.lines)


def parse_value(text: str, name: str) -> Any:
    """Read one YAML value, as `--set KEY=VALUE` gives it. Raises UsageError."""
    node = compose(text, name)
    return None if node is None else _Reader(name).value(node, ())


def resolve(value: Any) -> Any:
    """Plain scalars as YAML 1.2 reads them, for keys without a type of their own (vLLM flags).

    Numbers with leading zeros, dates and `22:22` stay text. Raises ValueError for bare yes, no, on, off,
    which YAML versions read differently.
    """
    if isinstance(value, dict):
        return {str(key): resolve(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [resolve(inner) for inner in value]
    if not isinstance(value, Written):
        return value
    if _SWITCH.fullmatch(value):
        raise ValueError(f"`{value}` is ambiguous (text or a switch): write true or false, or use quotes")
    if value in ("true", "True", "TRUE", "false", "False", "FALSE"):
        return value.lower() == "true"
    if _INT.fullmatch(value):
        return int(value)
    return float(value) if _FLOAT.fullmatch(value) else str(value)


def compose(text: str, name: str) -> yaml.Node | None:
    """The nodes of one YAML document, None for an empty one. Raises UsageError with line and column."""
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        problem = error.problem or "cannot be parsed"
        plain = problem.replace("<block end>", "the end of the block").replace("<block mapping start>", "a mapping")
        plain = next((words for mark, words in _PLAIN_WORDS.items() if mark in problem), plain)
        raise _not_yaml(where, f"not valid YAML: {plain}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _not_yaml(f"{name}:{line}", f"unprintable character U+{error.character:04X}") from error
    except RecursionError as error:
        raise _not_yaml(name, "nested too deeply") from error


def _not_yaml(where: str, why: str) -> UsageError:
    return UsageError(f"{where}: {why}", code="yaml-invalid")


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.style is None and node.value in _NULLS


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


class _Reader:
    """Turns nodes into values and notes the line of each key."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: dict[KeyPath, int] = {}
        self._left = MAX_NODES

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self._left -= 1
        if len(path) > MAX_DEPTH or self._left < 0:
            raise self._wrong(node, "nested too deeply or too large")
        prefix, _, kind = str(node.tag).rpartition(":")
        if prefix != "tag:yaml.org,2002" or kind not in _TAGS:
            raise self._wrong(node, f"unsupported tag `{node.tag}`; plain values only")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            self.lines |= {(*path, number): _line(item) for number, item in enumerate(node.value)}
            return [self.value(item, (*path, number)) for number, item in enumerate(node.value)]
        if _is_null(node):
            return None
        assert isinstance(node, yaml.ScalarNode)
        return Written(node.value) if node.style is None else str(node.value)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._wrong(key_node, "expected text as a key, got a list or mapping")
            key = str(key_node.value)
            at = (*path, key)
            if key in values:
                raise self._wrong(key_node, f"{dotted(at)}duplicate key (first in line {self.lines[at]})")
            self.lines[at] = _line(key_node)
            values[key] = self.value(value_node, at)
        return values

    def _wrong(self, node: yaml.Node, why: str) -> UsageError:
        return _not_yaml(f"{self.name}:{_line(node)}", why)


class Strict(BaseModel):
    """A frozen model that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _leave_out_empty(cls, data: Any) -> Any:
        """`key:` with nothing behind it is `key` left out."""
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data


def validate(model: type[M], document: Document) -> M:
    """The model made of a document. Raises UsageError with a line for each problem, a few at most; its code is that
    of the first: `unknown-key`, `key-missing` or `value-invalid`.
    """
    try:
        return model.model_validate(document.values)
    except ValidationError as error:
        problems = [_problem(model, row) for row in error.errors(include_url=False)]
    problems.sort(key=lambda problem: document.place_of(problem[0]))
    lines = [f"{document.where(path)}: {message}" for path, _, message in problems]
    if len(lines) > SHOWN:
        lines = [*lines[:SHOWN], f"… and {len(lines) - SHOWN} more"]
    raise UsageError("\n".join(lines), code=problems[0][1])


def dotted(path: KeyPath) -> str:
    """For the front of a message; empty for the complete file."""
    return ".".join(map(str, path)) + ": " if path else ""


def _problem(model: type[BaseModel], row: Mapping[str, Any]) -> tuple[KeyPath, str, str]:
    """Keys that lead to a problem (a validator may have named one below what it was given), code, and message."""
    kind, place = row["type"], _place_at(model, row["loc"])
    path: KeyPath = tuple(part for part in row["loc"] if part != "[key]")
    description = f" ({place.description})" if place.description else ""
    if kind == "extra_forbidden":
        above, _ = _bare(_place_at(model, row["loc"][:-1]).annotation)
        known = list(above.model_fields) if _is_model(above) else []
        hint = did_you_mean(str(path[-1]), known) or f"known keys: {', '.join(known)}"
        return path, "unknown-key", f"{dotted(path[:-1])}unknown key `{path[-1]}`; {hint}"
    if kind == "missing":
        return path, "key-missing", f"{dotted(path[:-1])}missing key `{path[-1]}`{description}"
    if kind == "wrong_at":
        path = (*path, *row["ctx"]["at"])
        return path, "value-invalid", dotted(path) + row["msg"]
    if kind == "value_error":
        return path, "value-invalid", dotted(path) + row["msg"].partition(", ")[2]
    wanted = _kind(place.annotation, place.constraints)
    return path, "value-invalid", f"{dotted(path)}expected {wanted}, got {show(row['input'])}{description}"


def show(value: Any) -> str:
    """A value for a message: text in backquotes on one line and cut, mappings and lists by what they are."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "an empty list" if not value else "a list"
    flat = " ".join(str(value).split())
    return "nothing" if value is None else f"`{flat if len(flat) <= 40 else flat[:39] + '…'}`"


def wrong_at(key: str | tuple[str, ...], message: str) -> PydanticCustomError:
    """An error of a validator about one key below the value it was given."""
    at = (key,) if isinstance(key, str) else key
    return PydanticCustomError("wrong_at", "{message}", {"message": message, "at": at})


def check_env_name(name: str) -> str:
    """The name of an environment variable. Raises ValueError."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"expected the name of an environment variable (letters, digits and _), got `{name}`")
    return name


def form(pattern: str, wanted: str, flags: re.RegexFlag = re.ASCII) -> AfterValidator:
    """Text of one form, a regular expression; `wanted` says it in words, for the message."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text, flags):
            raise ValueError(f"expected {wanted}, got `{text}`")
        return text

    return AfterValidator(check)


def _check_env(env: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in env.items():
        check_env_name(name)
        if "\x00" in value:
            raise wrong_at(name, "contains a NUL character")
        if is_secret(name, value):
            raise wrong_at(name, f"{LOOKS_SECRET} {name}")
    return env


LOOKS_SECRET = "looks like a secret, which is not allowed in a file; give it with -e"
Count = Annotated[int, Field(ge=1)]
Environment = Annotated[dict[str, str], AfterValidator(_check_env)]
RemotePath = Annotated[str, form(r"(~|~?/.*)?", "a path on the host that starts with / or ~/", re.DOTALL)]
Word = Annotated[str, form(r"(?!-)[^\s\x00]*", "one word without blanks and without a dash in front", re.UNICODE)]


@dataclass(frozen=True, slots=True)
class Key:
    """One key: its dotted path (NAME stands for a name of yours, [] for an item), type, default, description."""

    path: str
    kind: str
    default: str
    required: bool
    description: str


class _Place(NamedTuple):
    """A type with its constraints, and the description of the key it belongs to."""

    annotation: Any
    constraints: Sequence[Any] = ()
    description: str = ""


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[Key]:
    """Every key of a model, depth first, in the order it is declared."""
    for name, info in model.model_fields.items():
        path, value = f"{prefix}{name}", info.get_default()
        is_empty = info.is_required() or isinstance(value, BaseModel) or value in (None, "", [], {})
        kind = _kind(info.annotation, info.metadata)
        yield Key(path, kind, "" if is_empty else str(value), info.is_required(), info.description or "")
        inner, mark = _inner_model(info.annotation)
        if inner:
            yield from keys(inner, f"{path}{mark}.")


def _place_at(model: type[BaseModel], path: KeyPath) -> _Place:
    """What stands at a path of keys, names and list positions; `[key]` at its end means the name itself."""
    place = _Place(model)
    for part, following in zip(path, (*path, "")[1:], strict=True):
        annotation, _ = _bare(place.annotation)
        args = get_args(annotation)
        if _is_model(annotation) and part in annotation.model_fields:
            info = annotation.model_fields[str(part)]
            place = _Place(info.annotation, info.metadata, info.description or "")
        elif get_origin(annotation) in (dict, list):
            place = _Place(args[-1 if following != "[key]" else 0], (), place.description)
    return place


def annotated(value: BaseModel, width: int = 110) -> str:
    """A model as YAML, each key under its description; keys that hold their default say so. Loads again as it is."""
    blocks = []
    for name, info in type(value).model_fields.items():
        given = value.model_dump(mode="json", include={name}, exclude_none=True)
        note = (info.description or "") + ("" if name in value.model_fields_set else " (default)")
        comment = "\n".join(f"# {line}" for line in textwrap.wrap(note, width - 2))
        body = yaml.safe_dump(given, sort_keys=False, allow_unicode=True, width=width).rstrip() if given else f"{name}:"
        blocks.append(f"{comment}\n{body}")
    return "\n\n".join(blocks) + "\n"


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _inner_model(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """The model inside a mapping or list, and how its place is written in a dotted path."""
    annotation, _ = _bare(annotation)
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is dict:
        return _inner_model(args[1])[0], f".{NAME}"
    if origin is list:
        return _inner_model(args[0])[0], ITEM
    return (annotation, "") if _is_model(annotation) else (None, "")


def _bare(annotation: Any, metadata: Sequence[Any] = ()) -> tuple[Any, Sequence[Any]]:
    """A type without Annotated and without `| None`, and its constraints (of Field(…) one level deeper)."""
    while True:
        if hasattr(annotation, "__metadata__"):
            metadata = [
                inner
                for outer in annotation.__metadata__
                for inner in (outer.metadata if isinstance(outer, FieldInfo) else [outer])
            ]
            annotation = annotation.__origin__
        elif get_origin(annotation) in (Union, types.UnionType):
            annotation = next(arg for arg in get_args(annotation) if arg is not types.NoneType)
        else:
            return annotation, metadata


def _kind(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """A type in words: `a whole number from 0 to 65535`."""
    annotation, metadata = _bare(annotation, metadata)
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in args)
    if origin is dict:
        names = "names" if _bare(args[0])[0] is str else "whole numbers"
        return f"a mapping of {names} to {_many(args[1])}"
    if origin is list:
        return f"a list of {_many(args[0])}"
    if _is_model(annotation):
        return f"a mapping with {', '.join(annotation.model_fields)}"
    words = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
    return words.get(annotation, "any value") + _range(metadata)


def _many(annotation: Any) -> str:
    plural = re.sub(r"^a (whole number|number|mapping|list)", r"\1s", _kind(annotation))
    return plural.replace("any value", "values")


def _range(metadata: Sequence[Any]) -> str:
    bounds = {name: getattr(item, name) for item in metadata for name in ("ge", "gt", "le") if hasattr(item, name)}
    if "ge" in bounds:
        return f" from {bounds['ge']} to {bounds['le']}" if "le" in bounds else f", {bounds['ge']} or more"
    return f" above {bounds['gt']}" if "gt" in bounds else ""
