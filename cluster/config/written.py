"""YAML as it was written, one document laid over another (`extends`, `--set`), and how it becomes a model.

Every error names file, line and key. Scalars stay text until a model gives them a type. The keys of the models are
described in words here, for messages, for `recipes show` and for the generated docs.
"""

from __future__ import annotations

import os
import re
import textwrap
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from cluster.config.find import did_you_mean
from cluster.config.secrets import is_secret
from cluster.errors import UsageError

KeyPath = tuple[str | int, ...]
M = TypeVar("M", bound=BaseModel)

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_NODES = 50_000
SHOWN = 4  # Problems of one file that are shown; more are counted
NAME, ITEM = "NAME", "[]"

_TAG = re.compile(r"tag:yaml\.org,2002:\w+")
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
    """One mapping: `values` holds dict, list, str, Written and None; `root`, its nodes, know file and line of each.

    `name` is the file of what no text holds.
    """

    name: str
    values: dict[str, Any]
    root: Any = None

    def place_of(self, path: KeyPath) -> tuple[str, int]:
        """File and line of the key, or of the nearest key above it that a text holds; line 0 when none does."""
        place, node = (self.name, 0), self.root
        for part in path:
            if isinstance(node, yaml.MappingNode):
                found = next(((key, value) for key, value in node.value if key.value == part), None)
            else:
                found = (
                    (node.value[part],) * 2 if isinstance(node, yaml.SequenceNode) and isinstance(part, int) else None
                )
            if found is None:
                break
            key, node = found
            place = (key.start_mark.name, _line(key))
        return place

    def where(self, path: KeyPath) -> str:
        file, line = self.place_of(path)
        return f"{file}:{line}" if line else file


def read_document(path: Path) -> Document:
    return parse_document(read_text(path), str(path))


