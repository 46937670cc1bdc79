"""What is measured: a running deployment as the benchmark sees it."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cluster.argv.vllm import serve_flags, weights_of
from cluster.bench.loader import ProcessLoader
from cluster.bench.result import HostState, Manifest
from cluster.bench.run import NO_MACHINE
from cluster.bench.sampling import Machine, role, watching
from cluster.bench.serving import Serving, serving
from cluster.config.load import load_recipe
from cluster.config.recipe import Recipe
from cluster.config.redact import redact
from cluster.deploy.session import Connect
from cluster.errors import UsageError
from cluster.hosts.connect import connect
from cluster.spark.deployments import Deployment
from cluster.spark.fact import Missing
from cluster.spark.look import Seen
from cluster.spark.server import Server


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
    with serving(args, connect, "bench") as at:
        if at.deployment is None or at.within is None:
            yield Measuring(at.loader, manifest_of_url(args, at), NO_MACHINE, at.recipe, at.server)
            return
        with watching(at.within, at.deployment) as machine:
            manifest = manifest_of(at.deployment, at.seens, python=at.loader.python)
            yield Measuring(at.loader, manifest, machine, at.recipe, at.server)


def manifest_of_url(args: argparse.Namespace, at: Serving) -> Manifest:
    """What is known of a server that we did not start."""
    return Manifest(
        model=args.model or "",
        recipe=at.recipe.name if at.recipe else "",
        base_url=args.base_url,
        command=tuple(redact(sys.argv[1:], ())),
        client_on="local",
        client_python=at.loader.python,
    )


def manifest_of(deployment: Deployment, seens: Mapping[str, Seen], *, python: str) -> Manifest:
    """The conditions of a measurement of this deployment."""
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
