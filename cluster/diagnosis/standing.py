"""What stands of all that was found, from look to look: each change is told once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from cluster.diagnosis import decline, wedge
from cluster.diagnosis.pulse import Course
from cluster.spark.finding import Finding

JUDGES: tuple[Callable[[Course], Iterator[Finding]], ...] = (
    wedge.judge_ranks, wedge.judge_tokens, wedge.judge_server, decline.judge_memory, decline.judge_clocks,
    decline.judge_links, decline.judge_transport,
)  # fmt: skip
CALM_LOOKS = 3
"""A finding is over when so many looks in a row that could have shown it do not."""

Key = tuple[str, str]
"""Check and host."""


def judge(course: Course) -> tuple[Finding, ...]:
    """All that can be said after the latest look."""
    return tuple(finding for judged in JUDGES for finding in judged(course))


@dataclass(frozen=True, slots=True)
class Standing:
    """A finding that was told and is not over. `since`: when it was; `calm`: looks that did not show it any more."""

    finding: Finding
    since: float
    calm: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """What one look changed: findings that are new or have another level, and those that are over."""

    standing: Mapping[Key, Standing] = field(default_factory=dict)
    raised: tuple[Finding, ...] = ()
    over: tuple[Standing, ...] = ()


def follow(before: Mapping[Key, Standing], course: Course) -> Change:
    """What stands after the latest look, and what that changes. A look that could not show a finding ends none."""
    found = {(one.check, one.host): one for one in judge(course)}
    standing: dict[Key, Standing] = {}
    raised, over = [], []
    for key, finding in found.items():
        known = before.get(key)
        is_new = known is None or known.finding.level != finding.level
        raised += [finding] if is_new else []
        standing[key] = Standing(finding, course.last.t if is_new or known is None else known.since)
    for key, known in before.items():
        if key in found:
            continue
        calm = known.calm + course.last.knows(known.finding.host)
        if calm < CALM_LOOKS:
            standing[key] = replace(known, calm=calm)
        else:
            over.append(known)
    return Change(standing, tuple(raised), tuple(over))
