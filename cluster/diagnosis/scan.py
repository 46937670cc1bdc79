"""Reads a source once from beginning to end: which rules match where, what it reaches, which errors nobody knows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from cluster.diagnosis import lines
from cluster.diagnosis.lines import Chunk, LogLine, TextLine, Weight, printable, read_line
from cluster.diagnosis.rules import MOMENTS, RULES, Moment, Rule, literals

REMEMBERED, LONGEST = 50_000, 1024
"""So many kinds of lines are remembered, none longer than that."""
OFTEN, SELDOM = 200, 50
"""Lines of one kind that are all judged, and then only one in so many."""
MOST_HITS = 40
"""Of one rule so many lines are kept, and the last one."""
MOST_ERRORS = 20
OVERLAP = 256

Tree = dict[int, "Tree"]
ZEROS = bytes.maketrans(b"123456789", b"000000000")


@dataclass
class Kind:
    """What lines that differ in digits only are candidates for. `count`: how many there were."""

    rules: tuple[Rule, ...]
    moments: tuple[tuple[Moment, re.Pattern[str]], ...]
    may_be_trouble: bool
    count: int = 0


class Kinds(dict[bytes, Kind | None]):
    """The kinds of lines met so far, by the line in lowercase with every digit a 0; None where nothing in it is worth
    judging."""

    def __missing__(self, line: bytes) -> Kind | None:
        kind = None
        if ANY_PIECE.search(line):
            text = line.decode("utf-8", "replace")
            rules = tuple(rule for rule in RULES if any(piece in text for piece in literals(rule.pattern)))
            moments = tuple(row for row in MOMENTS if any(piece in text for piece in literals(row[1].pattern)))
            kind = Kind(rules, moments, any(piece in text for piece in lines.NEEDLES))
        if len(self) >= REMEMBERED:
            self.clear()
        if len(line) <= LONGEST:
            self[line] = kind
        return kind


def any_of(pieces: Iterable[str]) -> re.Pattern[bytes]:
    """A pattern that finds any of the pieces, letter by letter along a tree: several times faster than one by one."""
    tree: Tree = {}
    for piece in sorted(set(pieces), key=len):
        at = tree
        for letter in piece.encode():
            if letter in at and not at[letter]:
                break  # a shorter piece ends here and finds it too
            at = at.setdefault(letter, {})
    return re.compile(_branches(tree).encode("latin-1"))


def _branches(tree: Tree) -> str:
    """The tree as nested alternatives."""
    found = [re.escape(chr(letter)) + _branches(below) for letter, below in tree.items()]
    return f"(?:{'|'.join(found)})" if len(found) > 1 else "".join(found)


PATTERNS = (*(rule.pattern for rule in RULES), *(pattern.pattern for _, pattern in MOMENTS))
ANY_PIECE = any_of([*(piece for pattern in PATTERNS for piece in literals(pattern)), *lines.NEEDLES])


@dataclass(frozen=True, slots=True)
class Source:
    """Something to explain: a name that people know it by, and its bytes in pieces. `host`: where it was printed.

    `beside`: about the host, not of what may have failed. Its errors count only when a rule knows them and they came
    after the server was last seen well; its numbers only tell causes apart. `hearsay`: it repeats what others say.
    `ahead_s`: how far the clock that wrote its times is ahead of the one that all sources are ordered by.
    """

    name: str
    pieces: Iterable[bytes]
    host: str = ""
    beside: bool = False
    hearsay: bool = False
    ahead_s: float = 0.0

    @classmethod
    def of_text(cls, name: str, text: str, host: str = "") -> Source:
        """A source of text that is already here."""
        return cls(name, (text.encode(),), host)


@dataclass(frozen=True, slots=True)
class Hit:
    """A line that a rule matches. `groups` are the pattern's named parts; `line.time` may be of a line before it."""

    rule: Rule
    groups: Mapping[str, str]
    number: int
    text: str
    line: LogLine


@dataclass(frozen=True, slots=True)
class Trouble:
    """An error line that no rule knows."""

    weight: Weight
    number: int
    text: str
    line: LogLine


