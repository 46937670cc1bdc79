"""Each problem's answer is found again by trying everything; answers are read however they are written."""

from __future__ import annotations

import datetime
from collections import Counter
from fractions import Fraction
from itertools import combinations, permutations, product

import pytest
from probe_talk import BY_ID as BY_CASE
from probe_talk import FOREIGN, GEMMA, hold, refuses, says

from cluster.probe.ask import CaseResult
from cluster.probe.cases import Probed, choose
from cluster.probe.problems import PROBLEMS, final

BY_ID = {one.id: one for one in PROBLEMS}


def price() -> list[str]:
    wanted = Fraction("118.80")
    return [
        str(first)
        for first in range(1, 1000)
        if first * Fraction(120, 100) * Fraction(75, 100) * Fraction(110, 100) == wanted
    ]


def islanders() -> list[str]:
    found = []
    for p, q, r, s in product((True, False), repeat=4):
        claims = (q == s, (p + q + r + s) % 2 == 1, not p, not q or r)
        if claims == (p, q, r, s):
            found.append(" ".join(name for name, is_knight in zip("PQRS", (p, q, r, s), strict=True) if is_knight))
    return found


def divisors() -> list[str]:
    return [str(sum(sum(number % one == 0 for one in (6, 10, 15)) == 1 for number in range(1, 301)))]


def ticket() -> list[str]:
    days = [datetime.date(2024, 2, 14)]
    while len(days) < 100:
        days.append(days[-1] + datetime.timedelta(days=1))
    assert datetime.date(2024, 2, 29) in days
    return [days[-1].isoformat()]


def marbles() -> list[str]:
    draws = list(combinations("rrrrbbbgg", 3))
    return [str(Fraction(sum(len(set(draw)) == 2 for draw in draws), len(draws)))]


def letters() -> list[str]:
    counts = Counter("thunderstorm")
    return ["".join(letter for letter in reversed("thunderstorm") if counts[letter] == 1)]


def runners() -> list[str]:
    found = []
    for order in permutations(("Ana", "Ben", "Cleo", "Dan", "Eva")):
        ana, ben, cleo, dan, eva = (order.index(name) for name in ("Ana", "Ben", "Cleo", "Dan", "Eva"))
        if abs(ana - ben) == 2 and cleo < dan < ben and eva not in (0, 4) and abs(cleo - eva) > 1 and ben != 4:
            found.append(" ".join(order))
    return found


SOLVERS = {one.__name__: one for one in (price, islanders, divisors, ticket, marbles, letters, runners)}


def test_seven_problems_each_with_a_solver() -> None:
    assert len(PROBLEMS) == 7
    assert SOLVERS.keys() == BY_ID.keys()


@pytest.mark.parametrize("name", SOLVERS)
def test_the_answer_is_the_only_one(name: str) -> None:
    assert SOLVERS[name]() == [BY_ID[name].answer]
    assert BY_ID[name].solved_by(f"Some thoughts.\nAnswer: {BY_ID[name].answer}")


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


@pytest.mark.parametrize(("name", "said"), [(name, said) for name, all_said in RIGHT.items() for said in all_said])
def test_right_answers_however_written(name: str, said: str) -> None:
    assert BY_ID[name].solved_by(f"First this, then that, 17 times.\n\n{said}")


@pytest.mark.parametrize(("name", "said"), [(name, said) for name, all_said in WRONG.items() for said in all_said])
def test_wrong_answers(name: str, said: str) -> None:
    assert not BY_ID[name].solved_by(said)


@pytest.mark.parametrize("name", BY_ID)
def test_no_problem_is_solved_by_another_ones_answer(name: str) -> None:
    for other in PROBLEMS:
        assert BY_ID[name].solved_by(f"Answer: {other.answer}") == (other.id == name)


def test_the_question_says_the_form_and_not_the_answer() -> None:
    for one in PROBLEMS:
        assert "`Answer:`" in one.question()
        assert one.answer not in one.question()
    assert final("**Answer:** `x`.\n\n") == "x"


def test_what_becomes_of_an_answer() -> None:
    right = hold("problem-price", lambda ask: says("Answer: 120", completion_tokens=640))
    assert (right.outcome, right.score, right.tokens) == ("pass", "right", 640)
    wrong = hold("problem-price", lambda ask: says("Answer: 100", completion_tokens=640))
    assert (wrong.outcome, wrong.score, wrong.why, wrong.tokens) == ("fail", "wrong", "'100' instead of '120'", 640)
    assert wrong.said == "Answer: 100"
    assert hold("problem-price", lambda ask: says("")).why == "'nothing' instead of '120'"
    cut = hold("problem-price", lambda ask: says("", reasoning="Let me see", finish_reason="length"))
    assert (cut.outcome, cut.score, cut.tokens) == ("fail", "cut off", 20)
    late = hold("problem-price", lambda ask: says("Answer: 120", finish_reason="length"))
    assert late.score == "right", "cut after the answer"
    none = hold("problem-price", lambda ask: refuses("time-out", None))
    assert (none.outcome, none.score) == ("fail", ""), "a server that does not answer is at fault"


def test_the_score() -> None:
    server = {
        "problem-price": says("Answer: 120", completion_tokens=100),
        "problem-ticket": says("Answer: 7"),
        "problem-letters": says("", finish_reason="length", completion_tokens=3500),
        "problem-runners": refuses("boom", 500),
    }
    told = [CaseResult(BY_CASE[name], hold(name, lambda ask, name=name: server[name]), 2.0) for name in server]
    probed = Probed(GEMMA, told)
    assert probed.score() == {"right": 1, "wrong": 1, "cut_off": 1, "of": 3, "seconds_each": 2.0, "tokens_each": 1207}
    assert [one.case.id for one in probed.failed] == ["problem-runners"], "wrong answers are the model's"
    assert Probed(GEMMA).score() is None
    assert probed.document()["cases"][1]["score"] == "wrong"


def test_a_model_that_cannot_think_is_asked_without() -> None:
    def ollama(ask):
        return refuses("m does not support thinking") if "chat_template_kwargs" in ask.body else says("Answer: 120")

    assert hold("problem-price", ollama, FOREIGN).outcome == "pass"
    asked = []
    hold("problem-price", lambda ask: asked.append(ask.body) or says("Answer: 120"), GEMMA)
    assert asked[0]["chat_template_kwargs"] == {"enable_thinking": True}
    assert "temperature" not in asked[0]


def test_the_check_is_asked_for_by_name_or_in_full() -> None:
    names = [f"problem-{one.id}" for one in PROBLEMS]
    assert [case.id for case in choose(["reasoning-check"])] == names
    assert not {case.id for case in choose([])} & set(names)
    assert {case.id for case in choose([], full=True)} > set(names)
    assert all(case.long and case.judges_text for case in choose(["reasoning-check"]))
