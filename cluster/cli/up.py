"""`cluster up` and `cluster swap`: from what is wanted to a proven deployment, told in `bring_up`."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from cluster.argv.question import Question
from cluster.argv.vllm import Layout, vllm_serve
from cluster.cli.options import UpOptions
from cluster.config.overrides import final_recipe, split_env
from cluster.config.recipe import Recipe, choose_recipe, load_recipe, read_dockerfile, read_mounts
from cluster.config.secrets import API_KEY, hide_text, read_secret
from cluster.deploy import fetch, gate, prove
from cluster.deploy.apply import also, apply, undoing
from cluster.deploy.decide import Same, Start, decide, refuse_beyond
from cluster.deploy.plan import Plan, clean_up, filled, plan_up, remove_probes
from cluster.deploy.rank import API_KEY_FILE, SECRETS_FILE, Ingredients, secrets_file
from cluster.deploy.ready import print_ready, simulated_products
from cluster.deploy.restart import await_released, say_held
from cluster.deploy.session import (
    Clock,
    Connect,
    Named,
    Session,
    answered,
    find,
    locked,
    look,
    open_fleet,
    raise_all,
    reach,
    read_named,
)
from cluster.deploy.spec import spec_of
from cluster.errors import (
    UNCHANGED,
    ClusterError,
    ExitCode,
    InterruptedByUser,
    ManyErrors,
    RefusedError,
    UsageError,
)
from cluster.hosts.connect import connect
from cluster.hosts.fleet import Fleet
from cluster.screen import Screen
from cluster.spark.deployments import Deployment, directory
from cluster.spark.fabric import Fabric, drift, recorded
from cluster.spark.fact import Missing
from cluster.spark.look import Seen, check_names
from cluster.spark.memory import check_memory
from cluster.spark.request import Wanted, choose_sizes
from cluster.spark.server import Server

SECRETS_VERSION = "secrets_version"
"""Key of a spec: how often the secrets of what serves were changed. It tells two deployments apart, and no secret."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to go about it, as against what is wanted."""

    dry_run: bool
    yes: bool
    hub_token: str
    fabric_test: bool = False
    probe: bool = False


def run(args: argparse.Namespace, screen: Screen, connect: Connect = connect) -> ExitCode:
    """Carry out `cluster up`."""
    line = UpOptions.of(args)
    return start(read_wanted(line, read_named(args)), options_of(line), screen, connect)


def options_of(line: UpOptions) -> Options:
    """How a command line wants it done. Raises UsageError for a token file that cannot be read."""
    return Options(line.dry_run, line.yes, fetch.read_token(line.hub_token_file), line.fabric_test, line.probe)


def start(wanted: Wanted, options: Options, screen: Screen, connect: Connect = connect) -> ExitCode:
    """From what is wanted to a proven deployment."""
    with open_fleet(wanted.hosts, connect) as fleet:
        return start_on(fleet, wanted, options, screen)


def start_on(fleet: Fleet, wanted: Wanted, options: Options, screen: Screen) -> ExitCode:
    """The same on hosts that are connected, or will be when they are first asked."""
    clock = Clock()
    with ExitStack() as held:
        with clock.stage("connect and lock"):
            reach(fleet)
            guard = held.enter_context(locked(fleet, wanted.hosts, f"up {wanted.recipe.name}", dry_run=options.dry_run))
        return bring_up(wanted, Session(fleet, guard, screen, options.dry_run, clock), options)


def read_wanted(line: UpOptions, named: Named) -> Wanted:
    """What a command line wants, checked against itself. Raises UsageError; no host is asked."""
    recipe = recipe_of(line, named)
    hosts, tp, backend = choose_sizes(
        named.hosts, tp=line.tp, pp=line.pipeline, solo=line.solo, backend=line.backend, recipe=recipe
    )
    variables = split_env(line.env)
    hidden = dict(variables.secret)
    if line.api_key_file:
        hidden[API_KEY] = read_secret(line.api_key_file, "--api-key-file")
    vllm_serve(recipe, Layout(tp, line.pipeline, backend, ("",) * len(hosts), line.bind), extra=line.words)
    return Wanted(
        recipe,
        hosts,
        tp,
        line.pipeline,
        backend,
        dict(variables.plain),
        hidden,
        tuple(line.words),
        line.bind,
        line.allow_socket,
        check_names(line.force),
        read_mounts(recipe.mounts),
        read_dockerfile(recipe.dockerfile),
    )


