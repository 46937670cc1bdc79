"""Links going up and down, from the kernel's log (mlx5_core and other drivers)."""

from __future__ import annotations

import re
from dataclasses import dataclass

_EVENT = re.compile(
    r"mlx5_core \S+ (?P<netdev>en\S+): Link (?P<state>up|down)|(?P<other>en\w+): NIC Link is (?P<how>Up|Down)"
)
_SECONDS = re.compile(r"\[[ \t]*(\d+\.\d+)\]")


@dataclass(frozen=True, slots=True)
class LinkEvent:
    """One change; `second` of the kernel's own clock, None when it was not printed."""

    netdev: str
    is_up: bool
    second: float | None
    line: str


def recognise(text: str) -> tuple[LinkEvent, ...] | None:
    """Every change in a text in order, None when there is none."""
    found = []
    for line in text.splitlines():
        event = _EVENT.search(line)
        if event:
            second = _SECONDS.search(line)
            state = (event["state"] or event["how"]).lower()
            found.append(
                LinkEvent(event["netdev"] or event["other"], state == "up", float(second[1]) if second else None, line)
            )
    return tuple(found) or None
