"""Shell scripts and `vllm serve` lines of other people, read by words: nothing is expanded, and nothing is run."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cluster.config.written import MAX_BYTES, Written, resolve

OPEN = re.compile(r"[$`]|\{\w+\}|<[a-z]+-[\w-]*>")
"""What a shell, a program or a user fills in."""
SHORT = {"tp": "tensor-parallel-size", "pp": "pipeline-parallel-size", "dp": "data-parallel-size", "n": "nnodes"}
SHORT |= {"r": "node-rank", "q": "quantization", "ep": "enable-expert-parallel", "dcp": "decode-context-parallel-size"}
SHORT |= {"cc": "compilation-config", "sc": "speculative-config", "ac": "attention-config", "O": "optimization-level"}
_COMMENT = re.compile(r"""('[^']*'|"(?:\\.|[^"\\])*"|\\.)|(?<!\S)#[^\n]*""", re.DOTALL)


def fill(template: str, values: Mapping[str, Any]) -> tuple[str, set[str]]:
    """A template with `{name}` replaced, and the names that were; unknown ones stay. A value may name another one.
    Where the template has `{{`, as Python's format needs it for a brace, braces are doubled throughout."""
    named: set[str] = set()
    room = MAX_BYTES

    def put(found: re.Match[str]) -> str:
        nonlocal room
        if found[0] in ("{{", "}}"):
            return found[0][:1]
        value = values.get(found[1])
        if not isinstance(value, str) or len(value) > room:
            return found[0]
        room -= len(value)
        named.add(found[1])
        return value

    pattern = r"\{\{|\}\}|\{(\w+)\}" if "{{" in template else r"\{(\w+)\}"
    text = re.sub(pattern, put, template)
    return re.sub(r"\{(\w+)\}", put, text), named


def commands(script: str) -> list[list[str]]:
    """The commands of a script as lists of words. Raises ValueError for a quote without its end."""
    joined = _COMMENT.sub(lambda found: found[1] or "", re.sub(r"\\[ \t]*\n", " ", script))
    lexer = shlex.shlex(joined, posix=True, punctuation_chars="\n;&|")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    found: list[list[str]] = [[]]
    for word in lexer:
        if re.fullmatch(r"[\n;&|]+", word):
            found.append([])
        else:
            found[-1].append(word)
    return [words for words in found if words]


def flags(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Flags by their long names without dashes, each with the words that follow it; first, under no name, the words
    before all flags."""
    name, values = "", list[str]()
    for word in words:
        if not re.match(r"--?[A-Za-z]", word):
            values.append(word)
            continue
        yield name, values
        given, sign, value = word.lstrip("-").partition("=")
        values = [value] if sign else []
        if not word.startswith("--"):
            level = re.fullmatch(r"O(\d)", given)  # -O3
            given, values = ("O", [level[1]]) if level else (given, values)
            head, dot, tail = given.partition(".")
            given = SHORT.get(head, head) + dot + tail
        name = given
    yield name, values


def value_of(words: Sequence[str], *, nested: bool = False) -> Any:
    """What a flag with these words behind it has as its value: true for none, numbers and JSON objects for such words;
    any JSON where it is `nested` in an object (`--compilation-config.mode 0`)."""
    if len(words) != 1:
        return [value_of([word]) for word in words] or True
    [word] = words
    if nested or word.startswith("{"):
        try:
            return json.loads(word)
        except ValueError:
            return word
    try:
        value = resolve(Written(word))
    except ValueError:
        return word
    return word if isinstance(value, bool) else value