def recipe_of(line: UpOptions, named: Named) -> Recipe:
    """The recipe of a command line, `--set` applied. Raises UsageError."""
    name = choose_recipe(line.recipe, line.recipe_option, named.file.inventory)
    return final_recipe(load_recipe(name).recipe, line.set)


def bring_up(wanted: Wanted, session: Session, options: Options) -> ExitCode:
    """From connected hosts to a proven deployment."""
    fleet, screen, clock = session.fleet, session.screen, session.clock
    with clock.stage("look"):
        seens = session.see(wanted.hosts, wanted)
    found = find(seens, wanted.hosts)
    refuse_beyond(wanted.names, found)
    fabric = gate.pair_of(wanted.hosts, seens)
    if not options.dry_run:
        apply(filled(remove_probes(seens)), session)
    if has_images(seens):
        _, decision = settle(wanted, seens, found, fleet)
        if isinstance(decision, Same):
            return leave(decision, wanted, fabric, seens, session)
    with clock.stage("check"):
        gate.check_seen(wanted, seens, fabric, found, session)
    if options.fabric_test and not options.dry_run:
        from cluster.cli.fabric_test import test_fabric

        with clock.stage("fabric test"):
            gate.judge(test_fabric(fabric, found, seens, fleet, screen).findings, wanted, screen)
    how = fetch.How(options.yes, options.dry_run, options.hub_token)
    with clock.stage("fetch"), fetch.naming_what_stays(how):
        if fetch.fetch_missing(wanted, seens, how, session):
            seens = session.see(wanted.hosts, wanted)
            gate.judge_stock(wanted, seens, screen)
    with clock.stage("try"), fetch.naming_what_stays(how):
        inside = gate.try_image(wanted, fleet, screen)
    spec, decision = settle(wanted, seens, found, fleet)
    if isinstance(decision, Same):  # it runs, but its image had been removed from a host
        return leave(decision, wanted, fabric, seens, session)
    made_of = Ingredients(wanted, spec, seens, fabric, inside, before(wanted, seens), secrets.token_hex(32))
    plan = plan_up(made_of, decision)
    show(plan, decision, options, screen)
    if options.dry_run:
        return ExitCode.DONE
    if decision.outgoing and not options.yes and screen.interactive and not screen.confirm("replace it?"):
        raise RefusedError("not replaced", code="not-agreed", remedy="--yes replaces without asking")
    subject = subject_to_prove(plan.deployment, spec, wanted, fabric, seens)
    if not decision.outgoing:
        idle = {name: prove.held_of(seen.memory, seen.gpu_processes) for name, seen in seens.items()}
        subject = replace(subject, idle=idle)
    with fetch.naming_what_stays(how):
        with undoing(plan, subject, session) as applied:
            with clock.stage("stop the old" if plan.replaces else "apply"):
                apply(plan.first, session, applied)
            if plan.replaces:
                with clock.stage("memory back"):
                    subject = replace(subject, idle=await_old(plan.replaces, subject, session))
            with clock.stage("apply"):
                apply(plan.stages, session, applied)
            proof = prove.wait_ready(subject, fleet, screen, clock)
        remove_old(plan, session)
    ready = print_ready(wanted, proof, where(wanted, seens), session, changed=True)
    if options.probe:
        from cluster.probe.quick import probe_quickly

        ready["probe"] = probe_quickly(fleet[wanted.names[0]], subject.container(wanted.names[0]), spec, screen)
    screen.document(ready)
    return ExitCode.DONE


def leave(
    same: Same,
    wanted: Wanted,
    fabric: Fabric,
    seens: dict[str, Seen],
    session: Session,
) -> ExitCode:
    """What is wanted runs already, ready or on its way: change nothing of it, and prove it all the same.

    It is proven at the addresses that it was started with. What another `up` left behind is removed.
    """
    screen = session.screen
    deployment, was = same.deployment, recorded(same.deployment.seen)
    rest = filled(clean_up(same.remains, seens))
    screen.line(f"{deployment.id} runs already on {', '.join(wanted.names)}: nothing is changed")
    for finding in drift(was, fabric):
        gate.warn(finding, screen)
    if session.dry_run:
        show_lines(Plan(deployment.id, (), rest), screen)
        return ExitCode.DONE
    apply(rest, session)
    subject = subject_to_prove(deployment.id, deployment.spec, wanted, was, seens)
    try:
        proof = prove.wait_ready(subject, session.fleet, screen, session.clock)
    except ClusterError as error:
        for one in error.errors if isinstance(error, ManyErrors) else (error,):
            one.what = hide_text(one.what, wanted.secrets.values())
            one.rolled_back = "only remains of another deployment were removed" if same.remains else UNCHANGED
            one.remedy = also(one.remedy, "cluster logs; cluster down and cluster up start it again")
        raise
    screen.document(print_ready(wanted, proof, where(wanted, seens), session, changed=False))
    return ExitCode.DONE


