"""What broken kernels and templates say is named; healthy texts of many kinds pass."""

from __future__ import annotations

from pathlib import Path
from random import Random

from loops import each

from cluster.spark.server import insane, leaked, thinks_aloud

CORPUS = sorted((Path(__file__).parents[2] / "cluster" / "bench" / "corpus").glob("*.txt"))
DOCS = sorted((Path(__file__).parents[2] / "docs").rglob("*.md"))
PARAGRAPH = (
    "Sunlight holds every colour, and the molecules of the air scatter its short waves far more than its long ones, so "
    "that blue light comes to the eye from all over the sky while the red goes on nearly straight. At dusk the way "
    "through the air is longer, most of the blue is gone, and what is left is red. "
)

INSANE = {
    "nothing": ("", "is empty"),
    "blanks": (" \n\t", "is empty"),
    "NaN in the logits": ("!" * 24, "repeats one character: '!!!"),
    "NaN after a good beginning": ("The capital of France is" + "!" * 40, "repeats one character"),
    "line feeds": ("Paris." + "\n" * 250, "repeats one character"),
    "a scale applied twice": (" a" * 12, "repeats one word: ' a a"),
    "zeros": ("0 " * 40, "repeats one word"),
    "one word after a good beginning": (f"{PARAGRAPH} Scher {'Scher ' * 30}", "repeats 'Scher' 31 times"),
    "four words": ("This asks for a long story. " + "lot lot pet dealer " * 9, "repeats 'lot lot pet dealer' 9 times"),
    "a sentence": ("The sky is blue because of light. " * 6, "repeats 'The sky is blue because of light.' 6 times"),
    "a paragraph": (PARAGRAPH * 3, "repeats 'Sunlight holds every colour"),
    "a paragraph of many lines": (PARAGRAPH.replace(". ", ".\n\n") * 3, "repeats 'Sunlight"),
    "numbers to the end": ("The values: " + "1, 2, 3, " * 40, "repeats '1, 2, 3,' 40 times"),
    "a fragment without blanks": ("'s't's" + "'s" * 30, 'repeats "\'s" without end'),
    "Chinese without end": ("好的" * 30, "repeats '好的' without end"),
    "few words in no order": (" ".join(Random(1).choices(["na", "min", "man", "ha", "En"], k=160)), "the same few"),
    "broken bytes": ("The � sky � is �", "has characters that are no text: '���'"),
    "control characters": ("sky \x00\x01\x02", "has characters that are no text"),
    "two alphabets in a word": ("Ein hoher Anteil an Schдer Verletungen, Schдum und Stoшung", "mixes alphabets"),
}

HEALTHY = {
    "short": "Paris.",
    "one word": "Yes",
    "laughter": "Ha ha ha ha ha ha! She laughed: hahahahaha, and again: hahahaha.",
    "scream": "Noooooooooooooooo! he cried, and waited for an answer that did not come!!!!!!!",
    "song": "Row, row, row your boat\nGently down the stream\nMerrily, merrily, merrily, merrily\nLife is but a dream\n"
    * 2,
    "refrain": "\n\n".join(
        f"{line}\nNevermore, nevermore, nevermore!\nNevermore, nevermore, nevermore!" for line in "abcde"
    ),
    "la la": "La la la la la la la la\nLa la la la, sang the choir.",
    "rule": f"Title\n{'=' * 78}\nText\n{'-' * 78}\n{'─' * 60}\n{'*' * 100}",
    "table": "| name | t/s | n |\n|------|-----|---|\n"
    + "\n".join("| 0.0 | 0.0 | 0 |" for _ in range(12))
    + "\nAll zero.",
    "wide table": "|" + "---|" * 12 + "\n|" + " x |" * 12,
    "list": "\n".join(f"- item {number}: the same words follow here" for number in range(60)),
    "zeros in code": "int a[64] = {" + "0, " * 63 + "0};\nreturn a;",
    "names in code": "void *f[32] = {" + "NULL, " * 31 + "NULL};\nint g;",
    "bytes in code": "b = bytes([" + "0x00, " * 40 + "0xff])\n",
    "indentation": "def f():\n" + " " * 60 + "return 1\n\n\n\n\n\n",
    "html": "<tr>" + "<td></td>" * 20 + "</tr>" + "&nbsp;" * 20,
    "json": "[" + '{"x": 0, "y": 0}, ' * 30 + '{"x": 1, "y": 1}]',
    "number": "1" + "0" * 100 + " is a googol; 0.1111111111111111111111111111",
    "board": "O O O O O O O O\n" + ". . . . . . . .\n" * 6 + "X X X X X X X X",
    "greek": "The drag is 5 µN, Δt is 3 µs, πr² the area, and β-carotene is α-linked.",
    "other scripts": "Hello is Привет in Russian, שלום in Hebrew, مرحبا in Arabic, \n你好, Tシャツ, AI模型.",
    "one cut character": "The temperature is 20 �",
    "emoji": "Well done! " + "🎉" * 18,
    "formula": "x = (a + b) / (c + d) = (a + b) / (c + d) · 1 · 1 · 1 = 1",
    "count": " ".join(str(number) for number in range(1, 300)),
    "raw completion that goes on": " Paris. The capital of France is Paris. The capital of France is Paris.",
    "chorus of one paragraph twice": PARAGRAPH * 2,
}


@each("name", INSANE)
def test_what_broken_kernels_say(name: str) -> None:
    text, why = INSANE[name]
    assert insane(text)
    assert why in insane(text)
    assert len(insane(text)) < 120


