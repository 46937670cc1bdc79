"""Reads a source once from beginning to end: which rules match where, what it reaches, which errors nobody knows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from typing import TypeVar

from cluster.diagnosis import lines
from cluster.diagnosis.lines import Chunk, LogLine, printable, read_line
from cluster.diagnosis.rules import MOMENTS, RULES, UNKNOWN, Moment, Rule, compiled, literals, peel

OFTEN, SELDOM = 200, 50
"""Lines that differ in digits only are all judged, and then only one in so many."""
MOST_HITS = 40
"""Of one rule so many lines are kept, and the last one."""
MOST_ERRORS = 20
OVERLAP = 256

Tree = dict[int, "Tree"]
V = TypeVar("V")
ZEROS = bytes.maketrans(b"123456789", b"000000000")


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
    found = [re.escape(chr(letter)) + _branches(below) for letter, below in tree.items()]
    return f"(?:{'|'.join(found)})" if len(found) > 1 else "".join(found)


PATTERNS = (*(rule.pattern for rule in RULES), *MOMENTS.values())
ANY_PIECE = any_of([*(piece for pattern in PATTERNS for piece in literals(pattern)), *lines.NEEDLES])


@dataclass
class Kind:
    """What lines that differ in digits only are candidates for. `count`: how many there were in a source."""

    rules: tuple[Rule, ...]
    moments: tuple[Moment, ...]
    may_be_error: bool
    count: int = 0


AT_EACH_PLACE = re.compile(b"(?=(%s))" % ANY_PIECE.pattern)


def _by_piece(patterns: Iterable[tuple[V, tuple[str, ...]]]) -> dict[bytes, set[V]]:
    """By the shortest piece that one of their plain texts begins with."""
    found: dict[bytes, set[V]] = {}
    for value, pieces in patterns:
        for piece in pieces:
            match = ANY_PIECE.match(piece.encode())
            found.setdefault(match[0] if match else b"", set()).add(value)
    return found


RULES_BY_PIECE = _by_piece((number, literals(rule.pattern)) for number, rule in enumerate(RULES))
MOMENTS_BY_PIECE = _by_piece((name, literals(pattern)) for name, pattern in MOMENTS.items())
ERROR_PIECES = _by_piece([(True, lines.NEEDLES)])


@lru_cache(maxsize=4096)
def kind_of(plain: bytes) -> Kind | None:
    """The kind of a line in lowercase with every digit a 0; None when nothing in it is worth judging."""
    first = ANY_PIECE.search(plain)
    if first is None:
        return None
    pieces = set(AT_EACH_PLACE.findall(plain, first.start()))
    numbers = set().union(*(RULES_BY_PIECE.get(piece, ()) for piece in pieces))
    moments = set().union(*(MOMENTS_BY_PIECE.get(piece, ()) for piece in pieces))
    text = plain.decode("utf-8", "replace")
    near = (RULES[number] for number in sorted(numbers))
    rules = tuple(rule for rule in near if any(piece in text for piece in literals(rule.pattern)))
    return Kind(rules, tuple(name for name in MOMENTS if name in moments), not ERROR_PIECES.keys().isdisjoint(pieces))


@dataclass(frozen=True, slots=True)
class Source:
    """Something to explain: a name that people know it by, and its bytes in pieces. `host`: where it was printed.

    `beside`: about the host, not of what may have failed. Its errors count only when a rule knows them and they came
    after the server was last well; its numbers only tell causes apart. `hearsay`: it repeats what others report.
    `ahead_s`: how far the clock that wrote its times is ahead of the one that all sources are ordered by.
    """

    name: str
    pieces: Iterable[bytes]
    host: str = ""
    beside: bool = False
    hearsay: bool = False
    ahead_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Hit:
    """A line that a rule matches, or (a rule of UNKNOWN) one that looks like trouble and that none does. `groups` are
    the pattern's named parts; `line.time` may be of a line before it; `weight` as `lines.weigh` says."""

    rule: Rule
    groups: Mapping[str, str]
    number: int
    text: str
    line: LogLine
    weight: int = 0


