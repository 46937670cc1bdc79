"""Reads a source once from beginning to end: which rules match where, what it reaches, which errors nobody knows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from cluster.diagnosis import lines
from cluster.diagnosis.lines import (
    LIMIT,
    WIDEST,
    Chunk,
    Kept,
    LogLine,
    Weight,
    chunks,
    is_caption,
    is_text,
    printable,
    read_line,
)
from cluster.diagnosis.rules import MOMENTS, RULES, Moment, Rule, literals

REMEMBERED, LONGEST = 50_000, 1024
"""So many lines are remembered, none longer than that."""
OFTEN, SELDOM = 200, 50
"""Lines of one kind that are all judged, and then only one in so many."""

Tree = dict[int, "Tree"]
ZEROS = bytes.maketrans(b"123456789", b"000000000")


@dataclass
class Kind:
    """What lines that differ in digits only are candidates for. `count`: how many there were."""

    rules: tuple[Rule, ...]
    moments: tuple[tuple[Moment, re.Pattern[str]], ...]
    may_be_trouble: bool
    count: int = 0

    def is_due(self) -> bool:
        """Whether the next line of this kind is to be judged; counts it."""
        self.count += 1
        return self.count <= OFTEN or self.count % SELDOM == 0


class Kinds:
    """The kinds of lines met so far."""

    def __init__(self) -> None:
        self._known: dict[bytes, Kind | None] = {}

    def of(self, line: bytes) -> Kind | None:
        """The kind of a line that is lowercase with every digit a 0; None when nothing in it is worth judging."""
        if line in self._known:
            return self._known[line]
        kind = _judge(line) if ANY_PIECE.search(line) else None
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        if len(line) <= LONGEST:
            self._known[line] = kind
        return kind


def _judge(line: bytes) -> Kind:
    text = line.decode("utf-8", "replace")
    rules = tuple(rule for rule in RULES if any(piece in text for piece in literals(rule.pattern)))
    moments = tuple(row for row in MOMENTS if any(piece in text for piece in literals(row[1].pattern)))
    return Kind(rules, moments, any(piece in text for piece in lines.NEEDLES))


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
    if not tree:
        return ""
    found = [re.escape(chr(letter)) + _branches(below) for letter, below in tree.items()]
    return found[0] if len(found) == 1 else f"(?:{'|'.join(found)})"


ANY_PIECE = any_of(
    [piece for rule in RULES for piece in literals(rule.pattern)]
    + [piece for _, pattern in MOMENTS for piece in literals(pattern.pattern)]
    + list(lines.NEEDLES)
)


MOST_HITS = 40
"""Of one rule so many lines are kept, and the last one."""
MOST_ERRORS = 20
OVERLAP = 256


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

    `started_at`: when the engine was started last, else the first time that is told.
    """

    source: Source
    hits: list[Hit] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    moments: dict[Moment, int] = field(default_factory=dict)
    kept: Kept = field(default_factory=Kept)
    lines: int = 0
    started_at: float | None = None
    binary: bool = False
    cut: bool = False
    _well: str = ""
    _time: float | None = None
    _counts: dict[str, int] = field(default_factory=dict)

    def add(self, number: int, data: bytes, kind: Kind) -> None:
        """Judge one line of a kind that is worth it; the first of the rules that matches has it."""
        is_due = kind.is_due()
        if not kind.moments and not (is_due and (kind.rules or self._wants_trouble())):
            return
        text = printable(data)
        if is_caption(text):
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
        return self._by_all(read_line(text).time)

    def _by_all(self, time: float | None) -> float | None:
        return None if time is None else time - self.source.ahead_s

    def _judge(self, number: int, text: str, kind: Kind) -> None:
        line = read_line(text)
        self._time = self._time if line.time is None else self._by_all(line.time)
        line = replace(line, time=self._time)
        said = line.message if line.of_rank else text  # a rank also tells what it was asked to run
        for rule in kind.rules:
            found = rule.search(said)
            if found:
                groups = {name: value or "" for name, value in found.groupdict().items()}
                self._keep(Hit(rule, groups, number, text, line))
                return
        if kind.may_be_trouble:
            self._weigh(line, number, text)

    def _wants_trouble(self) -> bool:
        return sum(one.weight == Weight.EXCEPTION for one in self.troubles) < MOST_ERRORS

    def _keep(self, hit: Hit) -> None:
        count = self._counts[hit.rule.id] = self._counts.get(hit.rule.id, 0) + 1
        if count > MOST_HITS + 1:
            last = max(at for at, old in enumerate(self.hits) if old.rule.id == hit.rule.id)
            del self.hits[last]
        self.hits.append(hit)

    def _weigh(self, line: LogLine, number: int, text: str) -> None:
        weight = lines.weigh(line)
        if weight and sum(old.weight == weight for old in self.troubles) < MOST_ERRORS:
            self.troubles.append(Trouble(weight, number, text, line))


def scan(source: Source) -> Scan:
    """Read a source to its end, or as much as may be read of it."""
    found, kinds = Scan(source), Kinds()
    for chunk in chunks(_bounded(source.pieces, found)):
        found.kept.add(chunk)
        found.lines = chunk.first + chunk.data.count(b"\n")
        if found.started_at is None:
            found.started_at = _first_time(chunk, found)
        for number, data, plain in _lines(chunk):
            kind = kinds.of(plain)
            if kind is not None:
                found.add(number, data, kind)
    return found


def _lines(chunk: Chunk) -> Iterator[tuple[int, bytes, bytes]]:
    """Each line with its number, as it is and as `Kinds` wants it.

    A carriage return begins a line that has no number of its own; a very long line comes in overlapping parts.
    """
    plain = chunk.data.lower().translate(ZEROS).split(b"\n")
    for number, (line, same) in enumerate(zip(chunk.data.split(b"\n"), plain, strict=True), chunk.first):
        if len(line) <= WIDEST and b"\r" not in line:
            yield number, line, same
            continue
        for part, same_part in zip(line.split(b"\r"), same.split(b"\r"), strict=True):
            for at in range(0, len(part), WIDEST - OVERLAP):
                yield number, part[at : at + WIDEST], same_part[at : at + WIDEST]


def _bounded(pieces: Iterable[bytes], found: Scan) -> Iterator[bytes]:
    size = 0
    for piece in pieces:
        if size == 0 and not is_text(piece):
            found.binary = True
            return
        size += len(piece)
        yield piece
        if size >= LIMIT:
            found.cut = True
            return


def _first_time(chunk: Chunk, found: Scan) -> float | None:
    times = (found.time_of(printable(data)) for data in chunk.data.split(b"\n", 20)[:20])
    return next((time for time in times if time is not None), None)
