"""Holds a case's conversation with a server that is a function, or that has one answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cluster.bench.loader import Ask
from cluster.probe.ask import CaseOver, ProbedServer, Reply, Verdict
from cluster.probe.cases import CASES

Server = Callable[[Ask], Reply]
GEMMA = ProbedServer("gemma", limit=65536, configured=65536, tools=True, reasoning=True, vision=True, engine="vllm")
FOREIGN = ProbedServer("gemma")
BY_ID = {case.id: case for case in CASES}
IN_ORDER = ("role", "content", "finish", "usage", "done")


def hold(case: str, server: Server | Reply, subject: ProbedServer = GEMMA, asked: list[Any] | None = None) -> Verdict:
    """The verdict of a case, the server answering each request; the bodies of the requests are added to `asked`."""
    talk = BY_ID[case].talk(subject)
    try:
        ask = next(talk)
        while True:
            if asked is not None:
                asked.append(ask.body)
            ask = talk.send(server if isinstance(server, Reply) else server(ask))
    except StopIteration:
        verdict = Verdict()
    except CaseOver as over:
        verdict = over.verdict
    assert verdict.outcome == "pass" or verdict.why
    return verdict


def says(content: str = "", **more: Any) -> Reply:
    """A whole answer with a text."""
    given = {"finish_reason": "stop", "model": "gemma", "prompt_tokens": 30, "completion_tokens": 20, "seconds": 1.5}
    return Reply(200, content=content, document={"choices": []}, **(given | more))


def streams(content: str = "", *, events: tuple[str, ...] = IN_ORDER, **more: Any) -> Reply:
    """A streamed one."""
    return replace(says(content, **more), document={}, events=events)


def refuses(words: str, status: int | None = 400) -> Reply:
    """An error."""
    return Reply(status, f"HTTP {status}: {words}" if status else words)
