"""What is measured: a deployment, asked in its head's container, or the server at --base-url, asked from here; or
several of the same, the replicas, which share the requests."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from cluster.argv.docker import docker_exec
from cluster.argv.vllm import serve_flags, weights_of
from cluster.bench.loader import ProcessLoader, load_command
from cluster.bench.result import HostState, Manifest
from cluster.bench.sampling import role
from cluster.config.recipe import Recipe, choose_recipe, load_recipe
from cluster.config.secrets import read_secret, redact
from cluster.deploy.prove import address_of
from cluster.deploy.session import Connect, find, locked, look, not_chosen, open_fleet, read_named, see
from cluster.deploy.spec import differing
from cluster.errors import ClusterError, RefusedError, UsageError, raise_all
from cluster.hosts.connect import LocalHost
from cluster.hosts.fleet import Fleet
from cluster.hosts.protocol import Host, Process
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
    base_url: Sequence[str] = field(default_factory=list)
    model: str | None = None
    api_key_file: str | None = None

    @classmethod
    def of(cls, args: argparse.Namespace) -> Self:
        """What was typed; an option that the command does not have keeps its default."""
        given = vars(args)
        return cls(**{one.name: given[one.name] for one in fields(cls) if one.name in given})


@dataclass(frozen=True, slots=True)
class Serving:
    """Servers and the client that asks them; for deployments also their hosts, as they were seen."""

    loader: ProcessLoader
    servers: tuple[Server, ...]
    recipe: Recipe | None
    deployments: tuple[Deployment, ...] = ()
    within: Fleet | None = None
    seens: Mapping[str, Seen] = field(default_factory=dict)

    @property
    def server(self) -> Server:
        return self.servers[0]

    @property
    def deployment(self) -> Deployment | None:
        return self.deployments[0] if self.deployments else None

    def manifest(self) -> Manifest:
        """What is known of it before anything is measured."""
        command, python = tuple(redact(sys.argv[1:], ())), self.loader.python
        names = [f"{one.id} on {', '.join(one.hosts)}" for one in self.deployments] or [one.url for one in self.servers]
        replicas = tuple(names) if len(names) > 1 else ()
        if self.deployment is None:
            recipe = self.recipe.name if self.recipe else ""
            model, url = self.server.model, self.server.url
            return Manifest(model, recipe, replicas=replicas, base_url=url, command=command, client_python=python)
        deployment, spec, seen = self.deployment, self.deployment.spec, self.deployment.seen
        recipe = spec["recipe"]
        hosts = [(host, one) for one in self.deployments for host in one.hosts]
        return Manifest(
            model=deployment.served_name,
            recipe=recipe["name"],
            revision=recipe["revision"],
            weights=weights_of(recipe["weights"], serve_flags(recipe["vllm"], spec.get("words", ()))),
            tp=spec["tp"],
            pipeline=spec["pp"],
            nodes=len(hosts),
            replicas=replicas,
            backend=spec["backend"],
            deployment=deployment.id,
            spec=dict(spec),
            image=recipe["image"],
            image_content=spec["image_content"],
            versions=dict(seen["versions"]),
            hosts=tuple(state_of(host, one, self.seens[host]) for host, one in hosts),
            argv={host: list(one.ranks[host].argv) for host, one in hosts},
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
def serving(options: ServerOptions, connect: Connect, why: str, *, replicas: bool | None = False) -> Iterator[Serving]:
    """What is asked, with its load client running: a deployment in its head's container with its lock held (`why` is
    shown to those who meet it), else --base-url. `replicas`: all deployments that run there, which have to be of one
    recipe; None: only where -n names the hosts of several."""
    if options.base_url:
        if len(options.base_url) > 1 and replicas is False:
            raise UsageError(f"{why} asks one server: one --base-url", code="options-conflict")
        yield from at_urls(options, why)
        return
    named = read_named(options)
    with open_fleet(named.hosts, connect) as fleet:
        seens, errors = look(fleet, named.hosts)
        found = find(seens, named.hosts)
        running = [one for one in found if one.running]
        if replicas or (replicas is None and named.explicit and len(running) > 1):
            raise_all(errors)
            check_replicas(running, found)
        else:
            running = [running_deployment(seens, errors, found, replicas=replicas is None)]
        names = [host for one in running for host in one.hosts]
        hosts, within = [host for host in named.hosts if host.name in names], fleet.only(names)
        with locked(within, hosts, f"{why} {', '.join(one.id for one in running)}"):
            seens = see(within, hosts)  # whoever held the lock until now may have changed everything
            running = still_running(running, find(seens, named.hosts))
            deployment = running[0]
            recipe = None
            if options.recipe_option:
                recipe = load_recipe(choose_recipe(None, options.recipe_option, named.file.inventory)).recipe
            else:
                with suppress(UsageError):  # the one the deployment was made from is not found any more
                    recipe = load_recipe(deployment.spec["recipe"]["name"]).recipe
            servers = tuple(Server.of_spec(one.spec, HOME) for one in running)
            if len(running) > 1:
                servers = tuple(
                    replace(at, url=url_of(one, seens[one.head])) for at, one in zip(servers, running, strict=True)
                )
            with client_of(running, within, servers) as loader:
                yield Serving(loader, servers, recipe, tuple(running), within, seens)


def still_running(chosen: Sequence[Deployment], found: Sequence[Deployment]) -> list[Deployment]:
    """The chosen deployments as they are now. Raises RefusedError when one was replaced or taken down meanwhile."""
    now = {one.id: one for one in found if one.running}
    for one in chosen:
        if one.id not in now:
            what = f"{one.id} was replaced or taken down meanwhile by another command"
            where, remedy = ", ".join(one.hosts), "cluster status shows what runs now; run the command again"
            raise RefusedError(what, code="deployment-changed", where=where, remedy=remedy)
    return [now[one.id] for one in chosen]


MAY_DIFFER = ("hosts", "host_env", "bind", "rank_program")
"""Keys of a spec that replicas need not share; nor the port."""


def check_replicas(running: Sequence[Deployment], found: Sequence[Deployment]) -> None:
    """Raise RefusedError unless several deployments run, and all of them serve the same in the same way."""
    names = "; ".join(f"{one.id} on {','.join(one.hosts)}" for one in running)
    if len(running) < 2:
        dead = "; ".join(f"{one.id} on {','.join(one.hosts)} is not running" for one in found if not one.running)
        what = f"replicas are two running deployments or more, found: {names or 'none'}" + (f"; {dead}" if dead else "")
        raise RefusedError(what, code="replicas-missing", remedy="start one on each host: cluster up --solo -n HOST")
    first, *others = ({key: value for key, value in one.spec.items() if key not in MAY_DIFFER} for one in running)
    for one, spec in zip(running[1:], others, strict=True):
        rows = [row for row in differing(first, spec) if not row.startswith("recipe.port:")]
        if rows:
            what = f"{running[0].id} and {one.id} are not replicas: {'; '.join(rows[:5])}"
            remedy = "start both from one recipe with the same options, or name the hosts of one with -n"
            raise RefusedError(what, code="replicas-differ", where=names, remedy=remedy)


def url_of(deployment: Deployment, seen: Seen) -> str:
    """Where the API of one of several replicas is, from any of their hosts: at its head's management address.

    Raises RefusedError when it listens where the others do not get.
    """
    bind = deployment.spec["bind"]
    if bind.startswith("127.") or bind in ("::1", "localhost"):
        what = f"the API of {deployment.id} listens on {bind}, so the other replica's host cannot ask it"
        remedy = "start it without --bind, or with an address that other hosts reach"
        raise RefusedError(what, code="replica-not-reachable", where=deployment.head, remedy=remedy)
    return address_of(bind, deployment.port, seen)


def client_of(running: Sequence[Deployment], within: Fleet, servers: Sequence[Server]) -> closing[ProcessLoader]:
    """A load client in the head; of replicas in the first one's, when it is lost, where a container still runs."""
    heads = [(within[one.head], one.ranks[one.head].name) for one in running]
    if len(heads) == 1:
        return client_in(*heads[0], servers)

    def runs(host: Host, container: str) -> bool:
        with suppress(ClusterError):  # its host may be lost, too
            return host.ask([docker_exec(container, ("true",))])[0].exit == 0
        return False

    def start() -> Process:
        for host, container in heads:
            if runs(host, container):
                return host.start(*command_of(servers, container))
        remedy = "run `cluster status`, then the same command again"
        raise ClusterError("no replica is running any more", code="load-client-lost", remedy=remedy)

    return closing(ProcessLoader(start(), start=start))


