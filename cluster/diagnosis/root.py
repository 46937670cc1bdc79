"""Which of all that was found is the cause, which follow from it, and what to say when nothing known is there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from cluster.diagnosis.lines import Weight
from cluster.diagnosis.rules import EXPLAINS, OF_PAIRS, Moment, Rule
from cluster.diagnosis.scan import Hit, Scan
from cluster.spark.finding import ORDER, Finding, Level

EVIDENCE_LENGTH = 500
NAME_LENGTH = 80


@dataclass(frozen=True, slots=True)
class Explanation:
    """A finding read from a text: the rule it is by, in which file and line, and when, if the line says so.

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
    settled_as = of_rule(rule, values, found.file, found.line, found.finding.evidence, found.finding.host)
    return replace(settled_as, time=found.time, hearsay=found.hearsay)


def of_cluster(found: Explanation) -> Explanation:
    """The same of ranks that `cluster` started: no remedy sets up what they already have."""
    return found if found.rule.own is None else replace(found, finding=replace(found.finding, remedy=found.rule.own))


def fill(text: str, values: Mapping[str, str]) -> str:
    """A rule's sentence with the line's own names in it; what the line does not name is left out."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value[:NAME_LENGTH])
    return re.sub(r"\s*\(\s*\)|\s+(?=[,:;)]|\.(?:\s|$))", "", re.sub(r" {2,}", " ", text)).strip()


REACHED: Mapping[Moment, int] = {"started": 0, "joined": 1, "placed": 2, "ready": 3, "alive": 4}
READY_TIMEOUT_S = (590.0, 640.0)
YEAR_S = 366 * 86400.0
DATED_S = 3 * YEAR_S
"""Times below it tell no year (`lines.read_time` gives them 1972)."""
LOOK_AROUND = "read the lines around it, and the same time on the other hosts: cluster logs, journalctl -k"
LOOK_AT_REQUEST = "if a request failed at that time, look at what was asked"
UNKNOWN = Rule("unknown", "unknown", "", "unknown error, the first one here", LOOK_AROUND)
OVERCOME = Rule("unknown-overcome", "note", "", "unknown error; the text goes on after it", LOOK_AT_REQUEST)


def explain_hits(scan: Scan) -> Iterator[Explanation]:
    """Of each rule the line of one source that is nearest to what happened, without those that it overcame later.

    The very words come before a rank's own, and these before what it says of another.
    """
    hits = [hit for hit in scan.hits if hit.rule.level != "normal" and not is_overcome(hit, scan)]
    for id in dict.fromkeys(hit.rule.id for hit in hits):
        nearest = min((hit for hit in hits if hit.rule.id == id), key=lambda hit: hit.line.of_rank + hit.line.hearsay)
        yield _as_timeout(of_hit(nearest, scan), scan)


def is_overcome(hit: Hit, scan: Scan) -> bool:
    """Whether the text later reaches the moment until which this counts."""
    wanted = REACHED.get(hit.rule.until, 0)
    later = [REACHED[moment] for moment, number in scan.moments.items() if number > hit.number]
    return bool(wanted) and max(later, default=0) >= wanted


def of_hit(hit: Hit, scan: Scan) -> Explanation:
    """A line that a rule matched, with the rule's words."""
    evidence = hit.text.strip()[:EVIDENCE_LENGTH]
    found = of_rule(hit.rule, hit.groups, scan.source.name, hit.number, evidence, scan.source.host)
    return replace(found, time=hit.line.time, hearsay=hit.line.hearsay or scan.source.hearsay)


def _as_timeout(found: Explanation, scan: Scan) -> Explanation:
    """An engine that fails ten minutes after the start, with no process to name, ran out of time."""
    empty = found.id == "engine-start-failed" and "proc(s): {}" in found.finding.evidence
    if empty and found.time is not None and scan.started_at is not None:
        passed = (of_year(found.time) - of_year(scan.started_at)) % YEAR_S
        if READY_TIMEOUT_S[0] <= passed <= READY_TIMEOUT_S[1]:
            return settled(found, OF_PAIRS["vllm-ready-timeout"], passed=f"{passed:.0f}")
    return found


