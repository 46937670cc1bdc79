"""What a diagnosis says: findings, each with the place where it stands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cluster.diagnosis.rules import Rule
from cluster.spark.finding import Finding, Level

EVIDENCE_LENGTH = 500
NAME_LENGTH = 80


@dataclass(frozen=True, slots=True)
class Explanation:
    """A finding read from a text: the rule it is by, in which file and line, and when, if the line says so.

    `hearsay`: said of another rank, or repeated.
    """

    finding: Finding
    rule: Rule
    file: str
    line: int | None
    time: float | None = None
    hearsay: bool = False

    @property
    def id(self) -> str:
        """The finding's name."""
        return self.finding.check

    @property
    def level(self) -> Level:
        """How bad it is."""
        return self.finding.level

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
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


def of_rule(
    rule: Rule, values: Mapping[str, str], file: str, line: int | None, evidence: str, host: str = ""
) -> Explanation:
    """What a rule says of a place."""
    level: Level = "note" if rule.level == "normal" else rule.level
    cause, remedy = fill(rule.cause, values), fill(rule.remedy, values)
    return Explanation(Finding(level, rule.id, host, cause, evidence, remedy, rule.runbook), rule, file, line)


def settled(found: Explanation, rule: Rule, **values: str) -> Explanation:
    """The same place, now that another rule is known to apply."""
    again = of_rule(rule, values, found.file, found.line, found.finding.evidence, found.finding.host)
    return replace(again, time=found.time, hearsay=found.hearsay)


def of_cluster(found: Explanation) -> Explanation:
    """The same of ranks that `cluster` started: no remedy sets up what they already have."""
    return found if found.rule.own is None else replace(found, finding=replace(found.finding, remedy=found.rule.own))


def fill(text: str, values: Mapping[str, str]) -> str:
    """A rule's sentence with the line's own names in it; what the line does not name is left out."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value[:NAME_LENGTH])
    return re.sub(r"\s*\(\s*\)|\s+(?=[,:;)]|\.(?:\s|$))", "", re.sub(r" {2,}", " ", text)).strip()
