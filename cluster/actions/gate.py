"""The checks that decide whether `up` goes on; nothing has been changed when they say no."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cluster.actions.reach import raise_all
from cluster.commands.docker import docker_try
from cluster.errors import ClusterError, RefusedError
from cluster.facts.fact import Missing
from cluster.facts.seen import Seen
from cluster.hosts.fleet import Fleet
from cluster.plan.checks import check_host
from cluster.plan.deployed import Deployment
from cluster.plan.fabric import Fabric
from cluster.plan.finding import Finding, refusing, worst_first
from cluster.plan.inside import Inside, check_equal, check_inside, parse_inside
from cluster.plan.parity import check_pings, check_set, ping_questions
from cluster.plan.wanted import Wanted
from cluster.screen import Screen


def check_seen(
    wanted: Wanted, seens: Mapping[str, Seen], fabric: Fabric, fleet: Fleet, found: Sequence[Deployment], screen: Screen
) -> None:
    """Judge what was seen, and ping the peers at full size. Raises RefusedError for faults not named by `--force`."""
    findings = [finding for name in wanted.names for finding in check_host(wanted, seens[name], found)]
    findings += check_set(wanted, [seens[name] for name in wanted.names], fabric)
    findings += ping(fabric, fleet)
    judge(findings, wanted, screen)


def ping(fabric: Fabric, fleet: Fleet) -> list[Finding]:
    """Full-size packets from each host to each peer over each link, all at once."""
    asked = {host: ping_questions(fabric, host) for host in fabric.hosts}
    asked = {host: questions for host, questions in asked.items() if questions}
    findings: list[Finding] = []
    for host, outcome in fleet.ask({host: list(questions.values()) for host, questions in asked.items()}).items():
        if outcome.value is None:
            findings.append(Finding("unknown", "ping", host, "peers could not be pinged", str(outcome.error)))
        else:
            findings += check_pings(host, dict(zip(asked[host], outcome.value, strict=True)))
    return findings


def try_image(wanted: Wanted, fleet: Fleet, screen: Screen) -> Inside:
    """Start one short container of the image on every host: a GPU in it, the versions, the architecture known.

    Returns what the head's image holds. Raises RefusedError.
    """
    question = docker_try(
        f"cluster-try-{wanted.recipe.name}", wanted.recipe.image, "image", [wanted.recipe.architecture], timeout_s=60
    )
    insides: dict[str, Inside | Missing] = {}
    errors: list[ClusterError] = []
    for host, outcome in fleet.ask({name: [question] for name in wanted.names}).items():
        if outcome.value is None:
            errors += [outcome.error] if outcome.error else []
        else:
            insides[host] = parse_inside(outcome.value[0])
    raise_all(errors)
    findings = [finding for host, inside in insides.items() for finding in check_inside(wanted, host, inside)]
    judge([*findings, *check_equal(insides)], wanted, screen)
    head = insides[wanted.names[0]]
    if isinstance(head, Missing):
        raise RefusedError(f"the image could not be read: {head.why}", where=wanted.names[0])
    return head


def judge(findings: Sequence[Finding], wanted: Wanted, screen: Screen) -> None:
    """Print warnings and notes; raise the faults, all of them."""
    faults = refusing(findings, wanted.force)
    for finding in worst_first(findings):
        if finding not in faults:
            forced = " (forced)" if finding.level == "fault" else ""
            evidence = f" ({finding.evidence})" if finding.evidence else ""
            screen.warn(f"{finding.level}{forced}: {finding.host}: {finding.what}{evidence}")
    raise_all(as_errors(faults))


def as_errors(faults: Sequence[Finding]) -> list[RefusedError]:
    """Faults as the errors that the user sees; what is the same on several hosts is said once."""
    hosts: dict[Finding, list[str]] = {}
    for fault in faults:
        hosts.setdefault(replace(fault, host=""), []).append(fault.host)
    return [
        RefusedError(
            f"{same.what}: {same.evidence}" if same.evidence else same.what,
            where=f"{', '.join(names)}, check `{same.check}`", put_back="nothing was changed", remedy=same.remedy,
        )
        for same, names in hosts.items()
    ]  # fmt: skip
