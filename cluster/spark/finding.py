"""What a check finds: levels, the check's name and its page, findings that several hosts share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from cluster.errors import RefusedError

if TYPE_CHECKING:
    from cluster.spark.fact import Missing

X = TypeVar("X")
Level = Literal["fault", "warning", "note", "unknown"]
ORDER: tuple[Level, ...] = ("fault", "unknown", "warning", "note")


@dataclass(frozen=True, slots=True)
class Finding:
    """`check` is the name that `--force` takes, `runbook` the page of docs/runbooks, `stem` or `stem#anchor`."""

    level: Level
    check: str
    host: str
    what: str
    evidence: str = ""
    remedy: str = ""
    runbook: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Check:
    """What makes the findings of one name; a constant of the file whose subject it is."""

    name: str
    runbook: str

    def found(self, level: Level, host: str, what: str, evidence: str = "", remedy: str = "") -> Finding:
        return Finding(level, self.name, host, what, evidence, remedy, self.runbook)

    def fault(self, host: str, what: str, evidence: str = "", remedy: str = "") -> Finding:
        """What stops a start, unless `--force` names the check."""
        return self.found("fault", host, what, evidence, remedy)

    def warning(self, host: str, what: str, evidence: str = "", remedy: str = "") -> Finding:
        return self.found("warning", host, what, evidence, remedy)

    def note(self, host: str, what: str, evidence: str = "", remedy: str = "") -> Finding:
        return self.found("note", host, what, evidence, remedy)

    def unknown(self, host: str, what: str, fact: Missing) -> Finding:
        """A fact that could not be read: never a pass and never a fault."""
        return self.found("unknown", host, f"{what} could not be read", fact.why)

    def differ(
        self, level: Level, values: Mapping[str, str], what: str, remedy: str, length: int | None = None
    ) -> Iterator[Finding]:
        """That the hosts' values differ, if they do, at the last host. `length`: characters of one value shown."""
        if len(set(values.values())) > 1:
            rows = ", ".join(f"{host} {(value or 'none')[:length]}" for host, value in values.items())
            yield self.found(level, list(values)[-1], what, rows, remedy)


def checks_in(modules: Iterable[ModuleType]) -> dict[str, Check]:
    return {one.name: one for module in modules for one in vars(module).values() if isinstance(one, Check)}


def twice(rows: Iterable[tuple[X, str]]) -> dict[str, list[X]]:
    """Values in more than one row (owner, value), each with its owners in order."""
    owners: dict[str, list[X]] = {}
    for owner, value in rows:
        owners.setdefault(value, []).append(owner)
    return {value: those for value, those in owners.items() if len(those) > 1}


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: ORDER.index(finding.level))


@dataclass(frozen=True, slots=True)
class Shared:
    """One finding and every host that has it; its own `host` is empty. Of several, the remedy says `on each: `."""

    finding: Finding
    hosts: tuple[str, ...]


def share(findings: Iterable[Finding]) -> list[Shared]:
    """Equal findings of several hosts as one, in the order of the first."""
    hosts: dict[Finding, dict[str, str]] = {}
    for finding in findings:
        remedy = finding.remedy.replace(f"on {finding.host}: ", "on each: ") if finding.host else finding.remedy
        hosts.setdefault(replace(finding, host="", remedy=remedy), {})[finding.host] = finding.remedy
    return [
        Shared(replace(same, remedy=next(iter(remedies.values()))) if len(remedies) == 1 else same, tuple(remedies))
        for same, remedies in hosts.items()
    ]


def refusing(findings: Sequence[Finding], force: frozenset[str]) -> list[Finding]:
    """The faults that stop a start; those named with `--force` do not."""
    return [one for one in findings if one.level == "fault" and one.check not in force]


def as_errors(faults: Sequence[Finding]) -> list[RefusedError]:
    """Faults as the errors that the user sees; equal ones of several hosts are one."""
    return [
        RefusedError(
            f"{one.finding.what}: {one.finding.evidence}" if one.finding.evidence else one.finding.what,
            code=one.finding.check,
            where=f"{', '.join(one.hosts)}, check `{one.finding.check}`",
            remedy=one.finding.remedy,
        )
        for one in share(faults)
    ]
