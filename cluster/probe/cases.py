"""All cases in the order in which they are asked, and how some of them are chosen."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.config.find import nearest
from cluster.errors import UsageError
from cluster.probe import cases_problems, cases_reasoning, cases_server, cases_text, cases_tools, cases_vision
from cluster.probe.case import Case

CASES: tuple[Case, ...] = (
    *cases_text.CASES,
    *cases_server.CASES,
    *cases_tools.CASES,
    *cases_reasoning.CASES,
    *cases_vision.CASES,
    *cases_problems.CASES,
)

QUICK = tuple(case for case in CASES if case.quick)
"""What `up` asks: few tokens each."""


def choose(only: Sequence[str], *, quick: bool = False, full: bool = False) -> tuple[Case, ...]:
    """The cases to ask: by names of cases and groups, or by how much is wanted.

    Raises UsageError for a name that is none, with the nearest.
    """
    groups = tuple(dict.fromkeys(case.group for case in CASES))
    known = (*groups, *(case.id for case in CASES))
    names = [name.strip() for word in only for name in word.split(",")]
    for name in names:
        if name not in known:
            all_known = f"groups: {', '.join(groups)}; cases: {', '.join(case.id for case in CASES)}"
            remedy = nearest(name, known) or all_known
            raise UsageError(f"no case or group of cases is called {name!r}", remedy=remedy)
    if names:
        return tuple(case for case in CASES if case.id in names or case.group in names)
    if quick:
        return QUICK
    return tuple(case for case in CASES if full or not case.long)
