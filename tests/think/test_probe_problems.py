"""The reasoning check: answers are read however they are written, and scored."""

from __future__ import annotations

from typing import Any

from loops import each
from probe_talk import BY_ID as BY_CASE
from probe_talk import FOREIGN, GEMMA, hold, refuses, says

from cluster.probe.ask import CaseResult, Reply
from cluster.probe.cases import Probed
from cluster.probe.problems import PROBLEMS

BY_ID = {one.id: one for one in PROBLEMS}


RIGHT = {
    "price": [
        "Answer: 120",
        "**Answer:** 120 euros",
        "Answer: €120.00.",
        "Answer: $\\boxed{120}$",
        "so it is \\boxed{120}",
        "Answer: 118.80 / 0.99 = 120",
        "120",
        "answer is: 120 EUR",
    ],
    "islanders": ["Answer: R, S", "Answer: R and S", "**Answer: R & S**", "Answer:\nR S"],
    "divisors": ["Answer: 70", "Answer: **70** numbers", "I first thought\nAnswer: 80\nbut no.\nAnswer: 70"],
    "ticket": [
        "Answer: 2024-05-23",
        "Answer: 23 May 2024",
        "Answer: May 23, 2024",
        "Answer: Thursday, 23rd of May 2024",
        "Answer: 23.05.2024",
        "Answer: `2024-05-23`",
    ],
    "marbles": [
        "Answer: 55/84",
        "Answer: $\\frac{55}{84}$",
        "Answer: \\dfrac{55}{84} ≈ 0.65",
        "Answer: 110/168 = 55/84",
    ],
    "letters": ["Answer: mosednuh", 'Answer: "MOSEDNUH"', "Answer: m-o-s-e-d-n-u-h", "Answer: m o s e d n u h."],
    "runners": [
        "Answer: Cleo, Dan, Ben, Eva, Ana",
        "Answer: Cleo > Dan > Ben > Eva > Ana",
        "Answer: 1. Cleo 2. Dan 3. Ben 4. Eva 5. Ana",
    ],
}
WRONG = {
    "price": ["Answer: 119", "Answer: 120 or 121", "Answer:", "", "Answer: 12.0", "Answer: about twelve"],
    "islanders": ["Answer: R", "Answer: P, R, S", "Answer: S and Q"],
    "divisors": ["Answer: 70\nWait.\nAnswer: 80", "Answer: 7", "Answer: 700"],
    "ticket": ["Answer: 2024-05-24", "Answer: 2024-05-22", "Answer: May", "Answer: 23 May"],
    "marbles": ["Answer: 0.6548", "Answer: 55/85", "Answer: 55/0", "Answer: 29/84"],
    "letters": ["Answer: hundesom", "Answer: mosednu", "Answer: mosednuh mosednuh"],
    "runners": ["Answer: Cleo, Dan, Ana, Eva, Ben", "Answer: Cleo, Dan, Ben, Eva", "Answer: Dan, Cleo, Ben, Eva, Ana"],
}


@each("name, said", [(name, said) for name, all_said in RIGHT.items() for said in all_said])
def test_right_answers_however_written(name: str, said: str) -> None:
    assert [one.id for one in PROBLEMS if one.solved_by(f"First this, then that, 17 times.\n\n{said}")] == [name]


@each("name, said", [(name, said) for name, all_said in WRONG.items() for said in all_said])
def test_wrong_answers(name: str, said: str) -> None:
    assert not BY_ID[name].solved_by(said)


TOO_LONG = says("", reasoning="Let me see", finish_reason="length")
BROKEN = refuses("time-out", None)


@each(
    "answer, outcome, score, tokens",
    [
        (says("Answer: 120", completion_tokens=640), "pass", "right", 640),
        (says("Answer: 120", finish_reason="length"), "pass", "right", 20),
        (says("Answer: 100", completion_tokens=640), "fail", "wrong", 640),
        (says(""), "fail", "wrong", 20),
        (TOO_LONG, "fail", "cut off", 20),
        (BROKEN, "fail", "", None),
    ],
)
def test_what_becomes_of_an_answer(answer: Reply, outcome: str, score: str, tokens: int | None) -> None:
    verdict = hold("problem-price", answer)
    assert (verdict.outcome, verdict.score, verdict.tokens) == (outcome, score, tokens)


def test_the_score() -> None:
    server = {
        "problem-price": says("Answer: 120", completion_tokens=100),
        "problem-ticket": says("Answer: 7"),
        "problem-letters": says("", finish_reason="length", completion_tokens=3500),
        "problem-runners": BROKEN,
    }
    told = [CaseResult(BY_CASE[name], hold(name, answer), 2.0) for name, answer in server.items()]
    probed = Probed(GEMMA, told)
    assert probed.score() == {"right": 1, "wrong": 1, "cut_off": 1, "of": 3, "seconds_each": 2.0, "tokens_each": 1207}
    assert [one.case.id for one in probed.failed] == ["problem-runners"], "wrong answers are the model's"
    assert Probed(GEMMA).score() is None
    document = probed.document()
    assert (document["passed"], document["failed"], document["cases"][1]["score"]) == (0, 1, "wrong")


def test_a_model_that_cannot_think_is_asked_without() -> None:
    asked: list[Any] = []
    no = refuses("m does not support thinking")
    last = lambda ask: no if "chat_template_kwargs" in ask.body else says("Answer: 120")  # noqa: E731
    assert hold("problem-price", last, FOREIGN, asked).outcome == "pass"
    assert asked[0]["chat_template_kwargs"] == {"enable_thinking": True}
    assert "temperature" not in asked[0]
