"""The pictures are what they should be; descriptions are judged by what they say and not by how."""

from __future__ import annotations

import struct
import zlib
from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace

import pytest
from probe_talk import FOREIGN, GEMMA, hold, refuses, says

from cluster.bench.loader import Ask
from cluster.probe.ask import Answer
from cluster.probe.vision import COLOURS, FIRST, SECOND, SIDE, Shape, describes, draw

Pixels = list[list[tuple[int, ...]]]


def read_png(png: bytes) -> Pixels:
    """The pixels of a PNG of 8-bit RGB without filters; every chunk's checksum is tested."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, data, kinds = 8, b"", []
    while at < len(png):
        [length] = struct.unpack(">I", png[at : at + 4])
        kind, body = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        assert struct.unpack(">I", png[at + 8 + length : at + 12 + length]) == (zlib.crc32(kind + body),)
        kinds.append(kind)
        data += body if kind == b"IDAT" else b""
        at += 12 + length
    assert (kinds[0], kinds[-1]) == (b"IHDR", b"IEND")
    width, height, depth, colour, *_ = struct.unpack(">IIBBBBB", png[16:29])
    assert (depth, colour) == (8, 2)
    raw = zlib.decompress(data)
    rows = [raw[row * (1 + 3 * width) : (row + 1) * (1 + 3 * width)] for row in range(height)]
    assert {row[0] for row in rows} == {0}
    return [[tuple(row[1 + 3 * x : 4 + 3 * x]) for x in range(width)] for row in rows]


@pytest.mark.parametrize("shapes", [FIRST, SECOND], ids=["first", "second"])
def test_a_picture_has_its_shapes_on_white(shapes: tuple[Shape, ...]) -> None:
    pixels = read_png(draw(shapes))
    assert (len(pixels), len(pixels[0])) == (SIDE, SIDE)
    assert {colour for row in pixels for colour in row} == {(255, 255, 255), *(COLOURS[one.colour] for one in shapes)}
    for shape in shapes:
        assert pixels[shape.y][shape.x] == COLOURS[shape.colour]
        area = sum(colour == COLOURS[shape.colour] for row in pixels for colour in row) / (2 * shape.radius) ** 2
        assert area == pytest.approx({"square": 1, "circle": 3.14159 / 4, "triangle": 0.5}[shape.kind], abs=0.02)


def test_a_triangle_stands_on_its_base_and_later_shapes_lie_above() -> None:
    pixels = read_png(draw((Shape("square", "red", 224, 224, 100), Shape("triangle", "blue", 224, 224, 100))))
    assert [pixels[320][x] == COLOURS["blue"] for x in (130, 224, 318)] == [True] * 3
    assert [pixels[140][x] == COLOURS["blue"] for x in (130, 224, 318)] == [False, True, False]
    assert pixels[140][130] == COLOURS["red"]


def test_the_two_pictures_cannot_be_guessed_by_one_answer() -> None:
    assert {one.colour for one in FIRST}.isdisjoint(one.colour for one in SECOND)
    assert {one.kind for one in FIRST} != {one.kind for one in SECOND}
    everything = "red square, green circle, blue triangle, yellow square"
    assert not describes(everything, FIRST)
    assert not describes(everything, SECOND)


RIGHT = [
    "red square\ngreen circle",
    "- **Red** square\n- **Green** circle",
    "There is a red square on the left and a green circle on the right.",
    "Square: red. Circle: green.",
    "The image shows a square and a circle, coloured red and green respectively.",
    "A green disc and a crimson box on a white background",
    "A square in red and a circle, which is green.",
    "Two shapes: red and green. The first is a square, the second is round.",
    "From left to right there are a square and a circle. The circle is green; the square is red.",
]
NOT_RIGHT = [
    "",
    "I cannot see any picture.",
    "red square",
    "green circle",
    "blue square\ngreen circle",
    "red circle\ngreen square",
    "A green square and a red circle.",
    "red square\ngreen circle\nblue triangle",
    "red triangle\ngreen circle",
    "a red house with a green tree",
    "redsquare greencircle",
    "a square and a circle",
    "a red square, a green circle and a triangle",
]


@pytest.mark.parametrize("text", RIGHT)
def test_any_wording_is_right(text: str) -> None:
    assert describes(text, FIRST)
    assert not describes(text, SECOND)


@pytest.mark.parametrize("text", NOT_RIGHT)
def test_what_is_not_in_the_picture(text: str) -> None:
    assert not describes(text, FIRST)


def picture(ask: Ask) -> bytes | None:
    """The PNG of a request."""
    content = ask.body["messages"][0]["content"]
    if isinstance(content, str):
        return None
    url = content[0]["image_url"]["url"]
    assert url.startswith("data:image/png;base64,")
    return b64decode(url.removeprefix("data:image/png;base64,"))


def seeing(first: str, second: str, *, tokens: int | None = 256) -> Callable[[Ask], Answer]:
    """A server that says this to the two pictures, which cost so many tokens."""

    def server(ask: Ask) -> Answer:
        png = picture(ask)
        said = {draw(FIRST): first, draw(SECOND): second, None: "I see nothing."}[png]
        return says(said, prompt_tokens=None if tokens is None else 40 + (tokens if png else 0))

    return server


GOOD, OTHER = "red square\ngreen circle", "blue triangle\nyellow square"


def test_a_server_that_sees() -> None:
    assert hold("vision-shapes", seeing(GOOD, OTHER)).outcome == "pass"
    assert hold("vision-tokens", seeing(GOOD, OTHER)).outcome == "pass"


@pytest.mark.parametrize(("first", "second"), [(GOOD, GOOD), (OTHER, OTHER), (GOOD, "I do not know.")])
@pytest.mark.parametrize("subject", [GEMMA, FOREIGN, replace(GEMMA, vision=False)], ids=["promised", "foreign", "none"])
def test_a_server_that_does_not_look(first: str, second: str, subject: object) -> None:
    verdict = hold("vision-shapes", seeing(first, second, tokens=0), subject)
    assert (verdict.outcome, "not looked at" in verdict.why) == ("fail", True)
    assert hold("vision-tokens", seeing(first, second, tokens=0), subject).outcome == "fail"


def test_a_server_that_sees_something_else() -> None:
    verdict = hold("vision-shapes", seeing(GOOD, "blue triangle\nred circle"))
    assert (verdict.outcome, verdict.why) == (
        "fail",
        "shown a blue triangle and a yellow square, it says something else",
    )
    assert "something else" in hold("vision-shapes", seeing(OTHER, OTHER, tokens=None)).why
    assert hold("vision-tokens", seeing(OTHER, OTHER, tokens=None)).outcome == "not applicable"


REFUSALS = [
    (400, "At most 0 image(s) may be provided in one prompt."),
    (400, "google/gemma-3-1b-it is not a multimodal model"),
    (500, "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"),
    (500, "this model is missing data required for image input"),
    (400, "json: cannot unmarshal array into Go struct field ChatCompletionRequest.messages of type string"),
]


@pytest.mark.parametrize(("status", "words"), REFUSALS)
@pytest.mark.parametrize("case", ["vision-shapes", "vision-tokens"])
def test_a_server_that_takes_no_pictures(case: str, status: int, words: str) -> None:
    told = hold(case, lambda ask: refuses(words, status), FOREIGN)
    assert (told.outcome, told.said) == ("not applicable", f"HTTP {status}: {words}")
    promised = hold(case, lambda ask: refuses(words, status), GEMMA)
    assert (promised.outcome, promised.why) == ("fail", "the recipe's model takes pictures, the server does not")
    assert "--language-model-only" in promised.remedy
    assert hold(case, lambda ask: refuses(words, status), replace(GEMMA, vision=False)).outcome == "not applicable"


@pytest.mark.parametrize("case", ["vision-shapes", "vision-tokens"])
def test_a_server_that_breaks_over_a_picture(case: str) -> None:
    unreadable = refuses("cannot identify image file <_io.BytesIO object>", 400)
    assert hold(case, lambda ask: unreadable, FOREIGN).outcome == "fail"
    assert hold(case, lambda ask: refuses("EngineCore died", 500), FOREIGN).outcome == "fail"
    assert hold(case, lambda ask: refuses("connection reset", None), replace(GEMMA, vision=False)).outcome == "fail"


def test_a_server_that_breaks_without_one() -> None:
    broken = lambda ask: says("red square") if picture(ask) else refuses("boom", 500)  # noqa: E731
    assert hold("vision-tokens", broken).why == "the request ends in an error"


@pytest.mark.parametrize("counts", [(None, 40), (296, None)])
def test_a_server_that_counts_only_sometimes(counts: tuple[int | None, int | None]) -> None:
    server = lambda ask: says("red square", prompt_tokens=counts[0] if picture(ask) else counts[1])  # noqa: E731
    assert hold("vision-tokens", server).outcome == "not applicable"
    assert "something else" in hold("vision-shapes", server).why


def test_a_refusal_in_unknown_words_has_no_remedy() -> None:
    verdict = hold("vision-shapes", lambda ask: refuses("invalid request", 400))
    assert (verdict.outcome, verdict.remedy) == ("fail", "")


def test_garbage_about_a_picture_is_garbage() -> None:
    assert "repeats one character" in hold("vision-shapes", lambda ask: says("!" * 80)).why
