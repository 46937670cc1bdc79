"""`cluster up`: load → connect → lock → look → decide → fetch, try, gate → show → apply → prove → print."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

from cluster.argv.question import Question
from cluster.argv.vllm import Layout, vllm_serve
from cluster.cli.carry import also, carry_through
from cluster.cli.fabric_test import test_fabric
from cluster.cli.quick_probe import probe_quickly
from cluster.cli.summary import print_ready, simulated_products
from cluster.config.load import read_dockerfile, read_mounts, read_secret
from cluster.config.overrides import split_env
from cluster.config.redact import hide_text
from cluster.deploy import fetch, gate, prove
from cluster.deploy.apply import Applied, Guard, Unlocked, apply
from cluster.deploy.decide import Same, Start, decide, refuse_beyond
from cluster.deploy.plan_down import clean_up, remove_probes
from cluster.deploy.plan_up import plan_up
from cluster.deploy.rank import API_KEY, API_KEY_FILE, SECRETS_FILE, Ingredients, secrets_file
from cluster.deploy.session import Connect, Named, find, open_fleet, reach, read_named, read_recipe, see
from cluster.deploy.spec import spec_of
from cluster.deploy.steps import Plan, filled
from cluster.errors import ClusterError, ExitCode, ManyErrors, RefusedError
from cluster.hosts.connect import connect
from cluster.hosts.fleet import Fleet
from cluster.hosts.lock import Lock
from cluster.screen import Screen
from cluster.spark.completion import Server
from cluster.spark.deployed import Deployment
from cluster.spark.fabric import Fabric, drift, recorded
from cluster.spark.fact import Missing
from cluster.spark.look import Seen
from cluster.spark.request import Wanted, choose_sizes
from cluster.spark.runbooks import check_names

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
    named = read_named(args)
    wanted = read_wanted(args, named)
    return start(wanted, options_of(args), screen, connect)


def options_of(args: argparse.Namespace) -> Options:
    """How a command line wants it done. Raises UsageError for a token file that cannot be read."""
    return Options(
        args.dry_run,
        args.yes,
        fetch.read_token(args.hub_token_file),
        args.fabric_test,
        probe=args.probe,
    )


def start(wanted: Wanted, options: Options, screen: Screen, connect: Connect = connect) -> ExitCode:
    """From what is wanted to a proven deployment."""
    with open_fleet(wanted.hosts, connect) as fleet:
        return start_on(fleet, wanted, options, screen)


def start_on(fleet: Fleet, wanted: Wanted, options: Options, screen: Screen) -> ExitCode:
    """The same on hosts that are connected, or will be when they are first asked."""
    clock = prove.Clock()
    with ExitStack() as held:
        with clock.stage("connect and lock"):
            reach(fleet)
            guard = held.enter_context(guard_for(fleet, wanted, options.dry_run))
        return bring_up(wanted, fleet, guard, options, screen, clock)


def read_wanted(args: argparse.Namespace, named: Named) -> Wanted:
    """What a command line wants, checked against itself. Raises UsageError; no host is asked."""
    recipe = read_recipe(args, named.file)
    hosts, tp, backend = choose_sizes(
        named.hosts, tp=args.tp, pp=args.pipeline, solo=args.solo, backend=args.backend, recipe=recipe
    )
    variables = split_env(args.env)
    hidden = dict(variables.secret)
    if args.api_key_file:
        hidden[API_KEY] = read_secret(args.api_key_file, "--api-key-file")
    vllm_serve(recipe, Layout(tp, args.pipeline, backend, ("",) * len(hosts), args.bind), extra=args.words)
    return Wanted(
        recipe, hosts, tp, args.pipeline, backend, dict(variables.plain), hidden, tuple(args.words), args.bind,
        args.allow_socket, check_names(args.force), read_mounts(recipe.mounts), read_dockerfile(recipe.dockerfile),
    )  # fmt: skip


def guard_for(fleet: Fleet, wanted: Wanted, dry_run: bool) -> AbstractContextManager[Guard]:
    """The lock on all hosts; a dry run changes nothing and takes none."""
    if dry_run:
        return Unlocked()
    return Lock(fleet, f"up {wanted.recipe.name}", {host.name: host.data_dir for host in wanted.hosts})


def bring_up(
    wanted: Wanted, fleet: Fleet, guard: Guard, options: Options, screen: Screen, clock: prove.Clock
) -> ExitCode:
    """From connected hosts to a proven deployment."""
    with clock.stage("look"):
        seens = see(fleet, wanted.hosts, wanted, screen.trouble)
    found = find(seens, wanted.hosts)
    refuse_beyond(wanted.names, found)
    fabric = gate.pair_of(wanted.hosts, seens)
    if not options.dry_run:
        apply(filled(remove_probes(seens)), fleet, guard, screen.note, Applied())
    if has_images(seens):
        _, decision = settle(wanted, seens, found, fleet)
        if isinstance(decision, Same):
            return leave(decision, wanted, fabric, seens, fleet, guard, options, screen, clock)
    vet(wanted, seens, fabric, found, fleet, options, screen, clock)
    how = fetch.How(options.yes, options.dry_run, options.hub_token)
    with clock.stage("fetch"), fetch.naming_what_stays(how):
        if fetch.fetch_missing(wanted, seens, fleet, guard, how, screen):
            seens = see(fleet, wanted.hosts, wanted, screen.trouble)
            gate.judge_stock(wanted, seens, screen)
    with clock.stage("try"), fetch.naming_what_stays(how):
        inside = gate.try_image(wanted, fleet, screen)
    spec, decision = settle(wanted, seens, found, fleet)
    if isinstance(decision, Same):  # it runs, but its image had been removed from a host
        return leave(decision, wanted, fabric, seens, fleet, guard, options, screen, clock)
    made_of = Ingredients(wanted, spec, seens, fabric, inside, before(wanted, seens), secrets.token_hex(32))
    plan = plan_up(made_of, decision)
    show(plan, decision, options, screen)
    if options.dry_run:
        return ExitCode.DONE
    if decision.outgoing and not options.yes and screen.interactive and not screen.confirm("replace it?"):
        raise RefusedError("not replaced", remedy="--yes replaces without asking")
    subject = subject_of(plan.deployment, spec, wanted, fabric, seens, idle=not decision.outgoing)
    with fetch.naming_what_stays(how):
        proof = carry_through(plan, subject, fleet, guard, screen, clock)
    told = print_ready(wanted, proof, clock, screen, changed=True, **where(wanted, seens))
    if options.probe:
        told["probe"] = probe_quickly(fleet[wanted.names[0]], subject.container(wanted.names[0]), spec, screen)
    screen.document(told)
    return ExitCode.DONE


def vet(
    wanted: Wanted, seens: dict[str, Seen], fabric: Fabric, found: Sequence[Deployment], fleet: Fleet,
    options: Options, screen: Screen, clock: prove.Clock,
) -> None:  # fmt: skip
    """Refuse what cannot be started on these hosts."""
    with clock.stage("check"):
        gate.check_seen(wanted, seens, fabric, fleet, found, screen)
    if options.fabric_test and not options.dry_run:
        with clock.stage("fabric test"):
            gate.judge(test_fabric(fabric, found, seens, fleet, screen).findings, wanted, screen)


def leave(
    same: Same,
    wanted: Wanted,
    fabric: Fabric,
    seens: dict[str, Seen],
    fleet: Fleet,
    guard: Guard,
    options: Options,
    screen: Screen,
    clock: prove.Clock,
) -> ExitCode:
    """What is wanted runs already, ready or on its way: change nothing of it, and prove it all the same.

    It is proven at the addresses that it was started with. What another `up` left behind is removed.
    """
    deployment, was = same.deployment, recorded(same.deployment.seen)
    rest = filled(clean_up(same.remains, seens))
    screen.line(f"{deployment.id} runs already on {', '.join(wanted.names)}: nothing is changed")
    for finding in drift(was, fabric):
        gate.warn(finding, screen)
    if options.dry_run:
        show_lines(Plan(deployment.id, (), rest), screen)
        return ExitCode.DONE
    apply(rest, fleet, guard, screen.note, Applied())
    subject = subject_of(deployment.id, deployment.spec, wanted, was, seens, idle=False)
    try:
        proof = prove.wait_ready(subject, fleet, screen, clock)
    except ClusterError as error:
        for one in error.errors if isinstance(error, ManyErrors) else (error,):
            one.what = hide_text(one.what, wanted.secrets.values())
            one.put_back = "only remains of another deployment were removed" if same.remains else "nothing was changed"
            one.remedy = also(one.remedy, "cluster logs; cluster down and cluster up start it anew")
        raise
    screen.document(print_ready(wanted, proof, clock, screen, changed=False, **where(wanted, seens)))
    return ExitCode.DONE


def subject_of(
    deployment: str, spec: Mapping[str, Any], wanted: Wanted, fabric: Fabric, seens: dict[str, Seen], *, idle: bool
) -> prove.Subject:
    """What is to be proven, with the place of its API and, when the hosts were `idle`, what they held then."""
    identity = seens[wanted.names[0]].identity
    home = "" if isinstance(identity, Missing) else f"{identity.data_dir}/deployments/{deployment}"
    held = {name: prove.held_of(seen.memory, seen.gpu_processes) for name, seen in seens.items()}
    return prove.Subject(deployment, wanted, fabric, Server.of_spec(spec, home), held if idle else {})


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
    told = [{} if isinstance(one, Missing) else one.hashes for one in copies]
    ids = {name: seen.host_id for name, seen in seens.items()}
    return spec_of(wanted, ids, content_of(wanted, seens), told[0] if all(one == told[0] for one in told) else {})


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
    home = f"{identity.data_dir}/deployments/{running.id}"
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
            raise RefusedError(f"image {wanted.recipe.image} cannot be read: {why}", where=name)
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
