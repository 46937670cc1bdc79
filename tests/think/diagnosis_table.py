"""The table of docs/diagnosis.md: every rule with the samples that show it. Run this file to write it again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from diagnosis_tools import lines, samples

from cluster.diagnosis.rules import OF_OUTPUTS, OF_PAIRS, RULES, Rule

DOC = Path(__file__).parents[2] / "docs" / "diagnosis.md"
MARK = "<!-- Written by tests/think/diagnosis_table.py. Do not edit below. -->\n"


def table() -> Iterator[str]:
    """Markdown: rules of lines, of outputs, of pairs."""
    shown = defaultdict(list)
    for one in samples():
        for rule in rules_of(one.text):
            shown[rule].append(one.name)
        if one.right and one.name not in shown[one.right.split()[1]]:
            shown[one.right.split()[1]].append(one.name)
    for row in lines("lines.tsv"):
        shown[row.split("\t")[0]].append("lines.tsv")
    for title, rules in (
        ("Lines", RULES),
        ("Outputs of commands", tuple(OF_OUTPUTS.values())),
        ("Told apart by a second text", tuple(OF_PAIRS.values())),
    ):
        yield f"## {title}\n"
        yield "| rule | level | cause | from | samples |"
        yield "|---|---|---|---|---|"
        for rule in rules:
            cells = (f"`{rule.id}`", level(rule), cell(rule.cause), cell(rule.source), listed(shown[rule.id]))
            yield f"| {' | '.join(cells)} |"
        yield ""


def rules_of(text: str) -> set[str]:
    """Rules that have a line of a text."""
    found = (next((rule.id for rule in RULES if rule.search(line)), "") for line in text.splitlines())
    return set(filter(None, found))


def level(rule: Rule) -> str:
    """The level, and whether the rule is about a consequence or slowness only."""
    marks = [word for word, holds in (("secondary", rule.secondary), ("slow", rule.slow)) if holds]
    return ", ".join([rule.level, *marks, *([f"until {rule.until}"] if rule.until else [])])


def cell(text: str) -> str:
    """Text that cannot end a table's cell."""
    return text.replace("|", "\\|")


def listed(names: list[str]) -> str:
    """Names of samples; a second text has its examples in test_diagnosis_outputs.py."""
    return ", ".join(dict.fromkeys(names)) or "test_diagnosis_outputs"


def document(head: str) -> str:
    """The whole file below what people wrote."""
    return head + MARK + "\n" + "\n".join(table()).rstrip() + "\n"


if __name__ == "__main__":
    DOC.write_text(document(DOC.read_text(encoding="utf-8").split(MARK)[0]), encoding="utf-8")
