"""The reasoning channel: filled and separate passes, each way of mixing it up is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from probe_talk import FOREIGN, GEMMA, hold, refuses, says, streams

THOUGHTS = "Let p be the price of a pen. Then 2p + 3(p + 7) = 41, so 5p = 20 and p = 4."
ANSWER = "A pen costs 4 euros."
CASES = ["reasoning-channel", "reasoning-channel-streamed"]
ORDER = ("role", "reasoning", "content", "finish", "usage", "done")


def answer(case: str, content: str, reasoning: str = "", events: tuple[str, ...] = ORDER, **more: object):
    """What a server gives, in one piece or streamed as the case wants it."""
    if case.endswith("streamed"):
        return streams(content, reasoning=reasoning, events=events, **more)
    return says(content, reasoning=reasoning, **more)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("subject", [GEMMA, FOREIGN], ids=["promised", "foreign"])
def test_a_filled_and_separate_channel(case: str, subject: object) -> None:
    assert hold(case, lambda ask: answer(case, ANSWER, THOUGHTS), subject).outcome == "pass"


def test_thinking_is_asked_for_as_the_engine_wants_it() -> None:
    asked = []
    for subject in (GEMMA, replace(FOREIGN, engine="ollama")):
        hold("reasoning-channel", lambda ask: asked.append(ask.body) or says(ANSWER, reasoning=THOUGHTS), subject)
    assert asked[0]["chat_template_kwargs"] == {"enable_thinking": True}
    assert asked[1]["reasoning_effort"] == "medium"
    assert "temperature" not in asked[0], "greedy thinking loops; the model's own settings hold"


def test_the_channel_is_null_as_in_38855() -> None:
    """The marks were stripped before the parser saw them: `thought` is all that is left."""
    verdict = hold("reasoning-channel", lambda ask: says(f"thought\n{THOUGHTS}\n{ANSWER}"))
    assert verdict.outcome == "fail"
    assert verdict.why == "the reasoning stands in the answer: it has 'thought', and the channel is empty"
    assert verdict.defect.startswith("vLLM issue 38855")
    assert "vLLM 0.20" in verdict.remedy
    empty = hold("reasoning-channel", lambda ask: says(ANSWER))
    assert (empty.outcome, empty.why) == ("fail", "thinking was asked for, and the reasoning channel is empty")
    assert empty.defect.startswith("vLLM issue 38855")


def test_which_of_them_is_38855() -> None:
    """`thought` is its trace; other marks are those of another model, or of a server without a parser."""
    left, mark = says(f"thought\n{THOUGHTS}"), says(f"<think>{THOUGHTS}")
    for subject in (FOREIGN, GEMMA):
        assert hold("reasoning-channel", lambda ask: left, subject).defect
        assert hold("reasoning-channel", lambda ask: mark, subject).defect == ""


def test_an_empty_streamed_channel_is_another_fault() -> None:
    verdict = hold("reasoning-channel-streamed", lambda ask: streams(ANSWER))
    assert (verdict.outcome, verdict.defect) == ("fail", "")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mark", ["<think>", "<|channel>"])
def test_reasoning_within_the_answer(case: str, mark: str) -> None:
    given = answer(case, f"{mark}{THOUGHTS}</think>{ANSWER}")
    told = hold(case, lambda ask: given, FOREIGN)
    assert (told.outcome, "stands in the answer" in told.why, "--reasoning-parser" in told.remedy) == (
        "fail",
        True,
        True,
    )
    assert hold(case, lambda ask: given, GEMMA).outcome == "fail"
    partly = answer(case, f"{THOUGHTS}</think>{ANSWER}", reasoning="First I see.")
    assert "the channel has 12 characters" in hold(case, lambda ask: partly).why


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("content", "reasoning", "why"),
    [
        (ANSWER, f"{THOUGHTS}<channel|>", "<channel|> stands in the text"),
        (ANSWER, f"<think>{THOUGHTS}", "<think> stands in the text"),
        (ANSWER, f"thought\n{THOUGHTS}", "thought stands in the text"),
        (f"{ANSWER}<turn|>", THOUGHTS, "<turn|> stands in the text"),
        (ANSWER, f"{THOUGHTS}<|turn>", "<|turn> stands in the text"),
        (f"{THOUGHTS} {ANSWER}", THOUGHTS, "the reasoning stands in the answer, too"),
        (ANSWER, "!" * 90, "the reasoning repeats one character"),
        ("", THOUGHTS, "the answer is empty: all of it is in the reasoning channel"),
    ],
)
def test_marks_doubles_and_losses(case: str, content: str, reasoning: str, why: str) -> None:
    verdict = hold(case, lambda ask: answer(case, content, reasoning))
    assert verdict.outcome == "fail"
    assert verdict.why.startswith(why)


def test_a_short_thought_may_come_again() -> None:
    assert (
        hold("reasoning-channel", lambda ask: says("A pen costs 4 euros.", reasoning="A pen costs 4")).outcome == "pass"
    )


def test_a_stream_that_mixes_them() -> None:
    mixed = ("role", "content", "reasoning", "content", "finish", "usage", "done")
    verdict = hold("reasoning-channel-streamed", lambda ask: streams(ANSWER, reasoning=THOUGHTS, events=mixed))
    assert verdict.why == "reasoning and answer come mixed: content · reasoning · content"


@pytest.mark.parametrize("case", CASES)
def test_not_applicable(case: str) -> None:
    no_parser = replace(GEMMA, reasoning=False)
    assert hold(case, lambda ask: answer(case, ANSWER), no_parser).why == "the recipe has no reasoning parser"
    assert hold(case, lambda ask: answer(case, ANSWER), FOREIGN).outcome == "not applicable"
    ollama = refuses('"gemma3:27b" does not support thinking')
    assert hold(case, lambda ask: ollama, FOREIGN).outcome == "not applicable"
    assert (
        hold(case, lambda ask: refuses("reasoning_effort is not supported", 422), FOREIGN).outcome == "not applicable"
    )
    assert hold(case, lambda ask: ollama, GEMMA).outcome == "fail"
    assert hold(case, lambda ask: refuses("boom", 500), FOREIGN).outcome == "fail"
    endless = answer(
        case, "", THOUGHTS, events=("role", "reasoning", "finish", "usage", "done"), finish_reason="length"
    )
    assert hold(case, lambda ask: endless).outcome == "not applicable"
