"""`cluster doctor`: every check of every host, `up`'s first half for all of them; never changes anything.

A deployment of several ranks that serves is asked one short completion.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.cli import bundle
from cluster.cli.fabric_test import Tested, test_fabric
from cluster.cli.findings import show
from cluster.cli.status import Status, inspect, rank_text
from cluster.cli.summary import simulated_products
from cluster.cli.traffic import check_traffic, has_traffic
from cluster.config.names import ResolvedHost
from cluster.deploy import gate
from cluster.deploy.fetch import is_absent
from cluster.deploy.session import Connect, Named, answered, look, open_fleet, raise_all, read_named, read_recipe
from cluster.errors import ClusterError, ExitCode, InterruptedByUser, ManyErrors
from cluster.hosts.connect import connect
from cluster.hosts.fleet import Fleet
from cluster.hosts.lock import Lock
from cluster.hosts.outcome import errors as errors_of
from cluster.screen import Screen
from cluster.spark.deployed import Deployment, deployments
from cluster.spark.fabric import drift, recorded
from cluster.spark.fabric_speed import Speed
from cluster.spark.fact import Missing
from cluster.spark.finding import Finding, share, unknown, worst_first
from cluster.spark.look import Seen
from cluster.spark.ready import Failed, Waiting
from cluster.spark.request import Wanted, choose_sizes
from cluster.spark.runbooks import RUNBOOKS


@dataclass(slots=True)
class Examined:
    """What was found, worst first; `errors` of the hosts that did not answer, or not to the end.

    `speeds`: what `--fabric-test` measured.
    """

    seens: Mapping[str, Seen]
    found: tuple[Deployment, ...] = ()
    findings: list[Finding] = field(default_factory=list)
    errors: list[ClusterError] = field(default_factory=list)
    speeds: list[Speed] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that were looked at."""
        return tuple(self.seens)


def run(args: argparse.Namespace, screen: Screen, connect: Connect = connect) -> ExitCode:
    """Carry out `cluster doctor`; 3 when a host could not be reached, 4 with a fault."""
    named = read_named(args)
    wanted = read_wanted(args, named)
    place = bundle.place_of(args.bundle, overwrite=args.yes) if args.bundle else None
    with open_fleet(wanted.hosts, connect) as fleet:
        examined = examine(wanted, fleet, screen)
        if args.fabric_test and examined.seens:
            test_speed(wanted, examined, fleet, screen)
        told = as_document(examined)
        report(examined, screen)
        if place:
            files = bundle.save(place, wanted, examined.seens, examined.found, told, fleet)
            screen.note(f"{place}: {files} files, without secrets; hosts, users and addresses are named in them")
    screen.document(told)
    if screen.json_mode and examined.errors:
        return ManyErrors(examined.errors).exit_code
    raise_all(examined.errors)
    return ExitCode.REFUSED if any(one.level == "fault" for one in examined.findings) else ExitCode.DONE


def read_wanted(args: argparse.Namespace, named: Named) -> Wanted:
    """The recipe on all hosts named, as `up` would spread it. Raises UsageError."""
    recipe = read_recipe(args, named.file)
    hosts, tp, backend = choose_sizes(named.hosts, tp=None, pp=1, solo=False, backend=None, recipe=recipe)
    return Wanted(recipe, hosts, tp, 1, backend)


def examine(wanted: Wanted, fleet: Fleet, screen: Screen) -> Examined:
    """Look at all hosts, ping their peers, try the image where it is, and ask what runs of ours how it does."""
    began = fleet.time.monotonic()
    with screen.waiting(f"looking at {', '.join(wanted.names)}") as waiting:
        seens, errors = answered(look(fleet, wanted.hosts, wanted))
        found = deployments(seens.values(), wanted.hosts)
        fabric = gate.pair_of(wanted.hosts, seens)
        findings = gate.check_facts(wanted, seens, fabric, found)
        findings += [finding for seen in seens.values() for finding in check_absent(wanted, seen)]
        findings += gate.ping(fabric, fleet)
        have_image = [name for name, seen in seens.items() if not isinstance(seen.image, Missing)]
        if have_image:
            waiting.update(f"trying the image {wanted.recipe.image} in a short container")
        insides = gate.look_inside(wanted, have_image, fleet)
        errors += errors_of(insides)
        findings += gate.check_insides(wanted, {host: one.value for host, one in insides.items() if one.value})
        for deployment in found:
            waiting.update(f"asking the ranks of {deployment.id}")
            status = inspect(deployment, fleet, seens)
            findings += check_deployment(status, wanted, seens)
            if has_traffic(status, seens):
                waiting.update(f"asking {deployment.id} for one short completion")
                findings += check_traffic(status, ranked(deployment, wanted), seens, fleet)
    return Examined(seens, found, worst_first(findings), errors, seconds=fleet.time.monotonic() - began)


