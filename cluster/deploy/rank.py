"""One rank: its container, the files that lie beside it, and the directory of its compiled kernels."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from cluster.argv.docker import Bind, RankContainer
from cluster.argv.fabric import NON_CARRY_FILE, fabric_environment, non_carry_file
from cluster.argv.far import source
from cluster.argv.ports import PORTS, ports_used
from cluster.argv.ray import ray_environment, ray_start
from cluster.argv.vllm import Layout, measuring_flags, vllm_serve
from cluster.config.recipe import LOW_GIB, PACKAGES
from cluster.config.secrets import API_KEY
from cluster.deploy.spec import PROGRAMS, built_image, canonical, deployment_id, digest
from cluster.errors import RefusedError
from cluster.spark import deployments
from cluster.spark.fabric import Fabric
from cluster.spark.fact import Missing, known
from cluster.spark.identity import Identity
from cluster.spark.image import Inside
from cluster.spark.look import Seen
from cluster.spark.memory import GIB
from cluster.spark.request import Wanted
from cluster.spark.server import EVERYWHERE

_FLAGS = """
    gpu-memory-utilization kv-cache-memory-bytes num-gpu-blocks-override enable-prefix-caching prefix-caching-hash-algo
    seed limit-mm-per-prompt mm-processor-kwargs mm-processor-cache-gb logprobs-mode tokenizer tokenizer-mode
    tokenizer-revision disable-custom-all-reduce max-parallel-loading-workers enable-auto-tool-choice tool-call-parser
    reasoning-parser chat-template enable-log-requests uvicorn-log-level api-server-count allowed-origins
    disable-log-stats enable-chunked-prefill scheduling-policy load-format stream-interval
"""
NOT_COMPILED = set(_FLAGS.split())
"""Flags that vLLM's own cache key does not hold (`compute_hash` of each of its configurations, 0.32), or that only its
API server reads. A flag that is not here gives a directory of its own: one more compilation, never a wrong kernel."""

PARTS = ("tp", "pp", "image_content", "dockerfile", "mounts", "env", "host_env", "words")


def cache_name(spec: Mapping[str, Any]) -> str:
    """The recipe's name, and eight hex digits of SHA-256 over the parts of a spec that decide what is compiled."""
    recipe = spec["recipe"]
    kept = {
        "model": [recipe["model"], recipe["revision"]],
        "vllm": {flag: value for flag, value in recipe["vllm"].items() if flag not in NOT_COMPILED},
        "env": recipe["env"],
        "parts": {part: spec.get(part) for part in PARTS},
    }
    return f"{recipe['name']}-{digest(json.dumps(kept, sort_keys=True).encode())[:8]}"


