"""How the ranks of a deployment are doing, from their containers' state and logs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from cluster.argv.far import far
from cluster.argv.question import Answer, Question
from cluster.spark.fact import Missing

TAIL = 30
"""Last lines that are told of a log."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a log has of a pattern: the first line it is found in, else None and the line with most of its words."""

    line: str | None
    near: str


@dataclass(frozen=True, slots=True)
class RankState:
    """One rank's container. `stages` are the rank program's own lines in order, `net` NCCL's lines on its transport,
    `found` is by pattern in the order asked. `until`: docker's time of the last line, and how many lines have it;
    `whole`: its log was read from the container's start on."""

    name: str
    state: str
    exit_code: int
    oom: bool
    stages: tuple[dict[str, Any], ...]
    loaded: bool
    tail: tuple[str, ...]
    net: tuple[str, ...]
    found: tuple[Found, ...] = ()
    until: tuple[str, int] = ("", 0)
    whole: bool = True

    def after(self, earlier: RankState | None) -> RankState:
        """What is known with an earlier look, when this one was told only what came since."""
        if earlier is None or self.whole:
            return self
        (time, count), (before, known) = self.until, earlier.until
        return replace(
            self,
            stages=(*earlier.stages, *(stage for stage in self.stages if stage not in earlier.stages)),
            loaded=earlier.loaded or self.loaded,
            tail=(*earlier.tail, *self.tail)[-TAIL:],
            net=(*earlier.net, *self.net),
            until=(time, count + known) if time == before else max(self.until, earlier.until),
        )

    @property
    def stage(self) -> str:
        """Name of the last stage told since the container's last start, empty before the first."""
        return str(self.stages[-1].get("stage", "")) if self.stages else ""

    def told(self, stage: str) -> dict[str, Any] | None:
        """The line of a stage since the last `started`, None when it was not told."""
        for line in reversed(self.stages):
            if line.get("stage") == stage:
                return dict(line)
            if line.get("stage") == "started":
                return None
        return None

    @property
    def ended(self) -> str:
        """Why the rank ended, in its own words; empty while it runs."""
        line = self.told("ended")
        return str(line.get("why", "")) if line else ""


def question(
    names: Sequence[str],
    *,
    net: bool = False,
    patterns: Sequence[str] = (),
    known: Mapping[str, RankState] = MappingProxyType({}),
) -> Question:
    """Ask for the ranks in these containers; with `net`, Ray's worker logs are searched for NCCL's lines too.

    `patterns` are regular expressions that are looked for in their logs. Of those that are `known` only what came since
    is read; see RankState.after.
    """
    since = {name: known[name].until for name in names if name in known}
    given = {"names": list(names), "tail": TAIL, "net": net, "patterns": list(patterns), "since": since}
    return far("ranks", given, timeout_s=20, limit=4 << 20)


def parse(answer: Answer) -> dict[str, RankState] | Missing:
    """By container name; a container that is not there is not in it."""
    if answer.exit != 0:
        return Missing(
            answer.error_text.strip()[-200:] or "no answer", "timeout" if answer.exit is None else "unreadable"
        )
    try:
        told = json.loads(answer.text)
        return {
            name: RankState(
                name, row["state"], row["exit_code"], row["oom"], tuple(row["stages"]), row["loaded"],
                tuple(row["tail"]), tuple(row["net"]), tuple(Found(**one) for one in row["found"]), tuple(row["until"]),
                row["whole"],
            )
            for name, row in told.items()
        }  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return Missing(f"not what far/ranks prints: {error}")
