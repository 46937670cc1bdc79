"""Rules: one cause each, with the wordings that show it, read from `rules/*.yaml`; and what a rule makes of a line.

A file is a list of mappings with the fields of `Rule`; `match` is a pattern or a list of alternatives, `level` is
`fault` where it is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import yaml

from cluster.spark.finding import Finding, Level

Moment = Literal["", "started", "joined", "placed", "ready", "alive"]
"""What a text reaches: the engine is started, this node is part of Ray, ranks are placed, the server is ready, it
answers requests."""

SHORTEST = 4
"""Letters that a line must have for a pattern to be tried on it."""
EVIDENCE_LENGTH, WORDS_LENGTH, NAME_LENGTH = 500, 240, 80


@dataclass(frozen=True, slots=True)
class Rule:
    """One cause; the first rule in order that matches a line has it.

    `pattern` ignores case; its named groups may stand in `cause` and `remedy` as `{name}`, and what the number in
    it means as `{name_means}` where MEANS has that name; it is empty where a condition in Python decides (outputs,
    pairs). `normal`: a notice that looks bad and is not; `unknown`: a line that reports only that something else
    failed. `page`: the stem of a file in docs/runbooks, with `#anchor` where one section is meant. `explains`: ids
    of findings that are there because of this one. `secondary`: a consequence whatever the cause is, named only
    when nothing else is found. `slow`: serving goes on, so it does not explain why something ended. `until`:
    harmless when the text later reaches this moment. `quotes`: a line near it says why. `own`: the remedy where
    `cluster` started the ranks, which already have the devices, limits, addresses and variables that `remedy`
    speaks of.
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
    quotes: bool = False
    own: str | None = None

    @property
    def is_mute(self) -> bool:
        """Whether a line that it matches only wraps what another program said, or says that something failed."""
        return self.level == "unknown" and self.secondary

    def search(self, line: str) -> re.Match[str] | None:
        return compiled(self.pattern).search(line)

    def finding(self, host: str, evidence: str, values: Mapping[str, Any]) -> Finding:
        """What the rule says of this line; no page to read for what needs nothing done."""
        level: Level = "note" if self.level == "normal" else self.level
        means = {f"{name}_means": MEANS[name](str(values[name])) for name in MEANS.keys() & values.keys()}
        values = {**values, **means}
        texts = (fill(self.cause, values), evidence.strip()[:EVIDENCE_LENGTH], fill(self.remedy, values))
        return Finding(level, self.id, host, *texts, "" if level == "note" else self.page)


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def fill(text: str, values: Mapping[str, Any]) -> str:
    """A rule's sentence with the line's own names in it; what the line does not name is left out."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value)[: WORDS_LENGTH if name == "words" else NAME_LENGTH])
    text = re.sub(r"\s*\(\s*\)|\s+(?=[,:;)]|\.(?:\s|$))", "", re.sub(r" {2,}", " ", text))
    return re.sub(r":\s*(?=[;)]|$)", "", text).strip()


@dataclass(frozen=True, slots=True)
class Explanation:
    """A finding read from a text: the rule it is by, in which file and line, and when, if the line has a time.

    `hearsay`: reported of another rank, or repeated.
    """

    finding: Finding
    rule: Rule
    file: str
    line: int | None
    time: float | None = None
    hearsay: bool = False

    @property
    def id(self) -> str:
        return self.finding.check

    @property
    def level(self) -> Level:
        return self.finding.level

    def settled(self, id: str, **values: Any) -> Explanation:
        """The same place, now that another rule, of pairs, is known to apply."""
        rule = OF_PAIRS[id]
        return replace(self, rule=rule, finding=rule.finding(self.finding.host, self.finding.evidence, values))

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "level": self.level,
            "cause": self.finding.what,
            "evidence": self.finding.evidence,
            "line": self.line,
            "remedy": self.finding.remedy,
            "host": self.finding.host,
            "source": self.rule.source,
            "runbook": self.finding.runbook,
        }


@cache
def literals(pattern: str) -> tuple[str, ...]:
    """For each alternative at the top of a pattern the longest run of plain text in it, lowercase, every digit a 0.

    A line that has none of them cannot match, so they show where in a long text a pattern is worth trying. Raises
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


FOLDER = Path(__file__).parent / "rules"


