"""Is the text that of a working model: sane, complete, and with the reasoning in its own channel."""

from __future__ import annotations

import re
import unicodedata
from functools import partial
from itertools import groupby

from cluster.diagnosis.rules import OF_OUTPUTS
from cluster.probe.ask import Case, ProbedServer, Reply, Talk, chat, expect, fail, skip, without
from cluster.spark.server import insane, leaked, thinks_aloud

GARBAGE = OF_OUTPUTS["text-insane"].remedy  # against weights and kernels that are wrong
NO_MARKS = "a chat template and parsers that fit the model (--chat-template, --reasoning-parser, --tool-call-parser)"


def check_text(reply: Reply) -> None:
    """What every reply must be, whatever its text.

    A model that thinks although it was asked not to, and comes to no answer within its tokens, is not at fault.
    """
    expect(not reply.error, "the request ends in an error", reply)
    for part in filter(str.strip, (reply.content, reply.reasoning)):
        wrong, mark = insane(part), leaked(part) or thinks_aloud(reply.content)
        expect(not wrong, f"the text {wrong}", reply, remedy=GARBAGE)
        expect(not mark, f"{mark} stands in the text", reply, remedy=NO_MARKS)
    check_answered(reply)


def check_answered(reply: Reply) -> None:
    if not reply.content.strip():
        expect(reply.reasoning.strip(), "the answer is empty", reply)
        if reply.finish_reason == "length":
            tokens = f"{reply.completion_tokens or ''} tokens"
            skip(f"it thought for all of its {tokens} and gave no answer", reply)
        fail("the answer is empty: all of it is in the reasoning channel", reply)


FACT = "What is the capital of France? Answer in one short sentence."
FACT_TOKENS = 512
ESSAY = "Explain in about 120 words of plain English why the sky is blue."
ESSAY_WORDS = re.compile(
    r"\b(?:blue|light|sun\w*|scatter\w*|air|atmospher\w*|wave\w*|molecul\w*|colou?rs?|red|sky|eyes?|rayleigh)\b",
    re.IGNORECASE,
)
"""What an answer to ESSAY cannot do without: at least four of them."""
LINE = "Größe, naïve, Привет, 日本語, שלום, 🙂"
ECHO = f"Repeat this line exactly and say nothing else:\n{LINE}"


def fact(server: ProbedServer) -> Talk:
    """The capital of France: sane text that says Paris, and then stops."""
    reply = yield chat(server, FACT, thinking=False, max_tokens=FACT_TOKENS)
    check_text(reply)
    is_paris = "paris" in reply.content.lower()
    expect(is_paris, "asked for the capital of France, it does not say Paris", reply, remedy=GARBAGE)
    too_long = f"it does not stop: one short sentence took all of its {FACT_TOKENS} tokens"
    expect(reply.finish_reason != "length", too_long, reply)


def essay(server: ProbedServer) -> Talk:
    """A paragraph long enough for a loop to show: no loop, no rubbish, on its subject."""
    reply = yield chat(server, ESSAY, thinking=False, max_tokens=800)
    check_text(reply)
    letters = [letter for letter in reply.content if letter.isalpha()]
    others = sum(not unicodedata.name(letter, "").startswith("LATIN") for letter in letters)
    expect(others <= 0.2 * len(letters), "asked in English, it answers in another script", reply, remedy=GARBAGE)
    words = {word.lower() for word in ESSAY_WORDS.findall(reply.content)}
    expect(len(words) >= 4, "asked why the sky is blue, it speaks of something else", reply, remedy=GARBAGE)


def echo(server: ProbedServer) -> Talk:
    """A line in many alphabets: each character comes whole."""
    reply = yield chat(server, ECHO, thinking=False, stream=True, max_tokens=FACT_TOKENS)
    check_text(reply)
    said = unicodedata.normalize("NFC", reply.content)
    expect("�" not in said, "characters of more than one byte are broken in the stream", reply)
    missing = " ".join(word for word in LINE.split(", ") if word not in said)
    expect(not missing, f"asked to repeat a line, it leaves out {missing}", reply)


