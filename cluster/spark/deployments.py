"""Deployments on the hosts: containers with our labels, directories in `data_dir`, and who holds the lock."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cluster.argv.far import far
from cluster.argv.ports import PortUse, ports_used
from cluster.argv.question import Answer, Question
from cluster.spark.docker import explain
from cluster.spark.fact import Missing, as_shape, find_section, known, read_section, refuse
from cluster.spark.finding import Check, Finding

if TYPE_CHECKING:
    from cluster.config.inventory import ResolvedHost
    from cluster.spark.look import Seen

NAMES = Check("names", "it-does-not-start#ports-and-names")
"""Fault: an unmanaged container has a managed one's name, or a managed one cannot be read. Silent about all other
containers."""
DEPLOYED = Check("deployment", "reboot-or-replace#after-a-reboot")
"""Fault: a deployment is incomplete; note: it is starting."""
STRANGER = Check("stranger", "memory-is-full#another-tenant")
"""Note: another running container was given the GPU. Silent about stopped ones, and those without the GPU."""


@dataclass(frozen=True, slots=True)
class Container:
    """One container on a host. `id` is the full id, `name` without the slash, `image` as it was named at start, `state`
    docker's word. `exit_code` is None while it has never ended. Times are RFC 3339 as docker prints them, empty for
    never. `pid` of the first process, 0 when it does not run. `argv`: entrypoint and words. `gpu`: it was given one."""

    id: str
    name: str
    image: str
    state: str
    exit_code: int | None
    labels: Mapping[str, str]
    started_at: str
    finished_at: str
    pid: int
    argv: tuple[str, ...]
    gpu: bool = False


@dataclass(frozen=True, slots=True)
class DockerEnd:
    """How the docker command ended when it gave no list."""

    exit: int
    said: str


def containers_question() -> Question:
    """All containers, those of others too."""
    return far("containers", {}, limit=8 << 20)


def parse_containers(answer: Answer) -> tuple[Container, ...] | Missing:
    """All containers, or how docker failed."""
    if (value := find_section(answer, "failed")) is not None:
        end = as_shape(value, "containers", DockerEnd)
        return end if isinstance(end, Missing) else refuse(Answer(end.exit), "docker") or explain(end.said)
    return read_section(answer, "containers", tuple[Container, ...])


DEPLOYMENT = "cluster.deployment"
RANK = "cluster.rank"
HOSTS = "cluster.hosts"
SPEC = "cluster.spec"
SEEN = "cluster.seen"
TRY = "cluster.try"
HOME = "/cluster"
"""The deployment's directory, as its containers see it."""
NONE: Mapping[str, str] = MappingProxyType({})
NEEDED = {"recipe", "tp", "pp", "backend", "hosts", "bind", "secrets", "image_content"}
NEEDED_OF_RECIPE = {"name", "port", "model", "served_model_name", "revision", "weights", "image"}
"""Keys of a spec that are read back from the label."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """All ranks of one deployment that were found: `hosts` in rank order, `ranks` what is really there.

    Hosts have the names that this command gives them, in `seen` too; one that is not among the hosts of this command is
    `NAME (ADDRESS)` as recorded. In `spec` they are ids.
    """

    id: str
    hosts: tuple[str, ...]
    spec: Mapping[str, Any]
    seen: Mapping[str, Any]
    ranks: Mapping[str, Container]

    @property
    def running(self) -> bool:
        return set(self.ranks) == set(self.hosts) and all(c.state == "running" for c in self.ranks.values())

    @property
    def head(self) -> str:
        return self.hosts[0]

    @property
    def port(self) -> int:
        return int(self.spec["recipe"]["port"])

    def ports_on(self, host: str) -> tuple[PortUse, ...]:
        """What this deployment's rank on a host listens on while its container runs; nothing elsewhere."""
        if host not in self.ranks or self.ranks[host].state != "running":
            return ()
        rank = int(self.ranks[host].labels.get(RANK, "0"))
        return ports_used(backend=self.spec["backend"], size=len(self.hosts), rank=rank, api_port=self.port)

    @property
    def served_name(self) -> str:
        recipe = self.spec["recipe"]
        return str(recipe["served_model_name"] or recipe["model"])


def deployments(seens: Iterable[Seen], named: Iterable[ResolvedHost] = ()) -> tuple[Deployment, ...]:
    """All deployments found on these hosts, running or not. A container whose labels cannot be read is skipped.
    `named`: the hosts of the command, those that did not answer too."""
    here = {seen.host: seen for seen in seens}
    containers = {host: known(seen.containers) or () for host, seen in here.items()}
    silent = {host.name: host.address for host in named if host.name not in here}
    return group(containers, {host: seen.host_id for host, seen in here.items()}, silent)


def group(
    containers: Mapping[str, Sequence[Container]], ids: Mapping[str, str] = NONE, silent: Mapping[str, str] = NONE
) -> tuple[Deployment, ...]:
    """The same from each host's containers and id; `silent`: the addresses of hosts of which neither is known."""
    found: dict[str, list[tuple[str, Container]]] = {}
    for host, those in containers.items():
        for container in those:
            if DEPLOYMENT in container.labels:
                found.setdefault(container.labels[DEPLOYMENT], []).append((host, container))
    return tuple(filter(None, (_read(name, ranks, ids, silent) for name, ranks in found.items())))