def at_urls(options: ServerOptions, why: str) -> Iterator[Serving]:
    """Servers that `cluster` did not start, asked from this machine. Raises UsageError for a URL that is none, and for
    one with a password, which would be shown."""
    if options.nodes:
        what = f"with --base-url {why} runs from this machine; it takes no -n"
        raise UsageError(what, code="options-conflict", remedy="leave out -n or --base-url")
    for url in options.base_url:
        check_url(url)
    if len({*options.base_url}) < len(options.base_url):
        raise UsageError("the same --base-url is given twice", code="url-invalid")
    key_file = ""
    if options.api_key_file:
        read_secret(options.api_key_file, "--api-key-file")
        key_file = str(Path(options.api_key_file).expanduser())
    recipe = load_recipe(options.recipe_option).recipe if options.recipe_option else None
    servers = tuple(Server(url, options.model or "", key_file) for url in options.base_url)
    with closing(LocalHost("this machine")) as host, client_in(host, "", servers) as loader:
        yield Serving(loader, servers, recipe)


def command_of(servers: Sequence[Server], container: str) -> tuple[tuple[str, ...], bytes]:
    return load_command([one.url for one in servers], servers[0].key_file, container)


def client_in(host: Host, container: str, servers: Sequence[Server]) -> closing[ProcessLoader]:
    """A load client in this container, or on the host itself; `servers`: their APIs as they are seen from there."""
    command = command_of(servers, container)
    return closing(ProcessLoader(host.start(*command), container, lambda: host.start(*command)))