def read_text(path: Path) -> str:
    """Text of a file, without a byte-order mark. Raises UsageError."""
    place = str(path)
    try:
        # a pipe that nobody writes to is empty at once, instead of never
        with open(path, "rb", opener=lambda name, how: os.open(name, how | os.O_NONBLOCK)) as file:
            os.set_blocking(file.fileno(), True)
            data = file.read(MAX_BYTES + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        why = f"cannot be read: {error.strerror or error}"
    except UnicodeDecodeError as error:
        place, why = f"{path}:{data.count(10, 0, error.start) + 1}", f"not UTF-8 text (byte 0x{data[error.start]:02x})"
    else:
        if len(data) <= MAX_BYTES:
            return text
        why = f"expected a YAML file of at most {MAX_BYTES} bytes"
    raise UsageError(f"{place}: {why}", code="file-unreadable")


def parse_document(text: str, name: str) -> Document:
    """Read one YAML mapping from text; `name` is for messages. Raises UsageError."""
    root = compose(text, name)
    if root is None or is_null(root):
        raise _not_yaml(name, "expected a mapping of keys to values, got nothing")
    return document_of(root, name)


def document_of(root: yaml.Node, name: str) -> Document:
    values = value_of(root)
    if not isinstance(values, dict):
        found = "a list" if isinstance(values, list) else show(values)
        raise _wrong(root, f"expected a mapping of keys to values, got {found}")
    return Document(name, values, root)


def parse_value(text: str, name: str) -> Any:
    node = compose(text, name)
    return None if node is None else value_of(node)


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
        loader = yaml.SafeLoader(text)
        loader.name = name  # of the marks
        return loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        problem = error.problem or "cannot be parsed"
        plain = next((words for mark, words in _PLAIN_WORDS.items() if mark in problem), problem)
        raise _not_yaml(where, f"not valid YAML: {plain}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _not_yaml(f"{name}:{line}", f"unprintable character U+{error.character:04X}") from error
    except RecursionError as error:
        raise _not_yaml(name, "nested too deeply") from error


def value_of(root: yaml.Node) -> Any:
    """The value of a node. Names of keys get Unicode's composed form, so that two ways to type `ä` are one name.

    Raises UsageError: duplicate key, a tag of another kind, too deep or too large.
    """
    nodes = iter(range(MAX_NODES))

    def read(node: yaml.Node, path: KeyPath) -> Any:
        if len(path) > MAX_DEPTH or next(nodes, None) is None:
            raise _wrong(node, "nested too deeply or too large")
        if not _TAG.fullmatch(node.tag):
            raise _wrong(node, f"unsupported tag `{node.tag}`; plain values only")
        if isinstance(node, yaml.SequenceNode):
            return [read(item, (*path, number)) for number, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return None if is_null(node) else Written(node.value) if node.style is None else str(node.value)
        values: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _wrong(key, "expected text as a key, got a list or mapping")
            name = key.value = unicodedata.normalize("NFC", key.value)
            if name in values:
                raise _wrong(key, f"{dotted((*path, name))}duplicate key (first in line {lines[name]})")
            values[name], lines[name] = read(value, (*path, name)), _line(key)
        return values

    return read(root, ())


def merge(under: yaml.Node, over: yaml.Node, *, folds: bool = False) -> yaml.Node:
    """One mapping over another: scalars and lists replace, mappings merge, a key without a value is removed.

    Each key keeps its file and line. `folds`: names with - and with _ are the same, as vLLM has it.
    """

    def fold(key: yaml.Node) -> str:
        return str(key.value).replace("_", "-") if folds else str(key.value)

    pairs = {fold(key): (key, value) for key, value in under.value}
    for key, value in over.value:
        name = fold(key)
        below = pairs[name][1] if name in pairs else None
        if below is not None and is_null(value):
            del pairs[name]
        elif isinstance(below, yaml.MappingNode) and isinstance(value, yaml.MappingNode):
            pairs[name] = (key, merge(below, value, folds=name == "vllm"))
        else:
            pairs[name] = (key, value)
    return yaml.MappingNode(over.tag, list(pairs.values()), over.start_mark, over.end_mark)


def _not_yaml(where: str, why: str) -> UsageError:
    return UsageError(f"{where}: {why}", code="yaml-invalid")


def _wrong(node: yaml.Node, why: str) -> UsageError:
    return _not_yaml(f"{node.start_mark.name}:{_line(node)}", why)


def is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.style is None and node.value in _NULLS


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


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
    kind, (place, about, defs) = row["type"], _schema_at(model, row["loc"])
    path: KeyPath = tuple(part for part in row["loc"] if part != "[key]")
    description = f" ({about})" if about else ""
    if kind == "extra_forbidden":
        known = list(_schema_at(model, row["loc"][:-1])[0].get("properties", ()))
        hint = did_you_mean(str(path[-1]), known) or f"known keys: {', '.join(known)}"
        return path, "unknown-key", f"{dotted(path[:-1])}unknown key `{path[-1]}`; {hint}"
    if kind == "missing":
        return path, "key-missing", f"{dotted(path[:-1])}missing key `{path[-1]}`{description}"
    if kind == "wrong_at":
        path = (*path, *row["ctx"]["at"])
        return path, "value-invalid", dotted(path) + row["msg"]
    if kind == "value_error":
        return path, "value-invalid", dotted(path) + row["msg"].partition(", ")[2]
    wanted = f"expected {_kind(place, defs)}, got {show(row['input'])}"
    return path, "value-invalid", f"{dotted(path)}{wanted}{description}"


def show(value: Any) -> str:
    """A value for a message: text in backquotes on one line and cut, mappings and lists by what they are."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "an empty list" if not value else "a list"
    flat = " ".join(str(value).split())
    return "nothing" if value is None else f"`{flat if len(flat) <= 40 else flat[:39] + '…'}`"


Decides = Literal["deployment", "series", "nothing"]


def key(about: str, default: Any = ..., *, decides: Decides = "deployment", **limits: Any) -> Any:
    """A key of a model: what it is, its default (without one it is required), its limits.

    `decides`: another value makes another deployment (and so another series of measurements), another series only, or
    nothing else.
    """
    marks = {**limits.pop("json_schema_extra", {}), "decides": decides}
    return Field(default, description=about, json_schema_extra=marks, **limits)


@cache
def deciding(model: type[BaseModel], decides: Decides) -> set[str]:
    """The keys of a model that are marked so."""
    return {name for name, one in model.model_json_schema()["properties"].items() if one["decides"] == decides}


def wrong_at(place: str | tuple[str, ...], message: str) -> PydanticCustomError:
    """An error of a validator about one key below the value it was given."""
    at = (place,) if isinstance(place, str) else place
    return PydanticCustomError("wrong_at", "{message}", {"message": message, "at": at})


def check_env_name(name: str) -> str:
    """The name of an environment variable. Raises ValueError."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"expected the name of an environment variable (letters, digits and _), got `{name}`")
    return name


def form(pattern: str, wanted: str, flags: re.RegexFlag = re.ASCII) -> AfterValidator:
    """Text of one form, a regular expression; `wanted` is the same in words, for the message."""

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


Schema = dict[str, Any]
"""A JSON schema, as pydantic makes it of a model."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key: its dotted path (NAME stands for a name of yours, [] for an item), type, default, description."""

    path: str
    kind: str
    default: str
    required: bool
    description: str


def keys(model: type[BaseModel]) -> Iterator[Key]:
    schema = model.model_json_schema()
    yield from _keys(schema, schema.get("$defs", {}), "")


def _keys(schema: Schema, defs: Schema, prefix: str) -> Iterator[Key]:
    for name, one in schema["properties"].items():
        path, value, about = f"{prefix}{name}", one.get("default"), one.get("description", "")
        default = "" if isinstance(value, dict) or value in (None, "", []) else str(value)
        yield Key(path, _kind(one, defs), default, name in schema.get("required", ()), about)
        inner, mark = _bare(one, defs), ""
        while "properties" not in inner and (below := inner.get("items") or inner.get("additionalProperties")):
            mark = mark or (ITEM if "items" in inner else f".{NAME}")
            inner = _bare(below, defs)
        if "properties" in inner:
            yield from _keys(inner, defs, f"{path}{mark}.")


def _schema_at(model: type[BaseModel], path: KeyPath) -> tuple[Schema, str, Schema]:
    """The schema of what stands at a path of keys, names and list positions, the description of its key, and the
    definitions it refers to. `[key]` at the end means the name itself.
    """
    schema = model.model_json_schema()
    defs, about = schema.get("$defs", {}), ""
    for part, following in zip(path, (*path, "")[1:], strict=True):
        values = "propertyNames" if following == "[key]" else "additionalProperties"
        if part in schema.get("properties", ()):
            schema = schema["properties"][part]
            about = schema.get("description", "")
        else:
            schema = schema.get("items") or schema.get(values) or schema
        schema = _bare(schema, defs)
    return schema, about, defs


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


def _bare(schema: Schema, defs: Schema) -> Schema:
    while "$ref" in schema or "anyOf" in schema:
        schema = defs[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema["anyOf"][0]
    return schema


def _kind(schema: Schema, defs: Schema) -> str:
    schema = _bare(schema, defs)
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "properties" in schema:
        return f"a mapping with {', '.join(schema['properties'])}"
    if inner := schema.get("items") or schema.get("additionalProperties"):
        names = "whole numbers" if "propertyNames" in schema else "names"
        many = re.sub(r"^a(ny)? (whole number|number|mapping|list|value)", r"\2s", _kind(inner, defs))
        return f"a list of {many}" if "items" in schema else f"a mapping of {names} to {many}"
    words = {"string": "text", "integer": "a whole number", "number": "a number", "boolean": "true or false"}
    kind = words.get(schema.get("type", ""), "any value")
    if "maximum" in schema:
        return f"{kind} from {schema['minimum']} to {schema['maximum']}"
    if "minimum" in schema:
        return f"{kind}, {schema['minimum']} or more"
    return f"{kind} above {schema['exclusiveMinimum']}" if "exclusiveMinimum" in schema else kind