def read_rows(stem: str, folder: Path = FOLDER) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = yaml.load((folder / f"{stem}.yaml").read_bytes(), yaml.CSafeLoader)
    return rows


def read_rules(stem: str, folder: Path = FOLDER) -> tuple[Rule, ...]:
    """The rules of `<stem>.yaml`. Raises TypeError for an unknown or a missing field."""
    found = []
    for row in read_rows(stem, folder):
        match = row.pop("match", "")
        row["pattern"] = match if isinstance(match, str) else "|".join(match)
        row["explains"] = frozenset(row.get("explains", ()))
        found.append(Rule(**{"level": "fault", **row}))
    return tuple(found)


NUMBERS: dict[str, dict[str, str]] = {
    row["table"]: {str(number): words for number, words in row["means"].items()} for row in read_rows("numbers")
}
"""What Xids, exit codes, errno, completion codes and other numbers mean, each table with its source."""


def common_reasons(text: str) -> str:
    """What every backend refuses, of `{A: [x, y], B: [x]}`; all reasons where they share none."""
    reasons = [set(re.findall(r"[\w(][^,\[\]]*", one)) for one in re.findall(r"\[([^\]]*)\]", text)]
    shared = set.intersection(*reasons) if reasons else set()
    return ", ".join(sorted(shared or set().union(*reasons)))


MEANS: dict[str, Callable[[str], str]] = {
    **{name: partial(lambda table, number: table.get(number, ""), table) for name, table in NUMBERS.items()},
    "reasons": common_reasons,
}
MEANS |= dict.fromkeys(("status", "code", "json", "event"), MEANS["exit"])
MEANS |= dict.fromkeys(("device", "number"), MEANS["cuda"])
MEANS |= dict.fromkeys(("signal", "ended"), lambda number: MEANS["exit"](f"-{number}"))
"""By the name of a pattern's group, what the words in it mean."""
WRAPPERS = re.compile("|".join(row["match"] for row in read_rows("wrappers")), re.IGNORECASE)
MUTE_END = re.compile(r"\W*(?:\b(?:please check|check the|see)\b.*|\bunknown\W*)?$", re.IGNORECASE)


def peel(message: str) -> str:
    """The innermost clause of a message that programs wrapped, each in words of its own; empty when nothing is left, or
    when nothing wraps it."""
    rest = message
    while (found := WRAPPERS.match(rest)) and found.end():
        rest = rest[found.end() :].strip()
    return "" if rest == message else MUTE_END.sub("", rest)


IN_ORDER = "normal kernel nccl memory disk ray builds models torch fabric ssh docker vllm deaths general"
RULES: tuple[Rule, ...] = tuple(rule for stem in IN_ORDER.split() for rule in read_rules(stem))
"""Rules for lines, in the order in which they are tried: the special before the general."""
OF_OUTPUTS = {rule.id: rule for rule in read_rules("outputs")}
"""What outputs of commands mean; the conditions are those of the checks in `spark`, asked in outputs.py."""
OF_PAIRS = {rule.id: rule for rule in read_rules("pairs")}
"""Causes that a second text tells apart; their conditions are `SETTLERS` in outputs.py."""
UNKNOWN = read_rules("unknown")
"""For lines that look like trouble and that no rule matches: by who prints them, the last for all others."""
LOOK_AT_REQUEST = "if a request failed at that time, look at what was asked"
OVERCOME = Rule("unknown-overcome", "note", "", "no rule matches; the text goes on after it: {words}", LOOK_AT_REQUEST)
EXPLAINS = {rule.id: rule.explains for rule in (*RULES, *OF_OUTPUTS.values(), *OF_PAIRS.values()) if rule.explains}

MOMENTS: Mapping[Moment, str] = {
    "started": r'vLLM API server version|non-default args: |"stage": "engine_started"',
    "joined": r'Ray runtime started|Connected to Ray cluster|"stage": "joined"',
    "placed": r"Starting to load model|Loading safetensors checkpoint|Model loading took|assigned as DP rank"
    r"|distributed_init_method=|Memory profiling takes|Graph capturing finished|KV cache size: ",
    "ready": r'Application startup complete|Uvicorn running on|/v1/\w+[\w/]* HTTP/1\.1" 4\d\d',
    "alive": r'Avg prompt throughput: |/v1/\w+[\w/]* HTTP/1\.1" 200',
}
"""How each moment shows, in their order."""
