"""Does the server look at pictures: two of our own, so that a model that guesses is found out."""

from __future__ import annotations

import re
from base64 import b64encode
from functools import partial
from pathlib import Path

from cluster.probe.ask import Case, Message, ProbedServer, Reply, Talk, chat, expect, fail, skip
from cluster.probe.text import check_text

Shapes = tuple[str, str]
"""What a picture shows, from left to right on white; 448 pixels are a multiple of the patches of Gemma and Qwen."""

QUESTION = (
    "Which shapes are in this picture? Name each one with its colour, one a line, as in `black star`, and nothing else."
)
FIRST: Shapes = ("red square", "green circle")
SECOND: Shapes = ("blue triangle", "yellow square")

_KINDS = {
    "square": r"squares?|rectang\w+|box(?:es)?|quadrat\w*",
    "circle": r"circ\w+|dis[ck]s?|dots?|balls?|ovals?|ellips\w+|round",
    "triangle": r"triang\w+|pyramids?",
}
_COLORS = {"red": r"red|crimson|scarlet", "green": r"green", "blue": r"blue", "yellow": r"yellow|gold(?:en)?|amber"}
_REFUSED = re.compile(
    r"image|picture|vision|visual|multi-?modal|mmproj|content type|unmarshal array|content must be a string"
    r'|concatenate str \(not "list"\)',
    re.IGNORECASE,
)
"""vLLM: `At most 0 image(s) may be provided in one prompt.`, `… is not a multimodal model`; llama.cpp: `image input is
not supported`; Ollama: `this model is missing data required for image input`; templates that take text only."""
_UNREADABLE = re.compile(r"cannot identify|decod|corrupt|truncated|invalid image|failed to (?:load|open|fetch)", re.I)
_GREW_TOKENS = 8  # a picture adds 64 tokens and more; the form of a message with parts adds a few at most


def shown(shapes: Shapes) -> list[Message]:
    png = Path(__file__).with_name(f"{'-'.join(shapes).replace(' ', '-')}.png").read_bytes()
    url = f"data:image/png;base64,{b64encode(png).decode()}"
    return [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": QUESTION}]


def shapes_and_colors(server: ProbedServer) -> Talk:
    """Of two pictures, the shapes and their colors are named."""
    mistaken = []
    for shapes in (FIRST, SECOND):
        reply = yield chat(server, shown(shapes), thinking=False, max_tokens=1024)
        _check_taken(server, reply)
        check_text(reply)
        if not describes(reply.content, shapes):
            mistaken.append((shapes, reply))
    if mistaken:
        shapes, reply = mistaken[0]
        _check_seen(reply, (yield chat(server, QUESTION, thinking=False, max_tokens=1)))
        fail(f"shown {' and '.join(f'a {shape}' for shape in shapes)}, it says something else", reply)


def _check_taken(server: ProbedServer, reply: Reply) -> None:
    """The server takes pictures: no fault if not, unless the recipe promises them or it took the probe's for broken."""
    if reply.error:
        known = bool(_REFUSED.search(reply.error)) and not _UNREADABLE.search(reply.error)
        if server.vision and (known or reply.status in range(400, 500)):
            remedy = "look for --language-model-only and --limit-mm-per-prompt among the flags" if known else ""
            fail("the recipe's model takes pictures, the server does not", reply, remedy=remedy)
        if known or (server.vision is False and reply.status in range(400, 500)):
            skip("the server takes no pictures", reply)
        fail("a request with a picture ends in an error", reply)


def _check_seen(reply: Reply, without: Reply) -> None:
    """The prompt is longer with the picture than without it, where both lengths are known."""
    if reply.prompt_tokens is not None and without.prompt_tokens is not None:
        tokens = f"the prompt has {reply.prompt_tokens} tokens, as without it"
        grew = reply.prompt_tokens - without.prompt_tokens >= _GREW_TOKENS
        expect(grew, f"the picture is taken and not looked at: {tokens}", reply)


def describes(text: str, shapes: Shapes) -> bool:
    """Whether a text names these shapes in these colors and no other shape.

    A color belongs to the shape of its clause when it has one of each; else colors and shapes are paired
    in their order ("a square and a circle, red and green").
    """
    said = text.lower()
    kinds, colors = _found(said, _KINDS), _found(said, _COLORS)
    wanted = {tuple(shape.split()) for shape in shapes}
    if set(kinds) != {kind for _, kind in wanted}:
        return False
    clauses = [(_found(one, _COLORS), _found(one, _KINDS)) for one in re.split(r"[\n.;,]|\band\b", said)]
    paired = {(one[0], other[0]) for one, other in clauses if len(one) == len(other) == 1}
    return paired == wanted or (paired <= wanted and set(zip(colors, kinds, strict=False)) == wanted)


def _found(text: str, words: dict[str, str]) -> list[str]:
    """Which of these a text names, in the order of their first mention."""
    at = {name: found.start() for name, one in words.items() if (found := re.search(rf"\b(?:{one})\b", text))}
    return sorted(at, key=at.__getitem__)


def prompt_grows(server: ProbedServer) -> Talk:
    """A picture is part of the prompt: tokens are counted for it.

    Seen without reading a word of the answer.
    """
    reply = yield chat(server, shown(FIRST), thinking=False, max_tokens=1)
    _check_taken(server, reply)
    without = yield chat(server, QUESTION, thinking=False, max_tokens=1)
    expect(not without.error, "the request ends in an error", without)
    if reply.prompt_tokens is None or without.prompt_tokens is None:
        skip("the server does not report the length of prompts", reply)
    _check_seen(reply, without)


_case = partial(Case, group="vision")  # write-up on Gemma 4 31B, April 2026

CASES = (
    _case("vision-tokens", "a picture is part of the prompt", prompt_grows, judges_text=False),
    _case("vision-shapes", "shapes and colours of two pictures", shapes_and_colors),
)