@dataclass
class Scan:
    """What was found in one source. `hits`: by the rule's id. `moments`: the last line on which each was reached.

    `started_at`: when the engine was started last, else the first time in the text. `kept`: the first chunk and the
    last two. `note`: why less than everything was read.
    """

    source: Source
    hits: dict[str, list[Hit]] = field(default_factory=dict)
    troubles: list[Hit] = field(default_factory=list)
    moments: dict[Moment, int] = field(default_factory=dict)
    kept: list[Chunk] = field(default_factory=list)
    lines: int = 0
    started_at: float | None = None
    note: str = ""
    _well: str = ""
    _time: float | None = None
    _weights: Counter[int] = field(default_factory=Counter)

    @property
    def well(self) -> float | None:
        """When the server was last ready, if it was and the line has a time."""
        return self.time_of(self._well)

    def time_of(self, text: str) -> float | None:
        """The time in a line, by the clock of all sources."""
        time = read_line(text).time
        return None if time is None else time - self.source.ahead_s

    def kept_lines(self) -> list[tuple[int, str]]:
        """The lines of beginning and end: everything of a short text."""
        first, late = ([*chain(*map(lines.split, part))] for part in (self.kept[:1], self.kept[1:]))
        return first + late[-lines.TAIL_LINES :]

    def add(self, number: int, data: bytes, kind: Kind) -> None:
        """Judge a line: what it reaches, and the first of the rules that it matches."""
        kind.count += 1
        is_due = kind.count <= OFTEN or kind.count % SELDOM == 0
        if not kind.moments and not is_due:
            return
        text = printable(lines.without_user(data))
        for name in kind.moments:
            if name == "joined" and self.moments.get("placed", 0) > self.moments.get("started", 0):
                continue  # an engine that shuts down connects to Ray once more
            if compiled(MOMENTS[name]).search(text):
                self.moments[name] = number
                if name == "started":
                    self.started_at = self.time_of(text) or self.started_at
                elif name in ("ready", "alive"):
                    self._well = text
        if is_due:
            self._judge(number, text, kind)

    def _judge(self, number: int, text: str, kind: Kind) -> None:
        line = read_line(text)
        self._time = self._time if line.time is None else line.time - self.source.ahead_s
        line = replace(line, time=self._time)
        printed = line.message if line.of_rank else text  # a rank also prints what it was asked to run
        clause = peel(line.message)
        for rule in kind.rules:
            if found := rule.search(printed):
                groups = {name: value or "" for name, value in found.groupdict().items()}
                self.hits.setdefault(rule.id, [])[MOST_HITS:] = [Hit(rule, groups, number, text, line)]
                if not clause or not rule.is_mute:
                    return
                break
        weight = lines.weigh(line) if kind.may_be_error else 0
        if clause and line.level not in lines.QUIET:
            weight = max(weight, lines.ERROR)
        if weight and self._weights[weight] < MOST_ERRORS:
            self._weights[weight] += 1
            rule = next(rule for rule in UNKNOWN if rule.search(printed))
            self.troubles.append(Hit(rule, {"words": clause or line.message}, number, text, line, weight))


def scan(source: Source) -> Scan:
    """Read a source to its end, or as much as may be read of it."""
    found = Scan(source)
    kind_of.cache_clear()  # its counts are of one source
    for chunk in lines.chunks(_bounded(source.pieces, found)):
        found.kept = [*found.kept[:1], *found.kept[1:][-1:], chunk]
        found.lines = chunk[0] + chunk[1].count(b"\n")
        if found.started_at is None:
            times = (found.time_of(printable(data)) for data in chunk[1].split(b"\n", 20)[:20])
            found.started_at = next((time for time in times if time is not None), None)
        for number, data, plain in _lines(chunk):
            if kind := kind_of(plain):
                found.add(number, data, kind)
    return found


def _lines(chunk: Chunk) -> Iterator[tuple[int, bytes, bytes]]:
    """Each line with its number, as it is and plain.

    A carriage return begins a line that has no number of its own; a very long line comes in overlapping parts.
    """
    first, data = chunk
    plain = data.lower().translate(ZEROS).split(b"\n")
    for number, (line, same) in enumerate(zip(data.split(b"\n"), plain, strict=True), first):
        if len(line) <= lines.WIDEST and b"\r" not in line:
            yield number, line, same
            continue
        line = lines.without_user(line)
        same = same[: len(line)]
        for part, same_part in zip(line.split(b"\r"), same.split(b"\r"), strict=True):
            for at in range(0, len(part), lines.WIDEST - OVERLAP):
                yield number, part[at : at + lines.WIDEST], same_part[at : at + lines.WIDEST]


def _bounded(pieces: Iterable[bytes], found: Scan) -> Iterator[bytes]:
    size = 0
    for piece in pieces:
        if size == 0 and not lines.is_text(piece):
            found.note = "not text"
            return
        size += len(piece)
        yield piece
        if size >= lines.LIMIT:
            found.note = "only its beginning was read"
            return
