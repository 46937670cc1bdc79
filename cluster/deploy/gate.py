"""The checks that decide whether `up` continues; nothing has been changed when they fail."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import partial

from cluster.argv.docker import docker_try
from cluster.config.inventory import ResolvedHost
from cluster.errors import RefusedError, raise_all
from cluster.hosts.fleet import Fleet
from cluster.hosts.protocol import Host
from cluster.screen import Screen
from cluster.spark.deployments import Deployment
from cluster.spark.fabric import PING, Fabric, check_pings, pair, ping_questions
from cluster.spark.fact import Missing
from cluster.spark.finding import Finding, as_errors, refusing, worst_first
from cluster.spark.image import Inside, check_equal, check_inside, parse_inside
from cluster.spark.look import Seen, check_host, check_set
from cluster.spark.request import Wanted

STOCK = {"docker", "platform", "disk", "image", "weights", "image-parity", "weights-parity", "image-store"}
"""The checks that are about what a host has in stock and where it lies."""


def check_facts(
    wanted: Wanted, seens: Mapping[str, Seen], fabric: Fabric, found: Sequence[Deployment]
) -> list[Finding]:
    here = [seens[name] for name in wanted.names if name in seens]
    return [*(one for seen in here for one in check_host(wanted, seen, found)), *check_set(wanted, here, fabric)]


def judge_stock(wanted: Wanted, seens: Mapping[str, Seen], screen: Screen) -> None:
    """Raise the faults that keep a host from having complete and equal copies; what is missing is no fault."""
    findings = check_facts(wanted, seens, Fabric({}, paired=False), ())
    judge([finding for finding in findings if finding.check in STOCK], wanted, screen)


def pair_of(hosts: Sequence[ResolvedHost], seens: Mapping[str, Seen]) -> Fabric:
    """The fabric between those of the hosts that answered, the inventory's overrides applied."""
    here = [host for host in hosts if host.name in seens]
    return pair([seens[host.name] for host in here], {host.name: host.fabric for host in here})


def ping(fabric: Fabric, fleet: Fleet) -> list[Finding]:
    asked = {host: questions for host in fabric.hosts if (questions := ping_questions(fabric, host))}
    findings: list[Finding] = []
    for host, outcome in fleet.ask({host: list(questions.values()) for host, questions in asked.items()}).items():
        if outcome.value is None:
            findings.append(PING.found("unknown", host, "peers could not be pinged", str(outcome.error)))
        else:
            findings += check_pings(host, dict(zip(asked[host], outcome.value, strict=True)))
    return findings


def try_image(wanted: Wanted, fleet: Fleet, screen: Screen) -> Inside:
    """What the head's image holds. Raises RefusedError for what a short container of it finds on any host."""
    insides = fleet.keep_trying(partial(look_into, wanted), wanted.names, screen.trouble)
    judge(check_insides(wanted, insides), wanted, screen)
    head = insides[wanted.names[0]]
    if isinstance(head, Missing):
        raise RefusedError(f"the image could not be read: {head.why}", code="image-unread", where=wanted.names[0])
    return head


def look_into(wanted: Wanted, host: Host) -> Inside | Missing:
    """Start one short container of the image on a host: a GPU in it, the versions, the architecture known.

    The container has a name of its own, since looking takes no lock, and may be repeated.
    """
    name = f"cluster-try-{wanted.recipe.name}-{secrets.token_hex(3)}"
    words = [wanted.recipe.architecture]
    return parse_inside(host.ask([docker_try(name, wanted.recipe.image, "image", words, timeout_s=60)])[0])


def check_insides(wanted: Wanted, insides: Mapping[str, Inside | Missing]) -> list[Finding]:
    each = [finding for host, inside in insides.items() for finding in check_inside(wanted, host, inside)]
    return [*each, *check_equal(insides)]


def judge(findings: Sequence[Finding], wanted: Wanted, screen: Screen) -> None:
    """Print warnings and notes; raise the faults that `--force` does not name, all of them."""
    faults = refusing(findings, wanted.force)
    for finding in worst_first(findings):
        if finding not in faults:
            warn(finding, screen)
    raise_all(as_errors(faults))


def warn(finding: Finding, screen: Screen) -> None:
    forced = " (forced)" if finding.level == "fault" else ""
    evidence = f" ({finding.evidence})" if finding.evidence else ""
    screen.warn(f"{finding.level}{forced}: {finding.host}: {finding.what}{evidence}")
