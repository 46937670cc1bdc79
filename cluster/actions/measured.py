"""What is measured: a running deployment as the benchmark sees it."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cluster.actions.reach import raise_all
from cluster.bench.loader import ProcessLoader
from cluster.bench.machine import Fabric, Machine, Sample, describe, read_sample, watch_command
from cluster.bench.manifest import HostState, Manifest
from cluster.config.load import load_recipe
from cluster.config.recipe import Recipe
from cluster.errors import ClusterError, ConnectionLostError, RefusedError, UsageError
from cluster.facts.completion import Server
from cluster.facts.fact import Missing
from cluster.facts.seen import Seen
from cluster.hosts.fleet import Fleet
from cluster.plan.deployed import Deployment, deployments


@dataclass(frozen=True, slots=True)
class Measuring:
    """A server, its load client, what is known of it, and how its machines are asked."""

    loader: ProcessLoader
    manifest: Manifest
    machine: Machine
    recipe: Recipe | None
    server: Server


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


def home_of(seens: Mapping[str, Seen], host: str, deployment: str) -> str:
    """A deployment's directory on a host; empty when the host did not say who it is."""
    identity = seens[host].identity
    return "" if isinstance(identity, Missing) else f"{identity.data_dir}/deployments/{deployment}"


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
        client_on="head",
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
    return HostState(
        host,
        role(host, deployment),
        identity.product if identity else "",
        driver,
        identity.kernel if identity else "",
        tuple(end.get("hcas", ())),
        end.get("mtu"),
    )


def role(host: str, deployment: Deployment) -> str:
    """head or worker."""
    return "head" if host == deployment.head else "worker"


class Watchers:
    """The hosts of a deployment, watched by `far/watch` on each; a host that is lost is no longer told of."""

    def __init__(self, fleet: Fleet, deployment: Deployment) -> None:
        self._fabrics = {host: fabric_of(host, deployment) for host in deployment.hosts}
        words, setup = watch_command()
        self._processes = {host: fleet[host].start(words, setup) for host in deployment.hosts}
        self._lines = {host: process.lines() for host, process in self._processes.items()}
        self._each("ready")

    def begin(self) -> None:
        """See Machine.begin."""
        self._tell(b'{"begin": true}\n')
        self._each("begun")

    def end(self) -> dict[str, Any]:
        """See Machine.end."""
        self._tell(b'{"end": true}\n')
        return describe(self._each("ended"), self._fabrics)

    def close(self) -> None:
        """End the programs."""
        for process in self._processes.values():
            process.close()

    def _tell(self, line: bytes) -> None:
        for host in tuple(self._lines):
            try:
                self._processes[host].write(line)
            except ConnectionLostError:
                del self._lines[host]

    def _each(self, last: str) -> dict[str, list[Sample]]:
        """What each host says until the line with this word."""
        found: dict[str, list[Sample]] = {}
        for host in tuple(self._lines):
            try:
                found[host] = self._read(host, last)
            except (ConnectionLostError, ValueError, KeyError, TypeError):
                del self._lines[host]
        return found

    def _read(self, host: str, last: str) -> list[Sample]:
        samples: list[Sample] = []
        for line in self._lines[host]:
            if line.startswith(f'{{"{last}"'):
                return samples
            if line.startswith('{"t"'):
                samples.append(read_sample(line, self._fabrics[host]))
        raise ConnectionLostError("the watching program ended", where=host)


def fabric_of(host: str, deployment: Deployment) -> Fabric:
    """How a host reaches its peers, as the deployment was started; one alone has none."""
    end = deployment.seen["hosts"].get(host, {}) if len(deployment.hosts) > 1 else {}
    return Fabric(role(host, deployment), tuple(end.get("hcas", ())), end.get("netdev") or "")


@contextmanager
def watching(fleet: Fleet, deployment: Deployment) -> Iterator[Machine]:
    """The deployment's hosts, watched until the block ends."""
    watchers = Watchers(fleet, deployment)
    try:
        yield watchers
    finally:
        watchers.close()
