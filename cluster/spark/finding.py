"""What a check says, and the runbook page of each check."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from cluster.config.find import nearest
from cluster.errors import UNCHANGED, RefusedError, UsageError

if TYPE_CHECKING:
    from cluster.spark.fact import Missing

RUNBOOKS: Mapping[str, str] = {
    "platform": "first-set-up#platform",
    "sudo": "first-set-up#before-the-first-command",
    "kernel": "upgrade#kernel",
    "hostname": "first-set-up#names",
    "docker": "it-does-not-start#docker",
    "container": "it-does-not-start#container-and-gpu",
    "names": "it-does-not-start#ports-and-names",
    "ports": "it-does-not-start#ports-and-names",
    "gpu": "it-does-not-start#container-and-gpu",
    "power-cap": "it-is-slow#power-cap",
    "throttle": "it-is-slow#power-cap",
    "wedged": "it-hangs#wedged",
    "gpu-stranger": "memory-is-full#another-tenant",
    "stranger": "memory-is-full#another-tenant",
    "orphan": "memory-is-full#a-leftover-holds-it",
    "tenants": "memory-is-full#another-tenant",
    "memory": "memory-is-full",
    "page-cache": "memory-is-full#page-cache",
    "disk": "memory-is-full#the-disk-is-full",
    "image": "it-does-not-start#image",
    "weights": "it-does-not-start#model",
    "machine-id": "first-set-up#same-machine",
    "clock": "first-set-up#clock",
    "image-parity": "upgrade#the-image-is-not-the-same-on-all-hosts",
    "image-store": "upgrade#the-image-is-not-the-same-on-all-hosts",
    "weights-parity": "swap-a-model#the-hosts-have-different-copies",
    "versions": "upgrade#driver-kernel-firmware",
    "fabric": "first-set-up#fabric-addresses",
    "address": "first-set-up#fabric-addresses",
    "rdma": "it-is-slow#tcp-instead-of-roce",
    "rdma-device": "it-is-slow#tcp-instead-of-roce",
    "twins": "it-is-slow#one-twin",
    "rate": "it-is-slow#bandwidth",
    "mtu": "it-is-slow#mtu",
    "cabling": "first-set-up#fabric-addresses",
    "route": "first-set-up#fabric-addresses",
    "gid": "reboot-or-replace#the-fabric-is-not-what-it-was",
    "firewall": "first-set-up#firewall",
    "ping": "first-set-up#fabric-addresses",
    "drift": "reboot-or-replace#the-fabric-is-not-what-it-was",
    "deployment": "reboot-or-replace#after-a-reboot",
    "transport": "it-is-slow#tcp-instead-of-roce",
    "fabric-speed": "it-is-slow#bandwidth",
}
"""Check → the file's stem, with `#anchor` where one section is meant."""

WATCHED: Mapping[str, str] = {
    "wedge": "it-hangs#wedged",
    "rank": "it-hangs#a-rank-is-gone",
    "server": "it-hangs",
    "memory-low": "memory-is-full",
    "memory-falling": "memory-is-full",
    "clocks": "it-is-slow#power-cap",
    "link": "it-hangs#the-link-is-cut",
    "socket-fallback": "it-is-slow#tcp-instead-of-roce",
}
"""The same for what is only found by watching; no start waits for it, so `--force` does not know it."""


def check_names(given: Iterable[str]) -> frozenset[str]:
    """Names of checks as `--force` takes them. Raises UsageError for a name that no check has."""
    given = frozenset(given)
    for name in sorted(given - RUNBOOKS.keys()):
        known = ", ".join(RUNBOOKS)
        near = nearest(name, RUNBOOKS)
        raise UsageError(
            f"--force {name}: there is no check of that name", remedy=f"{near}; all: {known}" if near else known
        )
    return given


X = TypeVar("X")
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


def differ(
    level: Level, check: str, values: Mapping[str, str], what: str, remedy: str, length: int | None = None
) -> Iterator[Finding]:
    """That the hosts' values are not the same, if they are not, at the last host. `length`: characters of one shown."""
    if len(set(values.values())) > 1:
        rows = ", ".join(f"{host} {(value or 'none')[:length]}" for host, value in values.items())
        yield Finding(level, check, list(values)[-1], what, rows, remedy)


def twice(rows: Iterable[tuple[X, str]]) -> dict[str, list[X]]:
    """Values that stand in more than one row (owner, value), each with its owners in order."""
    owners: dict[str, list[X]] = {}
    for owner, value in rows:
        owners.setdefault(value, []).append(owner)
    return {value: those for value, those in owners.items() if len(those) > 1}


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
            where=f"{', '.join(hosts)}, check `{fault.check}`",
            rolled_back=UNCHANGED,
            remedy=fault.remedy,
        )
        for fault, hosts in ((shared.finding, shared.hosts) for shared in share(faults))
    ]
