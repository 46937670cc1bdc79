"""Whether the text of an answer is one that a working server gives: sane, whole, without marks; pure."""

from __future__ import annotations

from cluster.diagnosis.rules import OF_OUTPUTS
from cluster.probe.answer import Answer
from cluster.probe.case import Verdict, failed, skipped
from cluster.spark.sanity import insane, leaked, thinks_aloud

GARBAGE = OF_OUTPUTS["text-insane"].remedy
"""Against weights and kernels that are wrong."""
NO_MARKS = "a chat template and parsers that fit the model (--chat-template, --reasoning-parser, --tool-call-parser)"


def judge_text(answer: Answer) -> Verdict | None:
    """What is wrong with an answer whatever it says; None when nothing is.

    A model that thinks although it was asked not to, and comes to no answer within its tokens, is not at fault.
    """
    if answer.error:
        return failed("the request ends in an error", answer)
    for part in filter(str.strip, (answer.content, answer.reasoning)):
        if wrong := insane(part):
            return failed(f"the text {wrong}", answer, remedy=GARBAGE)
        if mark := leaked(part) or thinks_aloud(answer.content):
            return failed(f"{mark} stands in the text", answer, remedy=NO_MARKS)
    if answer.content.strip():
        return None
    if not answer.reasoning.strip():
        return failed("the answer is empty", answer)
    if answer.finish_reason == "length":
        return skipped(f"it thought for all of its {answer.completion_tokens or ''} tokens and gave no answer", answer)
    return failed("the answer is empty: all of it is in the reasoning channel", answer)
