"""A desk of simulated machines: each answers what `cluster` asks of a host, in the formats of the real programs.

What is told and what is done go through one Desk, so that a test can copy it, compare it and let time pass. The docker
command is `fake_docker`; the programs of far/ that only ask docker run as they are, over it.
"""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from fake_docker import Container, FakeDocker, Image, Life
from far_program import run_over
from rank_life import RankLife

from cluster.commands import docker as words_for
from cluster.commands.far import source
from cluster.commands.question import Answer, Question
from cluster.errors import ClusterError, ConnectionLostError
from cluster.hosts.cancel import Cancel, Scope
from cluster.hosts.fake import FakeHost, FakeProcess, Put
from cluster.hosts.fleet import Fleet

GIB = 1 << 30
HOME = "/home/nvidia"
DATA = f"{HOME}/.local/share/cluster"
HUB = f"{HOME}/.cache/huggingface"
IMAGE = "example.org/vllm:1"
MODEL = "example/toy"
COMMIT = "c0ffee00" * 5
FAR = {
    source(name): name
    for name in ("look", "links", "kept", "gpu", "containers", "weights", "ranks", "completion", "image", "hub_model")
}
LOCK = threading.RLock()
"""One machine answers one question at a time; one for all, so that desks can be copied."""


class Killed(Exception):
    """SIGKILL of the operator: no error of ours, so nothing is put back."""


@dataclass
class Port:
    """An HCA with its netdev. `netdev` alone (an empty `hca`) is plain Ethernet."""

    hca: str
    netdev: str
    addresses: tuple[str, ...] = ()
    state: str = "ACTIVE"
    mtu: int = 9000
    bytes: int = 1000

    def link(self) -> dict[str, Any]:
        up = self.state == "ACTIVE"
        return {
            "hca": self.hca, "netdev": self.netdev, "state": self.state, "rate_gbps": 100.0, "mtu": self.mtu,
            "addresses": list(self.addresses), "operstate": "up" if up else "down",
            "speed_mbps": 200000 if up else None, "xmit_bytes": self.bytes, "rcv_bytes": self.bytes,
        }  # fmt: skip

    def netdev_row(self) -> dict[str, Any]:
        operstate = "up" if self.state == "ACTIVE" else "down"
        return {
            "name": self.netdev, "mtu": self.mtu, "operstate": operstate, "addresses": list(self.addresses),
            "rx_bytes": 5, "tx_bytes": 5,
        }  # fmt: skip


def spark_ports(number: int) -> list[Port]:
    """A Spark with one cable in port 0: two twins up, two down, and the management netdev."""
    return [
        Port("rocep1s0f0", "enp1s0f0np0", (f"192.168.100.{10 + number}/24",)),
        Port("rocep1s0f1", "enp1s0f1np1", (), "DOWN", 1500),
        Port("roceP2p1s0f0", "enP2p1s0f0np0", (f"192.168.200.{10 + number}/24",)),
        Port("roceP2p1s0f1", "enP2p1s0f1np1", (), "DOWN", 1500),
        Port("", "enP7s7", (f"192.168.1.{40 + number}/24",), "ACTIVE", 1500),
    ]


@dataclass
class Stranger:
    """A process that is not ours: what it listens on, the memory it holds (GPU memory too when `on_gpu`)."""

    pid: int
    name: str
    port: int = 0
    bytes: int = 0
    on_gpu: bool = False