def check_url(url: str) -> None:
    """Raise UsageError for a --base-url that is none, or has a password."""
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


def running_deployment(
    seens: Mapping[str, Seen],
    errors: Sequence[ClusterError],
    found: Sequence[Deployment],
    *,
    otherwise: str = OTHERWISE,
    replicas: bool = False,
) -> Deployment:
    """The one deployment that runs on these hosts. Raises RefusedError when there is none (what to do is `otherwise`),
    UsageError when there are several (`replicas`: the command can measure them together)."""
    running = [one for one in found if one.running]
    if len(running) == 1:
        return running[0]
    if running:
        raise not_chosen(running, "name the hosts of one with -n" + (", or all with --replicas" if replicas else ""))
    raise_all(errors)
    raise nothing_runs(seens, otherwise)


def nothing_runs(seens: Mapping[str, Seen], otherwise: str) -> RefusedError:
    """That there is no deployment; what another version of `cluster` started is not called nothing."""
    hosts = [name for name, seen in seens.items() if unread(seen)]
    if not hosts:
        return RefusedError(f"no deployment on {', '.join(seens)}", code="no-deployment", remedy=otherwise)
    what = f"what runs on {', '.join(hosts)} was started by another version of cluster: its labels cannot be read"
    remedy = f"cluster down -n {','.join(hosts)}, then cluster up"
    return RefusedError(what, code="deployment-unreadable", remedy=remedy)


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
