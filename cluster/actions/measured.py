"""What is measured: a running deployment as the benchmark sees it."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.actions.reach import Connect, Named, answered, look, open_fleet, raise_all, read_named
from cluster.actions.watchers import role, watching
from cluster.bench.loader import ProcessLoader, Target, load_command
from cluster.bench.machine import Machine
from cluster.bench.manifest import HostState, Manifest
from cluster.bench.run import NO_MACHINE
from cluster.config.load import choose_recipe, load_recipe
from cluster.config.recipe import Recipe
from cluster.errors import ClusterError, RefusedError, UsageError
from cluster.facts.completion import Server
from cluster.facts.fact import Missing
from cluster.facts.seen import Seen
from cluster.hosts.connect import connect
from cluster.hosts.local import LocalHost
from cluster.hosts.lock import Lock
from cluster.hosts.protocol import Process
from cluster.plan.deployed import HOME, Deployment, deployments


@dataclass(frozen=True, slots=True)
class Measuring:
    """A server, its load client, what is known of it, and how its machines are asked."""

    loader: ProcessLoader
    manifest: Manifest
    machine: Machine
    recipe: Recipe | None
    server: Server


@contextmanager
def measuring(args: argparse.Namespace, connect: Connect = connect) -> Iterator[Measuring]:
    """What is measured, with its load client running: a deployment of ours in its head's container, else --base-url."""
    if args.base_url:
        yield from foreign(args)
    else:
        yield from ours(args, connect)


def foreign(args: argparse.Namespace) -> Iterator[Measuring]:
    """A server that we did not start, measured from this machine."""
    if args.nodes:
        raise UsageError("--base-url measures from this machine; it takes no -n", remedy="leave one of the two out")
    key_file = str(Path(args.api_key_file).expanduser()) if args.api_key_file else ""
    recipe = named_recipe(args)
    host = LocalHost("this machine")
    with load_client(host.start(*load_command(Target(args.base_url, key_file)))) as loader:
        manifest = Manifest(
            model=args.model or "", recipe=recipe.name if recipe else "", base_url=args.base_url,
            command=tuple(sys.argv[1:]), client_on="local", client_python=loader.python,
        )  # fmt: skip
        server = Server(args.base_url, args.model or "", key_file)
        yield Measuring(loader, manifest, NO_MACHINE, recipe, server)
    host.close()


def ours(args: argparse.Namespace, connect: Connect) -> Iterator[Measuring]:
    """The deployment that runs on the hosts, measured in its head's container; the lock is held meanwhile."""
    named = read_named(args)
    with open_fleet(named.hosts, connect) as fleet:
        seens, errors = answered(look(fleet, named.hosts))
        deployment = running_deployment(seens, errors)
        data_dirs = {host.name: host.data_dir for host in named.hosts if host.name in deployment.hosts}
        raise_all([error for error in errors if error.where in deployment.hosts])
        within = fleet.only(deployment.hosts)
        server = Server.of_spec(deployment.spec, HOME)
        with Lock(within, f"bench {deployment.id}", data_dirs):
            head, container = within[deployment.head], deployment.ranks[deployment.head].name
            process = head.start(*load_command(Target(server.url, server.key_file), container))
            with load_client(process, container) as loader, watching(within, deployment) as machine:
                manifest = manifest_of(deployment, seens, python=loader.python)
                recipe = recipe_named(args, named, str(deployment.spec["recipe"]["name"]))
                yield Measuring(loader, manifest, machine, recipe, server)


@contextmanager
def load_client(process: Process, container: str = "") -> Iterator[ProcessLoader]:
    """The load client, ended with the block."""
    loader = ProcessLoader(process, container)
    try:
        yield loader
    finally:
        loader.close()


def named_recipe(args: argparse.Namespace) -> Recipe | None:
    """The recipe of `-r`, if one was named; it gives defaults and reference numbers."""
    return load_recipe(args.recipe_option).recipe if args.recipe_option else None


