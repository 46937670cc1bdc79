"""Bytes of any origin as lines: in pieces of bounded size, UTF-8, without terminal codes, with their line numbers."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

CHUNK = 1 << 20
LIMIT = 512 << 20
"""More than this of one source is not read."""
TAIL_LINES = 8192
"""Outputs of commands are looked for in the first chunk of a source and in so many lines at its end."""
WIDEST = 8192
"""Characters of a line that count."""

_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[^\n]?)")
_CAPTION = re.compile(r"# (?:source|right diagnosis): ")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_ODD = bytes([*range(9), *range(14, 27), *range(28, 32), 127])


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some whole lines as UTF-8; `first` is the number of the first one."""

    data: bytes
    first: int


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a text, as it can be printed."""

    number: int
    text: str


@dataclass
class Kept:
    """Beginning and end of a text: everything of a short one."""

    head: Chunk | None = None
    tail: list[Chunk] = field(default_factory=list)

    def add(self, chunk: Chunk) -> None:
        """Keep the first chunk, and the last two for now."""
        if self.head is None:
            self.head = chunk
        else:
            self.tail = [*self.tail[-1:], chunk]

    def lines(self) -> tuple[Line, ...]:
        """The lines that are kept, captions left out."""
        first = list(split(self.head)) if self.head else []
        late = [line for chunk in self.tail for line in split(chunk)]
        return (*first, *late[-TAIL_LINES:])


def split(chunk: Chunk) -> Iterator[Line]:
    """A chunk's lines without those that only describe the text."""
    for number, data in enumerate(chunk.data.split(b"\n"), chunk.first):
        for part in data.split(b"\r"):
            text = printable(part)
            if text.strip() and not is_caption(text):
                yield Line(number, text)


def printable(data: bytes) -> str:
    """A line's bytes as text of bounded length, without control characters."""
    return _CONTROL.sub("", data[:WIDEST].decode("utf-8", "replace")).rstrip()


def is_caption(text: str) -> bool:
    """A line above a sample that says where it is from; it is not part of what was printed."""
    return _CAPTION.match(text) is not None


def is_text(data: bytes) -> bool:
    """Whether the beginning of a source can be text at all."""
    data = data[: 64 << 10]
    if not data:
        return True
    odd = len(data) - len(data.translate(None, _ODD))
    invalid = data.decode("utf-8", "replace").count("\ufffd")
    return odd + invalid <= len(data) // 10 or _utf16(data) != ""


def chunks(pieces: Iterable[bytes]) -> Iterator[Chunk]:
    """Whole lines, about a megabyte at a time. A line without an end is cut, never collected without bound."""
    number, rest = 1, b""
    for piece in _small(_utf8(pieces)):
        data = rest + piece
        end = data.rfind(b"\n") + 1
        if not end and len(data) < CHUNK:
            rest = data
            continue
        whole, rest = (data[:end], data[end:]) if end else (data, b"")
        yield Chunk(_tidy(whole), number)
        number += whole.count(b"\n")
    if rest:
        yield Chunk(_tidy(rest), number)


def _small(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Pieces of a chunk's size at most."""
    for piece in pieces:
        yield from (piece[at : at + CHUNK] for at in range(0, len(piece), CHUNK))


def _tidy(data: bytes) -> bytes:
    """Without terminal codes, and one kind of line end."""
    if b"\x1b" in data:
        data = _ANSI.sub(b"", data)
    return data.replace(b"\r\n", b"\n").rstrip(b"\n")


def _utf8(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """UTF-8 of whatever a text is written in; a byte order mark, or every other byte zero, tells UTF-16."""
    decoder: codecs.IncrementalDecoder | None = None
    for at, piece in enumerate(pieces):
        if at == 0 and _utf16(piece):
            decoder = codecs.getincrementaldecoder(_utf16(piece))("replace")
        if at == 0:
            piece = piece.removeprefix(codecs.BOM_UTF8)
        yield decoder.decode(piece).encode("utf-8", "replace") if decoder else piece


def _utf16(data: bytes) -> str:
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    sample = data[:512]
    zeros = sample[1::2].count(0), sample[0::2].count(0)
    if len(sample) >= 16 and max(zeros) > len(sample) // 5 and min(zeros) <= len(sample) // 50:
        return "utf-16-le" if zeros[0] > zeros[1] else "utf-16-be"
    return ""
