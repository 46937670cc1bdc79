"""What a rule about a line is. Rules are values in tuples, one file a room of the failure; no rule language."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

from cluster.plan.finding import Level

Moment = Literal["", "started", "joined", "placed", "ready", "alive"]
"""What a text reaches: the engine is started, this node is part of Ray, ranks are placed, the server is ready, it
answers requests."""

FROM_CLUSTER = "take it out of the env of recipe, inventory and -e: cluster sets addresses and interfaces for each host"
"""The remedy where a value that the ranks have by themselves was given to them by hand."""
SHORTEST = 4
"""Letters that a line must have for a pattern to be tried on it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One cause and the wording family that tells it; the first rule in order that matches a line has it.

    `pattern` ignores case; its named groups may stand in `cause` and `remedy` as `{name}`. `level`: how bad it is,
    `normal` for a notice that looks bad and is not; `unknown` for a line that says only that something else failed.
    `secondary`: a consequence, named only when nothing else is found. `slow`: serving goes on, so it does not explain
    why something ended. `until`: harmless when the text later reaches this moment. `own`: the remedy where `cluster`
    started the ranks, which already have the devices, limits, addresses and variables that `remedy` speaks of.
    """

    id: str
    level: Level | Literal["normal"]
    pattern: str
    cause: str
    remedy: str = ""
    source: str = ""
    secondary: bool = False
    slow: bool = False
    until: Moment = ""
    own: str | None = None

    def search(self, line: str) -> re.Match[str] | None:
        """Where the pattern is in a line."""
        return compiled(self.pattern).search(line)


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
