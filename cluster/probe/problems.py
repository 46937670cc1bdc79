"""The reasoning check: seven short problems of our own, each with one exact answer; what counts is score and time."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial

from cluster.probe.ask import Case, CaseOver, ProbedServer, Talk, Verdict, chat, expect, table, without

FORM = "\n\nThink as long as you need. End with one line that begins with `Answer:` and holds the final answer alone"


@dataclass(frozen=True, slots=True)
class Problem:
    """A row of known.yaml. `right`: a regular expression that a final answer in whatever form fits."""

    id: str
    title: str
    text: str
    answer: str
    right: str
    form: str = ""

    def question(self) -> str:
        return f"{self.text}{FORM}{self.form}."

    def solved_by(self, said: str) -> bool:
        return bool(re.fullmatch(self.right, final(said)))


def final(said: str) -> str:
    """What follows the last `Answer:`, else in the last \\boxed{}, else on the last line."""
    plain = re.sub(r"\\(?:text|mathrm|mathbf|textbf)\{([^{}]*)\}", r"\1", said)
    plain = re.sub(r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}", r"\1/\2", plain)
    boxed = re.findall(r"\\boxed\{([^{}]*)\}", plain)
    plain = re.sub(r"\\boxed\{([^{}]*)\}", r"\1", re.sub(r"[*_`$]|\\[()\[\]]", "", plain))
    given = re.findall(r"answer(?:\s+is)?\s*[:：]\s*(\S[^\n]*)", plain, re.IGNORECASE)
    lines = [line for line in plain.splitlines() if line.strip()]
    found = given[-1] if given else boxed[-1] if boxed else lines[-1] if lines else ""
    return found.strip().rstrip(".").strip()


PROBLEMS = tuple(Problem(**row) for row in table("problems"))

TOKENS = 3500  # with its thoughts: within the time limit of a request at the 6.8 tok/s of a 31B on one Spark


def solve(server: ProbedServer, *, problem: Problem) -> Talk:
    """The model is judged, not the server: right, wrong or cut off; a wrong answer fails nothing.

    Put one problem to the model, thinking if it can; sampling is left to the model's own settings.
    """
    question = problem.question()
    reply = yield without(chat(server, question, thinking=True, max_tokens=TOKENS), "temperature")
    if reply.status == 400 and "think" in reply.error.lower():
        reply = yield without(chat(server, question, max_tokens=TOKENS), "temperature")
    expect(not reply.error, "no answer: the request ends in an error", reply)
    right = Verdict("pass", score="right", tokens=reply.completion_tokens)
    if problem.solved_by(reply.content):
        raise CaseOver(right)
    if reply.finish_reason == "length":
        raise CaseOver(replace(right, outcome="fail", score="cut off", why="cut off before it came to an answer"))
    why = f"{final(reply.content)[:60] or 'nothing'!r} instead of {problem.answer!r}"
    raise CaseOver(replace(right, outcome="fail", score="wrong", why=why, said=reply.content[-240:]))


CASES = tuple(
    Case(f"problem-{one.id}", one.title, partial(solve, problem=one), "reasoning-check", long=True) for one in PROBLEMS
)
