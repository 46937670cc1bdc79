"""The cases on text: right answers in many wordings pass, each way of being wrong is named."""

from __future__ import annotations

import pytest
from probe_talk import hold, refuses, says, streams

from cluster.probe.ask import Answer
from cluster.probe.text import LINE

SKY = (
    "The sky is blue because sunlight, which holds all colours, meets the molecules of the air. They scatter short "
    "waves much more than long ones, so blue light reaches our eyes from every direction, while red goes straight on."
)
WRONG = {
    "NaN": (says("!" * 60), "repeats one character"),
    "a scale applied twice": (says(" a" * 60), "repeats one word"),
    "a loop": (says("The sky is blue. " * 30), "repeats 'The sky is blue.'"),
    "empty": (says(""), "the answer is empty"),
    "blank thoughts": (says(" ", reasoning="\n"), "the answer is empty"),
    "all in the wrong channel": (says("", reasoning="Paris is the capital."), "all of it is in the reasoning channel"),
    "Gemma's mark": (says("<|channel>thought\nParis<channel|>Paris."), "<|channel> stands in the text"),
    "a turn's end": (says("Paris.<turn|>"), "<turn|> stands in the text"),
    "a thought in the answer": (says("<think>France?</think>Paris."), "<think> stands in the text"),
    "what is left of Gemma's empty thought": (says("thought\nParis."), "thought stands in the text"),
    "padding": (says("Paris<pad><pad>"), "<pad> stands in the text"),
    "ChatML": (says("Paris.<|im_end|>"), "<|im_end|> stands in the text"),
    "garbage in the thoughts": (says("Paris.", reasoning="Nun Scher" + " Scher" * 40), "repeats 'Scher'"),
    "mixed alphabets": (says("Ein Schдum, Fehl شer und Stoшung"), "mixes alphabets"),
    "an error": (refuses("boom", 500), "ends in an error"),
    "no answer": (refuses("connection reset", None), "ends in an error"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("case", ["text-fact", "text-essay", "text-echo"])
def test_what_no_text_may_be(case: str, name: str) -> None:
    answer, why = WRONG[name]
    verdict = hold(case, lambda ask: answer)
    assert verdict.outcome == "fail"
    assert why in verdict.why
    assert (why == "the answer is empty") == (verdict.why == "the answer is empty")
    assert verdict.said == answer.said()


def test_garbage_has_a_remedy() -> None:
    assert "--moe-backend marlin" in hold("text-fact", lambda ask: says("!" * 60)).remedy


@pytest.mark.parametrize(
    "text", ["Paris.", "The capital of France is **Paris**.", "PARIS", "It's Paris, of course! 🙂"]
)
def test_the_fact_in_any_wording(text: str) -> None:
    assert hold("text-fact", lambda ask: says(text)).outcome == "pass"


def test_another_fact_and_one_without_end() -> None:
    verdict = hold("text-fact", lambda ask: says("The capital of France is London."))
    assert (verdict.outcome, verdict.why) == ("fail", "asked for the capital of France, it does not say Paris")
    endless = says("Paris. It lies on the Seine, and it is old.", finish_reason="length")
    assert "it does not stop" in hold("text-fact", lambda ask: endless).why


def test_a_model_that_cannot_but_think_is_not_at_fault() -> None:
    answer = says("", reasoning="The user asks for the capital.", finish_reason="length", completion_tokens=512)
    verdict = hold("text-fact", lambda ask: answer)
    assert (verdict.outcome, verdict.why) == (
        "not applicable",
        "it thought for all of its 512 tokens and gave no answer",
    )


def test_the_essay() -> None:
    assert hold("text-essay", lambda ask: says(SKY)).outcome == "pass"
    salad = "Green lamps ordered seven quiet questions while nobody painted the tired river of spoons and dates."
    assert "something else" in hold("text-essay", lambda ask: says(salad)).why
    assert hold("text-essay", lambda ask: says("The air scatters blue light.")).outcome == "pass"
    assert hold("text-essay", lambda ask: says("The air scatters blue, blue blue.")).outcome == "fail"
    russian = f"Небо голубое, потому что солнечный свет рассеивается в воздухе. {SKY[:60]}"
    assert "another script" in hold("text-essay", lambda ask: says(russian)).why


def test_the_echo() -> None:
    assert hold("text-echo", lambda ask: streams(LINE)).outcome == "pass"
    assert hold("text-echo", lambda ask: streams(f"`{LINE}`\n")).outcome == "pass"
    lost = hold("text-echo", lambda ask: streams(LINE.replace("日", "�")))
    assert (lost.outcome, "broken in the stream" in lost.why) == ("fail", True)
    assert "leaves out Größe," not in lost.why
    assert (
        hold("text-echo", lambda ask: streams(LINE.replace("ö", ""))).why
        == "asked to repeat a line, it leaves out Größe"
    )


def test_thinking_is_forbidden_where_it_only_costs_time() -> None:
    seen = []

    def server(ask):
        seen.append(ask.body)
        return Answer(500, "x")

    for case in ("text-fact", "text-essay", "text-echo"):
        hold(case, server)
    assert [body["chat_template_kwargs"] for body in seen] == [{"enable_thinking": False}] * 3
    assert [body["stream"] for body in seen] == [False, False, True]
