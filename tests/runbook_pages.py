"""docs/runbooks as the tests read it: headings, links, and the blocks of a page with what the lab is told about them.

A block fenced as `console` is a session: `$ ` starts what is typed on the desk, `spark2$ ` what is typed on that host,
and the lines below are what it prints. A block fenced as `sh` is not run. A comment `<!-- lab: … -->` is a command with
its prompt, typed and not shown to the reader, or an order of `tests/lab/test_runbooks.py` about the next command.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "docs/runbooks"
INDEX = FOLDER / "README.md"
ORDER = re.compile(r"<!-- lab: (.*) -->")
PROMPT = re.compile(r"(spark\d)?\$ (.*)")


@dataclass(frozen=True, slots=True)
class Order:
    """One comment for the lab: `mend spark2` is the word `mend` and its text."""

    line: int
    word: str
    text: str


@dataclass(frozen=True, slots=True)
class Typed:
    """One command: on a host, or on the desk when `host` is empty; and the lines shown below it."""

    line: int
    host: str
    command: str
    shown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Listed:
    """The commands of a block that is not run."""

    line: int
    commands: tuple[str, ...]


Step = Order | Typed | Listed


def pages() -> list[Path]:
    """Every page but the index."""
    return sorted(path for path in FOLDER.glob("*.md") if path != INDEX)


def steps(path: Path) -> Iterator[Step]:
    """What a page has for the lab, in order. Raises ValueError for a session that begins without a prompt."""
    lines = path.read_text().splitlines()
    at = 0
    while at < len(lines):
        line, at = lines[at], at + 1
        if order := ORDER.fullmatch(line):
            hidden = PROMPT.fullmatch(order[1])
            word, _, text = order[1].partition(" ")
            yield Typed(at, hidden[1] or "", hidden[2], ()) if hidden else Order(at, word, text)
        elif line.startswith("```"):
            end = lines.index("```", at)
            block = lines[at:end]
            if line == "```console":
                yield from session(path, at, block)
            elif line == "```sh":
                yield Listed(at, tuple(block))
            at = end + 1


def session(path: Path, at: int, block: Sequence[str]) -> Iterator[Typed]:
    """The commands of a session, each with the lines below it. Raises ValueError."""
    typed: list[Typed] = []
    for number, line in enumerate(block, at + 1):
        if prompt := PROMPT.fullmatch(line):
            typed.append(Typed(number, prompt[1] or "", prompt[2], ()))
        elif typed:
            typed[-1] = replace(typed[-1], shown=(*typed[-1].shown, line))
        else:
            raise ValueError(f"{path.name}:{number}: a session begins with a prompt")
    yield from typed


def headings(path: Path) -> list[str]:
    """The anchors of a page, as GitHub makes them of its headings."""
    return [slug(row[1]) for row in re.finditer(r"^#+ (.*)$", without_blocks(path), re.M)]


def slug(heading: str) -> str:
    """`GPU and driver` → `gpu-and-driver`."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def links(path: Path) -> list[str]:
    """The targets of a page's links."""
    return re.findall(r"\]\(([^)\s]+)\)", without_blocks(path))


def without_blocks(path: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S)
