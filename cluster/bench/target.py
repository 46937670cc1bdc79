"""What is measured: a deployment, asked in its head's container, or the server at --base-url, asked from here."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from cluster.argv.vllm import serve_flags, weights_of
from cluster.bench.loader import ProcessLoader, load_command
from cluster.bench.result import HostState, Manifest
from cluster.bench.sampling import role
from cluster.config.recipe import Recipe, choose_recipe, load_recipe
from cluster.config.secrets import read_secret, redact
from cluster.deploy.session import Connect, answered, find, look, named_hosts, open_fleet, raise_all
from cluster.errors import ClusterError, RefusedError, UsageError
from cluster.hosts.connect import LocalHost
from cluster.hosts.fleet import Fleet
from cluster.hosts.lock import Lock
from cluster.hosts.protocol import Host
from cluster.spark.clock_limit import in_words
from cluster.spark.deployments import HOME, Deployment, unread
from cluster.spark.fact import known
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
    """A server and the client that asks it; for a deployment also its hosts, as they were seen."""

    loader: ProcessLoader
    server: Server
    recipe: Recipe | None
    deployment: Deployment | None = None
    within: Fleet | None = None
    seens: Mapping[str, Seen] = field(default_factory=dict)

    def manifest(self) -> Manifest:
        """What is known of it before anything is measured."""
        command, python = tuple(redact(sys.argv[1:], ())), self.loader.python
        if self.deployment is None:
            recipe = self.recipe.name if self.recipe else ""
            model, url = self.server.model, self.server.url
            return Manifest(model, recipe, base_url=url, command=command, client_on="local", client_python=python)
        deployment, spec, seen = self.deployment, self.deployment.spec, self.deployment.seen
        recipe = spec["recipe"]
        return Manifest(
            model=deployment.served_name,
            recipe=recipe["name"],
            revision=recipe["revision"],
            weights=weights_of(recipe["weights"], serve_flags(recipe["vllm"], spec.get("words", ()))),
            tp=spec["tp"],
            pipeline=spec["pp"],
            nodes=len(deployment.hosts),
            backend=spec["backend"],
            deployment=deployment.id,
            spec=dict(spec),
            image=recipe["image"],
            image_content=spec["image_content"],
            versions=dict(seen["versions"]),
            hosts=tuple(state_of(host, deployment, self.seens[host]) for host in deployment.hosts),
            argv={host: list(rank.argv) for host, rank in deployment.ranks.items()},
            command=command,
            client_on="container",
            client_python=python,
        )


def state_of(host: str, deployment: Deployment, seen: Seen) -> HostState:
    identity, cards, links = known(seen.identity), known(seen.gpu), known(seen.links)
    end = deployment.seen["hosts"].get(host, {})
    hcas = tuple(end.get("hcas", ()))
    firmware = {link.firmware for link in links.links if link.hca in hcas and link.firmware} if links else ()
    return HostState(
        host,
        role(host, deployment),
        identity.product if identity else "",
        cards[0].driver if cards else "",
        identity.kernel if identity else "",
        hcas,
        end.get("mtu"),
        tuple(sorted(firmware)),
        tuple(map(str, cards or ())),
        cards[0].name if cards else "",
        in_words(seen),
    )


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
        recipe = None
        if options.recipe_option:
            recipe = load_recipe(choose_recipe(None, options.recipe_option, named.file.inventory)).recipe
        else:
            with suppress(UsageError):  # the one the deployment was made from is not found any more
                recipe = load_recipe(deployment.spec["recipe"]["name"]).recipe
        server, container = Server.of_spec(deployment.spec, HOME), deployment.ranks[deployment.head].name
        client = client_in(within[deployment.head], container, server)
        with Lock(within, f"{why} {deployment.id}", data_dirs), client as loader:
            yield Serving(loader, server, recipe, deployment, within, seens)


def at_url(options: ServerOptions, url: str, why: str) -> Iterator[Serving]:
    """A server that `cluster` did not start, asked from this machine. Raises UsageError for a URL that is none, and for
    one with a password, which would be shown."""
    if options.nodes:
        raise UsageError(
            f"with --base-url {why} runs from this machine; it takes no -n",
            code="options-conflict",
            remedy="leave out -n or --base-url",
        )
    if re.search("//[^/]*:[^/]*@", url):
        remedy = "give the server's key with --api-key-file FILE"
        raise UsageError("--base-url contains a password", code="url-invalid", remedy=remedy)
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port that is no number, of half an IPv6 address
        valid = False
    if not valid:
        remedy = "e.g. --base-url http://10.0.0.5:8000"
        raise UsageError(f"--base-url {url} is not a server URL", code="url-invalid", remedy=remedy)
    key_file = ""
    if options.api_key_file:
        read_secret(options.api_key_file, "--api-key-file")
        key_file = str(Path(options.api_key_file).expanduser())
    recipe = load_recipe(options.recipe_option).recipe if options.recipe_option else None
    host, server = LocalHost("this machine"), Server(url, options.model or "", key_file)
    try:
        with client_in(host, "", server) as loader:
            yield Serving(loader, server, recipe)
    finally:
        host.close()


@contextmanager
def client_in(host: Host, container: str, server: Server) -> Iterator[ProcessLoader]:
    """A load client in this container, or on the host itself; `server`: the API as it is seen from there."""
    command = load_command(server.url, server.key_file, container)
    loader = ProcessLoader(host.start(*command), container, lambda: host.start(*command))
    try:
        yield loader
    finally:
        loader.close()


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


def solo_command(manifest: Manifest) -> str:
    """The `cluster up` that serves the same on the head alone, `--set` for every key that differs from the recipe."""
    words = ["cluster", "up", manifest.recipe, "--solo", "-n", manifest.hosts[0].name]
    with suppress(UsageError):
        recipe = load_recipe(manifest.recipe).recipe.model_dump(mode="json")
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
        elif old.get(key) != value:
            yield prefix + key, value