@each("name", HEALTHY)
def test_healthy_texts_pass(name: str) -> None:
    assert insane(HEALTHY[name]) == ""
    assert leaked(HEALTHY[name]) == ""
    assert thinks_aloud(HEALTHY[name]) == ""


@each("path", [*CORPUS, *DOCS], ids=lambda path: path.name)
def test_prose_code_and_documentation_pass(path: Path) -> None:
    text = path.read_text(encoding="utf-8")[:120_000]
    for size in (600, 4000):
        for first in range(0, len(text), size):
            part = text[first : first + size]
            if part.strip():
                assert insane(part) == "", part
    assert path in DOCS or (leaked(text), thinks_aloud(text)) == ("", "")


@each("path", CORPUS, ids=lambda path: path.name)
@each("size", [40, 300, 1500])
def test_any_healthy_text_repeated_is_insane(path: Path, size: int) -> None:
    """Also behind a healthy beginning, and with any length of the part that repeats."""
    text = path.read_text(encoding="utf-8")
    for first in range(20_000, 60_000, 9_700):
        part = " ".join(text[first : first + size].split()[1:-1]) + " "
        times = 12 if size > 40 else 80
        assert not part.strip() or "repeats" in insane(text[:500] + " " + part * times), part


PHRASES = [
    ("one", "word ", 16),
    ("two", "tick tock ", 8),
    ("three", "one two three ", 8),
    ("four", "one two three four ", 6),
    ("nine", "a b c d e f g h i ", 6),
    ("ten", "a b c d e f g h i j ", 4),
    ("forty", "".join(f"{letter}{other} " for letter in "abcdefgh" for other in "vwxyz"), 3),
]


@each("name, phrase, often", PHRASES)
def test_how_often_is_too_often(name: str, phrase: str, often: int) -> None:
    before, after = "So it began. ", "And so it ended."
    assert insane(before + phrase * (often - 1) + after) == ""
    assert f" {often} times" in insane(before + phrase * often + after)
    assert f" {often + 3} times" in insane(before + phrase * (often + 3) + after)


def test_how_often_is_too_often_in_code() -> None:
    """Code, numbers and tables may repeat more often, and stop at some time."""
    for cell, often in (("0, ", 64), ("x[0] = 1; ", 32), ("- a = f(0) + 1; ", 24)):
        assert insane("a = { " + cell * (often - 1)) == ""
        assert "repeats" in insane("a = { " + cell * often)
        assert insane("a = { " + cell * often * 4 + "};") == ""


@each("character, often", [("!", 16), ("a", 31), ("?", 21), ("-", 200), ("0", 200), (" ", 200)])
def test_how_long_is_too_long(character: str, often: int) -> None:
    assert insane(f"So it began. ({character * (often - 1)}) And so it ended.") == ""
    assert "one character" in insane(f"So it began. ({character * often}) And so it ended.")


def test_a_sentence_with_numbers_and_dashes_is_spoken() -> None:
    """Four words of five are enough in a phrase of ten, also where the text goes on."""
    sentence = "In 1970 the sky -- so they told me -- was blue over the whole of the town. "
    assert "4 times" in insane("So. " + sentence * 4 + "And then it was not.")
    table = "the 1 of 2 and 3 in 4 or 5 at 6 on 7 "
    assert insane("So. " + table * 4 + "And then it was not.") == ""


def test_few_words_in_no_order() -> None:
    few = Random(2).choices(["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"], k=100)
    assert "the same few words" in insane(" ".join(few))
    assert insane(" ".join(few[:99])) == ""
    assert insane(" ".join([*few[:50], "eleven", *few[51:]])) == "", "eleven words may be a game"
    assert insane(" ".join(Random(2).choices("0123456789", k=100))) == "", "digits"


def test_two_broken_characters_may_be_cut_ones() -> None:
    assert insane("It is 20 �, and 30 �") == ""
    assert insane("It is 20 �, and 30 �, and 40 �") != ""
    assert insane("\x1b[1mbold\x1b[0m\tand\r\nplain\f") == "", "colours of a terminal"


def test_a_loop_far_behind_a_long_beginning_is_seen() -> None:
    words = (Path(__file__).parents[2] / "cluster/bench/corpus/prose-pride.txt").read_text(encoding="utf-8")[:60_000]
    assert "repeats" in insane(words + "and then and so " * 20)


MARKS = '<|channel> <channel|> <|turn> <turn|> <|im_end|> <|endoftext|> <pad> <eos> <unused42> <|"|> <|tool_call>'
MARKS += " <end_of_turn> [INST] <｜end▁of▁sentence｜> <0x0A>"


def test_marks_of_tokenizers_and_templates_and_raw_tokens() -> None:
    assert [leaked(f"The answer is {mark}Paris.") for mark in MARKS.split()] == MARKS.split()
    assert leaked("Paris.</s>\n") == "</s>"
    assert leaked("The<s>old</s>answer") == "", "struck out in HTML"
    assert leaked("TheĠcapitalĠofĠFrance") == "Ġ"
    assert leaked("▁The▁capital▁of▁France") == "▁"
    assert leaked("f <| x |> g, a < b | c > d, List<T>, <p>text</p>, x <- y, |a| < |b|") == ""


def test_reasoning_within_an_answer() -> None:
    assert thinks_aloud("<think>Let me see.</think> Paris") == "<think>"
    assert thinks_aloud("I see.\n</think>\n\nParis") == "</think>"
    assert thinks_aloud("<|channel>thought\nLet me see.<channel|>Paris") == "<|channel>"
    assert thinks_aloud("thought\nThe user asks for a capital. Paris") == "thought"
    assert thinks_aloud("She thought\nthat it was Paris. A thought\n") == ""
