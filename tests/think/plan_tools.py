"""Hosts as values: what the tests of plans share. Everything is well until a test says otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from fact_samples import healthy

from cluster.config.inventory import ResolvedHost
from cluster.config.recipe import Recipe
from cluster.deploy.spec import canonical, deployment_id, spec_of
from cluster.spark.clock import Clock
from cluster.spark.deployments import Container, Deployment, Kept, LockState
from cluster.spark.disk import Room
from cluster.spark.docker import Docker
from cluster.spark.gpu import Gpu
from cluster.spark.identity import Identity, host_id
from cluster.spark.image import Image
from cluster.spark.links import Link, Links, Netdev
from cluster.spark.look import FACTS, Seen
from cluster.spark.memory import Memory
from cluster.spark.request import Backend, Wanted
from cluster.spark.weights import Weights

GIB = 1 << 30
IDS = {f"spark{number}": host_id(f"{number:032x}") for number in range(1, 10)}
NO_HASHES: Mapping[str, str] = MappingProxyType({})
CONTENT = "ab" * 32
COMMIT = "c0ffee00" * 5
DATA = "/home/ada/.local/share/cluster"


def recipe(**changes: Any) -> Recipe:
    """A recipe named toy."""
    values = {
        "name": "toy",
        "model": "example/toy",
        "image": "example.org/vllm:1",
        "architecture": "ToyForCausalLM",
        "vllm": {"max-model-len": 4096},
        "env": {"LEVEL": "INFO"},
        "memory": {"per_host_gib": {1: 100, 2: 90, 3: 80}},
    }
    return Recipe.model_validate(values | changes)


def wanted(size: int = 2, backend: Backend = "ray", of: Recipe | None = None, **changes: Any) -> Wanted:
    """A deployment of `size` hosts, spark1 and so on."""
    hosts = tuple(ResolvedHost(f"spark{number}", f"192.168.1.{40 + number}") for number in range(1, size + 1))
    return replace(Wanted(of or recipe(), hosts, size, 1, backend), **changes)


def port(
    hca: str, netdev: str, *addresses: str, state: str = "ACTIVE", mtu: int = 9000, moved: int | None = 0
) -> tuple[Link | None, Netdev]:
    """An HCA and its netdev; without a name of an HCA, plain Ethernet."""
    operstate = "up" if state == "ACTIVE" else "down"
    link = Link(hca, netdev, state, 100.0, mtu, addresses, operstate, moved, moved)
    return link if hca else None, Netdev(netdev, mtu, operstate, addresses, 0, 0)


def links(*ports: tuple[Link | None, Netdev], rdma_device: bool = True) -> Links:
    """The links of a host."""
    return Links(tuple(link for link, _ in ports if link), tuple(netdev for _, netdev in ports), rdma_device)


def one_cable(number: int, mtu: int = 9000, connector: int = 0) -> Links:
    """A Spark with one cable in port 0 or 1: two twins up, two down, and the management netdev."""
    other = 1 - connector
    return links(
        port(f"rocep1s0f{connector}", f"enp1s0f{connector}np{connector}", f"192.168.100.{10 + number}/24", mtu=mtu),
        port(f"rocep1s0f{other}", f"enp1s0f{other}np{other}", state="DOWN"),
        port(f"roceP2p1s0f{connector}", f"enP2p1s0f{connector}np{connector}", f"192.168.200.{10 + number}/24", mtu=mtu),
        port(f"roceP2p1s0f{other}", f"enP2p1s0f{other}np{other}", state="DOWN"),
        port("", "enP7s7", f"192.168.1.{40 + number}/24", mtu=1500),
    )


def identity(number: int, **changes: Any) -> Identity:
    values: dict[str, Any] = {
        "product": "NVIDIA_DGX_Spark",
        "machine_id": f"{number:032x}",
        "hostname": f"spark{number}",
        "kernel": "6.11",
        "arch": "aarch64",
        "user": "ada",
        "uid": 1000,
        "gid": 1000,
        "groups": ("ada", "docker"),
        "path": "/usr/bin",
        "sudo": True,
        "data_dir": DATA,
        "hf_home": "/home/ada/.cache/huggingface",
        "management_address": f"192.168.1.{40 + number}",
    }
    return Identity(**values | changes)


def seen(number: int = 1, **changes: Any) -> Seen:
    """Host spark<number> as it answered, one of `FACTS` by its name."""
    facts = {fact.name: changes.pop(fact.name, fact.parse(healthy(fact.name))) for fact in FACTS}
    values: dict[str, Any] = {
        "host": f"spark{number}",
        "identity": identity(number),
        "memory": Memory(total=120 * GIB, available=115 * GIB, free=110 * GIB),
        "gpu": (Gpu("NVIDIA GB10", "580.95", None, None, 10.0, 2418, 40, 0, ()),),
        "gpu_processes": (),
        "links": one_cable(number),
        "docker": Docker("28.2.2", "overlay2", "/var/lib/docker"),
        "containers": (),
        "image": Image("example.org/vllm:1", f"sha256:{number}", CONTENT, "arm64", 20 * GIB),
        "weights": Weights("example/toy", "main", COMMIT, "/snap", 5, 60 * GIB, (), "1f" * 32),
        "listening": (),
        "disk": (Room(DATA, 900 * GIB, 1 << 20),),
        "processes": (),
        "deployments": (),
        "lock": LockState(False),
        "clock": Clock(0.1, 0.2, True),
        "facts": facts,
    }
    return Seen(**values | changes)


def rank_container(number: int, of: Wanted, **changes: Any) -> Container:
    """The container of rank `number` − 1 of a deployment, running."""
    spec = spec_for(of)
    name = deployment_id(spec)
    ends = {IDS[host.name]: {"name": host.name, "management": host.address} for host in of.hosts}
    labels = {
        "cluster.deployment": name,
        "cluster.rank": str(number - 1),
        "cluster.hosts": ",".join(spec["hosts"]),
        "cluster.spec": canonical(spec),
        "cluster.seen": json.dumps({"hosts": ends, "paired": True}),
    }
    values: dict[str, Any] = {
        "id": f"{number:064x}",
        "name": f"cluster-{name}-r{number - 1}",
        "image": of.recipe.image,
        "state": "running",
        "exit_code": None,
        "labels": labels,
        "started_at": "t",
        "finished_at": "",
        "pid": 7,
        "argv": ("python3",),
    }
    return Container(**values | changes)


def stranger(name: str, **changes: Any) -> Container:
    """A container that is not ours."""
    return replace(rank_container(9, wanted()), name=name, id="f" * 64, labels={}, **changes)


def running(of: Wanted) -> tuple[Seen, ...]:
    """The hosts of a deployment that runs."""
    return tuple(
        seen(number, containers=(rank_container(number, of),), deployments=(Kept(spec_id(of), None),))
        for number in range(1, of.size + 1)
    )


def spec_id(of: Wanted) -> str:
    return deployment_id(spec_for(of))


def spec_for(of: Wanted, content_id: str = CONTENT, hashes: Mapping[str, str] = NO_HASHES) -> dict[str, Any]:
    """The spec of what is wanted on spark1 and so on; another host's id is its name."""
    return spec_of(of, {name: name for name in of.names} | IDS, content_id, hashes)


def names(found: Iterable[Any]) -> list[tuple[str, str]]:
    """Level and check of findings."""
    return [(one.level, one.check) for one in found]


def one(found: Sequence[Deployment]) -> Deployment:
    [deployment] = found
    return deployment
