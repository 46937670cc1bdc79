"""Servers whose streams are out of order, or end before they should."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cluster.lab.scripted.behaviour import Behaviour
from cluster.lab.scripted.forms import Document

Events = list[Document | None]
Sends = Callable[[Events], Events]
DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
FAULT: Document = {"error": {"message": DEAD, "type": "InternalServerError", "param": None, "code": 500}}


def _finish(events: Events) -> int:
    """Where the reason of the end is."""
    return next(at for at, one in enumerate(events) if one and one["choices"] and one["choices"][0]["finish_reason"])


def _usage_first(events: Events) -> Events:
    at = next((at for at, one in enumerate(events) if one and one.get("usage")), None)
    return events if at is None else [events[at], *events[:at], *events[at + 1 :]]


def _without_finish(events: Events) -> Events:
    del events[_finish(events)]
    return events


def _finish_twice(events: Events) -> Events:
    """Before the last text and behind it."""
    at = _finish(events)
    return [*events[: at - 1], events[at], *events[at - 1 :]]


def _finish_early(events: Events) -> Events:
    """The last text comes behind the reason for the end."""
    at = _finish(events)
    return [*events[: at - 1], events[at], events[at - 1], *events[at + 1 :]]


def _without_usage(events: Events) -> Events:
    return [one for one in events if one is None or one["choices"]]


def _role_late(events: Events) -> Events:
    return [*events[1:3], events[0], *events[3:]]


def _without_done(events: Events) -> Events:
    return events[:-1]


def _done_early(events: Events) -> Events:
    return [*events[:-2], None, events[-2]]


def _loses(part: slice) -> Sends:
    """Loses some of the events with text."""

    def texts(events: Events) -> Iterator[int]:
        return (
            at for at, one in enumerate(events) if one and one["choices"] and one["choices"][0]["delta"].get("content")
        )

    def sends(events: Events) -> Events:
        lost = set(list(texts(events))[part])
        return [one for at, one in enumerate(events) if at not in lost]

    return sends


def _dies(events: Events) -> Events:
    """As vLLM tells that its engine is dead: an event with an error, and [DONE]."""
    return [*events[: len(events) // 2], FAULT, None]


def _nothing(events: Events) -> Events:
    return [None]


WRONG = (
    Behaviour("usage-first", "usage comes first", "OpenAI's API", sends=_usage_first),
    Behaviour("no-usage", "no usage comes, though it is asked for", "OpenAI's API", sends=_without_usage),
    Behaviour("no-finish", "no reason for the end comes", "OpenAI's API", sends=_without_finish),
    Behaviour("finish-twice", "two reasons for the end come", "OpenAI's API", sends=_finish_twice),
    Behaviour("finish-early", "text comes behind the reason for the end", "OpenAI's API", sends=_finish_early),
    Behaviour("role-late", "the role comes within the text", "OpenAI's API", sends=_role_late),
    Behaviour("no-done", "no [DONE] comes", "OpenAI's API", sends=_without_done),
    Behaviour("done-early", "usage comes behind [DONE]", "OpenAI's API", sends=_done_early),
    Behaviour("end-lost", "a stream loses its last words", "vLLM issue 41691", sends=_loses(slice(-3, None))),
    Behaviour("begin-lost", "a stream loses its first words", "vLLM issue 41691", sends=_loses(slice(0, 2))),
    Behaviour("nothing-streamed", "a stream has nothing but [DONE]", "OpenAI's API", sends=_nothing),
    Behaviour(
        "dies-in-stream",
        "a stream ends in an error, as a dead engine's does",
        "vLLM 0.32, v1/engine/exceptions.py",
        sends=_dies,
    ),
    Behaviour("cut", "the connection ends in the middle", "engines that are killed", ends=0.6),
    Behaviour("closes", "the connection ends without a byte", "engines that are killed", ends=0.0),
    Behaviour("hangs", "no answer ever comes", "engines that wait for a lost rank", silent=True),
)
