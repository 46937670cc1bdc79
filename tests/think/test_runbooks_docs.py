"""docs/runbooks holds together: what code points at is there, what is linked is there, what is typed is understood."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from loops import each
from runbook_pages import FOLDER, INDEX, ORDER, Listed, Typed, headings, links, pages, slug, steps

from cluster.cli.main import parse
from cluster.diagnosis import hang
from cluster.diagnosis.rules import OF_OUTPUTS, OF_PAIRS, RULES
from cluster.spark.finding import checks_in
from cluster.spark.look import CHECKS

STEMS = (
    "first-set-up",
    "start-and-end-of-day",
    "swap-a-model",
    "reboot-or-replace",
    "upgrade",
    "it-is-slow",
    "it-hangs",
    "it-does-not-start",
    "memory-is-full",
    "numbers-for-a-report",
)
LONGEST = 120


OF_RULES = {rule.page for rule in (*RULES, *OF_OUTPUTS.values(), *OF_PAIRS.values()) if rule.page}
OF_CHECKS = {check.runbook for check in (*CHECKS.values(), *checks_in([hang]).values())}
POINTED_AT = sorted({*OF_CHECKS, *OF_RULES})
"""What checks and rules name as their page."""


def typed_commands() -> list[tuple[str, str]]:
    """All (place, command) of `cluster` that the pages have: typed, listed, or whole in running text."""
    found: list[tuple[str, str]] = []
    for page in (INDEX, *pages()):
        for one in steps(page):
            lines = [one.command] if isinstance(one, Typed) else one.commands if isinstance(one, Listed) else ()
            found += [(f"{page.name}:{one.line}", line) for line in lines]
        found += [(page.name, text) for text in re.findall(r"`(cluster \w+ [^`…]+)`", page.read_text())]
    return [(place, line) for place, line in found if line.startswith("cluster ")]


def commands(line: str) -> Iterator[list[str]]:
    """The commands of a line of shell: `a && b | c` are three."""
    shell = shlex.shlex(line, posix=True, punctuation_chars=True)
    shell.whitespace_split = True
    words: list[str] = []
    for word in shell:
        if set(word) <= set("&|;"):
            yield words
            words = []
        else:
            words.append(word)
    yield words


def test_pages_are_the_ones_that_code_names() -> None:
    assert {page.stem for page in pages()} == set(STEMS)


@each("runbook", POINTED_AT)
def test_what_code_points_at_is_there(runbook: str) -> None:
    stem, _, anchor = runbook.partition("#")
    assert stem in STEMS
    assert not anchor or anchor in headings(FOLDER / f"{stem}.md")


@each("page", [INDEX, *pages()], ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), link
        assert not anchor or anchor in headings(path), link


def test_index_has_every_page() -> None:
    assert {f"{stem}.md" for stem in STEMS} <= set(links(INDEX))


@each("page", pages(), ids=lambda page: page.stem)
def test_page_is_short_and_says_when_it_is_done(page: Path) -> None:
    text = page.read_text()
    assert len([line for line in text.splitlines() if not ORDER.fullmatch(line)]) <= LONGEST
    assert re.search(r"^## .*\b(when|Before)$", text, re.M)
    assert re.search(r"^## .*one command$", text, re.M)


@each("place, line", typed_commands())
def test_command_is_understood(place: str, line: str) -> None:
    for words in commands(line):
        assert words[0] != "cluster" or parse(words[1:]).command == words[1], place


def test_slugs_are_those_of_github() -> None:
    assert slug("GPU and driver") == "gpu-and-driver"
    assert slug("It is right when `up` says: ready!") == "it-is-right-when-up-says-ready"
