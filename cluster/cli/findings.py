"""Findings as a person reads them: one line each that can be searched for; below it, what was seen and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.config.find import runbook_path
from cluster.screen import Screen
from cluster.spark.finding import Finding, Shared, share

STYLES = {"fault": "red", "unknown": "magenta", "warning": "yellow", "note": "dim"}
HOSTS_WIDTH = 24
"""Columns that names of hosts may take; more of them are counted, and named below."""


def show(findings: Sequence[Finding], screen: Screen) -> None:
    """Print findings in their order; nothing for none. What is the same on several hosts is printed once."""
    shared = share(findings)
    if not shared:
        return
    hosts = max(map(len, ("hosts", *map(hosts_text, shared))))
    check = max(map(len, ("check", *(one.finding.check for one in shared))))
    indent = " " * 9
    screen.line(f"{'level':7}  {'hosts':{hosts}}  {'check':{check}}  finding")
    for one in shared:
        found = one.finding
        start = f"{found.level:7}  {hosts_text(one):{hosts}}  {found.check:{check}}  "
        screen.text(start + found.what, " " * len(start), STYLES[found.level])
        for label, text in below(one):
            screen.text(f"{indent}{label}: {text}", indent + " " * (len(label) + 2))


def hosts_text(one: Shared) -> str:
    names = ", ".join(one.hosts)
    return names if len(names) <= HOSTS_WIDTH else f"{len(one.hosts)} hosts"


def below(one: Shared) -> list[tuple[str, str]]:
    """The lines that follow, as (label, text)."""
    found, names = one.finding, ", ".join(one.hosts)
    rows = [("hosts", names if hosts_text(one) != names else ""), ("seen", found.evidence), ("hint", found.remedy)]
    rows.append(("read", runbook_path(found.runbook) if found.runbook else ""))
    return [(label, text) for label, text in rows if text]