def recipe_named(args: argparse.Namespace, named: Named, name: str) -> Recipe | None:
    """The recipe of `-r`, else the one the deployment was made from; None when it is not found any more."""
    if args.recipe_option:
        return load_recipe(choose_recipe(None, args.recipe_option, named.file.inventory)).recipe
    try:
        return load_recipe(name).recipe
    except UsageError:
        return None


def running_deployment(seens: Mapping[str, Seen], errors: Sequence[ClusterError]) -> Deployment:
    """The one deployment that runs on these hosts. Raises RefusedError when there is none, or more than one."""
    running = [one for one in deployments(seens.values()) if one.running]
    if len(running) == 1:
        return running[0]
    if running:
        names = "; ".join(f"{one.id} on {','.join(one.hosts)}" for one in running)
        raise RefusedError(f"more than one deployment runs: {names}", remedy="name the hosts of one with -n")
    raise_all(errors)
    raise RefusedError(
        f"nothing of ours runs on {', '.join(seens)}", remedy="cluster up first, or --base-url URL for another server"
    )


def manifest_of(deployment: Deployment, seens: Mapping[str, Seen], *, python: str) -> Manifest:
    """The conditions of a measurement of this deployment."""
    spec, seen = deployment.spec, deployment.seen
    return Manifest(
        model=deployment.served_name,
        recipe=spec["recipe"]["name"],
        revision=spec["recipe"]["revision"],
        weights=spec["recipe"]["weights"],
        tp=spec["tp"],
        pipeline=spec["pp"],
        nodes=len(deployment.hosts),
        backend=spec["backend"],
        deployment=deployment.id,
        spec=dict(spec),
        image=spec["recipe"]["image"],
        image_content=spec["image_content"],
        versions=dict(seen["versions"]),
        hosts=tuple(state_of(host, deployment, seens[host]) for host in deployment.hosts),
        argv={host: list(rank.argv) for host, rank in deployment.ranks.items()},
        command=tuple(sys.argv[1:]),
        client_on="container",
        client_python=python,
    )


def solo_command(manifest: Manifest) -> str:
    """The `cluster up` that serves the same on the head alone, `--set` for every key that differs from the recipe."""
    words = ["cluster", "up", manifest.recipe, "--solo", "-n", manifest.hosts[0].name if manifest.hosts else "HOST"]
    try:
        recipe = load_recipe(manifest.recipe).recipe.model_dump(mode="json")
    except UsageError:
        recipe = {}
    for key, value in changed_keys(recipe, manifest.spec.get("recipe", {})):
        words += ["--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
    for name, value in manifest.spec.get("env", {}).items():
        words += ["-e", f"{name}={value}"]
    extra = manifest.spec.get("words", [])
    return shlex.join([*words, "--", *extra] if extra else words)


def changed_keys(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys of `new` whose value is another one in `old`, with the new value; keys that `old` lacks included."""
    for key, value in new.items():
        if isinstance(value, Mapping) and isinstance(old.get(key), Mapping):
            yield from changed_keys(old[key], value, f"{prefix}{key}.")
        elif old and old.get(key) != value:
            yield prefix + key, value


def state_of(host: str, deployment: Deployment, seen: Seen) -> HostState:
    """One machine as it told itself."""
    identity = None if isinstance(seen.identity, Missing) else seen.identity
    driver = "" if isinstance(seen.gpu, Missing) or not seen.gpu else seen.gpu[0].driver
    end = deployment.seen["hosts"].get(host, {})
    hcas = tuple(end.get("hcas", ()))
    links = () if isinstance(seen.links, Missing) else seen.links.links
    return HostState(
        host,
        role(host, deployment),
        identity.product if identity else "",
        driver,
        identity.kernel if identity else "",
        hcas,
        end.get("mtu"),
        tuple(sorted({link.firmware for link in links if link.hca in hcas and link.firmware})),
    )