def explain_trouble(scan: Scan) -> Iterator[Explanation]:
    """The first error line that nobody knows, the end of a traceback before anything else.

    A text that went on after it has overcome it: a traceback is then worth a note, another error line nothing.
    """
    late = max((number for moment, number in scan.moments.items() if REACHED[moment]), default=0)
    ranked = sorted(scan.troubles, key=lambda one: (one.number < late, one.line.hearsay, -one.weight, one.number))
    for trouble in ranked[:1]:
        rule = UNKNOWN if trouble.number > late else OVERCOME
        if rule is UNKNOWN or trouble.weight == Weight.EXCEPTION:
            evidence = trouble.text.strip()[:EVIDENCE_LENGTH]
            found = of_rule(rule, {}, scan.source.name, trouble.number, evidence, scan.source.host)
            yield replace(found, time=trouble.line.time, hearsay=trouble.line.hearsay)


def judge(
    found: Sequence[Explanation], unknown: Sequence[Explanation]
) -> tuple[Explanation | None, tuple[Explanation, ...], tuple[Explanation, ...]]:
    """Separate causes from consequences: the earliest cause that ends things, all causes with it first and then worst
    first, and what follows from causes."""
    explained = {id for one in found for id in EXPLAINS.get(one.id, ())}
    rest = in_time([one for one in found if one.id not in explained])
    causes = [one for one in rest if one.level == "fault" and not one.rule.secondary]
    deaths = [one for one in rest if one.rule.secondary]
    others = [one for one in rest if one not in causes and one not in deaths]
    if all(one.rule.slow for one in causes):
        # no cause is known: an error that stands before the known consequences, else the worst consequence
        errors = in_time([one for one in unknown if one.level == "unknown"])
        faults = [one for one in deaths if one.level == "fault"]
        telling = sorted(deaths, key=lambda one: ORDER.index(one.level))[:1]
        if errors and (not faults or in_time([faults[0], errors[0]])[0] == errors[0]):
            telling = errors[:1]
        causes, deaths = telling + causes, [one for one in deaths if one not in telling]
        others += [one for one in unknown if one.level == "note"]
    grave = [one for one in causes if one.level in ("fault", "unknown")]
    root = next((one for one in grave if not one.rule.slow), grave[0] if grave else None)
    ordered = sorted([*causes, *others], key=lambda one: (one != root, ORDER.index(one.level)))
    return root, tuple(ordered), (*deaths, *(one for one in found if one.id in explained))


def in_time(found: Sequence[Explanation]) -> list[Explanation]:
    """In the order of events: by file and line; of several files by time, those last that tell none.

    What a rank reports of another one comes last: the other knows better, and may say it a second later.
    """
    files = list(dict.fromkeys(one.file for one in found))
    ordered = sorted(found, key=lambda one: (files.index(one.file), one.line or 0))
    if len(files) > 1:
        place = order_of([one.time for one in ordered if one.time is not None])
        ordered.sort(key=lambda one: (one.time is None, place(one.time or 0.0)))
    return sorted(ordered, key=lambda one: one.hearsay)


def order_of(times: Sequence[float]) -> Callable[[float], float]:
    """A key that sorts these times. Half of all logs tell no year: then the story is taken to begin after the longest
    part of the year in which nothing happened, so that it may go over New Year."""
    if all(time >= DATED_S for time in times):
        return float
    moments = sorted({of_year(time) for time in times})
    begin = max(((moment - moments[number - 1]) % YEAR_S, moment) for number, moment in enumerate(moments))[1]
    return lambda time: (of_year(time) - begin) % YEAR_S


def of_year(time: float) -> float:
    """Seconds since New Year."""
    moment = datetime.fromtimestamp(time, UTC)
    return (moment.replace(year=1972) - datetime(1972, 1, 1, tzinfo=UTC)).total_seconds()
