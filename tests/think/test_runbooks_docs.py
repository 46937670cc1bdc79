"""docs/runbooks holds together: what code points at is there, what is linked is there.

That what is typed can be typed is tested in test_docs_commands.
"""

from __future__ import annotations

from pathlib import Path

from loops import each
from runbook_pages import FOLDER, INDEX, headings, links, pages, slug

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
OF_RULES = {rule.page for rule in (*RULES, *OF_OUTPUTS.values(), *OF_PAIRS.values()) if rule.page}
OF_CHECKS = {check.runbook for check in (*CHECKS.values(), *checks_in([hang]).values())}
POINTED_AT = sorted({*OF_CHECKS, *OF_RULES})
"""What checks and rules name as their page."""


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


def test_slugs_are_those_of_github() -> None:
    assert slug("GPU and driver") == "gpu-and-driver"
    assert slug("It is right when `up` says: ready!") == "it-is-right-when-up-says-ready"
