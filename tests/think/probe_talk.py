"""Holds a case's conversation with a server that is a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cluster.bench.loader import Ask
from cluster.probe.ask import Answer, Case, Subject, Verdict
from cluster.probe.cases import CASES

GEMMA = Subject("gemma", limit=65536, configured=65536, tools=True, reasoning=True, vision=True, engine="vllm")
FOREIGN = Subject("gemma")
BY_ID = {case.id: case for case in CASES}


def hold(case: str | Case, server: Callable[[Ask], Answer], subject: Subject = GEMMA) -> Verdict:
    """The verdict of a case, the server answering each request."""
    talk = (BY_ID[case] if isinstance(case, str) else case).talk(subject)
    try:
        ask = next(talk)
        while True:
            ask = talk.send(server(ask))
    except StopIteration as end:
        verdict = end.value
    assert isinstance(verdict, Verdict)
    assert verdict.outcome == "pass" or verdict.why
    return verdict


def says(content: str = "", **more: Any) -> Answer:
    """A whole answer with a text."""
    given = {"finish_reason": "stop", "model": "gemma", "prompt_tokens": 30, "completion_tokens": 20, "seconds": 1.5}
    return Answer(200, content=content, document={"choices": []}, **(given | more))


def streams(
    content: str = "", *, events: tuple[str, ...] = ("role", "content", "finish", "usage", "done"), **more: Any
) -> Answer:
    """A streamed one."""
    given = {"finish_reason": "stop", "model": "gemma", "prompt_tokens": 30, "completion_tokens": 20, "seconds": 1.5}
    return Answer(200, content=content, events=events, **(given | more))


def refuses(words: str, status: int | None = 400) -> Answer:
    """An error."""
    return Answer(status, f"HTTP {status}: {words}" if status else words)
