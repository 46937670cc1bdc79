"""What is measured: a deployment, asked in its head's container, or the server at --base-url, asked from here."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from cluster.argv.vllm import serve_flags, weights_of
from cluster.bench.loader import ProcessLoader, Target, load_command
from cluster.bench.result import HostState, Manifest
from cluster.bench.run import NO_MACHINE
from cluster.bench.sampling import Machine, role, watching
from cluster.config.recipe import Recipe, choose_recipe, load_recipe
from cluster.config.secrets import read_secret, redact
from cluster.deploy.session import Connect, Named, answered, find, look, named_hosts, open_fleet, raise_all
from cluster.errors import ClusterError, RefusedError, UsageError
from cluster.hosts.connect import LocalHost, connect
from cluster.hosts.fleet import Fleet
from cluster.hosts.lock import Lock
from cluster.hosts.protocol import Host, Process
from cluster.spark.deployments import HOME, Deployment, unread
from cluster.spark.fact import Missing
from cluster.spark.look import Seen
from cluster.spark.server import Server

OTHERWISE = "start one with `cluster up`, or name another server with --base-url URL"


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Which server is asked, as typed; each field is named as its option's `dest`."""

    inventory: str | None = None
    nodes: str | None = None
    recipe_option: str | None = None
    base_url: str | None = None
    model: str | None = None
    api_key_file: str | None = None

    @classmethod
    def of(cls, args: argparse.Namespace) -> Self:
        """What was typed; an option that the command does not have keeps its default."""
        given = vars(args)
        return cls(**{one.name: given[one.name] for one in fields(cls) if one.name in given})


@dataclass(frozen=True, slots=True)
class Serving:
    """A server and the client that asks it; for a deployment of ours also its hosts, as they were seen."""

    loader: ProcessLoader
    server: Server
    recipe: Recipe | None
    deployment: Deployment | None = None
    within: Fleet | None = None
    seens: Mapping[str, Seen] = field(default_factory=dict)


@contextmanager
def serving(options: ServerOptions, connect: Connect, why: str) -> Iterator[Serving]:
    """What is asked, with its load client running: a deployment in its head's container with its lock held (`why` is
    shown to those who meet it), else --base-url."""
    if options.base_url is not None:
        yield from at_url(options, options.base_url, why)
        return
    named = named_hosts(options.inventory, options.nodes)
    with open_fleet(named.hosts, connect) as fleet:
        seens, errors = answered(look(fleet, named.hosts))
        deployment = running_deployment(seens, errors, find(seens, named.hosts))
        data_dirs = {host.name: host.data_dir for host in named.hosts if host.name in deployment.hosts}
        within = fleet.only(deployment.hosts)
        recipe = recipe_named(options.recipe_option, named, str(deployment.spec["recipe"]["name"]))
        server, container = Server.of_spec(deployment.spec, HOME), deployment.ranks[deployment.head].name
        client = client_in(within[deployment.head], container, server)
        with Lock(within, f"{why} {deployment.id}", data_dirs), client as loader:
            yield Serving(loader, server, recipe, deployment, within, seens)


def at_url(options: ServerOptions, url: str, why: str) -> Iterator[Serving]:
    """A server that `cluster` did not start, asked from this machine."""
    if options.nodes:
        raise UsageError(
            f"with --base-url {why} runs from this machine; it takes no -n",
            code="options-conflict",
            remedy="leave out -n or --base-url",
        )
    refuse_url(url)
    if options.api_key_file:
        read_secret(options.api_key_file, "--api-key-file")
    key_file = str(Path(options.api_key_file).expanduser()) if options.api_key_file else ""
    recipe = load_recipe(options.recipe_option).recipe if options.recipe_option else None
    host = LocalHost("this machine")
    try:
        with load_client(lambda: host.start(*load_command(Target(url, key_file)))) as loader:
            yield Serving(loader, Server(url, options.model or "", key_file), recipe)
    finally:
        host.close()


def refuse_url(url: str) -> None:
    """Raise UsageError for what is no server's address, and for one with a password, which would be shown."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port that is no number, of half an IPv6 address
        known, parts = False, urlsplit("")
    if parts.password is not None:
        raise UsageError(
            "--base-url contains a password",
            code="url-invalid",
            remedy="give the server's key with --api-key-file FILE",
        )
    if not known:
        raise UsageError(
            f"--base-url {url} is not a server URL", code="url-invalid", remedy="e.g. --base-url http://10.0.0.5:8000"
        )


@contextmanager
def client_in(host: Host, container: str, server: Server) -> Iterator[ProcessLoader]:
    """A load client in the container of a deployment's head. `server`: the API as that container sees it."""
    command = load_command(Target(server.url, server.key_file), container)
    with load_client(lambda: host.start(*command), container) as loader:
        yield loader


