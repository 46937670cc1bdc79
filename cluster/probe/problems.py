"""The reasoning check: seven short problems of our own, each with one exact answer; what counts is score and time."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

from cluster.probe.ask import Case, Subject, Talk, Verdict, chat, failed, table, without

FORM = "\n\nThink as long as you need. End with one line that begins with `Answer:` and holds the final answer alone"


@dataclass(frozen=True, slots=True)
class Problem:
    """A row of known.yaml. `read` names the reader that brings a final answer into the form of `answer`.

    `names`: those of which the answer consists.
    """

    id: str
    title: str
    text: str
    answer: str
    read: str
    form: str = ""
    names: tuple[str, ...] = ()

    def question(self) -> str:
        """What the model is asked."""
        return f"{self.text}{FORM}{self.form}."

    def solved_by(self, said: str) -> bool:
        """Whether a model's answer ends in the right result, however it is written."""
        if self.names:
            return " ".join(re.findall(rf"\b(?:{'|'.join(self.names)})\b", final(said))) == self.answer
        return READERS[self.read](final(said)) == self.answer


def final(said: str) -> str:
    """What stands behind the last `Answer:`, else in the last \\boxed{}, else on the last line."""
    plain = re.sub(r"\\(?:text|mathrm|mathbf|textbf)\{([^{}]*)\}", r"\1", said)
    plain = re.sub(r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}", r"\1/\2", plain)
    boxed = re.findall(r"\\boxed\{([^{}]*)\}", plain)
    plain = re.sub(r"\\boxed\{([^{}]*)\}", r"\1", re.sub(r"[*_`$]|\\[()\[\]]", "", plain))
    given = re.findall(r"answer(?:\s+is)?\s*[:：]\s*(\S[^\n]*)", plain, re.IGNORECASE)
    lines = [line for line in plain.splitlines() if line.strip()]
    found = given[-1] if given else boxed[-1] if boxed else lines[-1] if lines else ""
    return found.strip().rstrip(".").strip()


def read_number(text: str) -> str:
    """The only number of an answer, or behind its last `=`, without separators; empty for none, or more than one."""
    found = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text.rpartition("=")[2])
    return str(Fraction(found[0].replace(",", ""))) if len(found) == 1 else ""


def read_fraction(text: str) -> str:
    """A fraction in lowest terms, the last one that is written; empty for a decimal."""
    found = re.findall(r"(\d+)\s*[/⁄∕]\s*(\d+)", text)
    value = Fraction(*map(int, found[-1])) if found and int(found[-1][1]) else None
    return f"{value.numerator}/{value.denominator}" if value else ""


def read_date(text: str) -> str:
    """A date of any of the usual forms as YYYY-MM-DD."""
    plain = re.sub(r"(?<=\d)(?:st|nd|rd|th)\b|,|\bof\b", " ", text)
    plain = re.sub(r"\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b", " ", plain, flags=re.IGNORECASE)
    for form in ("%Y-%m-%d", "%d %B %Y", "%B %d %Y", "%d %b %Y", "%b %d %Y", "%d.%m.%Y", "%Y/%m/%d"):
        with suppress(ValueError):
            return datetime.datetime.strptime(" ".join(plain.split()), form).date().isoformat()
    return ""


READERS: Mapping[str, Callable[[str], str]] = {
    "number": read_number,
    "fraction": read_fraction,
    "date": read_date,
    "word": lambda text: re.sub(r"[^a-z]", "", text.lower()),  # some spell a word letter by letter
}
PROBLEMS = tuple(Problem(**row) for row in table("problems"))

TOKENS = 3500
"""Of one answer with its thoughts: within the time limit of a request at the 6.8 tok/s of a 31B on one Spark."""


def solve(subject: Subject, *, problem: Problem) -> Talk:
    """Put one problem to the model, thinking if it can; sampling is left to the model's own settings."""
    question = problem.question()
    answer = yield without(chat(subject, question, thinking=True, max_tokens=TOKENS), "temperature")
    if answer.status == 400 and "think" in answer.error.lower():
        answer = yield without(chat(subject, question, max_tokens=TOKENS), "temperature")
    if answer.error:
        return failed("no answer: the request ends in an error", answer)
    right = Verdict("pass", score="right", tokens=answer.completion_tokens)
    if problem.solved_by(answer.content):
        return right
    if answer.finish_reason == "length":
        return replace(right, outcome="fail", score="cut off", why="cut off before it came to an answer")
    why = f"{final(answer.content)[:60] or 'nothing'!r} instead of {problem.answer!r}"
    return replace(right, outcome="fail", score="wrong", why=why, said=answer.content[-240:])


SOURCE = "write-up on Gemma 4 31B NVFP4, June 2026"
CASES = tuple(
    Case(f"problem-{one.id}", one.title, partial(solve, problem=one), SOURCE, "reasoning-check", long=True)
    for one in PROBLEMS
)
