"""Do the ranks' logs say what the recipe expects of a server that is ready."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cluster.config.recipe import ExpectLog
from cluster.spark.ranks import RankState


def patterns_of(expected: ExpectLog) -> tuple[str, ...]:
    """What to look for in every rank's log, in the order that `unmet` reads."""
    return (*expected.require, *expected.forbid)


def is_whole(state: RankState) -> bool:
    """Whether the log still has its beginning, where an engine says what it chose: docker drops the oldest."""
    return state.told("started") is not None


def unmet(expected: ExpectLog, states: Mapping[str, RankState]) -> Iterator[str]:
    """What is not as expected, each with the line found instead; `states` is by host.

    A required line counts wherever it is found: with Ray the head's log holds the workers' lines, too.
    """
    for number, pattern in enumerate(expected.require):
        if all(state.found[number].line is None for state in states.values()):
            near = next((state.found[number].near for state in states.values() if state.found[number].near), "")
            yield f"no log has `{pattern}`" + (f", but: {near}" if near else ", nor a line like it")
    for number, pattern in enumerate(expected.forbid, len(expected.require)):
        for host, state in states.items():
            if state.found[number].line is not None:
                yield f"the log of {host} has `{pattern}`: {state.found[number].line}"
