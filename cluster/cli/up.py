"""`cluster up` and `cluster swap`: from what is wanted to a proven deployment, step by step in `bring_up`."""

from __future__ import annotations

import argparse
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from cluster.argv.question import Question
from cluster.argv.vllm import Layout, check_bind, vllm_serve
from cluster.cli.options import UpOptions
from cluster.config.recipe import read_dockerfile, read_mounts, split_env
from cluster.config.secrets import API_KEY, hide_text, read_secret
from cluster.deploy import fetch, gate, prove
from cluster.deploy.apply import apply, undoing
from cluster.deploy.plan import Plan, clean_up, filled, limits, plan_up, remove_probes
from cluster.deploy.rank import API_KEY_FILE, SECRETS_FILE, Ingredients, secrets_file
from cluster.deploy.released import await_released, say_held
from cluster.deploy.session import (
    Connect,
    Named,
    Session,
    at_work,
    find,
    look,
    open_fleet,
    read_named,
    read_recipe,
    see,
    unchanged,
)
from cluster.deploy.spec import Same, Start, decide, refuse_beyond, spec_of
from cluster.errors import ClusterError, ExitCode, InterruptedByUser, RefusedError, UsageError, joined, raise_all
from cluster.hosts.connect import connect
from cluster.screen import Screen
from cluster.spark.clock_limit import check_clock_limit, to_set
from cluster.spark.deployments import Deployment
from cluster.spark.fabric import Fabric, drift, recorded
from cluster.spark.fact import Missing, known
from cluster.spark.gpu import card_of
from cluster.spark.look import Seen, check_names
from cluster.spark.memory import GIB, check_memory
from cluster.spark.request import Wanted, choose_sizes
from cluster.spark.server import Server

SECRETS_VERSION = "secrets_version"
"""Key of a spec: how often the secrets of what serves were changed: two deployments differ, and no secret is shown."""


def run(args: argparse.Namespace, screen: Screen, connect: Connect = connect) -> ExitCode:
    line = UpOptions.of(args)
    return start(read_wanted(line, read_named(args)), line, screen, connect)


def run_swap(args: argparse.Namespace, screen: Screen, connect: Connect = connect) -> ExitCode:
    """`cluster swap`: on the hosts of what runs, or on those of `-n`, where a rank has to run."""
    from cluster.bench.target import nothing_runs, running_deployment

    line, first = UpOptions.of(args), "cluster up starts the first one"
    if not (line.recipe or line.recipe_option):
        remedy = "cluster swap RECIPE; cluster recipes list shows them"
        raise UsageError("swap requires a recipe", code="recipe-missing", remedy=remedy)
    named = read_named(args)
    read_recipe(line, named.file)  # what is wrong with it is reported before any host is asked
    fetch.read_token(line.hub_token_file)
    with unchanged(screen), open_fleet(named.hosts, connect) as fleet:
        seens, errors = look(fleet, named.hosts)
        found = find(seens, named.hosts)
        if not named.explicit:
            running = running_deployment(seens, errors, found, otherwise=first)
            by_name = {host.name: host for host in named.hosts}
            named = replace(named, hosts=tuple(by_name[name] for name in running.hosts))
        raise_all(errors if named.explicit else ())
        if not any(rank.state == "running" for deployment in found for rank in deployment.ranks.values()):
            raise nothing_runs(seens, first)
        return start(read_wanted(line, named), line, screen, lambda hosts: fleet.only(tuple(hosts)))


def read_wanted(line: UpOptions, named: Named) -> Wanted:
    """What a command line wants, checked against itself. Raises UsageError; no host is asked."""
    recipe, pp, words = read_recipe(line, named.file), line.pipeline, tuple(line.words)
    hosts, tp, backend = choose_sizes(
        named.hosts, tp=line.tp, pp=pp, solo=line.solo, backend=line.backend, recipe=recipe
    )
    variables = split_env(line.env)
    key = {API_KEY: read_secret(line.api_key_file, "--api-key-file")} if line.api_key_file else {}
    env, secret = dict(variables.plain), {**variables.secret, **key}
    vllm_serve(recipe, Layout(tp, pp, backend, ("",) * len(hosts), check_bind(line.bind)), extra=words)
    forced, mounts, dockerfile = check_names(line.force), read_mounts(recipe.mounts), read_dockerfile(recipe.dockerfile)
    return Wanted(
        recipe, hosts, tp, pp, backend, env, secret, words, line.bind, line.allow_socket, forced, mounts, dockerfile
    )