def test_speed(wanted: Wanted, examined: Examined, fleet: Fleet, screen: Screen) -> None:
    """Add what `--fabric-test` finds on the hosts that answered. It is load, so it takes the lock, as `up` does."""
    hosts = [host for host in wanted.hosts if host.name in examined.seens]
    data_dirs = {host.name: host.data_dir for host in hosts}
    try:
        with Lock(fleet.only(tuple(data_dirs)), "doctor --fabric-test", data_dirs):
            fabric = gate.pair_of(hosts, examined.seens)
            tested = test_fabric(fabric, examined.found, examined.seens, fleet, screen)
    except InterruptedByUser:
        raise
    except ClusterError as error:
        why = Missing(error.what)
        tested = Tested([unknown("fabric-speed", error.host or hosts[0].name, why, "the speed of the fabric")])
    examined.findings = worst_first([*examined.findings, *tested.findings])
    examined.speeds = tested.speeds


def check_absent(wanted: Wanted, seen: Seen) -> Iterator[Finding]:
    """Image and weights that are not there yet: nothing is wrong, `up` fetches them."""
    recipe, fetches = wanted.recipe, "cluster up fetches it after asking"
    if isinstance(seen.image, Missing) and not isinstance(seen.docker, Missing):
        if is_absent(seen.image):
            yield Finding("note", "image", seen.host, f"image {recipe.image} is not there", remedy=fetches)
        else:
            yield unknown("image", seen.host, seen.image, f"image {recipe.image}")
    for model, copy in zip(wanted.models, seen.copies, strict=False):
        if is_absent(copy) and not model.id.startswith("/"):
            yield Finding("note", "weights", seen.host, f"model {model.id} is not there", remedy=fetches)


def check_deployment(status: Status, wanted: Wanted, seens: Mapping[str, Seen]) -> Iterator[Finding]:
    """What runs of ours is whole, and over the links that are there now."""
    deployment, head = status.deployment, status.deployment.head
    known = {host: rank for host, rank in status.ranks.items() if host in seens}
    if isinstance(status.state, Failed):
        ranks = ", ".join(f"{host} {rank_text(rank)}" for host, rank in known.items())
        yield Finding(
            "fault", "deployment", status.state.host, f"{deployment.id} is {status.word}: {status.state.why}", ranks,
            "cluster logs --explain says why; cluster up starts it again",
        )  # fmt: skip
    elif isinstance(status.state, Waiting) and head in known:
        what = f"{deployment.id} is not ready yet"
        yield Finding("note", "deployment", head, what, f"waiting for {status.state.what}", "cluster up waits for it")
    for wrong in status.wrong:
        remedy = "cluster down and cluster up start it anew"
        yield Finding("fault", "deployment", head, f"{deployment.id} is not whole", wrong, remedy)
    for host, rank in known.items():
        if isinstance(rank, Missing) and not isinstance(seens[host].containers, Missing):
            yield unknown("deployment", host, rank, f"the rank of {deployment.id}")
    if deployment.running and set(deployment.hosts) <= set(seens):
        yield from drift(recorded(deployment.seen), gate.pair_of(ranked(deployment, wanted), seens))


def ranked(deployment: Deployment, wanted: Wanted) -> list[ResolvedHost]:
    """A deployment's hosts in rank order, of those that were named."""
    named = {host.name: host for host in wanted.hosts}
    return [named[name] for name in deployment.hosts if name in named]


def summary(examined: Examined) -> str:
    """The last line: how many findings by level, the hosts looked at, how long it took."""
    made = (
        f"{len(RUNBOOKS.keys() - (set() if examined.speeds else {'fabric-speed'}))} checks"
        if len(examined.hosts) > 1
        else "checks between hosts need two"
    )
    where = f"on {', '.join(examined.hosts)} ({made}, {examined.seconds:.1f} s)"
    levels = [one.finding.level for one in share(examined.findings)]
    counts = [
        f"{levels.count(level)} {word if levels.count(level) == 1 or level == 'unknown' else word + 's'}"
        for level, word in (("fault", "fault"), ("unknown", "unknown"), ("warning", "warning"), ("note", "note"))
        if level in levels
    ]
    return f"{', '.join(counts) or 'no finding'} {where}"


def report(examined: Examined, screen: Screen) -> None:
    """For people; nothing when no host answered."""
    if not examined.seens:
        return
    show(examined.findings, screen)
    screen.line(summary(examined))
    if simulated := simulated_products(examined.seens.values()):
        screen.warn(f"simulated hosts: {simulated}")


def as_document(examined: Examined) -> dict[str, Any]:
    """The same for `--json`."""
    return {
        "hosts": list(examined.hosts),
        "findings": [finding.as_dict() for finding in examined.findings],
        "errors": [error.as_dict() for error in examined.errors],
        "fabric": [speed.as_dict() for speed in examined.speeds],
        "seconds": round(examined.seconds, 3),
        "simulated": simulated_products(examined.seens.values()),
    }