@dataclass
class Machine:
    """One simulated machine."""

    desk: Desk
    name: str
    number: int
    ports: list[Port]
    docker: FakeDocker = field(init=False)
    files: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    folders: set[str] = field(default_factory=lambda: {"/", HOME, HUB})
    models: dict[str, str] = field(default_factory=lambda: {MODEL: COMMIT})
    model_problems: tuple[str, ...] = ()
    strangers: list[Stranger] = field(default_factory=list)
    audit: list[dict[str, object]] = field(default_factory=list)
    missing: dict[str, dict[str, str]] = field(default_factory=dict)
    """Sections of far programs that cannot be read: name → {"missing": why, "kind": kind}."""
    total_bytes: int = 120 * GIB
    engine_bytes: int = 90 * GIB
    cached_bytes: int = 0
    lingering_bytes: int = 0
    sudo: bool = True
    can_ping: bool = True
    smi: tuple[int, str] | None = None
    """What nvidia-smi says instead, with its exit code."""
    rdma_device: bool = True
    boots: int = 1
    arch: str = "aarch64"
    product: str = "NVIDIA_DGX_Spark"

    def __post_init__(self) -> None:
        self.docker = FakeDocker(
            self.exists, self.born, self.alone, self.desk.monotonic, {IMAGE: Image(IMAGE)}, devices={"/dev/infiniband"}
        )

    # files

    def exists(self, path: str) -> bool:
        return path in self.files or path in self.folders

    def make_folder(self, path: str) -> None:
        parts = path.split("/")
        self.folders |= {"/".join(parts[:count]) or "/" for count in range(1, len(parts) + 1)}

    def put(self, put: Put) -> None:
        """Host.put."""
        with LOCK:
            path = self.absolute(put.path)
            self.make_folder(path.rpartition("/")[0])
            self.files[path] = (put.data, put.mode)

    def read(self, path: str) -> bytes:
        return self.files[path][0]

    def remove(self, path: str) -> None:
        """`rm -rf`."""
        inside = path + "/"
        self.files = {name: file for name, file in self.files.items() if name != path and not name.startswith(inside)}
        self.folders = {name for name in self.folders if name != path and not name.startswith(inside)}

    def absolute(self, path: str) -> str:
        return HOME + path[1:] if path.startswith("~") else path

    def below(self, path: str) -> list[str]:
        """Names of all files below a folder, relative to it."""
        return sorted(name[len(path) + 1 :] for name in self.files if name.startswith(path + "/"))

    def kept(self) -> list[str]:
        """Names of the deployments' folders."""
        place = f"{DATA}/deployments/"
        return sorted({name[len(place) :].split("/")[0] for name in self.folders if name.startswith(place)})

    # what runs

    def lives(self) -> list[RankLife]:
        return [one.life for one in self.docker.containers.values() if isinstance(one.life, RankLife) and one.running]

    def born(self, container: Container) -> Life | int:
        """What is inside a container that starts; a number when it ended at once."""
        if container.args[:2] == ("-u", "/cluster/rank.py"):
            assert self.read(container.source_of("/cluster/rank.py")) == source("rank")
            return RankLife(self.desk, self, container)
        return Life() if container.path in ("sleep", "vllm") else 0

    def alone(self, container: Container, stdin: bytes) -> Answer:
        """`docker run --rm`: the probe of an image, or a download."""
        image = self.docker.images[container.image]
        if container.path == "python3" and FAR.get(stdin) == "image":
            told = {
                "python": image.python, "versions": image.versions, "distributions": {}, "gpu_error": "",
                "knows_architecture": container.args[1] in image.architectures if len(container.args) > 1 else None,
                "gpus": ["GPU 0: NVIDIA GB10 (UUID: GPU-0)"], "infiniband": False,
            }  # fmt: skip
            return Answer(0, json.dumps(told).encode())
        assert (container.path, container.args[0]) == ("hf", "download"), "a container that is not known"
        return self.download(container)

    def download(self, container: Container) -> Answer:
        _, model, _, revision = container.args
        path = container.source_of(container.env.get("HF_TOKEN_PATH", "/nowhere"))
        token = self.read(path).decode() if path else ""
        if model not in self.desk.hub or (self.desk.hub_token and token != self.desk.hub_token):
            return Answer(1, err=f"401 Client Error: cannot access {model} at {revision}\n".encode())
        self.models[model] = COMMIT
        return Answer(0, f"/hf/hub/models--{model.replace('/', '--')}\n".encode())

    def rows(self) -> Iterator[tuple[int, str, int, str, bool]]:
        """(pid, name, bytes, container, uses the GPU) of all processes that hold memory."""
        for life in self.lives():
            for count, (name, held) in enumerate(life.processes()):
                yield life.container.pid * 10 + count, name, held, life.container.id, name.startswith("VLLM")
        for one in self.strangers:
            if one.bytes:
                yield one.pid, one.name, one.bytes, "", one.on_gpu

    @property
    def available_bytes(self) -> int:
        return self.total_bytes - 4 * GIB - self.lingering_bytes - sum(row[2] for row in self.rows())

    def holder_of(self, port: int) -> str:
        """Who listens on a port; empty when it is free."""
        return next((row["process"] or "?" for row in self.listeners() if row["port"] == port), "")

    def listeners(self) -> list[dict[str, Any]]:
        rows = [("0.0.0.0", one.port, one.pid, one.name) for one in self.strangers if one.port]
        for life in self.lives():
            rows += [(address, port, None, "") for address, port in life.ports()]
        names = ("address", "port", "pid", "process")
        return [dict(zip(names, row, strict=True)) | {"uid": 0} for row in rows]

    # what it answers

    def answer(self, question: Question) -> Answer:
        """Host.ask, one question."""
        with LOCK:
            if question.argv[:4] == ("python3", "-I", "-S", "-"):
                name = FAR[question.stdin]
                told = getattr(self, f"tell_{name}")(json.loads(question.argv[4]))
                return told if isinstance(told, Answer) else Answer(0, json.dumps(told).encode())
            return self.command(question.argv, question.stdin)

    def command(self, argv: Sequence[str], stdin: bytes) -> Answer:
        if argv[0] == "docker":
            return self.docker.answer(argv[1:], stdin)
        if argv[0] == "sh":
            return self.shell(argv)
        return getattr(self, f"run_{argv[0]}")(list(argv[1:]))

    def shell(self, argv: Sequence[str]) -> Answer:
        """The scripts that are sent, known by their text. The story tells them to a real shell and a real docker."""
        _, _, script, _, *words = argv
        if self.docker.trouble:
            return Answer(1, err=self.docker.trouble[1].encode())
        containers = self.docker.containers.values()
        if script == words_for.END_SCRIPT:
            names = [one.name for one in containers if one.carries(words[0])]
            self.docker.answer(("stop", "-t", words[1], *names))
            return self.docker.answer(("rm", "--force", "--volumes", *names))
        named = next((one for one in containers if one.name == words[0]), None)
        if script == words_for.STARTED_SCRIPT:
            started = named and named.state != "created" and named.labels.get(words[1]) == words[2]
            return Answer(0 if started else 1)
        assert script == words_for.STOPPED_SCRIPT
        return Answer(0 if named and not named.running else 1)

    def run_true(self, words: list[str]) -> Answer:
        return Answer(0)

    def run_mkdir(self, words: list[str]) -> Answer:
        paths = [word for word in words if word.startswith(("/", "~"))]
        for path in paths:
            self.make_folder(path)
        return Answer(0)

    def run_rm(self, words: list[str]) -> Answer:
        flags, paths = words[: words.index("--")], words[words.index("--") + 1 :]
        assert flags == ["-rf"]
        for path in paths:
            assert path.startswith(f"{DATA}/deployments/"), path
            self.remove(path)
        return Answer(0)

    def run_sudo(self, words: list[str]) -> Answer:
        if not self.sudo:
            return Answer(1, err=b"sudo: a password is required\n")
        assert words[:3] == ["-n", "sh", "-c"]
        assert "drop_caches" in words[3]
        self.cached_bytes = 0
        return Answer(0)

    def run_journalctl(self, words: list[str]) -> Answer:
        return Answer(0, b"-- No entries --\n")

    def run_ping(self, words: list[str]) -> Answer:
        if not self.can_ping:
            return Answer(127)
        size, netdev, address = int(words[words.index("-s") + 1]), words[words.index("-I") + 1], words[-1]
        own = next(port for port in self.ports if port.netdev == netdev)
        peers = {text.split("/")[0]: port for machine in self.desk for port in machine.ports for text in port.addresses}
        if size + 28 > own.mtu:
            return Answer(1, err=f"ping: local error: message too long, mtu={own.mtu}\n".encode())
        reached = address in peers and size + 28 <= peers[address].mtu and not self.desk.cut & {self.name}
        return Answer(0) if reached else Answer(1, b"1 packets transmitted, 0 received, 100% packet loss\n")

    # programs of far/

    def sections(self, names: Sequence[str]) -> dict[str, Any]:
        return {name: self.missing.get(name) or {"value": getattr(self, f"see_{name}")()} for name in names}

    def tell_look(self, given: dict[str, Any]) -> dict[str, Any]:
        return self.sections(given["sections"])

    def tell_kept(self, given: dict[str, Any]) -> dict[str, Any]:
        return self.sections(given["sections"])

    def tell_links(self, given: dict[str, Any]) -> dict[str, Any]:
        return self.sections(["links"])

    def see_identity(self) -> dict[str, Any]:
        return {
            "product": self.product, "machine_id": f"{self.number:032x}", "boot_id": f"boot-{self.boots}",
            "hostname": self.name, "kernel": "6.11.0-1016-nvidia", "arch": self.arch, "user": "nvidia", "uid": 1000,
            "gid": 1000, "home": HOME, "groups": ["nvidia", "docker"], "python": "3.12.3", "path": "/usr/bin",
            "time_unix_s": 1767225600.0 + self.desk.now, "data_dir": DATA, "hf_home": HUB,
            "management_address": f"192.168.1.{40 + self.number}", "sudo": self.sudo,
        }  # fmt: skip

    def see_memory(self) -> str:
        available = self.available_bytes
        rows = {"MemTotal": self.total_bytes, "MemFree": available - self.cached_bytes, "MemAvailable": available}
        return "".join(f"{name}: {value // 1024} kB\n" for name, value in rows.items())

    def see_listening(self) -> list[dict[str, Any]]:
        return self.listeners()

    def see_processes(self) -> list[dict[str, Any]]:
        return [
            {"pid": pid, "name": name, "rss_bytes": GIB // 2 if on_gpu else held, "container": container}
            for pid, name, held, container, on_gpu in self.rows() if container
        ]  # fmt: skip

    def see_disk(self) -> list[dict[str, Any]]:
        room = {"free_bytes": 900 * GIB, "total_bytes": 3800 * GIB, "free_inodes": 1 << 20, "device": 1}
        return [{"path": path, **room} for path in (DATA, HUB, "/var/lib/docker")]

    def see_deployments(self) -> list[dict[str, Any]]:
        place = f"{DATA}/deployments"
        rows = []
        for name in self.kept():
            before = self.files.get(f"{place}/{name}/before.json")
            files = self.below(f"{place}/{name}")
            rows.append({"id": name, "files": files, "before": json.loads(before[0]) if before else None})
        return rows

    def see_lock(self) -> dict[str, Any]:
        return {"held": self.desk.hosts[self.name].lock_holder is not None}

    def see_links(self) -> dict[str, Any]:
        return {
            "links": [port.link() for port in self.ports if port.hca],
            "netdevs": sorted((port.netdev_row() for port in self.ports), key=lambda row: row["name"]),
            "default_netdev": "enP7s7", "rdma_device": self.rdma_device,
        }  # fmt: skip

    def tell_gpu(self, given: dict[str, Any]) -> dict[str, Any]:
        fields = [names[0] for names in given["fields"]]
        code, said = self.smi or (0, "NVIDIA GB10, 580.95.05, [N/A], [N/A], 12.34, 2418, 44, 0, 0x0000000000000001\n")
        rows = [(pid, name, held >> 20, container) for pid, name, held, container, on_gpu in self.rows() if on_gpu]
        return {
            "gpu": {"value": {"fields": fields, "exit": code, "said": said}},
            "apps": {"value": {
                "exit": code, "said": said if code else "".join(f"{row[0]}, {row[1]}, {row[2]}\n" for row in rows),
                "containers": {str(pid): container for pid, _, _, container in rows},
            }},
        }  # fmt: skip

    def tell_containers(self, given: dict[str, Any]) -> Answer:
        return run_over(self.docker, "containers", given)

    def tell_ranks(self, given: dict[str, Any]) -> Answer:
        return run_over(self.docker, "ranks", given)

    def tell_weights(self, given: dict[str, Any]) -> dict[str, Any]:
        model, commit = given["model"], self.models.get(given["model"])
        if "weights" in self.missing:
            return {"weights": self.missing["weights"]}
        if commit is None:
            return {"weights": {"missing": f"{model} is not in {HUB}/hub", "kind": "absent"}}
        path = model if model.startswith("/") else f"{HUB}/hub/models--{model.replace('/', '--')}/snapshots/{commit}"
        return {"weights": {"value": {
            "model": model, "revision": given["revision"], "commit": "" if model.startswith("/") else commit,
            "path": path, "files": 5, "bytes": 60 * GIB, "problems": list(self.model_problems), "listing": "1f" * 32,
            "unfinished": 0,
        }}}  # fmt: skip

    def tell_hub_model(self, given: dict[str, Any]) -> dict[str, Any]:
        token = self.read(given["token_file"]).decode() if given["token_file"] else ""
        if given["model"] not in self.desk.hub:
            return {"error": "Repository not found", "status": 404}
        if self.desk.hub_token and token != self.desk.hub_token:
            return {"error": "Access to model is restricted", "status": 401}
        return {"bytes": 59 * GIB}

    def tell_completion(self, given: dict[str, Any]) -> dict[str, Any]:
        port = int(given["url"].rpartition(":")[2])
        life = next((one for one in self.lives() if one.serving and int(one.flag("--port")) == port), None)
        if life is None:
            return {"health": 0, "models": [], "queue": ""}
        key = self.read(given["key_file"]).decode() if given["key_file"] else ""
        if key != life.secrets.get("VLLM_API_KEY", ""):
            return {"health": 200, "models": [], "queue": "", "status": 401, "text": "", "tokens": 0, "seconds": 0.0,
                    "error": "Unauthorized"}  # fmt: skip
        found = {"health": 200, "models": [life.flag("--served-model-name")], "queue": "0 running, 0 waiting"}
        if given["ask"]:
            self.desk.move_bytes(life)
            found |= {"status": 200, "way": "completions", "text": self.desk.says, "finish": "length", "tokens": 24,
                      "prompt_tokens": 6, "seconds": 0.5, "error": ""}  # fmt: skip
        return found


class Desk:
    """All machines, and the time they live in (it is a fleet's `clock`).

    `sockets`: NCCL falls back; `leaky`: the engine prints its secrets; `cut`: machines whose fabric link is cut;
    `trouble(life)`: why an engine cannot start; `says`: what the model answers.
    """

    def __init__(self, *names: str) -> None:
        self.now = 0.0
        self.sleeps = 0
        self.killed = False
        self.sockets = self.leaky = False
        self.cut: set[str] = set()
        self.says = " Paris, and it has been so for a long time."
        self.bad_flag, self.last_line = "", "RuntimeError: unknown kernel"
        self.hub: set[str] = {MODEL}
        self.hub_token = ""
        self.on_sleep: list[Any] = []
        self.machines = {name: Machine(self, name, count, spark_ports(count)) for count, name in enumerate(names, 1)}
        self.hosts = self._hosts()

    def __iter__(self) -> Iterator[Machine]:
        return iter(self.machines.values())

    def __getitem__(self, name: str) -> Machine:
        return self.machines[name]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("hosts", "on_sleep")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, on_sleep=[])
        self.hosts = self._hosts()

    def _hosts(self) -> dict[str, DeskHost]:
        return {name: DeskHost(self, machine) for name, machine in self.machines.items()}

    def copy(self) -> Desk:
        """A desk of its own, as this one is now."""
        copied: Desk = pickle.loads(pickle.dumps(self))
        return copied

    def connect(self, entries: Mapping[str, Any]) -> Fleet:
        """What `hosts.connect.connect` does, here."""
        cancel = Cancel()
        for name in entries:
            self.hosts[name].cancel = cancel
            self.hosts[name].changes = 0
        return Fleet([self.hosts[name] for name in entries], cancel=cancel, clock=self)

    # time

    def monotonic(self) -> float:
        """See Time."""
        return self.now

    def sleep(self, seconds: float, /) -> None:
        """See Time. What a test wants to happen meanwhile happens first."""
        with LOCK:
            self.sleeps += 1
            self.now += seconds
            self.settle()
        for event in list(self.on_sleep):
            event()

    def pass_time(self, seconds: float) -> None:
        """Let time pass without anybody waiting."""
        with LOCK:
            for _ in range(max(1, round(seconds))):
                self.now += 1
                self.settle()

    def settle(self) -> None:
        """All ranks go on as far as they can."""
        went_on = True
        while went_on:
            went_on = bool([life for life in self.lives() if life.step()])

    # ranks

    def lives(self) -> list[RankLife]:
        return [life for machine in self for life in machine.lives()]

    def ranks_of(self, container: Container) -> list[Container]:
        """All containers of the same deployment, on all machines."""
        label = f"cluster.deployment={container.labels['cluster.deployment']}"
        return [one for machine in self for one in machine.docker.containers.values() if one.carries(label)]

    def trouble(self, life: RankLife) -> str:
        """Why an engine cannot start; empty when it can."""
        return self.last_line if self.bad_flag and self.bad_flag in life.engine else ""

    def move_bytes(self, head: RankLife) -> None:
        """A completion over several ranks goes through the HCAs, or not."""
        for life in (head, *head.peers().values()):
            named = life.container.env.get("NCCL_IB_HCA", "").lstrip("=").split(",")
            for port in life.machine.ports:
                if port.hca in named and life.rdma and life.size > 1:
                    port.bytes += 1 << 20

    # faults

    def kill(self) -> None:
        """SIGKILL of the operator: its connections close, so its locks end."""
        self.killed = True
        for host in self.hosts.values():
            host.end_processes()
        raise Killed

    def recover(self) -> None:
        """A new operator, and whatever was unreachable is there again."""
        self.killed, self.on_sleep = False, []
        self.hosts = self._hosts()

    def reboot(self, name: str) -> None:
        """Switch a machine off and on."""
        machine = self.machines[name]
        machine.boots += 1
        for container in machine.docker.containers.values():
            if container.running:
                container.end(255, self.now)
                if container.options.get("--restart") == ["always"]:
                    machine.docker.start(container)
        self.hosts[name].end_processes()
        self.settle()

    def kill_rank(self, name: str) -> None:
        """`docker kill` by somebody: the rank says nothing."""
        for life in self[name].lives():
            life.over = True
            life.container.end(137, self.now)

    # what a test looks at

    def serving(self) -> dict[str, list[str]]:
        """Deployments that answer: id → hosts of all their running ranks."""
        found: dict[str, list[str]] = {}
        for head in (life for life in self.lives() if life.serving):
            ranks = [head, *head.peers().values()]
            if len(ranks) == head.size:
                found[head.container.labels["cluster.deployment"]] = sorted(one.machine.name for one in ranks)
        return found

    def state(self) -> dict[str, Any]:
        """Everything that a command could have changed, for comparison; times and traffic left out."""
        return {
            machine.name: SimpleNamespace(
                containers={one.id: (one.name, one.state, one.starts) for one in machine.docker.containers.values()},
                images=dict(machine.docker.images), files=dict(machine.files), folders=set(machine.folders),
                models=dict(machine.models), cached=machine.cached_bytes,
                processes=sorted(row[1:4] for row in machine.rows()),
            )
            for machine in self
        }  # fmt: skip


