"""One simulated machine of a desk: its files, its docker, its strangers, and the commands it understands."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fabric_ends import FabricEnds
from fake_docker import Container, FakeDocker, Image, Life
from fake_host import Put
from far_answers import COMMIT, DATA, GIB, HOME, HUB, Answers
from rank_life import RankLife

from cluster.argv import docker as words_for
from cluster.argv.far import source
from cluster.argv.question import Answer, Question

if TYPE_CHECKING:
    from machine import Desk

IMAGE = "example.org/vllm:1"
MODEL = "example/toy"
PROGRAMS = "look links kept others gpu containers weights ranks completion image hub_model"
FAR = {source(name): name for name in PROGRAMS.split()}
LOCK = threading.RLock()
"""One machine answers one question at a time; one for all, so that desks can be copied."""


@dataclass
class Port:
    """An HCA with its netdev. `netdev` alone (an empty `hca`) is plain Ethernet.

    `gid_index`: of the RoCE v2 GID of its first address. `rdma_gbps`, `tcp_gbps`: what goes out over it.
    """

    hca: str
    netdev: str
    addresses: tuple[str, ...] = ()
    state: str = "ACTIVE"
    mtu: int = 9000
    bytes: int = 1000
    gid_index: int = 3
    rdma_gbps: float = 95.0
    tcp_gbps: float = 60.0

    def link(self) -> dict[str, Any]:
        up = self.state == "ACTIVE"
        return {
            "hca": self.hca,
            "netdev": self.netdev,
            "state": self.state,
            "rate_gbps": 100.0,
            "mtu": self.mtu,
            "addresses": list(self.addresses),
            "operstate": "up" if up else "down",
            "firmware": "28.45.4028",
            "xmit_bytes": self.bytes,
            "rcv_bytes": self.bytes,
            "gids": [{"index": self.gid_index, "gid": f"::ffff:{self.address}", "kind": "RoCE v2"}]
            if self.addresses
            else [],
        }

    @property
    def address(self) -> str:
        return self.addresses[0].split("/")[0] if self.addresses else ""

    def netdev_row(self) -> dict[str, Any]:
        operstate = "up" if self.state == "ACTIVE" else "down"
        return {
            "name": self.netdev,
            "mtu": self.mtu,
            "operstate": operstate,
            "addresses": list(self.addresses),
            "rx_bytes": 5,
            "tx_bytes": 5,
        }


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
class Machine(Answers, FabricEnds):
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
    left_out: dict[str, set[str]] = field(default_factory=dict)
    strangers: list[Stranger] = field(default_factory=list)
    audit: list[dict[str, object]] = field(default_factory=list)
    missing: dict[str, dict[str, str]] = field(default_factory=dict)
    """Sections of far programs that cannot be read: name → {"missing": why, "kind": kind}."""
    total_bytes: int = 120 * GIB
    engine_bytes: int = 90 * GIB
    cached_bytes: int = 0
    lingering_bytes: int = 0
    free_bytes: int = 900 * GIB
    root_free_bytes: int = 900 * GIB
    sudo: bool = True
    tenants: list[dict[str, Any]] = field(default_factory=list)
    firewall: str = "-P INPUT ACCEPT\n-P FORWARD DROP\n-P OUTPUT ACCEPT\n"
    can_ping: bool = True
    kernel_log: tuple[str, ...] = ()
    ahead_s: float = 0.0
    smi: tuple[int, str] | None = None
    """What nvidia-smi says instead, with its exit code."""
    rdma_device: bool = True
    perftest: bool = False
    busiest_core: float = 0.3
    broken: dict[str, str] = field(default_factory=dict)
    """What an end of a fabric test says instead, by its role: receive, send, listen, call."""
    boots: int = 1
    machine_id: str | None = None
    """What /etc/machine-id holds; None for one of its own."""
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
                "python": image.python,
                "versions": image.versions,
                "gpu_error": "",
                "knows_architecture": container.args[1] in image.architectures if len(container.args) > 1 else None,
                "gpus": ["GPU 0: NVIDIA GB10 (UUID: GPU-0)"],
                "packages": "/opt/packages",
            }
            return Answer(0, json.dumps(told).encode())
        assert (container.path, container.args[0]) == ("hf", "download"), "a container that is not known"
        return self.download(container)

    def download(self, container: Container) -> Answer:
        _, model, _, revision, *rest = container.args
        self.left_out[model] = set(rest) - {"--exclude"}
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
        if argv[0] == "cmp":
            assert argv[1:4] == ("-s", "--", "-")
            return Answer(2 if argv[4] not in self.files else int(self.read(argv[4]) != stdin))
        return getattr(self, f"run_{argv[0].replace('-', '_')}")(list(argv[1:]))

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
        if script == words_for.BUILD_SCRIPT:
            tag, image, folder = words
            return self.docker.build(tag, image, self.read(f"{folder}/Dockerfile"))
        named = next((one for one in containers if one.name == words[0]), None)
        if script == words_for.STARTED_SCRIPT:
            started = named and named.state != "created" and named.labels.get(words[1]) == words[2]
            return Answer(0 if started else 1)
        assert script == words_for.STOPPED_SCRIPT
        return Answer(0 if named and not named.running else 1)

    @property
    def address(self) -> str:
        """Where it is reached over SSH."""
        return f"192.168.1.{40 + self.number}"

    def see_machine(self) -> str:
        return f"{self.number:032x}" if self.machine_id is None else self.machine_id

    def run_true(self, words: list[str]) -> Answer:
        return Answer(0)

    def run_mkdir(self, words: list[str]) -> Answer:
        for path in (word for word in words if word.startswith(("/", "~"))):
            self.make_folder(path)
        return Answer(0)

    def run_cat(self, words: list[str]) -> Answer:
        [path] = words
        if path == "/proc/meminfo":
            return Answer(0, self.see_memory().encode())
        if path == "/etc/machine-id" and self.see_machine():
            return Answer(0, f"{self.see_machine()}\n".encode())
        if path not in self.files:
            return Answer(1, err=f"cat: {path}: No such file or directory\n".encode())
        return Answer(0, self.read(path))

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
        lines = self.kernel_log if "_TRANSPORT=kernel" in words else ()
        return Answer(0, "".join(f"{line}\n" for line in lines or ("-- No entries --",)).encode())

    def run_uname(self, words: list[str]) -> Answer:
        said = f"Linux {self.name} 6.17.0-1014-nvidia #14 SMP PREEMPT_DYNAMIC {self.arch} GNU/Linux\n"
        return Answer(0, said.encode())

    def run_nvidia_smi(self, words: list[str]) -> Answer:
        code, said = self.smi or (0, "name, power.draw [W]\nNVIDIA GB10, 12.34 W\n")
        return Answer(code, said.encode())

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