@dataclass
class Scan:
    """What was found in one source. `moments`: the last line on which each was reached.

    `started_at`: when the engine was started last, else the first time that is told. `kept`: the first chunk and the
    last two.
    """

    source: Source
    hits: list[Hit] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    moments: dict[Moment, int] = field(default_factory=dict)
    kept: list[Chunk] = field(default_factory=list)
    lines: int = 0
    started_at: float | None = None
    binary: bool = False
    cut: bool = False
    _well: str = ""
    _time: float | None = None
    _exceptions: int = 0
    _counts: Counter[str] = field(default_factory=Counter)

    def add(self, number: int, data: bytes, kind: Kind) -> None:
        """Judge one line of a kind that is worth it."""
        kind.count += 1
        is_due = kind.count <= OFTEN or kind.count % SELDOM == 0
        if not kind.moments and not is_due:
            return
        if not (kind.moments or kind.rules) and self._exceptions >= MOST_ERRORS:
            return
        text = printable(data)
        if lines.is_caption(text):
            return
        for name, pattern in kind.moments:
            if pattern.search(text):
                self.moments[name] = number
                if name == "started":
                    self.started_at = self.time_of(text) or self.started_at
                elif name in ("ready", "alive"):
                    self._well = text
        if is_due:
            self._judge(number, text, kind)

    @property
    def well(self) -> float | None:
        """When the server was last seen ready, if it was and the line tells."""
        return self.time_of(self._well) if self._well else None

    def time_of(self, text: str) -> float | None:
        """The time that a line tells, by the clock of all sources."""
        time = read_line(text).time
        return None if time is None else time - self.source.ahead_s

    def kept_lines(self) -> list[TextLine]:
        """The lines of beginning and end, captions left out: everything of a short text."""
        parts = self.kept[:1], self.kept[1:]
        first, late = ([line for chunk in part for line in lines.split(chunk)] for part in parts)
        return first + late[-lines.TAIL_LINES :]

    def _judge(self, number: int, text: str, kind: Kind) -> None:
        """The first of the rules that matches has the line."""
        line = read_line(text)
        self._time = self._time if line.time is None else line.time - self.source.ahead_s
        line = replace(line, time=self._time)
        said = line.message if line.of_rank else text  # a rank also tells what it was asked to run
        for rule in kind.rules:
            if found := rule.search(said):
                self._counts[rule.id] += 1
                if self._counts[rule.id] > MOST_HITS + 1:
                    del self.hits[max(at for at, old in enumerate(self.hits) if old.rule.id == rule.id)]
                groups = {name: value or "" for name, value in found.groupdict().items()}
                self.hits.append(Hit(rule, groups, number, text, line))
                return
        weight = lines.weigh(line) if kind.may_be_trouble else Weight.NOTHING
        if weight and sum(old.weight == weight for old in self.troubles) < MOST_ERRORS:
            self.troubles.append(Trouble(weight, number, text, line))
            self._exceptions += weight == Weight.EXCEPTION


def scan(source: Source) -> Scan:
    """Read a source to its end, or as much as may be read of it."""
    found, kinds = Scan(source), Kinds()
    for chunk in lines.chunks(_bounded(source.pieces, found)):
        found.kept = [*found.kept[:1], *found.kept[1:][-1:], chunk]
        found.lines = chunk.first + chunk.data.count(b"\n")
        if found.started_at is None:
            times = (found.time_of(printable(data)) for data in chunk.data.split(b"\n", 20)[:20])
            found.started_at = next((time for time in times if time is not None), None)
        for number, data, plain in _lines(chunk):
            kind = kinds[plain]
            if kind is not None:
                found.add(number, data, kind)
    return found


def _lines(chunk: Chunk) -> Iterator[tuple[int, bytes, bytes]]:
    """Each line with its number, as it is and as `Kinds` wants it.

    A carriage return begins a line that has no number of its own; a very long line comes in overlapping parts.
    """
    plain = chunk.data.lower().translate(ZEROS).split(b"\n")
    for number, (line, same) in enumerate(zip(chunk.data.split(b"\n"), plain, strict=True), chunk.first):
        if len(line) <= lines.WIDEST and b"\r" not in line:
            yield number, line, same
            continue
        for part, same_part in zip(line.split(b"\r"), same.split(b"\r"), strict=True):
            for at in range(0, len(part), lines.WIDEST - OVERLAP):
                yield number, part[at : at + lines.WIDEST], same_part[at : at + lines.WIDEST]


def _bounded(pieces: Iterable[bytes], found: Scan) -> Iterator[bytes]:
    size = 0
    for piece in pieces:
        if size == 0 and not lines.is_text(piece):
            found.binary = True
            return
        size += len(piece)
        yield piece
        if size >= lines.LIMIT:
            found.cut = True
            return