class DeskHost(FakeHost):
    """The connection to a machine of a desk, and more ways to fail.

    `killed_at`, `dropped_at`: just before the n-th change the operator is killed, or the host becomes unreachable;
    `lost_at`: the connection is lost just before it, and works again.
    """

    def __init__(self, desk: Desk, machine: Machine) -> None:
        super().__init__(machine.name, machine.answer, writer=machine.put, audit=machine.audit)
        self.desk = desk
        self.killed_at = self.dropped_at = self.lost_at = 0
        self.processes: list[FakeProcess] = []

    def start(self, argv: Sequence[str], stdin: bytes = b"", *, lasting: bool = False) -> FakeProcess:
        process = super().start(argv, stdin, lasting=lasting)
        self.processes.append(process)
        return process

    def drop(self) -> None:
        """It does not answer any more."""
        self.faults.unreachable = unreachable(self.name)
        self.end_processes()

    def end_processes(self) -> None:
        for process in self.processes:
            process.end()
        self.processes.clear()

    def _reach(self, scope: Scope) -> None:
        if self.desk.killed:
            raise Killed
        super()._reach(scope)

    def _count_change(self) -> int:
        if self.desk.killed:
            raise Killed
        number = super()._count_change()
        if number == self.killed_at:
            self.desk.kill()
        if number == self.dropped_at:
            self.drop()
        if number in (self.dropped_at, self.lost_at):
            raise ConnectionLostError(f"the connection to {self.name} was lost", where=self.name)
        return number


def unreachable(name: str) -> ClusterError:
    """What a host that is switched off gives."""
    return ConnectionLostError(f"{name} did not answer within 10 s", where=name, remedy="is it on?")
