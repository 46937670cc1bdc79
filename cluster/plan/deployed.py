"""What of ours is on the hosts: containers with our labels, grouped to deployments."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.commands.ports import PortUse, ports_used
from cluster.facts.containers import Container
from cluster.facts.fact import Missing
from cluster.facts.seen import Seen

DEPLOYMENT = "cluster.deployment"
RANK = "cluster.rank"
HOSTS = "cluster.hosts"
SPEC = "cluster.spec"
SEEN = "cluster.seen"
TRY = "cluster.try"
HOME = "/cluster"
"""The deployment's directory, as its containers see it."""


NEEDED = {"recipe", "tp", "pp", "backend", "hosts", "bind", "secrets", "image_content"}
NEEDED_OF_RECIPE = {"name", "port", "model", "served_model_name", "revision", "weights", "image"}
"""Keys of a spec that are read again from the label."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """All ranks of one deployment that were found. `hosts` is the list of the label, `ranks` what is really there."""

    id: str
    hosts: tuple[str, ...]
    spec: Mapping[str, Any]
    seen: Mapping[str, Any]
    ranks: Mapping[str, Container]

    @property
    def running(self) -> bool:
        """Whether every rank's container runs."""
        return set(self.ranks) == set(self.hosts) and all(c.state == "running" for c in self.ranks.values())

    @property
    def head(self) -> str:
        """Name of the host of rank 0."""
        return self.hosts[0]

    @property
    def port(self) -> int:
        """Port of the API on the head."""
        return int(self.spec["recipe"]["port"])

    def ports_on(self, host: str) -> tuple[PortUse, ...]:
        """What this deployment's rank on a host listens on while its container runs; nothing elsewhere."""
        if host not in self.ranks or self.ranks[host].state != "running":
            return ()
        rank = int(self.ranks[host].labels.get(RANK, "0"))
        return ports_used(backend=self.spec["backend"], size=len(self.hosts), rank=rank, api_port=self.port)

    @property
    def served_name(self) -> str:
        """The model's name in the API."""
        recipe = self.spec["recipe"]
        return str(recipe["served_model_name"] or recipe["model"])


def deployments(seens: Iterable[Seen]) -> tuple[Deployment, ...]:
    """All deployments found on these hosts, running or not. A container whose labels cannot be read is skipped."""
    return group({seen.host: seen.containers for seen in seens if not isinstance(seen.containers, Missing)})


def group(containers: Mapping[str, Sequence[Container]]) -> tuple[Deployment, ...]:
    """The same from each host's containers."""
    found: dict[str, dict[str, Container]] = {}
    for host, those in containers.items():
        for container in those:
            if DEPLOYMENT in container.labels:
                found.setdefault(container.labels[DEPLOYMENT], {})[host] = container
    return tuple(filter(None, (_read(name, ranks) for name, ranks in found.items())))


def _read(name: str, ranks: Mapping[str, Container]) -> Deployment | None:
    labels = next(iter(ranks.values())).labels
    try:
        spec, seen = json.loads(labels[SPEC]), json.loads(labels[SEEN])
        if NEEDED - set(spec) or NEEDED_OF_RECIPE - set(spec["recipe"]) or "hosts" not in seen:
            return None  # made by another version
        return Deployment(name, tuple(labels[HOSTS].split(",")), spec, seen, dict(ranks))
    except (KeyError, ValueError, TypeError):
        return None


def unread(seen: Seen) -> bool:
    """Whether a container runs on this host that another version made, so that its labels cannot be read."""
    if isinstance(seen.containers, Missing):
        return False
    known = {deployment.id for deployment in group({seen.host: seen.containers})}
    names = {one.labels[DEPLOYMENT] for one in seen.containers if DEPLOYMENT in one.labels and one.state == "running"}
    return bool(names - known)


def ours(container: Container) -> bool:
    """Whether a container was made by us."""
    return DEPLOYMENT in container.labels or TRY in container.labels