def _read(
    name: str, found: Sequence[tuple[str, Container]], ids: Mapping[str, str], silent: Mapping[str, str]
) -> Deployment | None:
    try:
        labels = found[0][1].labels
        spec, seen, keys = json.loads(labels[SPEC]), json.loads(labels[SEEN]), labels[HOSTS].split(",")
        if NEEDED - set(spec) or NEEDED_OF_RECIPE - set(spec["recipe"]):
            return None  # made by another version
        ends = {key: dict(end) for key, end in seen["hosts"].items()}
        env_by_host = dict(spec.get("host_env", {}))
        numbered = [(int(container.labels[RANK]), host, container) for host, container in found]
    except (KeyError, ValueError, TypeError, AttributeError):
        return None
    ranks: dict[int, tuple[str, Container]] = {}
    for rank, host, container in sorted(numbered, key=lambda row: keys[row[0] : row[0] + 1] != [ids.get(row[1])]):
        ranks.setdefault(rank, (host, container))  # of two, as after cloning a disk, the one on the host of the label
    free = ids.keys() - {host for host, _ in ranks.values()}
    places = {
        key: ranks[rank][0] if rank in ranks else _place(key, ends.get(key, {}), free, ids, silent)
        for rank, key in enumerate(keys)
    }
    now = {key: ids.get(host) or key for key, host in places.items()}
    spec |= {
        "hosts": [now[key] for key in keys],
        "host_env": {now.get(key, key): env for key, env in env_by_host.items()},
    }
    seen["hosts"] = {host: ends[key] for key, host in places.items() if key in ends}
    return Deployment(name, tuple(places.values()), spec, seen, dict(ranks.values()))


def _place(key: str, end: Mapping[str, Any], free: Set[str], ids: Mapping[str, str], silent: Mapping[str, str]) -> str:
    """The host of a rank whose container was not found; `free` have none of its ranks. An older version recorded no id
    and no management address: its key is the name."""
    name, address = end.get("name", key), end.get("management") or end.get("address")
    here = [host for host in sorted(free) if (ids[host] == key if "name" in end else host == key)]
    here += [host for host, at in silent.items() if host == name or (at == address and "name" in end)]
    return here[0] if here else f"{name} ({address or 'address unknown'})"


def unread(seen: Seen) -> bool:
    """Whether a container of another version, whose labels cannot be read, runs on this host."""
    containers = known(seen.containers) or ()
    names = {one.labels[DEPLOYMENT] for one in containers if DEPLOYMENT in one.labels and one.state == "running"}
    return bool(names - {deployment.id for deployment in group({seen.host: containers})})


def is_managed(container: Container) -> bool:
    return DEPLOYMENT in container.labels or TRY in container.labels


@dataclass(frozen=True, slots=True)
class Kept:
    """One deployment's directory: its id, and before.json (None when absent or not readable)."""

    id: str
    before: Mapping[str, Any] | None

    @property
    def available_before(self) -> int | None:
        """Bytes that the host had available before `up`; None where it was not recorded."""
        value = (self.before or {}).get("available")
        return int(value) if isinstance(value, int | float) else None


def directory(data_dir: str, deployment: str) -> str:
    return f"{data_dir}/deployments/{deployment}"


@dataclass(frozen=True, slots=True)
class LockState:
    """`who`, `why`: the holder's own words; `since`: unix seconds. A lock that is not held names nobody."""

    held: bool
    who: str = ""
    since: float | None = None
    why: str = ""


def lock_question(data_dir: str) -> Question:
    return far("kept", {"sections": ["lock"], "data_dir": data_dir})


def parse_lock(answer: Answer) -> LockState | Missing:
    return read_section(answer, "lock", LockState)


def check_containers(seen: Seen, found: Sequence[Deployment]) -> Iterator[Finding]:
    """No unmanaged container has a managed one's name, all managed ones can be read; others with a GPU are noted."""
    host, ids = seen.host, {deployment.id for deployment in found}
    for one in known(seen.containers) or ():
        name, image = one.name, f"{one.id[:12]} of image {one.image}"
        if is_managed(one):
            if one.labels.get(DEPLOYMENT, "") not in ids and TRY not in one.labels:
                what, why = f"the labels of {name} cannot be read", "another version of cluster made it"
                yield NAMES.fault(host, what, why, f"cluster down -n {host}")
            continue
        if name.startswith("cluster-"):
            what, remedy = f"an unmanaged container is named {name}", f"on {host}: docker rename {name} another-name"
            yield NAMES.fault(host, what, f"{image}, {one.state}", remedy)
        if one.gpu and one.state == "running":
            what, remedy = f"an unmanaged container has the GPU too: {name}", f"on {host}: docker stop {name}"
            yield STRANGER.note(host, what, f"{image}, running since {one.started_at}", f"{remedy}, if nobody needs it")
