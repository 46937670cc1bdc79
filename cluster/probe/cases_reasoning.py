"""Is the model's reasoning in its own channel, filled, and separate from the answer."""

from __future__ import annotations

import re
from functools import partial

from cluster.probe.answer import Answer
from cluster.probe.case import PASSED, Case, Defect, Subject, Talk, Verdict, failed, skipped
from cluster.probe.chat import chat, without
from cluster.probe.defects import NO_REASONING
from cluster.probe.judge_text import GARBAGE
from cluster.spark.sanity import insane, leaked, thinks_aloud

RIDDLE = (
    "Two pens and three books cost 41 euros together. A book costs 7 euros more than a pen. What does a pen cost? "
    "Think step by step, then give the price in one short sentence."
)
TOKENS = 2048
_NO_THOUGHTS = re.compile(r"think|reason|effort|chat_template_kwargs", re.IGNORECASE)
PARSER = "start the server with a reasoning parser: --reasoning-parser gemma4 for Gemma 4, qwen3 for Qwen"


def channel(subject: Subject, *, stream: bool) -> Talk:
    """Thinking is asked for as the engine wants it; how it then samples is left to the model's own settings.

    Gemma 4 thinks when `enable_thinking` is given to its template, Qwen unless it is forbidden (vLLM's documentation).
    """
    if subject.reasoning is False:
        return skipped("the recipe has no reasoning parser")
    answer = yield without(chat(subject, RIDDLE, thinking=True, stream=stream, max_tokens=TOKENS), "temperature")
    if answer.error:
        no = not subject.reasoning and answer.status in (400, 422) and _NO_THOUGHTS.search(answer.error)
        return skipped("the model does not think", answer) if no else failed("the request ends in an error", answer)
    if not answer.reasoning and not {"chat_template_kwargs", "reasoning_effort"}.isdisjoint(answer.left_out):
        return skipped("the server cannot be asked to think: it refuses the switch for it", answer)
    return _mixed_up(subject, answer, None if stream else NO_REASONING) or _incomplete(subject, answer) or PASSED


def _mixed_up(subject: Subject, answer: Answer, defect: Defect | None) -> Verdict | None:
    """Reasoning where the answer belongs, marks in either, the two by turns."""
    if mark := thinks_aloud(answer.content):
        known = defect if mark == "thought" else None
        why = f"the reasoning stands in the answer: it has {mark!r}, and the channel {_size(answer.reasoning)}"
        return failed(why, answer, defect=known, remedy="" if known else PARSER)
    if answer.content.strip() and (wrong := insane(answer.content)):
        return failed(f"the text {wrong}", answer, remedy=GARBAGE)
    if mark := leaked(answer.content):
        return failed(f"{mark} stands in the text: a parser should have taken it away", answer)
    if not (answer.content + answer.reasoning).strip():
        return failed("the answer is empty", answer)
    if not answer.reasoning.strip():
        if not subject.reasoning:
            return skipped("no reasoning came: the model does not think, or has no channel for it", answer)
        why = "thinking was asked for, and the reasoning channel is empty"
        return failed(why, answer, defect=defect)
    if mark := thinks_aloud(answer.reasoning) or leaked(answer.reasoning):
        return failed(f"{mark} stands in the text: a parser should have taken it away", answer)
    if wrong := insane(answer.reasoning):
        return failed(f"the reasoning {wrong}", answer, remedy=GARBAGE)
    if len(answer.reasoning.strip()) >= 40 and answer.reasoning.strip()[:120] in answer.content:
        return failed("the reasoning stands in the answer, too", answer)
    order = [event for event in answer.events if event in ("reasoning", "content")]
    order = [event for at, event in enumerate(order) if not at or order[at - 1] != event]
    if answer.events and order not in (["reasoning", "content"], ["reasoning"]):
        return failed(f"reasoning and answer come mixed: {' · '.join(order)}", answer)
    return None


def _size(reasoning: str) -> str:
    return f"has {len(reasoning):,} characters" if reasoning.strip() else "is empty"


def _incomplete(subject: Subject, answer: Answer) -> Verdict | None:
    """Thoughts without an answer behind them."""
    if answer.content.strip():
        return None
    if answer.finish_reason == "length":
        return skipped(f"it thought for all of its {answer.completion_tokens or TOKENS} tokens: no answer yet", answer)
    return failed("the answer is empty: all of it is in the reasoning channel", answer)


SOURCE = "vLLM issue 38855"

CASES = (
    Case("reasoning-channel", "reasoning in its own channel", "reasoning", partial(channel, stream=False), SOURCE),
    Case("reasoning-channel-streamed", "reasoning in its own channel, streamed", "reasoning",
         partial(channel, stream=True), SOURCE),
)  # fmt: skip
