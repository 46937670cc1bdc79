"""Does the server say what a working model says: sane, complete, and with the reasoning in its own channel."""

from __future__ import annotations

import re
import unicodedata
from functools import partial
from itertools import groupby

from cluster.diagnosis.rules import OF_OUTPUTS
from cluster.probe.ask import PASSED, Answer, Case, Subject, Talk, Verdict, chat, failed, skipped, without
from cluster.spark.server import insane, leaked, thinks_aloud

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


FACT = "What is the capital of France? Answer in one short sentence."
FACT_TOKENS = 512
ESSAY = "Explain in about 120 words of plain English why the sky is blue."
ESSAY_TOKENS = 800
ESSAY_WORDS = re.compile(
    r"\b(?:blue|light|sun\w*|scatter\w*|air|atmospher\w*|wave\w*|molecul\w*|colou?rs?|red|sky|eyes?|rayleigh)\b",
    re.IGNORECASE,
)
"""What an answer to ESSAY cannot do without: at least four of them."""
LINE = "Größe, naïve, Привет, 日本語, שלום, 🙂"
ECHO = f"Repeat this line exactly and say nothing else:\n{LINE}"


def fact(subject: Subject) -> Talk:
    """A short answer that everybody knows, and then its end."""
    answer = yield chat(subject, FACT, thinking=False, max_tokens=FACT_TOKENS)
    if wrong := judge_text(answer):
        return wrong
    if "paris" not in answer.content.lower():
        return failed("asked for the capital of France, it does not say Paris", answer, remedy=GARBAGE)
    if answer.finish_reason == "length":
        return failed(f"it does not stop: one short sentence took all of its {FACT_TOKENS} tokens", answer)
    return PASSED


def essay(subject: Subject) -> Talk:
    """A paragraph long enough for a loop to show, and on its subject."""
    answer = yield chat(subject, ESSAY, thinking=False, max_tokens=ESSAY_TOKENS)
    if wrong := judge_text(answer):
        return wrong
    letters = [letter for letter in answer.content if letter.isalpha()]
    if sum(not unicodedata.name(letter, "").startswith("LATIN") for letter in letters) > 0.2 * len(letters):
        return failed("asked in English, it answers in another script", answer, remedy=GARBAGE)
    if len({word.lower() for word in ESSAY_WORDS.findall(answer.content)}) < 4:
        return failed("asked why the sky is blue, it speaks of something else", answer, remedy=GARBAGE)
    return PASSED


def echo(subject: Subject) -> Talk:
    """Characters of more than one byte come whole through a stream, which may cut them anywhere."""
    answer = yield chat(subject, ECHO, thinking=False, stream=True, max_tokens=FACT_TOKENS)
    if wrong := judge_text(answer):
        return wrong
    said = unicodedata.normalize("NFC", answer.content)
    if "�" in said:
        return failed("characters of more than one byte are broken in the stream", answer)
    missing = [word for word in LINE.split(", ") if word not in said]
    return failed(f"asked to repeat a line, it leaves out {' '.join(missing)}", answer) if missing else PASSED


_case = partial(Case, group="text")

CASES = (
    _case(
        "text-fact", "a fact, in a sane sentence", fact, "write-ups of April 2026 (!!!!!); vLLM issue 39407", quick=True
    ),
    _case("text-essay", "a paragraph without a loop", essay, "eugr/spark-vllm-docker#217; dgx-spark-playbooks#76"),
    _case(
        "text-echo", "characters of many alphabets, streamed", echo, "servers that cut a character between two events"
    ),
)


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
    if wrong := _mixed_up(subject, answer, "" if stream else "no_reasoning"):
        return wrong
    if answer.content.strip():
        return PASSED
    if answer.finish_reason == "length":
        return skipped(f"it thought for all of its {answer.completion_tokens or TOKENS} tokens: no answer yet", answer)
    return failed("the answer is empty: all of it is in the reasoning channel", answer)


def _mixed_up(subject: Subject, answer: Answer, defect: str) -> Verdict | None:
    """Reasoning where the answer belongs, marks in either, the two by turns."""
    if mark := thinks_aloud(answer.content):
        known = defect if mark == "thought" else ""
        size = f"has {len(answer.reasoning):,} characters" if answer.reasoning.strip() else "is empty"
        why = f"the reasoning stands in the answer: it has {mark!r}, and the channel {size}"
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
        return failed("thinking was asked for, and the reasoning channel is empty", answer, defect=defect)
    if mark := thinks_aloud(answer.reasoning) or leaked(answer.reasoning):
        return failed(f"{mark} stands in the text: a parser should have taken it away", answer)
    if wrong := insane(answer.reasoning):
        return failed(f"the reasoning {wrong}", answer, remedy=GARBAGE)
    if len(answer.reasoning.strip()) >= 40 and answer.reasoning.strip()[:120] in answer.content:
        return failed("the reasoning stands in the answer, too", answer)
    order = [event for event, _ in groupby(event for event in answer.events if event in ("reasoning", "content"))]
    if answer.events and order not in (["reasoning", "content"], ["reasoning"]):
        return failed(f"reasoning and answer come mixed: {' · '.join(order)}", answer)
    return None


_case = partial(Case, group="reasoning", source="vLLM issue 38855")

REASONING_CASES = (
    _case("reasoning-channel", "reasoning in its own channel", talk=partial(channel, stream=False)),
    _case("reasoning-channel-streamed", "reasoning in its own channel, streamed", talk=partial(channel, stream=True)),
)
