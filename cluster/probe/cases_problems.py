"""The reasoning check: seven problems, each right or wrong; what counts is the score and the time it took."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from cluster.probe.answer import Answer
from cluster.probe.case import Case, Subject, Talk, Verdict, failed
from cluster.probe.chat import chat, without
from cluster.probe.problems import PROBLEMS, Problem, final

TOKENS = 3500
"""Of one answer with its thoughts: within the time limit of a request at the 6.8 tok/s of a 31B on one Spark."""


def solve(subject: Subject, *, problem: Problem) -> Talk:
    """Put one problem to the model, thinking if it can; sampling is left to the model's own settings."""
    question = problem.question()
    answer = yield without(chat(subject, question, thinking=True, max_tokens=TOKENS), "temperature")
    if answer.status == 400 and "think" in answer.error.lower():
        answer = yield without(chat(subject, question, max_tokens=TOKENS), "temperature")
    return _judged(problem, answer)


def _judged(problem: Problem, answer: Answer) -> Verdict:
    """Right, wrong, cut off, or no answer: four different things to whoever reads the score."""
    if answer.error:
        return failed("no answer: the request ends in an error", answer)
    right = Verdict("pass", score="right", tokens=answer.completion_tokens)
    if problem.solved_by(answer.content):
        return right
    if answer.finish_reason == "length":
        return replace(right, outcome="fail", score="cut off", why="cut off before it came to an answer")
    why = f"{final(answer.content)[:60] or 'nothing'!r} instead of {problem.answer!r}"
    return replace(right, outcome="fail", score="wrong", why=why, said=answer.content[-240:])


CASES = tuple(
    Case(f"problem-{one.id}", one.title, "reasoning-check", partial(solve, problem=one),
         "write-up on Gemma 4 31B NVFP4, June 2026", long=True)
    for one in PROBLEMS
)  # fmt: skip
