"""The cases on names, limits, streams and the ends of answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from probe_talk import FOREIGN, GEMMA, hold, refuses, says, streams

from cluster.bench.loader import Ask
from cluster.probe.ask import Answer
from cluster.probe.service import HELLO, NOBODY

DUMMY = replace(GEMMA, dummy=True)


def models(*names: str, root: str = "/model") -> Answer:
    return Answer(200, document={"object": "list", "data": [{"id": name, "root": root} for name in names]})


def named(listed: Answer, given: str) -> Callable[[Ask], Answer]:
    return lambda ask: listed if ask.path == "/v1/models" else says("Hello!", model=given)


def test_the_model_asked_for_answers() -> None:
    assert hold("served-name", named(models("gemma"), "gemma")).outcome == "pass"
    assert hold("served-name", named(models("first", "gemma"), "first")).outcome == "pass", "two names of one model"
    assert hold("served-name", named(models("gemma:latest", root=""), "gemma")).outcome == "pass", "Ollama's way"


def test_another_model_answers() -> None:
    verdict = hold("served-name", named(models("gemma", "qwen", root=""), "qwen3.6-35b"))
    assert (verdict.outcome, verdict.why) == ("fail", "asked of gemma, answered by qwen3.6-35b")
    assert "router" in verdict.remedy
    assert hold("served-name", named(models("gemma", "qwen", root=""), "qwen")).outcome == "fail"
    other = Answer(200, document={"data": [{"id": "gemma", "root": "/a"}, {"id": "qwen", "root": "/b"}]})
    assert hold("served-name", named(other, "qwen")).outcome == "fail", "listed, and still another model"


def test_the_name_is_not_served() -> None:
    verdict = hold("served-name", named(models("qwen"), "gemma"))
    assert (verdict.outcome, verdict.why) == ("fail", "/v1/models has qwen, not gemma")
    assert hold("served-name", named(models(), "gemma")).why == "/v1/models has nothing, not gemma"
    assert (
        hold("served-name", named(models("file.gguf"), "gemma"), replace(FOREIGN, engine="llamacpp")).outcome == "pass"
    )


def test_names_that_cannot_be_told() -> None:
    assert hold("served-name", named(models("gemma"), "")).outcome == "not applicable"
    assert hold("served-name", lambda ask: refuses("nothing", 500)).why == "/v1/models ends in an error"
    broken = hold("served-name", lambda ask: models("gemma") if ask.path == "/v1/models" else refuses("x", 500))
    assert broken.why == "the request ends in an error"


def test_an_unknown_name() -> None:
    assert (
        hold("served-unknown", lambda ask: refuses(f"The model `{ask.body['model']}` does not exist.", 404)).outcome
        == "pass"
    )
    verdict = hold("served-unknown", lambda ask: says("Hello!", model="qwen"))
    assert (verdict.outcome, verdict.why) == ("fail", "a model that does not exist was asked for, qwen answered")
    assert hold("served-unknown", lambda ask: says("Hello!", model=ask.body["model"])).outcome == "not applicable"
    assert (
        hold("served-unknown", lambda ask: says("Hi"), replace(FOREIGN, engine="llamacpp")).outcome == "not applicable"
    )
    for status in (None, 200, 408, 429, 500, 502):
        verdict = hold("served-unknown", lambda ask, status=status: refuses("it broke", status))
        assert verdict.why == "a name that nobody serves is not refused, the request ends in an error", status
    told = Answer(200, "no such model", document={"error": {"message": "no such model"}})
    assert hold("served-unknown", lambda ask: told).outcome == "pass", "refused in words, without the status"
    assert "another answered" in hold("served-unknown", lambda ask: says("Hello!", model="")).why
    asked = []
    hold("served-unknown", lambda ask: asked.append(ask.body["model"]) or refuses("", 404))
    assert asked == [NOBODY]


def limited(ask: Ask) -> Answer:
    """vLLM: a request that cannot fit is refused."""
    wanted = ask.body["max_tokens"]
    return refuses(f"max_tokens={wanted} cannot be greater than max_model_len=65536") if wanted > 65536 else says("OK")


def test_the_context_limit() -> None:
    assert hold("context-limit", limited).outcome == "pass"
    assert hold("context-limit", limited, replace(GEMMA, limit=None)).outcome == "pass"
    assert hold("context-limit", limited, replace(GEMMA, configured=None)).outcome == "pass"
    assert hold("context-limit", limited, FOREIGN).outcome == "not applicable"


def test_another_limit_than_the_recipe_asks_for() -> None:
    verdict = hold("context-limit", limited, replace(GEMMA, limit=32768))
    assert (verdict.outcome, verdict.why) == (
        "fail",
        "the recipe requires a context of 65,536 tokens, the server reports 32,768",
    )


def test_a_limit_that_cuts_in_silence() -> None:
    verdict = hold("context-limit", lambda ask: says("OK"))
    assert verdict.outcome == "fail"
    assert "65,537 tokens is accepted" in verdict.why
    ollama = replace(FOREIGN, engine="ollama", limit=4096)
    told = hold("context-limit", lambda ask: says("OK"), ollama)
    assert (told.outcome, "without an error message" in told.why) == ("not applicable", True)
    assert hold("context-limit", lambda ask: says("OK"), replace(FOREIGN, engine="vllm", limit=4096)).outcome == "fail"
    assert "is not refused" in hold("context-limit", lambda ask: refuses("boom", 500)).why


GOOD = [
    ("role", "content", "finish", "usage", "done"),
    ("role", "reasoning", "content", "finish", "usage", "done"),
    ("content", "finish", "usage", "done"),
    ("content", "role", "finish", "usage", "done"),  # Ollama's last part has a role and no text
    ("role", "content", "finish", "done"),  # usage within the last part
]
BAD = {
    ("content", "role", "content", "finish", "usage", "done"): "the role comes within the text",
    ("role", "finish", "usage", "done"): "no text came",
    ("role", "content", "usage", "done"): "no reason for the end came",
    ("role", "content", "finish", "content", "finish", "usage", "done"): "two reasons for the end came",
    ("role", "content", "finish", "content", "usage", "done"): "text comes after the reason for the end",
    ("role", "content", "usage", "finish", "done"): "usage comes before the reason for the end",
    ("role", "content", "finish", "usage"): "no [DONE] came",
    ("role", "content", "finish", "done", "usage"): "something comes after [DONE]",
}


@pytest.mark.parametrize("events", GOOD, ids=" ".join)
def test_streams_in_order(events: tuple[str, ...]) -> None:
    assert hold("stream-order", lambda ask: streams("Hello!", events=events)).outcome == "pass"


@pytest.mark.parametrize("events", BAD, ids=" ".join)
def test_streams_out_of_order(events: tuple[str, ...]) -> None:
    verdict = hold("stream-order", lambda ask: streams("Hello!", events=events))
    assert (verdict.outcome, verdict.why) == ("fail", f"{BAD[events]}: {' · '.join(events)}")


def test_streams_that_are_none() -> None:
    assert "no usage came" in hold("stream-order", lambda ask: streams("Hello!", completion_tokens=None)).why
    assert "in one piece" in hold("stream-order", lambda ask: says("Hello!")).why
    cut = streams("Hel", events=("role", "content"))
    assert (
        hold("stream-order", lambda ask: replace(cut, error="the server closed")).why == "the stream ends in an error"
    )


def both(streamed: str, whole: str, **more: Any) -> Callable[[Ask], Answer]:
    return lambda ask: streams(streamed, **more) if ask.body["stream"] else says(whole, **more)


def test_a_stream_loses_nothing() -> None:
    assert hold("stream-same", both("Hello there!", "Hello there!")).why == ""
    assert hold("stream-same", both("Hello there!", "Good day!")).outcome == "pass", "greedy, and still other words"
    assert hold("stream-same", both("Hello there", "Hello there!")).why == "the stream lost its end: '!'"
    assert hold("stream-same", both("llo there!", "Hello there!")).why == "the stream lost its beginning: 'He'"
    assert hold("stream-same", both("", " ")).outcome == "not applicable", "nothing said is nothing compared"
    shorter = lambda ask: streams("Hello", completion_tokens=2) if ask.body["stream"] else says("Hello there!")  # noqa: E731
    assert hold("stream-same", shorter).outcome == "pass", "it said less, and says so"
    for broken in (True, False):
        server = lambda ask, broken=broken: refuses("boom", 500) if ask.body["stream"] == broken else says("Hello")  # noqa: E731
        verdict = hold("stream-same", server)
        assert (verdict.why, verdict.said) == ("the request ends in an error", "HTTP 500: boom")


def test_max_tokens() -> None:
    cut = says("one, two, three", finish_reason="length", completion_tokens=8)
    assert hold("stop-length", lambda ask: cut).outcome == "pass"
    assert hold("stop-length", lambda ask: replace(cut, finish_reason="stop")).why == (
        "cut off at 8 tokens, the reason is 'stop', not \"length\""
    )
    assert hold("stop-length", lambda ask: replace(cut, completion_tokens=9)).why == "8 tokens were asked for, 9 came"
    many = replace(cut, content="one, " * 40, completion_tokens=None)
    assert hold("stop-length", lambda ask: many).why == "8 tokens were asked for, 40 words came"
    assert hold("stop-length", lambda ask: replace(cut, finish_reason="stop"), DUMMY).outcome == "not applicable"
    assert hold("stop-length", lambda ask: refuses("boom", 500)).why == "the request ends in an error"


def test_a_stop_string() -> None:
    before = says("One, two, three, four, five, six, ")
    assert hold("stop-string", lambda ask: before).outcome == "pass"
    assert (
        hold("stop-string", lambda ask: says("", reasoning="I begin: one, two, three, four, five, six, ")).outcome
        == "pass"
    )
    assert "it says it" in hold("stop-string", lambda ask: says("…, six, seven")).why
    assert "the reason is 'length'" in hold("stop-string", lambda ask: replace(before, finish_reason="length")).why
    assert "it ends before" in hold("stop-string", lambda ask: says("")).why
    assert hold("stop-string", lambda ask: refuses("boom", 500)).why == "the request ends in an error"
    asked = []
    hold("stop-string", lambda ask: asked.append(ask.body) or before)
    assert asked[0]["stop"] == ["seven"]


def test_a_small_context_is_respected() -> None:
    asked = []
    small = replace(GEMMA, limit=100, configured=100)
    hold("stream-order", lambda ask: asked.append(ask.body) or streams(HELLO), small)
    assert asked[0]["max_tokens"] == 50