JOIN_TIMEOUT_S = 120
PEER_SILENCE_S = 60
"""A rank whose peer is silent for so long ends."""
GUARD = {
    "period_s": 0.1,
    "pressure_gib": LOW_GIB,
    "meminfo": "/proc/meminfo",
    "pressure": "/proc/pressure/memory",
}
"""What the guard of a rank's memory is given beside the recipe's limits."""
RAY_TOKEN_FILE, SECRETS_FILE, API_KEY_FILE = "ray-token", "secrets.json", "api-key"
SECRET_FILES = (RAY_TOKEN_FILE, SECRETS_FILE, API_KEY_FILE)
"""Files in a deployment's directory that hold secrets: secrets.json by name, the others one value each."""
SETTINGS = {
    "HF_HOME": "/hf",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_CACHE_ROOT": "/cache/vllm",
    "VLLM_CONFIG_ROOT": "/cluster/config",
    "TRITON_CACHE_DIR": "/cache/triton",
    "TORCHINDUCTOR_CACHE_DIR": "/cache/inductor",
    "FLASHINFER_WORKSPACE_BASE": "/cache",
    "CUDA_CACHE_PATH": "/cache/cuda",
    "B12X_COMPILE_CACHE_DIR": "/cache/b12x/compile",
    "B12X_CUTE_COMPILE_CACHE_DIR": "/cache/b12x/cute_compile",  # what older versions call it
    "TILELANG_CACHE_DIR": "/cache/tilelang",
    "TILELANG_CLEANUP_TEMP_FILES": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
"""Environment of every rank: caches in our own directory, no downloads, no telemetry."""
NOT_KEPT = {"VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR": "/dev/shm/flashinfer_autotune"}
"""Where ranks tune together: results that one host kept and the other lost leave one waiting in a collective for ever.
This memory is empty whenever a container starts; tuned again on all, the ranks agree. One rank alone keeps its own."""


@dataclass(frozen=True, slots=True)
class Put:
    """A file to write on a host. The bytes of a `secret` one are shown nowhere; `shown` is what a plan shows of it."""

    path: str
    data: bytes = field(repr=False)
    mode: int = 0o600
    secret: bool = False
    shown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ingredients:
    """All that a plan is made of. `token` authenticates Ray and the cord of this deployment and is shown nowhere.

    `before` is what each host had available (bytes) when no deployment ran; `down` compares with it.
    """

    wanted: Wanted
    spec: Mapping[str, Any]
    seens: Mapping[str, Seen]
    fabric: Fabric
    inside: Inside
    before: Mapping[str, int]
    token: str = field(repr=False)

    @property
    def id(self) -> str:
        return deployment_id(self.spec)

    @property
    def image(self) -> str:
        """What the ranks run: the recipe's image, or the one that each host builds of it."""
        wanted = self.wanted
        return built_image(wanted, self.spec["image_content"]) if wanted.dockerfile else wanted.recipe.image

    @property
    def addresses(self) -> tuple[str, ...]:
        """By rank, the address that Ray and vLLM use."""
        return tuple(self.fabric.hosts[name].address for name in self.wanted.names)

    def identity(self, host: str) -> Identity:
        return identity_of(self.seens[host])

    def home(self, host: str) -> str:
        return deployments.directory(self.identity(host).data_dir, self.id)

    def cache(self, host: str) -> str:
        """Directory of compiled kernels on a host."""
        return f"{self.identity(host).data_dir}/caches/{cache_name(self.spec)}"

    def mounted(self, host: str) -> dict[str, str]:
        """Where each file that this machine mounts lies on a host, by target."""
        targets = enumerate(self.wanted.mounted)
        return {target: f"{self.home(host)}/mounts/{at}-{PurePosixPath(target).name}" for at, target in targets}


def identity_of(seen: Seen) -> Identity:
    """Who a host is. Raises RefusedError when that could not be read: no plan can be made without it."""
    host, found = seen.host, seen.identity
    if isinstance(found, Missing):
        raise RefusedError(f"{host} does not report its identity: {found.why}", code="identity-unread", where=host)
    return found


def container_name(deployment: str, rank: int) -> str:
    return f"cluster-{deployment}-r{rank}"


def container(made_of: Ingredients, rank: int) -> RankContainer:
    wanted, host = made_of.wanted, made_of.wanted.names[rank]
    links, weights = known(made_of.seens[host].links), known(made_of.seens[host].weights)
    # mounted files: the recipe's from the deployment's directory, the model's own from where the host has it
    files = made_of.mounted(host)
    if weights:
        files |= {one.target: f"{weights.path}/{one.model_file}" for one in wanted.recipe.mounts if one.model_file}
    binds = [
        Bind(made_of.home(host), deployments.HOME),
        Bind(made_of.cache(host), "/cache", read_only=False),
        Bind(made_of.identity(host).hf_home, "/hf"),
        *(Bind(model.id, model.id) for model in wanted.models if model.id.startswith("/")),
    ]
    for target, path in files.items():
        inside = f"{made_of.inside.packages}/{target.removeprefix(PACKAGES)}"
        binds.append(Bind(path, target if target.startswith("/") else inside))
    return RankContainer(
        name=container_name(made_of.id, rank),
        image=made_of.image,
        entrypoint="python3",
        words=("-u", "/cluster/rank.py", "/cluster/rank.json"),
        labels={
            deployments.DEPLOYMENT: made_of.id,
            deployments.RANK: str(rank),
            deployments.HOSTS: ",".join(made_of.spec["hosts"]),
            deployments.SPEC: canonical(made_of.spec),
            deployments.SEEN: canonical(observed(made_of)),
        },
        env=environment(made_of, host),
        binds=tuple(binds),
        shm_bytes=int(wanted.recipe.shm_gib * GIB),
        infiniband=wanted.size > 1 and links is not None and links.rdma_device,
        unconfined=wanted.recipe.unconfined,
    )


def observed(made_of: Ingredients) -> dict[str, Any]:
    """What was found and may drift without a replacement: by host id its name, addresses, HCAs, MTU; versions."""
    ends = {}
    for name, end in made_of.fabric.hosts.items():
        management = made_of.identity(name).management_address
        ends[made_of.seens[name].host_id] = {"name": name, "management": management, **end.as_label()}
    versions = {part: getattr(made_of.inside, part) for part in ("vllm", "ray", "transformers", "nccl", "python")}
    accepts = made_of.wanted.accepts_sockets if made_of.wanted.size > 1 else ""
    seen = {"hosts": ends, "paired": made_of.fabric.paired, "versions": versions}
    return seen | ({"accepts_sockets": accepts} if accepts else {})


def environment(made_of: Ingredients, host: str) -> dict[str, str]:
    """Environment of one rank; what the user wrote wins over what we give. Never a secret."""
    wanted, end = made_of.wanted, made_of.fabric.hosts[host]
    env = SETTINGS | (NOT_KEPT if wanted.size > 1 else {})
    if wanted.size > 1 or wanted.backend == "ray":
        env |= fabric_environment(address=end.address, netdev=end.netdev, hcas=end.hcas)
    if wanted.backend == "ray":
        env |= ray_environment(head=made_of.addresses[0], ray_version=made_of.inside.ray)
    [entry] = [one for one in wanted.hosts if one.name == host]
    return {**env, **wanted.recipe.env, **entry.env, **wanted.env}


def rank_words(made_of: Ingredients, rank: int) -> dict[str, Any]:
    """What `far/rank.py` reads: who it is, whom it waits for, what it starts."""
    wanted, addresses = made_of.wanted, made_of.addresses
    start = ray_start(rank=rank, address=addresses[rank], head=addresses[0]) if wanted.backend == "ray" else None
    engine: tuple[str, ...] = ()
    if rank == 0 or wanted.backend == "mp":
        weights = known(made_of.seens[wanted.names[rank]].weights)
        engine = vllm_serve(
            wanted.recipe,
            Layout(wanted.tp, wanted.pp, wanted.backend, addresses, wanted.bind),
            rank=rank,
            revision=weights.commit if weights else "",
            measuring=measuring_flags(made_of.inside.vllm),
            extra=wanted.words,
        )
    return {
        "rank": rank,
        "size": wanted.size,
        "backend": wanted.backend,
        "address": addresses[rank],
        "addresses": addresses,
        "cord_port": PORTS.cord,
        "join_timeout_s": JOIN_TIMEOUT_S,
        "silence_s": PEER_SILENCE_S,
        "guard": GUARD | wanted.recipe.memory.guard.model_dump(),
        "health": None if rank else (EVERYWHERE.get(wanted.bind, wanted.bind), wanted.recipe.port),
        "secrets": f"/cluster/{SECRETS_FILE}" if wanted.secrets else None,
        "before_serve": wanted.recipe.before_serve,
        "ray_start": start,
        "engine": engine or None,
    }


def rank_files(made_of: Ingredients, rank: int) -> Iterator[Put]:
    """The files in the deployment's directory of a rank's host."""
    wanted, host, words = made_of.wanted, made_of.wanted.names[rank], rank_words(made_of, rank)
    home = made_of.home(host)
    uses = ports_used(backend=wanted.backend, size=wanted.size, rank=rank, api_port=wanted.recipe.port)
    ports = ", ".join(f"{use.first}-{use.last}" if use.last > use.first else f"{use.first}" for use in uses)
    commands = (*words["before_serve"], words["ray_start"], words["engine"])
    runs = [f"runs: {shlex.join(command)}" for command in commands if command]
    environments = {name: environment(made_of, name) for name in wanted.names}
    for name in PROGRAMS:
        yield Put(f"{home}/{name}.py", source(name), 0o644)
    yield Put(f"{home}/rank.json", as_json(words), 0o644, shown=(*runs, f"listens on: {ports or 'nothing'}"))
    yield Put(f"{home}/before.json", as_json({"available": made_of.before[host]}), 0o644)
    yield Put(f"{home}/config/{NON_CARRY_FILE}", non_carry_file(environments), 0o644)
    yield Put(f"{home}/{RAY_TOKEN_FILE}", made_of.token.encode(), secret=True)
    if wanted.secrets:
        yield Put(f"{home}/{SECRETS_FILE}", secrets_file(wanted), secret=True)
    if API_KEY in wanted.secrets:
        yield Put(f"{home}/{API_KEY_FILE}", wanted.secrets[API_KEY].encode(), secret=True)
    for target, path in made_of.mounted(host).items():
        yield Put(path, wanted.mounted[target], 0o644)


def secrets_file(wanted: Wanted) -> bytes:
    return as_json(dict(wanted.secrets))


def as_json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()