def start(wanted: Wanted, line: UpOptions, screen: Screen, connect: Connect = connect) -> ExitCode:
    """Start what is wanted, as a command line asks for it. Raises UsageError for a token file that cannot be read."""
    how, purpose = fetch.How(line.yes, fetch.read_token(line.hub_token_file)), f"up {wanted.recipe.name}"
    at_hosts = at_work(wanted.hosts, purpose, screen, connect, dry_run=line.dry_run)
    with fetch.naming_what_stays(how), at_hosts as session:
        for text in wanted.recipe.unverified:
            screen.note(f"not verified: {text}")
        return bring_up(wanted, session, line, how)


def bring_up(wanted: Wanted, session: Session, line: UpOptions, how: fetch.How) -> ExitCode:
    """The same on hosts that are connected and locked."""
    fleet, screen, clock = session.fleet, session.screen, session.clock
    with clock.stage("look"):
        seens = see(fleet, wanted.hosts, wanted, screen.trouble)
    found = find(seens, wanted.hosts)
    refuse_beyond(wanted.names, found)
    fabric = gate.pair_of(wanted.hosts, seens)
    if not line.dry_run:
        apply(filled(remove_probes(seens)), session)
    if not any(isinstance(seen.image, Missing) for seen in seens.values()):
        _, decision = settle(wanted, seens, found, session)
        if isinstance(decision, Same):
            return leave(decision, wanted, fabric, seens, session, line)
    with clock.stage("check"), counted(wanted, seens, screen):
        gate.judge([*gate.check_facts(wanted, seens, fabric, found), *gate.ping(fabric, fleet)], wanted, screen)
    if line.fabric_test and not line.dry_run:
        from cluster.cli.fabric_test import test_fabric

        with clock.stage("fabric test"):
            gate.judge(test_fabric(fabric, found, seens, fleet, screen).findings, wanted, screen)
    with clock.stage("fetch"):
        if fetch.fetch_missing(wanted, seens, how, session):
            seens = see(fleet, wanted.hosts, wanted, screen.trouble)
            gate.judge_stock(wanted, seens, screen)
    with clock.stage("try"):
        inside = gate.try_image(wanted, fleet, screen)
    spec, decision = settle(wanted, seens, found, session)
    if isinstance(decision, Same):  # it runs, but its image had been removed from a host
        return leave(decision, wanted, fabric, seens, session, line)
    plan = plan_up(Ingredients(wanted, spec, seens, fabric, inside, before(seens), secrets.token_hex(32)), decision)
    for text in (*decision.why, f"start {plan.deployment}"):
        screen.line(text)
    if line.dry_run:
        return show(plan, screen)
    if plan.replaces and not line.yes and screen.interactive and not screen.confirm("replace it?"):
        raise RefusedError("not replaced", code="not-agreed", remedy="--yes replaces without asking")
    subject = to_prove(plan.deployment, spec, wanted, fabric, seens)
    subject = replace(subject, idle={} if plan.replaces else held_by(seens))
    with counted(wanted, seens, screen), undoing(plan, subject, session) as applied:
        with clock.stage("stop the old" if plan.replaces else "apply"):
            apply(plan.first, session, applied)
        if plan.replaces:
            with clock.stage("memory back"):
                subject = replace(subject, idle=held_by(await_old(plan.replaces, wanted, session)))
        with clock.stage("apply"):
            apply(plan.stages, session, applied)
        proof = prove.wait_ready(subject, fleet, screen, clock)
    remove_old(plan, session)
    ready = show_ready(subject, proof, seens, session, line)
    if line.probe:
        from cluster.probe.cases import probe_quickly

        ready["probe"] = probe_quickly(fleet[wanted.names[0]], subject.container(wanted.names[0]), spec, screen)
    screen.document(ready)
    return ExitCode.DONE


