"""Rules: one cause each, and the wording family that tells it. They are data, `rules/*.yaml`; no rule language.

A file is a list of mappings with the fields of `Rule`; `match` is a pattern or a list of alternatives, `level` is
`fault` where it is left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import yaml

from cluster.spark.finding import Level

Moment = Literal["", "started", "joined", "placed", "ready", "alive"]
"""What a text reaches: the engine is started, this node is part of Ray, ranks are placed, the server is ready, it
answers requests."""

SHORTEST = 4
"""Letters that a line must have for a pattern to be tried on it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One cause and the wording family that tells it; the first rule in order that matches a line has it.

    `pattern` ignores case; its named groups may stand in `cause` and `remedy` as `{name}`; it is empty where a
    condition in Python decides (outputs, pairs). `level`: how bad it is, `normal` for a notice that looks bad and is
    not; `unknown` for a line that says only that something else failed. `page`: the stem of a file in docs/runbooks,
    with `#anchor` where one section is meant. `explains`: ids of findings that are there because of this one.
    `secondary`: a consequence whatever the cause is, named only when nothing else is found. `slow`: serving goes on,
    so it does not explain why something ended. `until`: harmless when the text later reaches this moment.
    `own`: the remedy where `cluster` started the ranks, which already have the devices, limits, addresses and variables
    that `remedy` speaks of.
    """

    id: str
    level: Level | Literal["normal"]
    pattern: str
    cause: str
    remedy: str = ""
    source: str = ""
    page: str = ""
    explains: frozenset[str] = frozenset()
    secondary: bool = False
    slow: bool = False
    until: Moment = ""
    own: str | None = None

    def search(self, line: str) -> re.Match[str] | None:
        """Where the pattern is in a line."""
        return compiled(self.pattern).search(line)

    @property
    def runbook(self) -> str:
        """The page to read; none for what needs nothing done."""
        return "" if self.level in ("normal", "note") else self.page


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """The pattern, once."""
    return re.compile(pattern, re.IGNORECASE)


@cache
def literals(pattern: str) -> tuple[str, ...]:
    """For each alternative at the top of a pattern the longest run of plain text in it, lowercase, every digit a 0.

    A line that has none of them cannot match, so they say where in a long text a pattern is worth trying. Raises
    ValueError when an alternative has no run of `SHORTEST` characters.
    """
    found, runs, depth, at = [], [""], 0, 0
    while at < len(pattern):
        token = pattern[at : at + 2] if pattern[at] == "\\" else pattern[at]
        at += len(token)
        if token == "[":
            at = pattern.index("]", at + 1) + 1
        depth += (token == "(") - (token == ")")
        if depth or token in "()[":
            runs.append("")
        elif token == "|":
            found.append(max(runs, key=len))
            runs = [""]
        elif token in ("?", "*", "{"):
            runs[-1] = runs[-1][:-1]
            runs.append("")
            at = pattern.index("}", at) + 1 if token == "{" else at
        elif token in ".+^$" or (len(token) > 1 and token[1].isalnum()):
            runs.append("")
        else:
            runs[-1] += "0" if token.isdigit() else token[-1].lower()
    found.append(max(runs, key=len))
    if min(map(len, found)) < SHORTEST:
        raise ValueError(f"no plain text of {SHORTEST} characters in an alternative of {pattern!r}")
    return tuple(found)


def read_rules(stem: str, folder: Path = Path(__file__).parent / "rules") -> tuple[Rule, ...]:
    """The rules of `<stem>.yaml`. Raises TypeError for an unknown or a missing field."""
    found = []
    for row in yaml.load((folder / f"{stem}.yaml").read_bytes(), yaml.CSafeLoader):
        match = row.pop("match", "")
        pattern = match if isinstance(match, str) else "|".join(match)
        explains = frozenset(row.get("explains", ()))
        found.append(Rule(**{"level": "fault", **row, "pattern": pattern, "explains": explains}))
    return tuple(found)


IN_ORDER = "normal kernel nccl memory disk ray builds models torch fabric ssh docker vllm deaths general"
RULES: tuple[Rule, ...] = tuple(rule for stem in IN_ORDER.split() for rule in read_rules(stem))
"""Rules for lines, in the order in which they are tried: the special before the general."""
OF_OUTPUTS = {rule.id: rule for rule in read_rules("outputs")}
"""What outputs of commands mean; the conditions are those of the checks in `spark`, asked in outputs.py."""
OF_PAIRS = {rule.id: rule for rule in read_rules("pairs")}
"""Causes that a second text tells apart; their conditions are `SETTLERS` in outputs.py."""
EXPLAINS = {rule.id: rule.explains for rule in (*RULES, *OF_OUTPUTS.values(), *OF_PAIRS.values()) if rule.explains}

MOMENTS: tuple[tuple[Moment, re.Pattern[str]], ...] = (
    ("started", re.compile(r"vLLM API server version|non-default args: |\"stage\": \"engine_started\"")),
    ("ready", re.compile(r"Application startup complete|Uvicorn running on|/v1/\w+[\w/]* HTTP/1\.1\" 4\d\d")),
    ("alive", re.compile(r"Avg prompt throughput: |/v1/\w+[\w/]* HTTP/1\.1\" 200")),
    (
        "placed",
        re.compile(
            r"Starting to load model|Loading safetensors checkpoint|Model loading took|assigned as DP rank"
            r"|distributed_init_method=|Memory profiling takes|Graph capturing finished|KV cache size: "
        ),
    ),
    ("joined", re.compile(r"Ray runtime started|Connected to Ray cluster|\"stage\": \"joined\"")),
)
"""How each moment shows."""
