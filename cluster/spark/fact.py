"""How every fact is read: the answer's own failure first, then its JSON, then its shape.

A far program prints a line `{"<section>": {"value": …} | {"missing": why, "kind": kind}}` for each thing it reads, so
that one that cannot be read, or hangs, does not hide the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

import orjson
from pydantic import TypeAdapter, ValidationError

if TYPE_CHECKING:
    from cluster.argv.question import Answer, Question
    from cluster.spark.finding import Finding
    from cluster.spark.look import Seen


Kind = Literal["absent", "refused", "timeout", "unreadable"]


@dataclass(frozen=True, slots=True)
class Missing:
    """A fact that could not be read, with the reason; never a pass and never a fault.

    absent: the thing or its tool is not there. refused: no permission. timeout: the question hung.
    unreadable: an answer came that cannot be understood.
    """

    why: str
    kind: Kind = "unreadable"


X = TypeVar("X")
NOT_ASKED = Missing("not asked", "absent")


@dataclass(frozen=True, slots=True)
class Fact(Generic[X]):
    """A fact that only checks need: its own question, its reader, and what it makes of one host.

    A constant of its subject's file, where `look` finds it. Nothing else has to name it; `seen.of(FACT)` is what was
    read. A healthy answer, and others with what is found, are in `tests/samples/facts/<name>.yaml`.
    """

    name: str
    question: Callable[[], Question]
    parse: Callable[[Answer], X | Missing]
    check: Callable[[Seen], Iterable[Finding]] = lambda seen: ()


_adapter: Any = cache(TypeAdapter)
WHY_LENGTH = 400
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.?)", re.DOTALL)
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def known(fact: X | Missing) -> X | None:
    """The fact; None where it could not be read."""
    return None if isinstance(fact, Missing) else fact


def plain(text: str) -> str:
    """Text without terminal codes and control characters (tab and newline stay)."""
    return CONTROL.sub("", _ANSI.sub("", text))


def last_words(answer: Answer) -> str:
    """Why a program failed: its error text, else its output, as one line of bounded length."""
    ends = (plain(data[-65536:].decode("utf-8", "replace")).split() for data in (answer.err, answer.out))
    return " ".join(next(filter(None, ends), []))[:WHY_LENGTH]


def refuse(answer: Answer, program: str) -> Missing | None:
    """Why an answer cannot be read at all, or None: deadline, not found, not executable, output thrown away."""
    if answer.exit is None:
        return Missing(f"{program} did not answer in time", "timeout")
    if answer.exit == 127:
        return Missing(f"{program}: not found on the PATH of a non-login shell", "absent")
    if answer.exit == 126:
        return Missing(f"{program}: may not be run by this user", "refused")
    if answer.cut:
        return Missing(f"{program} printed more than can be read")
    return None


def load_json(data: bytes | str) -> Any:
    """The JSON value with terminal codes taken out of its strings; raises ValueError."""
    return _clean(orjson.loads(data))


def find_section(answer: Answer, name: str) -> Any:
    """One section of a far program's answer as it is, None without one."""
    for line in answer.out.splitlines():
        with suppress(ValueError):
            document = load_json(line)
            if isinstance(document, dict) and name in document:
                return document[name]
    return None


def read_section(answer: Answer, name: str, shape: type[X]) -> X | Missing:
    """One section of a far program's answer as a value of `shape` (a dataclass, or a type of JSON). A section that was
    printed counts, whatever happened to the program afterwards."""
    section, unknown = find_section(answer, name), f"{name}: no answer that can be understood"
    if section is None:
        words = last_words(answer)
        return refuse(answer, "python3") or Missing(f"{unknown}: {words}" if words else unknown)
    try:
        if "missing" in section:
            return as_shape({"why": section["missing"], "kind": section["kind"]}, name, Missing)
        return as_shape(section["value"], name, shape)
    except (KeyError, TypeError):
        return Missing(unknown)


def as_shape(value: Any, name: str, shape: type[X]) -> X | Missing:
    """A JSON value as a value of `shape`, nothing converted; `name` is in the reason when it does not fit."""
    try:
        return cast(X, _adapter(shape).validate_json(orjson.dumps(value), strict=True))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return Missing(f"{name}: {'.'.join(str(part) for part in first['loc'])}: {first['msg']}")
    except TypeError:
        return Missing(f"{name}: no answer that can be understood")


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {plain(key): _clean(item) for key, item in value.items()}
    return value
