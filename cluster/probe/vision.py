"""Does the server look at pictures: two drawn by us, so that a model that guesses is found out."""

from __future__ import annotations

import base64
import re
import struct
import zlib
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from cluster.probe.ask import PASSED, Answer, Case, Message, Subject, Talk, Verdict, chat, failed, skipped, user
from cluster.probe.text import judge_text

SIDE = 448
"""Pixels of either side: a multiple of the patches of Gemma (16) and Qwen (28)."""

COLOURS = {"red": (220, 20, 30), "green": (20, 160, 50), "blue": (30, 60, 220), "yellow": (250, 215, 0)}
WHITE = (255, 255, 255)


@dataclass(frozen=True, slots=True)
class Shape:
    """A shape in one colour around a centre, `radius` pixels to its sides."""

    kind: Literal["square", "circle", "triangle"]
    colour: str
    x: int
    y: int
    radius: int

    def covers(self, x: int, y: int) -> bool:
        """Whether a pixel belongs to it; a triangle stands on its base."""
        across, down = abs(x - self.x), y - self.y
        if self.kind == "circle":
            return across * across + down * down <= self.radius * self.radius
        if abs(down) > self.radius:
            return False
        return across <= self.radius if self.kind == "square" else 2 * across <= down + self.radius


@cache
def draw(shapes: tuple[Shape, ...]) -> bytes:
    """A PNG with the shapes on white, later ones above earlier ones (W3C's PNG: RGB of 8 bits, no filter)."""

    def pixel(x: int, y: int) -> tuple[int, int, int]:
        return next((COLOURS[shape.colour] for shape in reversed(shapes) if shape.covers(x, y)), WHITE)

    rows = b"".join(b"\0" + bytes(value for x in range(SIDE) for value in pixel(x, y)) for y in range(SIDE))
    png = b"\x89PNG\r\n\x1a\n"
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")):
        png += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return png


def data_uri(png: bytes) -> str:
    """As an image_url takes it."""
    return "data:image/png;base64," + base64.b64encode(png).decode()


QUESTION = (
    "Which shapes are in this picture? Name each one with its colour, one a line, as in `black star`, and nothing else."
)
ANSWER_TOKENS = 1024
FIRST = (Shape("square", "red", 130, 224, 80), Shape("circle", "green", 318, 224, 80))
SECOND = (Shape("triangle", "blue", 130, 224, 80), Shape("square", "yellow", 318, 224, 80))

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


def shown(shapes: tuple[Shape, ...]) -> Message:
    """The question with a picture."""
    picture: dict[str, Any] = {"type": "image_url", "image_url": {"url": data_uri(draw(shapes))}}
    return user([picture, {"type": "text", "text": QUESTION}])


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
    wanted = " and ".join(f"a {shape.colour} {shape.kind}" for shape in shapes)
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
    why = f"the picture is taken and not looked at: the prompt has {answer.prompt_tokens} tokens, as without it"
    return failed(why, answer)


def describes(text: str, shapes: tuple[Shape, ...]) -> bool:
    """Whether a text names these shapes in these colours and no other shape.

    A colour belongs to the shape of its clause when both stand alone in it; else colours and shapes are taken
    in the order in which they come ("a square and a circle, red and green").
    """
    said = text.lower()
    kinds, colours = _found(said, _KINDS), _found(said, _COLOURS)
    if set(kinds) != {shape.kind for shape in shapes}:
        return False
    wanted = {(shape.colour, shape.kind) for shape in shapes}
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

CASES = (
    Case("vision-tokens", "a picture is part of the prompt", "vision", prompt_grows, SEED, judges_text=False),
    Case("vision-shapes", "shapes and colours of two pictures", "vision", shapes_and_colours, SEED),
)
