"""Which lines of a long text are worth judging, and by which rules. Fast because most lines of a log are alike.

Every rule's pattern has plain text in it. One regular expression looks for all those pieces at once, on lines in which
every digit is a 0 and which are remembered, so that a line that differs in its numbers only is not looked at again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from cluster.diagnosis import trouble
from cluster.diagnosis.rules import MOMENTS, RULES, Rule, literals

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
    may_be_moment: bool
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
    moment = any(piece in text for _, pattern in MOMENTS for piece in literals(pattern.pattern))
    return Kind(rules, moment, any(piece in text for piece in trouble.NEEDLES))


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
    + list(trouble.NEEDLES)
)