def await_old(old: Sequence[Deployment], subject: prove.Subject, session: Session) -> dict[str, prove.Held]:
    """Wait until what was stopped holds nothing; what each host holds then. Raises RefusedError with the holder.

    Memory that somebody else took meanwhile is a warning while the rest is enough for what comes.
    """
    wanted, screen = subject.wanted, session.screen
    seens, held = await_released(old, wanted.hosts, session.fleet, screen)
    if any(not row.memory_only for rows in held.values() for row in rows):
        holder = next(row for rows in held.values() for row in rows if not row.memory_only)
        raise RefusedError(
            f"the stopped deployment still holds resources: {say_held(held)} ({holder.evidence})",
            code="not-released",
            where=", ".join(held),
            remedy=holder.remedy,
        )
    gate.judge([finding for name in held for finding in check_memory(wanted, seens[name])], wanted, screen)
    for name, rows in held.items():
        screen.warn(f"{name}: {rows[0].what} ({rows[0].evidence}); what is left is enough")
    return {name: prove.held_of(seen.memory, seen.gpu_processes) for name, seen in seens.items()}


def remove_old(plan: Plan, session: Session) -> None:
    """Remove what was replaced; the new one serves, so a failure here is a warning."""
    try:
        apply(plan.after, session)
    except InterruptedByUser as error:
        error.rolled_back = f"nothing: {plan.deployment} serves"
        raise
    except ClusterError as error:
        session.screen.warn(
            f"what was replaced could not be removed ({error.what}); the next cluster up or down removes it"
        )


def subject_to_prove(
    deployment: str, spec: Mapping[str, Any], wanted: Wanted, fabric: Fabric, seens: dict[str, Seen]
) -> prove.Subject:
    """What is to be proven, with the place of its API."""
    identity = seens[wanted.names[0]].identity
    home = "" if isinstance(identity, Missing) else directory(identity.data_dir, deployment)
    return prove.Subject(deployment, wanted, fabric, Server.of_spec(spec, home))


def where(wanted: Wanted, seens: dict[str, Seen]) -> dict[str, str]:
    """The endpoint at the head's management address, and the product names of hosts that are simulated."""
    head = seens[wanted.names[0]].identity
    shown = "?" if isinstance(head, Missing) else head.management_address
    address = wanted.bind if wanted.bind not in ("0.0.0.0", "::") else shown
    host = f"[{address}]" if ":" in address else address
    return {"endpoint": f"http://{host}:{wanted.recipe.port}", "simulated": simulated_products(seens.values())}


def has_images(seens: dict[str, Seen]) -> bool:
    """Whether the image is on every host."""
    return not any(isinstance(seen.image, Missing) for seen in seens.values())


def seen_spec(wanted: Wanted, seens: dict[str, Seen]) -> dict[str, Any]:
    """What is wanted, on the image and the model's files as the hosts have them; files that differ are none."""
    copies = [seens[name].weights for name in wanted.names]
    hashes = [{} if isinstance(one, Missing) else one.hashes for one in copies]
    ids = {name: seen.host_id for name, seen in seens.items()}
    return spec_of(wanted, ids, content_of(wanted, seens), hashes[0] if all(one == hashes[0] for one in hashes) else {})


def settle(
    wanted: Wanted, seens: dict[str, Seen], found: Sequence[Deployment], fleet: Fleet
) -> tuple[dict[str, Any], Same | Start]:
    """What is wanted, and what has to happen for it. What runs counts as the same only while its secrets are."""
    spec, names = seen_spec(wanted, seens), {seen.host_id: name for name, seen in seens.items()}
    running = next((one for one in found if one.running and one.spec["secrets"] == spec["secrets"]), None)
    if running is None or not wanted.secrets:
        return spec, decide(spec, found, names)
    version = int(running.spec.get(SECRETS_VERSION, 0))
    as_it_runs = spec | ({SECRETS_VERSION: version} if version else {})
    decision = decide(as_it_runs, found, names)
    changed = changed_secrets(running, wanted, seens, fleet) if isinstance(decision, Same) else ""
    if not isinstance(decision, Same) or not changed:
        return as_it_runs, decision
    why = f"replace {running.id}: {changed} changed"
    return spec | {SECRETS_VERSION: version + 1}, Start((why,), (running,), decision.remains)


