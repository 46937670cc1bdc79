"""What a deployment is meant to be: named parts, their hash, what differs between two of them, and what follows.

Intent only. Observations (addresses, HCAs, MTU) are in `cluster.seen`; tokens and mount sources are in neither.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from cluster.argv.far import source
from cluster.config.recipe import Recipe
from cluster.config.written import deciding
from cluster.errors import RefusedError
from cluster.spark.deployments import Deployment
from cluster.spark.request import Wanted

PROGRAMS = ("rank", "cord", "guard", "ray_nodes")
"""Programs of `far/` that lie beside a rank."""


def spec_of(
    wanted: Wanted, ids: Mapping[str, str], content_id: str, hashes: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """The parts that decide whether a running deployment is the one asked for.

    `ids` are the hosts' ids by name (a name is a matter of the inventory), `content_id` is that of the image as the
    hosts have it, `hashes` (SHA-256 by path) those of the model's own files that are mounted.
    """
    mounts = {target: digest(data) for target, data in wanted.mounted.items()}
    for one in wanted.recipe.mounts:
        if one.model_file:  # while the model is not there yet, the name of its file
            mounts[one.target] = hashes.get(one.model_file, f"model: {one.model_file}")
    only_if_used = {"dockerfile": digest(wanted.dockerfile)} if wanted.dockerfile else {}
    only_if_used |= {"unconfined": "yes"} if wanted.recipe.unconfined else {}
    return {
        "recipe": wanted.recipe.model_dump(mode="json", include=deciding(Recipe, "deployment")),
        "tp": wanted.tp,
        "pp": wanted.pp,
        "backend": wanted.backend,
        "hosts": [ids[name] for name in wanted.names],
        "bind": wanted.bind,
        "env": dict(sorted(wanted.env.items())),
        "host_env": {ids[host.name]: dict(sorted(host.env.items())) for host in wanted.hosts if host.env},
        "secrets": sorted(wanted.secrets),
        "words": list(wanted.words),
        "image_content": content_id,
        "mounts": dict(sorted(mounts.items())),
        "rank_program": digest(b"".join(map(source, PROGRAMS))),
    } | only_if_used


def spec_like(wanted: Wanted, recorded: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The spec of what is wanted on the image and the model's files of one that was recorded: no host is asked.

    `names`: the recorded one's hosts in rank order; a host that is not among them has its name for an id.
    """
    ids = {name: name for name in wanted.names} | dict(zip(names, recorded.get("hosts", ()), strict=False))
    was = recorded.get("mounts", {})
    hashes = {one.model_file: was[one.target] for one in wanted.recipe.mounts if one.model_file and one.target in was}
    return spec_of(wanted, ids, str(recorded.get("image_content", "")), hashes)


def built_image(wanted: Wanted, content_id: str) -> str:
    """Tag of the image that a host builds: equal for the same Dockerfile on the same content."""
    made_of = digest(content_id.encode() + wanted.dockerfile)[:12]
    return f"cluster-built/{_docker_name(wanted.recipe.name)}:{made_of}"


def canonical(spec: Mapping[str, Any]) -> str:
    """The spec as the text of the label `cluster.spec`."""
    return json.dumps(spec, sort_keys=True, separators=(",", ":"))


def fingerprint(spec: Mapping[str, Any]) -> str:
    """Eight hex digits of SHA-256 over the canonical text."""
    return digest(canonical(spec).encode())[:8]


def deployment_id(spec: Mapping[str, Any]) -> str:
    """Name of the deployment: the recipe's name in letters that docker allows, and the fingerprint."""
    return f"{_docker_name(str(spec['recipe']['name']))}-{fingerprint(spec)}"


def _docker_name(text: str) -> str:
    return re.sub(r"[^a-z0-9.-]+", "-", text.lower()).strip("-.") or "recipe"


def named(spec: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """A spec for people: the hosts' names in place of their ids."""
    host_env = {names.get(one, one): env for one, env in spec.get("host_env", {}).items()}
    return {**spec, "hosts": [names.get(one, one) for one in spec["hosts"]], "host_env": host_env}


def differing(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted keys that differ, with both values: `recipe.vllm.max-num-seqs: 4 → 8`."""

    def short(value: Any) -> str:
        text = "(none)" if value is None else value if isinstance(value, str) else json.dumps(value)
        return text if len(text) <= 40 else text[:12] + "…"

    rows: list[str] = []
    for key in sorted(set(old) | set(new)):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            rows += differing(before, after, f"{prefix}{key}.")
        elif before != after:
            rows.append(f"{prefix}{key}: {short(before)} → {short(after)}")
    return rows


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True)
class Same:
    """What is wanted is there already, ready or on its way. `remains` are dead and only removed."""

    deployment: Deployment
    remains: tuple[Deployment, ...] = ()


@dataclass(frozen=True, slots=True)
class Start:
    """`outgoing` run now and are started again when the new one fails; `remains` are dead and only removed."""

    why: tuple[str, ...]
    outgoing: tuple[Deployment, ...] = ()
    remains: tuple[Deployment, ...] = ()


def decide(
    spec: Mapping[str, Any], found: Sequence[Deployment], names: Mapping[str, str] = MappingProxyType({})
) -> Same | Start:
    """What has to happen so that `spec` runs. `names`: how this command calls the hosts, by id."""
    running = [deployment for deployment in found if deployment.running]
    remains = tuple(deployment for deployment in found if not deployment.running)
    for deployment in running:
        if not differing(deployment.spec, spec):  # its id may be an older version's
            return Same(deployment, remains)
    if len(running) > 1:
        why = [f"replace {one.id}, which runs on {', '.join(one.hosts)}" for one in running]
    elif running:
        old = running[0]
        called = {**names, **dict(zip(old.spec["hosts"], old.hosts, strict=True))}
        why = [f"replace {old.id}: {key}" for key in differing(named(old.spec, called), named(spec, called))]
    else:
        dead = [one.id for one in remains if not differing(one.spec, spec)][:1]
        why = [f"replace what is left of {id}: its containers are not all running" for id in dead]
        why = why or ["no deployment runs on these hosts"]
    return Start(tuple(why), tuple(running), remains)


def refuse_beyond(hosts: Sequence[str], found: Sequence[Deployment]) -> None:
    """Raise RefusedError when a rank found here belongs to a deployment with hosts that were not named."""
    for deployment in found:
        beyond = ", ".join(host for host in deployment.hosts if host not in hosts)
        if beyond:
            here, where = ", ".join(deployment.ranks), f"deployment {deployment.id} on {', '.join(deployment.hosts)}"
            remedy = f"name all of its hosts with -n; cluster down -n {','.join(deployment.ranks)} ends it"
            what = f"{here} holds a rank of {deployment.id}, whose other ranks are on {beyond}"
            raise RefusedError(what, code="ranks-elsewhere", where=where, remedy=remedy)