_case = partial(Case, group="text")
CASES = (
    _case("text-fact", "a fact, in a sane sentence", fact, quick=True),  # write-ups of April 2026; vLLM issue 39407
    _case("text-essay", "a paragraph without a loop", essay),  # eugr/spark-vllm-docker#217; dgx-spark-playbooks#76
    _case("text-echo", "characters of many alphabets, streamed", echo),
)

RIDDLE = (
    "Two pens and three books cost 41 euros together. A book costs 7 euros more than a pen. What does a pen cost? "
    "Think step by step, then give the price in one short sentence."
)
_NO_THOUGHTS = re.compile(r"think|reason|effort|chat_template_kwargs", re.IGNORECASE)
PARSER = "start the server with a reasoning parser: --reasoning-parser gemma4 for Gemma 4, qwen3 for Qwen"
_MARK = "stands in the text: a parser should have taken it away"


def channel(server: ProbedServer, *, stream: bool) -> Talk:
    """A riddle, thinking on: the reasoning is in its channel, and only there.

    Thinking is asked for as the engine wants it; how it then samples is left to the model's own settings.
    Gemma 4 thinks when `enable_thinking` is given to its template, Qwen unless it is forbidden (vLLM's documentation).
    """
    if server.reasoning is False:
        skip("the recipe has no reasoning parser")
    reply = yield without(chat(server, RIDDLE, thinking=True, stream=stream), "temperature")
    if reply.error and not server.reasoning and reply.status in (400, 422) and _NO_THOUGHTS.search(reply.error):
        skip("the model does not think", reply)
    expect(not reply.error, "the request ends in an error", reply)
    if not reply.reasoning and not {"chat_template_kwargs", "reasoning_effort"}.isdisjoint(reply.left_out):
        skip("the server cannot be asked to think: it refuses the switch for it", reply)
    _check_apart(server, reply, "" if stream else "no_reasoning")
    check_answered(reply)


def _check_apart(server: ProbedServer, reply: Reply, defect: str) -> None:
    """Reasoning in its channel, the answer in its own, no marks in either, one after the other."""
    content, thoughts = reply.content.strip(), reply.reasoning.strip()
    if mark := thinks_aloud(reply.content):
        known = defect if mark == "thought" else ""
        size = f"has {len(reply.reasoning):,} characters" if thoughts else "is empty"
        why = f"the reasoning stands in the answer: it has {mark!r}, and the channel {size}"
        fail(why, reply, defect=known, remedy="" if known else PARSER)
    wrong, mark = content and insane(reply.content), leaked(reply.content)
    expect(not wrong, f"the text {wrong}", reply, remedy=GARBAGE)
    expect(not mark, f"{mark} {_MARK}", reply)
    expect(content or thoughts, "the answer is empty", reply)
    if not thoughts and not server.reasoning:
        skip("no reasoning came: the model does not think, or has no channel for it", reply)
    expect(thoughts, "thinking was asked for, and the reasoning channel is empty", reply, defect=defect)
    wrong, mark = insane(reply.reasoning), thinks_aloud(reply.reasoning) or leaked(reply.reasoning)
    expect(not mark, f"{mark} {_MARK}", reply)
    expect(not wrong, f"the reasoning {wrong}", reply, remedy=GARBAGE)
    expect(len(thoughts) < 40 or thoughts[:120] not in reply.content, "the reasoning stands in the answer, too", reply)
    order = [event for event, _ in groupby(event for event in reply.events if event in ("reasoning", "content"))]
    in_order = order in ([], ["reasoning", "content"], ["reasoning"])
    expect(in_order, f"reasoning and answer come mixed: {' · '.join(order)}", reply)


_case = partial(Case, group="reasoning")  # vLLM issue 38855

REASONING_CASES = (
    _case("reasoning-channel", "reasoning in its own channel", partial(channel, stream=False)),
    _case("reasoning-channel-streamed", "reasoning in its own channel, streamed", partial(channel, stream=True)),
)
