"""`--vary KEY=A,B,C`: which recipe keys a sweep varies, and through which values. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from cluster.config.written import compose
from cluster.errors import UsageError

SIZES = ("tp", "pp", "backend")
"""Not recipe keys (or more than that): options of `up` that can be varied as well."""


@dataclass(frozen=True, slots=True)
class Vary:
    """One key and its values, each as it was written (YAML)."""

    key: str
    values: tuple[str, ...]


def parse_vary(words: Sequence[str]) -> tuple[Vary, ...]:
    """Read `--vary` words. Raises UsageError: no value, a value twice, a key twice."""
    found = tuple(map(_parse, words))
    keys = [one.key for one in found]
    for key in keys:
        if keys.count(key) > 1:
            raise UsageError(f"--vary {key}: is given twice", remedy=f"one --vary {key}=A,B,C with all values")
    return found


def _parse(word: str) -> Vary:
    key, sign, text = word.partition("=")
    key = key.strip()
    node = compose(f"[{text}]", f"--vary {key}") if sign and key else None
    if not isinstance(node, yaml.SequenceNode) or not node.value:
        raise UsageError(f"--vary {word}: KEY=A,B,C is wanted", remedy="e.g. --vary vllm.max-num-seqs=4,8,16")
    whole = f"[{text}]"
    values = [whole[item.start_mark.index : item.end_mark.index].strip() for item in node.value]
    for value in values:
        if values.count(value) > 1:
            raise UsageError(f"--vary {key}: the value {value} is given twice")
    for value in values if key in ("tp", "pp") else ():
        if not value.isdigit() or int(value) < 1:
            raise UsageError(f"--vary {key}: found {value}, wanted a number of 1 or more")
    if key == "backend" and not set(values) <= {"ray", "mp"}:
        raise UsageError(f"--vary backend: found {', '.join(values)}, wanted ray or mp")
    return Vary(key, tuple(values))


def combinations(varied: Sequence[Vary]) -> list[dict[str, str]]:
    """Every combination, the last key varying fastest."""
    keys = [one.key for one in varied]
    return [dict(zip(keys, values, strict=True)) for values in itertools.product(*(one.values for one in varied))]


def short_key(key: str) -> str:
    """The last part of a dotted key: what a table's header has room for."""
    return key.rpartition(".")[2]


def label_of(values: dict[str, str]) -> str:
    """`num_speculative_tokens=4 backend=ray`."""
    return " ".join(f"{short_key(key)}={value}" for key, value in values.items())
