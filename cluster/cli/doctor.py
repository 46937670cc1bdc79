"""`cluster doctor`: every check of every host, `up`'s first half for all of them; never changes anything."""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import tarfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from cluster import __version__
from cluster.argv.question import Question
from cluster.cli.fabric_test import Tested, test_fabric
from cluster.cli.findings import show
from cluster.cli.status import Status, inspect, rank_text
from cluster.config.inventory import ResolvedHost
from cluster.config.secrets import is_secret, redact, redact_text
from cluster.deploy import evidence, gate, prove
from cluster.deploy.fetch import is_absent, read_token
from cluster.deploy.prove import simulated_products, subject_of
from cluster.deploy.rank import SECRET_FILES
from cluster.deploy.session import Connect, finish, locked, look, open_fleet, read_named, read_recipe, see
from cluster.errors import ClusterError, ExitCode, InterruptedByUser, UsageError
from cluster.hosts.connect import connect
from cluster.hosts.fleet import Fleet
from cluster.hosts.fleet import errors as errors_of
from cluster.screen import Screen
from cluster.spark import server
from cluster.spark.clock_limit import check_limit_held
from cluster.spark.deployments import DEPLOYED, Deployment, LockState, deployments
from cluster.spark.fabric import TRANSPORT, drift, recorded
from cluster.spark.fabric_test import FABRIC_SPEED, Speed
from cluster.spark.fact import Missing, known
from cluster.spark.finding import ORDER, Finding, share, worst_first
from cluster.spark.image import IMAGE
from cluster.spark.look import CHECKS, Seen
from cluster.spark.ranks import Failed, Ready, Waiting
from cluster.spark.request import Wanted, choose_sizes
from cluster.spark.weights import WEIGHTS

ENDINGS = (".tar.gz", ".tgz")
TAIL, SINCE = 5000, "-1h"
"""Lines of each rank's log, and how old lines of a host's journal may be."""


def place_of(name: str, *, overwrite: bool) -> Path:
    """Where to write the archive. Raises UsageError."""
    place = Path(name).expanduser()
    if not name.endswith(ENDINGS):
        raise UsageError(f"--bundle {name}: expected a name that ends in {' or '.join(ENDINGS)}", code="bundle-name")
    if not place.parent.is_dir():
        raise UsageError(f"--bundle {name}: folder {place.parent} not found", code="folder-not-found")
    if place.is_dir() or (place.exists() and not overwrite):
        remedy = "take another name, or overwrite it with --yes"
        raise UsageError(f"--bundle {name} already exists", code="file-exists", remedy=remedy)
    return place