def changed_secrets(running: Deployment, wanted: Wanted, seens: dict[str, Seen], fleet: Fleet) -> str:
    """What of its secrets is not what is wanted, compared on the head with the files that only its login reads.

    Empty when all are the same, or when the files cannot be read: that is no reason to replace what serves.
    """
    identity = seens[running.head].identity
    if isinstance(identity, Missing):
        return ""
    home = directory(identity.data_dir, running.id)
    files = {"a secret (-e)": (SECRETS_FILE, secrets_file(wanted))}
    if API_KEY in wanted.secrets:
        files = {"API key": (API_KEY_FILE, wanted.secrets[API_KEY].encode()), **files}
    asked = [Question(("cmp", "-s", "--", "-", f"{home}/{name}"), stdin=data) for name, data in files.values()]
    answers = fleet.keep_asking({running.head: asked})[running.head]
    return next((what for what, answer in zip(files, answers, strict=True) if answer.exit == 1), "")


def content_of(wanted: Wanted, seens: dict[str, Seen]) -> str:
    """The image's content as the hosts have it. Raises RefusedError when it could not be read."""
    for name in wanted.names:
        image = seens[name].image
        if isinstance(image, Missing):
            docker = seens[name].docker
            why = docker.why if isinstance(docker, Missing) else image.why
            raise RefusedError(
                f"image {wanted.recipe.image} cannot be read: {why}", code="image-unreadable", where=name
            )
    first = seens[wanted.names[0]].image
    assert not isinstance(first, Missing)
    return first.content_id


def before(wanted: Wanted, seens: dict[str, Seen]) -> dict[str, int]:
    """Bytes each host had available when nothing of ours ran: kept from the first `up`, else what is seen now."""
    values: dict[str, int] = {}
    for name in wanted.names:
        kept, memory = seens[name].deployments, seens[name].memory
        now = 0 if isinstance(memory, Missing) or memory.available is None else memory.available
        earlier = [] if isinstance(kept, Missing) else [one.available_before or 0 for one in kept]
        values[name] = max([now, *earlier])
    return values


def show(plan: Plan, decision: Start, options: Options, screen: Screen) -> None:
    """Say what will happen and why; on a dry run every argv."""
    for why in decision.why:
        screen.line(why)
    screen.line(f"start {plan.deployment}")
    if options.dry_run:
        show_lines(plan, screen)


def show_lines(plan: Plan, screen: Screen) -> None:
    """Every host's argv in order."""
    for line in plan.lines():
        screen.line(line)
    screen.document({"deployment": plan.deployment, "why": list(plan.why), "plan": list(plan.lines())})


FIRST = "cluster up starts the first one"


def run_swap(args: argparse.Namespace, screen: Screen, connect: Connect = connect) -> ExitCode:
    """Carry out `cluster swap`."""
    line = UpOptions.of(args)
    if not (line.recipe or line.recipe_option):
        raise UsageError(
            "swap requires a recipe",
            code="recipe-missing",
            remedy="cluster swap RECIPE; cluster recipes list shows them",
        )
    named = read_named(args)
    recipe_of(line, named)  # what is wrong with it is said before any host is asked
    options = options_of(line)
    with open_fleet(named.hosts, connect) as fleet:
        wanted = read_wanted(line, with_hosts(named, fleet))
        return start_on(fleet.only(wanted.names), wanted, options, screen)


def with_hosts(named: Named, fleet: Fleet) -> Named:
    """The hosts of what runs, in rank order; those of `-n`, if something of ours runs there.

    Raises RefusedError when nothing runs, or more than one deployment and no host was named.
    """
    from cluster.bench.target import nothing_runs, running_deployment

    seens, errors = answered(look(fleet, named.hosts))
    found = find(seens, named.hosts)
    if not named.explicit:
        by_name = {host.name: host for host in named.hosts}
        running = running_deployment(seens, errors, found, otherwise=FIRST)
        return replace(named, hosts=tuple(by_name[name] for name in running.hosts))
    raise_all(errors)
    ranks = [rank for deployment in found for rank in deployment.ranks.values()]
    if not any(rank.state == "running" for rank in ranks):
        raise nothing_runs(seens, FIRST)
    return named
