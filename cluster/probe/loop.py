"""An agent's loop: call, give the results back, ask again, until there is an answer; pure."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field

from cluster.bench.records import Ask
from cluster.probe.answer import Answer
from cluster.probe.calls import cut, judge_calls, loop_defect
from cluster.probe.case import Subject, Verdict, failed
from cluster.probe.chat import Tool, leaked, result

MOST_STEPS = 6


@dataclass(slots=True)
class Course:
    """How a loop went: its answers, the tools that were called, and what was wrong, if anything was."""

    answers: list[Answer] = field(default_factory=list)
    called: set[str] = field(default_factory=set)
    wrong: Verdict | None = None

    @property
    def last(self) -> Answer:
        """The newest answer."""
        return self.answers[-1]


def go_through(
    subject: Subject,
    asked: Ask,
    tools: Sequence[Tool],
    results: Mapping[str, str],
    *,
    first: Answer | None = None,
) -> Generator[Ask, Answer, Course]:
    """Ask, and give each call its tool's result, until an answer calls nothing.

    `first`: the answer to `asked`, when it is there already.
    """
    course, messages = Course(), list(asked.body["messages"])
    for _ in range(MOST_STEPS):
        answer = first or (yield Ask(asked.path, {**asked.body, "messages": messages}))
        first = None
        course.answers.append(answer)
        if not answer.tool_calls and course.called:
            course.wrong = _judge_end(subject, answer)
            return course
        course.wrong = judge_calls(subject, answer, tools, later=bool(course.called))
        if course.wrong:
            return course
        messages.append(answer.turn())
        for call in answer.tool_calls:
            course.called.add(call.name)
            messages.append(result(call, results[call.name]))
    course.wrong = failed(f"it calls tools for {MOST_STEPS} steps and never answers", course.last)
    return course


def _judge_end(subject: Subject, answer: Answer) -> Verdict | None:
    """What is wrong with an answer to results that calls nothing more."""
    if answer.error:
        return failed("the server answered with an error when it was given a tool's result", answer)
    if mark := leaked(answer):
        return failed(f"{mark!r} stands in the text", answer, defect=loop_defect(subject, answer))
    if answer.finish_reason == "length":
        return cut(answer)
    if not answer.content.strip():
        return failed("the answer to a tool's result is empty", answer, defect=loop_defect(subject, answer))
    return None
