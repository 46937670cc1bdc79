"""What a check says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from cluster.errors import RefusedError
from cluster.spark.fact import Missing
from cluster.spark.runbooks import RUNBOOKS, WATCHED

Level = Literal["fault", "warning", "note", "unknown"]
PAGES = {**RUNBOOKS, **WATCHED}
ORDER: tuple[Level, ...] = ("fault", "unknown", "warning", "note")


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: `check` is the name that `--force` takes, `evidence` the very words or numbers.

    `runbook` is the page of docs/runbooks about it, `stem` or `stem#anchor`; of a check it need not be given.
    """

    level: Level
    check: str
    host: str
    what: str
    evidence: str = ""
    remedy: str = ""
    runbook: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "runbook", self.runbook or PAGES.get(self.check, ""))

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def unknown(check: str, host: str, fact: Missing, what: str) -> Finding:
    """A fact that could not be read: never a pass and never a fault."""
    return Finding("unknown", check, host, f"{what} could not be read", fact.why)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Faults, then unknown, warnings, notes; the order within a level is kept."""
    return sorted(findings, key=lambda finding: ORDER.index(finding.level))


@dataclass(frozen=True, slots=True)
class Shared:
    """One finding and every host that has it; its own `host` is empty.

    When they are several, a remedy that began with `on HOST: ` begins with `on each: `.
    """

    finding: Finding
    hosts: tuple[str, ...]


def share(findings: Iterable[Finding]) -> list[Shared]:
    """What is the same on several hosts said once, in the order in which it was first said."""
    hosts: dict[Finding, list[str]] = {}
    for finding in findings:
        remedy = finding.remedy.replace(f"on {finding.host}: ", "on each: ") if finding.host else finding.remedy
        names = hosts.setdefault(replace(finding, host="", remedy=remedy), [])
        if finding.host not in names:
            names.append(finding.host)
    return [Shared(_of_one(same, names), tuple(names)) for same, names in hosts.items()]


def _of_one(same: Finding, names: Sequence[str]) -> Finding:
    """The finding with its host's name in the remedy again, when only one host has it."""
    return replace(same, remedy=same.remedy.replace("on each: ", f"on {names[0]}: ")) if len(names) == 1 else same


def refusing(findings: Sequence[Finding], force: frozenset[str]) -> list[Finding]:
    """The faults that stop a start; those named with `--force` do not."""
    return [one for one in findings if one.level == "fault" and one.check not in force]


def as_errors(faults: Sequence[Finding]) -> list[RefusedError]:
    """Faults as the errors that the user sees; what is the same on several hosts is said once."""
    return [
        RefusedError(
            f"{fault.what}: {fault.evidence}" if fault.evidence else fault.what,
            where=f"{', '.join(hosts)}, check `{fault.check}`", put_back="nothing was changed", remedy=fault.remedy,
        )
        for fault, hosts in ((shared.finding, shared.hosts) for shared in share(faults))
    ]  # fmt: skip
