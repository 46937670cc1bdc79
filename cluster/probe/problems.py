"""The reasoning check: seven short problems of our own, each with one exact answer; what counts is score and time."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

from cluster.probe.ask import Answer, chat, without
from cluster.probe.case import Case, Subject, Talk, Verdict, failed

FORM = "\n\nThink as long as you need. End with one line that begins with `Answer:` and holds the final answer alone"


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem; `read` brings a final answer, however it is written, into the form of `answer`."""

    id: str
    title: str
    text: str
    answer: str
    read: Callable[[str], str]
    form: str = ""

    def question(self) -> str:
        """What the model is asked."""
        return f"{self.text}{FORM}{self.form}."

    def solved_by(self, said: str) -> bool:
        """Whether a model's answer ends in the right result."""
        return self.read(final(said)) == self.answer


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
    if len(found) != 1:
        return ""
    return str(Fraction(found[0].replace(",", "")))


def read_fraction(text: str) -> str:
    """A fraction in lowest terms, the last one that is written; empty for a decimal."""
    found = re.findall(r"(\d+)\s*[/⁄∕]\s*(\d+)", text)
    if not found or not int(found[-1][1]):
        return ""
    value = Fraction(int(found[-1][0]), int(found[-1][1]))
    return f"{value.numerator}/{value.denominator}"


def read_date(text: str) -> str:
    """A date of any of the usual forms as YYYY-MM-DD."""
    plain = re.sub(r"(?<=\d)(?:st|nd|rd|th)\b|,|\bof\b", " ", text)
    plain = re.sub(r"\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b", " ", plain, flags=re.IGNORECASE)
    for form in ("%Y-%m-%d", "%d %B %Y", "%B %d %Y", "%d %b %Y", "%b %d %Y", "%d.%m.%Y", "%Y/%m/%d"):
        with suppress(ValueError):
            return datetime.datetime.strptime(" ".join(plain.split()), form).date().isoformat()
    return ""


def read_word(text: str) -> str:
    """Letters in small, without what stands between and around them: some spell a word letter by letter."""
    return re.sub(r"[^a-z]", "", text.lower())


def read_names(text: str, known: Sequence[str]) -> str:
    """Those of some names that a text has, in the order in which they stand."""
    return " ".join(re.findall(rf"\b(?:{'|'.join(known)})\b", text))


PROBLEMS = (
    Problem(
        "price",
        "arithmetic with percentages",
        "A shop raised the price of a lamp by 20 percent. Later it lowered the new price by 25 percent, and at last it "
        "raised that price by 10 percent. The lamp now costs 118.80 euros. How many euros did it cost at first?",
        "120",
        read_number,
    ),
    Problem(
        "islanders",
        "who tells the truth",
        "On an island each person is either a knight, who says only what is true, or a knave, who says only what is "
        "false. Four islanders speak.\nP: Q and S are of the same kind.\nQ: An odd number of the four of us are "
        "knights.\nR: P is a knave.\nS: If Q is a knight, then R is a knight.\nWhich of P, Q, R and S are knights? "
        "Give their letters in alphabetical order.",
        "R S",
        partial(read_names, known="PQRS"),
    ),
    Problem(
        "divisors",
        "counting without counting twice",
        "How many whole numbers from 1 to 300, both included, are divisible by exactly one of the three numbers 6, 10 "
        "and 15?",
        "70",
        read_number,
    ),
    Problem(
        "ticket",
        "a date across a leap day",
        "A ticket is valid for 100 days in a row. Its first valid day is 14 February 2024. What is its last valid day?",
        "2024-05-23",
        read_date,
        ", as YYYY-MM-DD",
    ),
    Problem(
        "marbles",
        "a probability",
        "A bag holds 4 red, 3 blue and 2 green marbles. Three are drawn at once, without looking. What is the "
        "probability that the three show exactly two different colours?",
        "55/84",
        read_fraction,
        ", as a fraction in lowest terms",
    ),
    Problem(
        "letters",
        "letters of a word",
        "Take the word thunderstorm. Strike out every letter that occurs in it more than once, all of its occurrences. "
        "Write what is left backwards. Which string of letters is that?",
        "mosednuh",
        read_word,
    ),
    Problem(
        "runners",
        "an order from hints",
        "Ana, Ben, Cleo, Dan and Eva ran a race, and no two arrived together. Exactly one runner arrived between Ana "
        "and Ben. Cleo arrived before Dan, and Dan before Ben. Eva was neither first nor last. At least one runner "
        "arrived between Cleo and Eva. Ben was not last. In which order did they arrive, from first to last?",
        "Cleo Dan Ben Eva Ana",
        partial(read_names, known=("Ana", "Ben", "Cleo", "Dan", "Eva")),
    ),
)


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
    Case(
        f"problem-{one.id}",
        one.title,
        "reasoning-check",
        partial(solve, problem=one),
        "write-up on Gemma 4 31B NVFP4, June 2026",
        long=True,
    )
    for one in PROBLEMS
)