@contextmanager
def load_client(start: Callable[[], Process], container: str = "") -> Iterator[ProcessLoader]:
    loader = ProcessLoader(start(), container, start)
    try:
        yield loader
    finally:
        loader.close()


def recipe_named(option: str | None, named: Named, name: str) -> Recipe | None:
    """The recipe of `-r`, else the one the deployment was made from; None when it is not found any more."""
    if option:
        return load_recipe(choose_recipe(None, option, named.file.inventory)).recipe
    try:
        return load_recipe(name).recipe
    except UsageError:
        return None


def running_deployment(
    seens: Mapping[str, Seen],
    errors: Sequence[ClusterError],
    found: Sequence[Deployment],
    *,
    otherwise: str = OTHERWISE,
) -> Deployment:
    """The one deployment that runs on these hosts. Raises RefusedError when there is none (what to do is `otherwise`),
    or more than one."""
    running = [one for one in found if one.running]
    if len(running) == 1:
        return running[0]
    if running:
        names = "; ".join(f"{one.id} on {','.join(one.hosts)}" for one in running)
        raise RefusedError(
            f"more than one deployment is running: {names}",
            code="deployment-not-chosen",
            remedy="name the hosts of one with -n",
        )
    raise_all(errors)
    raise nothing_runs(seens, otherwise)


def nothing_runs(seens: Mapping[str, Seen], otherwise: str) -> RefusedError:
    """That there is no deployment; what another version of `cluster` started is not called nothing."""
    hosts = [name for name, seen in seens.items() if unread(seen)]
    if not hosts:
        return RefusedError(f"no deployment on {', '.join(seens)}", code="no-deployment", remedy=otherwise)
    return RefusedError(
        f"what runs on {', '.join(hosts)} was started by another version of cluster: its labels cannot be read",
        code="deployment-unreadable",
        remedy=f"cluster down -n {','.join(hosts)}, then cluster up",
    )


@dataclass(frozen=True, slots=True)
class Measuring:
    """A server, its load client, what is known of it, and how its machines are asked."""

    loader: ProcessLoader
    manifest: Manifest
    machine: Machine
    recipe: Recipe | None
    server: Server


@contextmanager
def measuring(options: ServerOptions, connect: Connect = connect) -> Iterator[Measuring]:
    """What is measured, with its load client running: a deployment in its head's container, else --base-url."""
    with serving(options, connect, "bench") as at:
        if at.deployment is None or at.within is None:
            manifest = Manifest(
                model=at.server.model,
                recipe=at.recipe.name if at.recipe else "",
                base_url=at.server.url,
                command=tuple(redact(sys.argv[1:], ())),
                client_on="local",
                client_python=at.loader.python,
            )
            yield Measuring(at.loader, manifest, NO_MACHINE, at.recipe, at.server)
            return
        with watching(at.within, at.deployment) as machine:
            manifest = manifest_of(at.deployment, at.seens, at.loader.python)
            yield Measuring(at.loader, manifest, machine, at.recipe, at.server)


def manifest_of(deployment: Deployment, seens: Mapping[str, Seen], python: str) -> Manifest:
    spec, seen = deployment.spec, deployment.seen
    return Manifest(
        model=deployment.served_name,
        recipe=spec["recipe"]["name"],
        revision=spec["recipe"]["revision"],
        weights=weights_of(spec["recipe"]["weights"], serve_flags(spec["recipe"]["vllm"], spec.get("words", ()))),
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
        command=tuple(redact(sys.argv[1:], ())),
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
    product, kernel = ("", "") if isinstance(seen.identity, Missing) else (seen.identity.product, seen.identity.kernel)
    driver = "" if isinstance(seen.gpu, Missing) or not seen.gpu else seen.gpu[0].driver
    end = deployment.seen["hosts"].get(host, {})
    hcas, links = tuple(end.get("hcas", ())), () if isinstance(seen.links, Missing) else seen.links.links
    firmware = tuple(sorted({link.firmware for link in links if link.hca in hcas and link.firmware}))
    return HostState(host, role(host, deployment), product, driver, kernel, hcas, end.get("mtu"), firmware)
