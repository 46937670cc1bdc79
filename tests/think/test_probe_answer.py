"""Answers of shapes that nobody thought of: they are read as far as they go."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.bench.loader import Record
from cluster.probe.ask import read_answer

JUNK = (None, 7, 1.5, True, "x", ["a"], [None], {"a": 1})


def whole(part: str) -> dict[str, Any]:
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
    said = {"role": "assistant", "content": "Paris", "reasoning": "Hm.", "tool_calls": [call]}
    return {
        "model": "m",
        "choices": [{"index": 0, part: said, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 7},
    }


def places(told: Any) -> Iterator[tuple[Any, Any]]:
    """(what holds it, under what) of every value within."""
    for key, value in list(told.items() if isinstance(told, dict) else enumerate(told)):
        yield told, key
        if isinstance(value, dict | list):
            yield from places(value)


def record(document: dict[str, Any], kind: str) -> Record:
    text = json.dumps(document)
    body = f"data: {text}\n\ndata: [DONE]\n\n" if kind == "text/event-stream" else text
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return Record(0.0, 1.0, "done", "", ((0.5, (head + body).encode()),))


@pytest.mark.parametrize(("part", "kind"), [("delta", "text/event-stream"), ("message", "application/json")])
def test_anything_anywhere(part: str, kind: str) -> None:
    for number, _ in enumerate(places(whole(part))):
        for junk in JUNK:
            document = whole(part)
            holder, key = list(places(document))[number]
            holder[key] = copy.deepcopy(junk)
            answer = read_answer(record(document, kind))
            assert isinstance(answer.completion_tokens, int | None), (key, junk)
            assert isinstance(answer.prompt_tokens, int | None), (key, junk)
            if key in ("index", "tool_calls", "function", "usage", "prompt_tokens"):
                assert answer.content == "Paris", "the rest is read"
