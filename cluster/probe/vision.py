"""Does the server look at pictures: two of our own, so that a model that guesses is found out."""

from __future__ import annotations

import re
from base64 import b64encode
from functools import partial
from pathlib import Path

from cluster.probe.ask import PASSED, Answer, Case, Message, Subject, Talk, Verdict, chat, failed, skipped, user
from cluster.probe.text import judge_text

Shapes = tuple[str, str]
"""What a picture shows, from left to right on white; 448 pixels are a multiple of the patches of Gemma and Qwen."""

QUESTION = (
    "Which shapes are in this picture? Name each one with its colour, one a line, as in `black star`, and nothing else."
)
ANSWER_TOKENS = 1024
FIRST: Shapes = ("red square", "green circle")
SECOND: Shapes = ("blue triangle", "yellow square")

_KINDS = {
    "square": r"squares?|rectang\w+|box(?:es)?|quadrat\w*",
    "circle": r"circ\w+|dis[ck]s?|dots?|balls?|ovals?|ellips\w+|round",
    "triangle": r"triang\w+|pyramids?",
}
_COLOURS = {"red": r"red|crimson|scarlet", "green": r"green", "blue": r"blue", "yellow": r"yellow|gold(?:en)?|amber"}
_REFUSED = re.compile(
    r"image|picture|vision|visual|multi-?modal|mmproj|content type|unmarshal array|content must be a string"
    r'|concatenate str \(not "list"\)',
    re.IGNORECASE,
)
"""vLLM: `At most 0 image(s) may be provided in one prompt.`, `… is not a multimodal model`; llama.cpp: `image input is
not supported`; Ollama: `this model is missing data required for image input`; templates that take text only."""
_UNREADABLE = re.compile(r"cannot identify|decod|corrupt|truncated|invalid image|failed to (?:load|open|fetch)", re.I)
_GREW_TOKENS = 8
"""A picture adds 64 tokens and more; the form of a message with parts adds a few at most."""


def shown(shapes: Shapes) -> Message:
    """The question with a picture."""
    png = Path(__file__).with_name(f"{'-'.join(shapes).replace(' ', '-')}.png").read_bytes()
    url = f"data:image/png;base64,{b64encode(png).decode()}"
    return user([{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": QUESTION}])


def shapes_and_colours(subject: Subject) -> Talk:
    """Both pictures are described, in whatever words."""
    answers = []
    for shapes in (FIRST, SECOND):
        answer = yield chat(subject, [shown(shapes)], thinking=False, max_tokens=ANSWER_TOKENS)
        if answer.error:
            return _not_taken(subject, answer)
        if wrong := judge_text(answer):
            return wrong
        answers.append((shapes, answer))
    mistaken = [(shapes, answer) for shapes, answer in answers if not describes(answer.content, shapes)]
    if not mistaken:
        return PASSED
    without = yield chat(subject, QUESTION, thinking=False, max_tokens=1)
    shapes, answer = mistaken[0]
    if _unseen(answer, without):
        return _blind(answer)
    wanted = " and ".join(f"a {shape}" for shape in shapes)
    return failed(f"shown {wanted}, it says something else", answer)


def _not_taken(subject: Subject, answer: Answer) -> Verdict:
    """The server refuses pictures: no fault, unless the recipe promises them or it took ours for broken."""
    known = bool(_REFUSED.search(answer.error)) and not _UNREADABLE.search(answer.error)
    if not known and not 400 <= (answer.status or 0) < 500:
        return failed("a request with a picture ends in an error", answer)
    if subject.vision:
        remedy = "look for --language-model-only and --limit-mm-per-prompt among the flags" if known else ""
        return failed("the recipe's model takes pictures, the server does not", answer, remedy=remedy)
    if known or (subject.vision is False and answer.status):
        return skipped("the server takes no pictures", answer)
    return failed("a request with a picture ends in an error", answer)


def _unseen(answer: Answer, without: Answer) -> bool:
    """The prompt is no longer with the picture than without it."""
    if answer.prompt_tokens is None or without.prompt_tokens is None:
        return False
    return answer.prompt_tokens - without.prompt_tokens < _GREW_TOKENS


def _blind(answer: Answer) -> Verdict:
    tokens = f"the prompt has {answer.prompt_tokens} tokens, as without it"
    return failed(f"the picture is taken and not looked at: {tokens}", answer)


def describes(text: str, shapes: Shapes) -> bool:
    """Whether a text names these shapes in these colours and no other shape.

    A colour belongs to the shape of its clause when both stand alone in it; else colours and shapes are taken
    in the order in which they come ("a square and a circle, red and green").
    """
    said = text.lower()
    kinds, colours = _found(said, _KINDS), _found(said, _COLOURS)
    wanted = {tuple(shape.split()) for shape in shapes}
    if set(kinds) != {kind for _, kind in wanted}:
        return False
    clauses = [(_found(one, _COLOURS), _found(one, _KINDS)) for one in re.split(r"[\n.;,]|\band\b", said)]
    paired = {(one[0], other[0]) for one, other in clauses if len(one) == len(other) == 1}
    return paired == wanted or (paired <= wanted and set(zip(colours, kinds, strict=False)) == wanted)


def _found(text: str, words: dict[str, str]) -> list[str]:
    """Which of these a text names, in the order of their first mention."""
    at = {name: found.start() for name, one in words.items() if (found := re.search(rf"\b(?:{one})\b", text))}
    return sorted(at, key=at.__getitem__)


def prompt_grows(subject: Subject) -> Talk:
    """A picture is part of the prompt: it costs tokens. Told without reading a word of the answer."""
    answer = yield chat(subject, [shown(FIRST)], thinking=False, max_tokens=1)
    if answer.error:
        return _not_taken(subject, answer)
    without = yield chat(subject, QUESTION, thinking=False, max_tokens=1)
    if without.error:
        return failed("the request ends in an error", without)
    if answer.prompt_tokens is None or without.prompt_tokens is None:
        return skipped("the server does not report the length of prompts", answer)
    return _blind(answer) if _unseen(answer, without) else PASSED


SEED = "write-up on Gemma 4 31B, April 2026"
_case = partial(Case, group="vision")

CASES = (
    _case("vision-tokens", "a picture is part of the prompt", prompt_grows, SEED, judges_text=False),
    _case("vision-shapes", "shapes and colours of two pictures", shapes_and_colours, SEED),
)