@contextmanager
def counted(wanted: Wanted, seens: Mapping[str, Seen], screen: Screen) -> Iterator[None]:
    """Where memory is short, what `cluster fit` counts on the smallest of the hosts stands before the error."""
    try:
        yield
    except ClusterError as error:
        if any("memory" in f"{one.code} {one.what}".lower() for one in error.errors):
            from cluster.model.fit import line_of

            smallest = min(seens.values(), key=lambda seen: seen.in_all or math.inf)
            names = [gpu.name for gpu in known(smallest.gpu) or ()]
            if line := line_of(wanted, card_of(names[0]) if names else None, smallest.in_all / GIB):
                screen.note(line)
        raise


def settle(
    wanted: Wanted, seens: Mapping[str, Seen], found: Sequence[Deployment], session: Session
) -> tuple[dict[str, Any], Same | Start]:
    """What is wanted as a spec, on the image and the model's files as the hosts have them, and what has to happen for
    it. What runs counts as the same only while its secrets are. Raises RefusedError when an image could not be read.
    """
    images = [image for seen in seens.values() if (image := known(seen.image))]
    for name, seen in seens.items():
        if isinstance(seen.image, Missing):
            why = (seen.docker if isinstance(seen.docker, Missing) else seen.image).why
            raise RefusedError(
                f"image {wanted.recipe.image} cannot be read: {why}", code="image-unreadable", where=name
            )
    first, *others = ({} if isinstance(seen.weights, Missing) else seen.weights.hashes for seen in seens.values())
    names = {seen.host_id: name for name, seen in seens.items()}
    ids = {name: host_id for host_id, name in names.items()}
    spec = spec_of(wanted, ids, images[0].content_id, first if all(one == first for one in others) else {})
    running = next((one for one in found if one.running and one.spec["secrets"] == spec["secrets"]), None)
    version = int(running.spec.get(SECRETS_VERSION, 0)) if running and wanted.secrets else 0
    spec |= {SECRETS_VERSION: version} if version else {}
    decision = decide(spec, found, names)
    if isinstance(decision, Same) and (changed := changed_secrets(decision.deployment, wanted, seens, session)):
        why = f"replace {decision.deployment.id}: {changed} changed"
        return spec | {SECRETS_VERSION: version + 1}, Start((why,), (decision.deployment,), decision.remains)
    return spec, decision


def changed_secrets(running: Deployment, wanted: Wanted, seens: Mapping[str, Seen], session: Session) -> str:
    """What of its secrets is not what is wanted, compared on the head with the files that only its login reads.

    Empty when all are the same, or when the files cannot be read: that is no reason to replace what serves.
    """
    home = seens[running.head].home(running.id)
    if not wanted.secrets or not home:
        return ""
    files = {"a secret (-e)": (SECRETS_FILE, secrets_file(wanted))}
    if API_KEY in wanted.secrets:
        files = {"API key": (API_KEY_FILE, wanted.secrets[API_KEY].encode()), **files}
    asked = [Question(("cmp", "-s", "--", "-", f"{home}/{name}"), stdin=data) for name, data in files.values()]
    answers = session.fleet.keep_asking({running.head: asked})[running.head]
    return next((what for what, answer in zip(files, answers, strict=True) if answer.exit == 1), "")


def leave(
    same: Same, wanted: Wanted, fabric: Fabric, seens: dict[str, Seen], session: Session, line: UpOptions
) -> ExitCode:
    """What is wanted runs already, ready or on its way: change nothing of it, and prove it all the same.

    It is proven at the addresses that it was started with. What another `up` left behind is removed.
    """
    screen, deployment = session.screen, same.deployment
    rest = filled(clean_up(same.remains, seens), limits(wanted.hosts, seens))
    gate.judge([one for seen in seens.values() for one in check_clock_limit(wanted, seen)], wanted, screen)
    screen.line(f"{deployment.id} runs already on {', '.join(wanted.names)}: nothing is changed")
    subject = to_prove(deployment.id, deployment.spec, wanted, recorded(deployment.seen), seens)
    for finding in drift(subject.fabric, fabric):
        gate.warn(finding, screen)
    if session.dry_run:
        return show(Plan(deployment.id, (), rest), screen)
    try:
        apply(rest, session)
        proof = prove.wait_ready(subject, session.fleet, screen, session.clock)
    except ClusterError as error:
        for one in error.errors:
            one.what = hide_text(one.what, wanted.secrets.values())
            one.rolled_back = "only remains of another deployment were removed" if same.remains else ""
            one.remedy = joined(one.remedy, "cluster logs; cluster down and cluster up start it again")
        raise
    screen.document(show_ready(subject, proof, seens, session, line) | {"changed": False})
    return ExitCode.DONE


