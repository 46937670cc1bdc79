"""YAML as it was written: scalars stay text until a model says what they are; what all models of user files share."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from cluster.config.redact import is_secret
from cluster.errors import UsageError

KeyPath = tuple[str | int, ...]

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_NODES = 50_000

_TAGS = ("str", "int", "float", "bool", "null", "map", "seq", "timestamp", "merge", "value")
_NULLS = ("", "~", "null", "Null", "NULL")
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SWITCH = re.compile(r"(yes|no|on|off)", re.IGNORECASE)


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
    try:
        data = path.read_bytes() if path.is_file() or not path.exists() else None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    if data is None:
        kind = "a directory" if path.is_dir() else "not a plain file"
        raise UsageError(f"{path}: is {kind}; a YAML file is wanted")
    if len(data) > MAX_BYTES:
        raise UsageError(f"{path}: is {len(data)} bytes long; a YAML file of at most {MAX_BYTES} is wanted")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: is not UTF-8 text (byte 0x{data[error.start]:02x})") from error


def parse_document(text: str, name: str) -> Document:
    """Read one YAML mapping from text; `name` stands in messages. Raises UsageError."""
    node = compose(text, name)
    if node is None or (_is_null(node)):
        raise UsageError(f"{name}: is empty; a mapping of keys to values is wanted")
    reader = _Reader(name)
    values = reader.value(node, ())
    if not isinstance(values, dict):
        found = "a list" if isinstance(values, list) else f"`{shorten(str(values))}`"
        raise UsageError(f"{name}:{_line(node)}: found {found}; a mapping of keys to values is wanted")
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
        raise ValueError(f"found `{value}`, which may mean text or a switch: write true or false, or use quotes")
    if value in ("true", "True", "TRUE", "false", "False", "FALSE"):
        return value.lower() == "true"
    if _INT.fullmatch(value):
        return int(value)
    return float(value) if _FLOAT.fullmatch(value) else str(value)


def shorten(text: str, limit: int = 40) -> str:
    """Text on one line, cut to `limit` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def compose(text: str, name: str) -> yaml.Node | None:
    """The nodes of one YAML document, None for an empty one. Raises UsageError with line and column."""
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        raise UsageError(f"{where}: is not YAML: {_plain_words(error)}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UsageError(f"{name}:{line}: is not text: character U+{error.character:04X}") from error
    except RecursionError as error:
        raise UsageError(f"{name}: is nested too deeply") from error


def _plain_words(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or "cannot be read"
    if "'\\t'" in problem:
        return "found a tab; YAML is indented with spaces"
    if "but found another document" in problem:
        return "found a second document (`---`); one is wanted"
    if "mapping values are not allowed" in problem:
        return "found a `:` where no key can stand (wrong indentation, or text that needs quotes)"
    return problem.replace("<block end>", "the end of the block").replace("<block mapping start>", "a mapping")


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
            raise UsageError(f"{self.name}:{_line(node)}: is nested too deeply or too large")
        self._refuse_tag(node)
        if isinstance(node, yaml.MappingNode):
            return dict(self._pairs(node, path))
        if isinstance(node, yaml.SequenceNode):
            return [self._item(item, (*path, number)) for number, item in enumerate(node.value)]
        if _is_null(node):
            return None
        assert isinstance(node, yaml.ScalarNode)
        return Written(node.value) if node.style is None else str(node.value)

    def _item(self, node: yaml.Node, path: KeyPath) -> Any:
        self.lines[path] = _line(node)
        return self.value(node, path)

    def _pairs(self, node: yaml.MappingNode, path: KeyPath) -> Iterator[tuple[str, Any]]:
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise UsageError(f"{self.name}:{_line(key_node)}: a key must be text, found a list or mapping")
            key = str(key_node.value)
            if key in seen:
                dotted = ".".join(map(str, (*path, key)))
                raise UsageError(f"{self.name}:{_line(key_node)}: {dotted} is there twice (first in line {seen[key]})")
            seen[key] = _line(key_node)
            self.lines[(*path, key)] = seen[key]
            yield key, self.value(value_node, (*path, key))

    def _refuse_tag(self, node: yaml.Node) -> None:
        prefix, _, kind = str(node.tag).rpartition(":")
        if prefix != "tag:yaml.org,2002" or kind not in _TAGS:
            raise UsageError(f"{self.name}:{_line(node)}: found the tag `{node.tag}`; plain values are wanted")


_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Strict(BaseModel):
    """A frozen model that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _leave_out_empty(cls, data: Any) -> Any:
        """`key:` with nothing behind it is `key` left out."""
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data


def wrong_at(key: str | tuple[str, ...], message: str) -> PydanticCustomError:
    """An error of a validator about one key below the value it was given."""
    return PydanticCustomError(
        "wrong_at", "{message}", {"message": message, "at": (key,) if isinstance(key, str) else key}
    )


def check_env_name(name: str) -> str:
    """The name of an environment variable. Raises ValueError."""
    if not _ENV_NAME.fullmatch(name):
        raise ValueError(f"`{name}` is no name of an environment variable (letters, digits and _)")
    return name


def check_word(text: str) -> str:
    """Text that stands as one word in a command: no blanks, no dash in front. Raises ValueError."""
    if text.startswith("-") or re.search(r"\s|\x00", text):
        raise ValueError(f"found `{text}`; one word without blanks and without a dash in front is wanted")
    return text


def _check_env(env: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in env.items():
        check_env_name(name)
        if "\x00" in value:
            raise wrong_at(name, "holds a NUL character")
        if is_secret(name, value):
            raise wrong_at(name, f"looks like a secret, which no file here may hold; give it with -e {name}")
    return env


def _check_remote_path(text: str) -> str:
    if text and not re.match(r"/|~/|~$", text):
        raise ValueError(f"found `{text}`; a path on the host that starts with / or ~/ is wanted")
    return text


Count = Annotated[int, Field(ge=1)]
Environment = Annotated[dict[str, str], AfterValidator(_check_env)]
RemotePath = Annotated[str, AfterValidator(_check_remote_path)]
Word = Annotated[str, AfterValidator(check_word)]