def save(
    place: Path, wanted: Wanted, seens: Mapping[str, Seen], found: Sequence[Deployment], document: Any, fleet: Fleet
) -> int:
    """Write the archive, private files in one folder, and return how many; `document` is what `--json` prints. It
    appears under its name only when it is complete. Raises ClusterError."""
    ranks = {host: [(one.id, rank.name) for one in found if (rank := one.ranks.get(host))] for host in seens}
    secrets = known_secrets(seens, ranks, fleet)
    versions = {"cluster": __version__, "python": platform.python_version(), "system": platform.platform()}
    documents: dict[str, Any] = {
        "findings.json": document,
        "versions.json": versions | {"written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())},
        "inventory.yaml": {"hosts": {host.name: asdict(host) for host in wanted.hosts}},
        "recipe.yaml": wanted.recipe.model_dump(mode="json"),
        **{f"{name}/facts.json": asdict(seen) for name, seen in seens.items()},
    }
    texts = {name: redact_text(text, secrets) for name, text in logs(ranks, fleet)}
    for name, value in documents.items():
        clean = redact(value, secrets)
        texts[name] = json.dumps(clean, indent=1, default=str) + "\n"
        if name.endswith(".yaml"):
            texts[name] = yaml.safe_dump(clean, sort_keys=False, allow_unicode=True)
    part = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        part.touch(0o600)
        with tarfile.open(part, "w:gz") as archive:
            for name, text in texts.items():
                data = text.encode("utf-8", "replace")
                entry = tarfile.TarInfo(f"cluster-doctor/{name}")
                entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
                archive.addfile(entry, io.BytesIO(data))
        part.replace(place)
    except OSError as error:
        raise ClusterError(f"{place} cannot be written: {error.strerror or error}", code="file-not-written") from None
    finally:
        part.unlink(missing_ok=True)
    return len(texts)


def logs(ranks: Mapping[str, Sequence[tuple[str, str]]], fleet: Fleet) -> Iterator[tuple[str, str]]:
    """What explains a failure of each of our containers, by file name; where a host is lost, why."""
    asked: dict[str, dict[str, Question]] = {}
    for host, name in ((host, name) for host, rows in ranks.items() for _, name in rows):
        files = evidence.questions(name, SINCE, ray=False, tail=TAIL)
        asked.setdefault(host, {}).update({f"{host}/{name}-{file}": one for file, one in files.items()})
    for host, outcome in fleet.ask({host: list(files.values()) for host, files in asked.items()}).items():
        for number, file in enumerate(asked[host]):
            said = evidence.said(outcome.value[number]) if outcome.value else str(outcome.error).encode()
            yield file, said.decode("utf-8", "replace")


def known_secrets(
    seens: Mapping[str, Seen], ranks: Mapping[str, Sequence[tuple[str, str]]], fleet: Fleet
) -> frozenset[str]:
    """Values that must not be in the archive, whatever quotes them: those given to what runs (from its files on the
    hosts), the hub token and secrets of this environment, and machine ids."""
    secrets = {value for name, value in os.environ.items() if len(value) >= 8 and is_secret(name, value)}
    secrets.add(read_token(None))
    asked: dict[str, list[Question]] = {}
    for host, seen in seens.items():
        if own := known(seen.identity):
            secrets.add(own.machine_id)
            homes = [seen.home(name) for name, _ in ranks[host]]
            asked[host] = [Question(("cat", f"{home}/{file}")) for home in homes for file in SECRET_FILES]
    outcomes = fleet.ask({host: questions for host, questions in asked.items() if questions})
    for answer in (answer for outcome in outcomes.values() for answer in outcome.value or () if answer.exit == 0):
        document: Any = None
        with suppress(ValueError):
            document = json.loads(answer.text)
        secrets |= {*map(str, document.values())} if isinstance(document, dict) else {answer.text.strip()}
    return frozenset(secrets)


TOKENS = 8
ANSWER_S = 4.0
"""A busy server may take longer; its other requests then move the counters as this one would."""


def check_traffic(
    deployment: Deployment, hosts: Sequence[ResolvedHost], seens: Mapping[str, Seen], fleet: Fleet
) -> Iterator[Finding]:
    """One short completion of a deployment that serves over several ranks, and the way it took."""
    head, way = deployment.head, f"the way of {deployment.id}'s traffic"
    for host in deployment.hosts:
        lock = seens[host].lock
        if isinstance(lock, LockState) and lock.held:  # a measurement may be under way, which one more request spoils
            what, evidence = f"{way} was not checked: the hosts are in use", f"{lock.who}: {lock.why}"
            yield TRANSPORT.note(host, what, evidence, "run it again when that is done")
            return
    try:
        subject = subject_of(deployment, hosts, seens)
        if not subject.fabric.rdma:
            return
        before = prove.read_links(fleet, subject.wanted.names)
        question = server.question(subject.server, ask=True, timeout_s=ANSWER_S, tokens=TOKENS)
        done = known(server.parse(fleet.ask({head: [question]})[head].get()[0]))
        if done and done.status and (wrong := done.wrong(subject.wanted.served_name, judge_text=False)):
            remedy = "cluster logs --explain names the cause"
            yield DEPLOYED.fault(head, f"{deployment.id} answers, but {wrong}", remedy=remedy)
            return
        fleet.time.sleep(prove.COUNTERS_SETTLE_S)
        transport = prove.read_transport(subject, fleet, before)
    except InterruptedByUser:
        raise
    except ClusterError as error:
        yield TRANSPORT.unknown(head, way, Missing(error.what))
        return
    if transport.verdict == "rdma":
        if transport.bypass:
            yield TRANSPORT.note(head, f"the traffic of {deployment.id} goes over RDMA", str(transport))
        return
    shown = str(transport) if transport.bypass else transport.why
    if not (done and done.status):
        yield TRANSPORT.unknown(head, way, Missing(f"the server did not answer within {ANSWER_S:.0f} s", "timeout"))
    elif transport.verdict == "unknown":
        yield TRANSPORT.unknown(head, way, Missing(transport.why))
    elif accepted := deployment.seen.get("accepts_sockets"):
        what = f"the traffic of {deployment.id} goes over sockets, as was accepted: {accepted}"
        yield TRANSPORT.note(head, what, shown)
    else:
        what = f"RDMA is not used between the ranks of {deployment.id}"
        remedy = "cluster down and cluster up, which proves the way again; --allow-socket accepts TCP"
        yield TRANSPORT.fault(head, what, shown, remedy)


@dataclass(slots=True)
class Examined:
    """What was found, worst first; `errors` of hosts that did not answer all; `speeds` by `--fabric-test`."""

    seens: Mapping[str, Seen]
    found: tuple[Deployment, ...]
    findings: list[Finding]
    errors: list[ClusterError]
    seconds: float
    speeds: list[Speed] = field(default_factory=list)


def run(args: argparse.Namespace, screen: Screen, connect: Connect = connect) -> ExitCode:
    """Carry out `cluster doctor`; 3 when a host could not be reached, 4 with a fault."""
    named = read_named(args)
    recipe = read_recipe(args, named.file)
    hosts, tp, backend = choose_sizes(named.hosts, tp=None, pp=1, solo=False, backend=None, recipe=recipe)
    wanted = Wanted(recipe, hosts, tp, 1, backend)  # as `up` would spread it over all hosts named
    place = place_of(args.bundle, overwrite=args.yes) if args.bundle else None
    with open_fleet(wanted.hosts, connect) as fleet:
        examined = examine(wanted, fleet, screen)
        if args.fabric_test and examined.seens:
            test_speed(wanted, examined, fleet, screen)
        simulated = simulated_products(examined.seens.values())
        document: dict[str, Any] = {
            "hosts": list(examined.seens),
            "findings": [finding.as_dict() for finding in examined.findings],
            "errors": [error.as_dict() for error in examined.errors],
            "fabric": [speed.as_dict() for speed in examined.speeds],
            "seconds": round(examined.seconds, 3),
            "simulated": simulated,
        }
        if examined.seens:
            show(examined.findings, screen)
            screen.line(summary(examined))
        if simulated:
            screen.warn(f"simulated hosts: {simulated}")
        if place:
            files = save(place, wanted, examined.seens, examined.found, document, fleet)
            screen.note(f"{place}: {files} files, without secrets; hosts, users and addresses are named in them")
    screen.document(document)
    faulty = any(one.level == "fault" for one in examined.findings)
    return finish(examined.errors, screen, ExitCode.REFUSED if faulty else ExitCode.DONE)


def examine(wanted: Wanted, fleet: Fleet, screen: Screen) -> Examined:
    """Ask all hosts, ping their peers, try the image where it is, and ask each deployment for its state."""
    started_s = fleet.time.monotonic()
    with screen.waiting(f"looking at {', '.join(wanted.names)}") as waiting:
        seens, errors = look(fleet, wanted.hosts, wanted)
        found = deployments(seens.values(), wanted.hosts)
        fabric = gate.pair_of(wanted.hosts, seens)
        findings = gate.check_facts(wanted, seens, fabric, found)
        findings += [finding for seen in seens.values() for finding in check_absent(wanted, seen)]
        findings += [finding for seen in seens.values() for finding in check_limit_held(wanted, seen)]
        findings += gate.ping(fabric, fleet)
        have_image = [name for name, seen in seens.items() if not isinstance(seen.image, Missing)]
        if have_image:
            waiting.update(f"trying the image {wanted.recipe.image} in a short container")
        insides = fleet.each(partial(gate.look_into, wanted), have_image)
        errors += errors_of(insides)
        findings += gate.check_insides(wanted, {host: one.value for host, one in insides.items() if one.value})
        for deployment in found:
            waiting.update(f"asking the ranks of {deployment.id}")
            status = inspect(deployment, fleet, seens)
            findings += check_deployment(status, wanted, seens)
            serves = isinstance(status.state, Ready) and not status.wrong and deployment.running
            if serves and len(deployment.hosts) > 1 and set(deployment.hosts) <= set(seens):
                waiting.update(f"asking {deployment.id} for one short completion")
                findings += check_traffic(deployment, ranked(deployment, wanted), seens, fleet)
    return Examined(seens, found, worst_first(findings), errors, fleet.time.monotonic() - started_s)


def test_speed(wanted: Wanted, examined: Examined, fleet: Fleet, screen: Screen) -> None:
    """Add what `--fabric-test` finds on the hosts that answered. It is load, so it takes the lock, as `up` does."""
    hosts, within = [host for host in wanted.hosts if host.name in examined.seens], fleet.only(tuple(examined.seens))
    try:
        with locked(within, hosts, "doctor --fabric-test"):
            seens = see(within, hosts, say=screen.trouble)  # whoever held the lock until now may have started something
            tested = test_fabric(gate.pair_of(hosts, seens), deployments(seens.values(), hosts), seens, fleet, screen)
    except InterruptedByUser:
        raise
    except ClusterError as error:
        why = Missing(error.what)
        tested = Tested([FABRIC_SPEED.unknown(error.host or hosts[0].name, "the speed of the fabric", why)])
    examined.findings = worst_first([*examined.findings, *tested.findings])
    examined.speeds = tested.speeds


def check_absent(wanted: Wanted, seen: Seen) -> Iterator[Finding]:
    """Image and weights that are not there yet: nothing is wrong, `up` fetches them."""
    recipe, fetches = wanted.recipe, "cluster up fetches it after asking"
    if isinstance(seen.image, Missing) and not isinstance(seen.docker, Missing):
        if is_absent(seen.image):
            yield IMAGE.note(seen.host, f"image {recipe.image} is not there", remedy=fetches)
        else:
            yield IMAGE.unknown(seen.host, f"image {recipe.image}", seen.image)
    for model, copy in zip(wanted.models, seen.copies, strict=False):
        if is_absent(copy) and not model.id.startswith("/"):
            yield WEIGHTS.note(seen.host, f"model {model.id} is not there", remedy=fetches)


def check_deployment(status: Status, wanted: Wanted, seens: Mapping[str, Seen]) -> Iterator[Finding]:
    """A deployment is complete, and runs over the links that are there now."""
    deployment, head = status.deployment, status.deployment.head
    ranks = {host: rank for host, rank in status.ranks.items() if host in seens}
    if isinstance(status.state, Failed):
        what = f"{deployment.id} is {status.word}: {status.state.why}"
        states = ", ".join(f"{host} {rank_text(rank)}" for host, rank in ranks.items())
        remedy = "cluster logs --explain names the cause; cluster up starts it again"
        yield DEPLOYED.fault(status.state.host, what, states, remedy)
    elif isinstance(status.state, Waiting) and head in ranks:
        what = f"{deployment.id} is not ready yet"
        yield DEPLOYED.note(head, what, f"waiting for {status.state.what}", "cluster up waits for it")
    for wrong in status.wrong:
        yield DEPLOYED.fault(head, f"{deployment.id} is incomplete", wrong, "run cluster down, then cluster up")
    for host, rank in ranks.items():
        if isinstance(rank, Missing) and not isinstance(seens[host].containers, Missing):
            yield DEPLOYED.unknown(host, f"the rank of {deployment.id}", rank)
    if deployment.running and set(deployment.hosts) <= set(seens):
        yield from drift(recorded(deployment.seen), gate.pair_of(ranked(deployment, wanted), seens))


def ranked(deployment: Deployment, wanted: Wanted) -> list[ResolvedHost]:
    """A deployment's hosts in rank order, of those that were named."""
    named = {host.name: host for host in wanted.hosts}
    return [named[name] for name in deployment.hosts if name in named]


def summary(examined: Examined) -> str:
    made = (
        f"{len(CHECKS) - (not examined.speeds)} checks" if len(examined.seens) > 1 else "checks between hosts need two"
    )
    levels = Counter(one.finding.level for one in share(examined.findings))
    plural = {level: "s" if levels[level] > 1 and level != "unknown" else "" for level in ORDER}
    counts = ", ".join(f"{levels[level]} {level}{plural[level]}" for level in ORDER if levels[level])
    return f"{counts or 'no finding'} on {', '.join(examined.seens)} ({made}, {examined.seconds:.1f} s)"