def show_ready(
    subject: prove.Subject, proof: prove.Proof, seens: Mapping[str, Seen], session: Session, line: UpOptions
) -> dict[str, Any]:
    """Show what serves, as text. Returns the same as JSON."""
    wanted = subject.wanted
    aim = ["-n", ",".join(wanted.names)] if line.nodes or line.solo else []  # else they are all that the inventory has
    aim += ["-i", line.inventory] if line.inventory else []
    prove.print_ready(wanted, proof, seens, session, aim)
    ready = prove.as_document(wanted, proof, seens, session)
    if line.clients:
        ready["clients"] = prove.print_clients(subject.spec, seens[wanted.names[0]], session.screen)
    return ready


def to_prove(
    id: str, spec: Mapping[str, Any], wanted: Wanted, fabric: Fabric, seens: Mapping[str, Seen]
) -> prove.Subject:
    """What is to be proven of a deployment, and where its API is asked."""
    limited = {host.name: mhz for host in wanted.hosts if (mhz := to_set(host, seens[host.name]))}
    server = Server.of_spec(spec, seens[wanted.names[0]].home(id))
    return prove.Subject(id, spec, wanted, fabric, server, limited=limited)


def held_by(seens: Mapping[str, Seen]) -> dict[str, prove.Held]:
    return {name: prove.held_of(seen.memory, seen.gpu_processes) for name, seen in seens.items()}


def before(seens: Mapping[str, Seen]) -> dict[str, int]:
    """Bytes each host had available before any deployment: kept from the first `up`, else what is seen now."""
    kept = {name: [one.available_before or 0 for one in known(seen.deployments) or ()] for name, seen in seens.items()}
    return {name: max(seen.available, *kept[name], 0) for name, seen in seens.items()}


def await_old(old: Sequence[Deployment], wanted: Wanted, session: Session) -> dict[str, Seen]:
    """Wait until what was stopped holds nothing; the hosts as they are then. Raises RefusedError with the holder.

    Memory that somebody else took meanwhile is a warning while the rest is enough for what comes.
    """
    screen = session.screen
    seens, held = await_released(old, wanted.hosts, session.fleet, screen)
    for holder in [row for rows in held.values() for row in rows if not row.memory_only][:1]:
        what = f"the stopped deployment still holds resources: {say_held(held)} ({holder.evidence})"
        raise RefusedError(what, code="not-released", where=", ".join(held), remedy=holder.remedy)
    gate.judge([finding for name in held for finding in check_memory(wanted, seens[name])], wanted, screen)
    for name, rows in held.items():
        screen.warn(f"{name}: {rows[0].what} ({rows[0].evidence}); what is left is enough")
    return seens


def remove_old(plan: Plan, session: Session) -> None:
    """Remove what was replaced; the new one serves, so a failure here is a warning."""
    try:
        apply(plan.after, session)
    except InterruptedByUser as error:
        error.rolled_back = f"nothing: {plan.deployment} serves"
        raise
    except ClusterError as error:
        left = f"what was replaced could not be removed ({error.what})"
        session.screen.warn(f"{left}; the next cluster up or down removes it")


def show(plan: Plan, screen: Screen) -> ExitCode:
    """What a dry run shows: every host's argv in order."""
    lines = list(plan.lines())
    for line in lines:
        screen.line(line)
    screen.document({"deployment": plan.deployment, "why": list(plan.why), "plan": lines})
    return ExitCode.DONE
