"""Does the server say what a working model says: a fact, a paragraph, characters of many alphabets."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

from cluster.probe.answer import Answer
from cluster.probe.case import PASSED, Case, Subject, Talk, failed
from cluster.probe.chat import chat
from cluster.probe.judge_text import GARBAGE, judge_text

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
    if _foreign(answer) > 0.2:
        return failed("asked in English, it answers in another script", answer, remedy=GARBAGE)
    if len({word.lower() for word in ESSAY_WORDS.findall(answer.content)}) < 4:
        return failed("asked why the sky is blue, it speaks of something else", answer, remedy=GARBAGE)
    return PASSED


def _foreign(answer: Answer) -> float:
    """The share of letters that are not Latin."""
    letters = [letter for letter in answer.content if letter.isalpha()]
    return sum(not unicodedata.name(letter, "").startswith("LATIN") for letter in letters) / max(1, len(letters))


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


def _case(name: str, title: str, talk: Callable[[Subject], Talk], source: str, *, quick: bool = False) -> Case:
    return Case(f"text-{name}", title, "text", talk, source, quick=quick)


CASES = (
    _case("fact", "a fact, in a sane sentence", fact, "write-ups of April 2026 (!!!!!); vLLM issue 39407", quick=True),
    _case("essay", "a paragraph without a loop", essay, "eugr/spark-vllm-docker#217; dgx-spark-playbooks#76"),
    _case("echo", "characters of many alphabets, streamed", echo, "servers that cut a character between two events"),
)
