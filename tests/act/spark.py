"""One simulated machine of a desk: its files, docker and other processes; what it answers to commands and far/."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from fact_samples import BY_QUESTION, healthy
from fake_docker import Container, FakeDocker, Image, Life
from fake_host import FakeProcess, Put
from far_program import run_over
from rank_life import RankLife

from cluster.argv import clocks
from cluster.argv import docker as words_for
from cluster.argv.far import source
from cluster.argv.question import Answer, Question

if TYPE_CHECKING:
    from machine import Desk

GIB = 1 << 30
HOME = "/home/nvidia"
DATA = f"{HOME}/.local/share/cluster"
HUB = f"{HOME}/.cache/huggingface"
COMMIT = "c0ffee00" * 5
SMI = "NVIDIA GB10, 580.95.05, [N/A], [N/A], 12.34, 2418, 44, 0, 0x0000000000000001, [N/A]\n"
STARS = "*" * 36
REPORT = """\
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      361208           0.00               {gbps:.2f}		     0.180604
"""
IMAGE = "example.org/vllm:1"
MODEL = "example/toy"
PROGRAMS = "look links kept gpu containers weights ranks completion image hub_model"
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

    @property
    def address(self) -> str:
        return self.addresses[0].split("/")[0] if self.addresses else ""

    def netdev_row(self) -> dict[str, Any]:
        operstate = "up" if self.state == "ACTIVE" else "down"
        row = {"name": self.netdev, "mtu": self.mtu, "operstate": operstate, "addresses": list(self.addresses)}
        return row | {"rx_bytes": 5, "tx_bytes": 5}

    def link(self) -> dict[str, Any]:
        gids = [{"index": self.gid_index, "gid": f"::ffff:{self.address}", "kind": "RoCE v2"}] if self.addresses else []
        row = {"hca": self.hca, "netdev": self.netdev, "state": self.state, "rate_gbps": 100.0, "gids": gids}
        row |= {"firmware": "28.45.4028", "xmit_bytes": self.bytes, "rcv_bytes": self.bytes}
        return row | {name: self.netdev_row()[name] for name in ("mtu", "addresses", "operstate")}


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
    gpu_limit_mhz: int | None = None
    limiters: tuple[str, ...] = ()
    """Units and cron files that limit the GPU's clocks."""
    locks: bool = True
    """Whether the driver can limit clocks."""
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
        with LOCK:
            path = self.absolute(put.path)
            self.make_folder(path.rpartition("/")[0])
            self.files[path] = (put.data, put.mode)

    def read(self, path: str) -> bytes:
        return self.files[path][0]

    def remove(self, path: str) -> None:
        inside = path + "/"
        self.files = {name: file for name, file in self.files.items() if name != path and not name.startswith(inside)}
        self.folders = {name for name in self.folders if name != path and not name.startswith(inside)}

    def absolute(self, path: str) -> str:
        return HOME + path[1:] if path.startswith("~") else path

    def below(self, path: str) -> list[str]:
        return sorted(name[len(path) + 1 :] for name in self.files if name.startswith(path + "/"))

    def kept(self) -> list[str]:
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
            known = container.args[1] in image.architectures if len(container.args) > 1 else None
            got = {"python": image.python, "versions": image.versions, "knows_architecture": known, "gpu_error": ""}
            got |= {"gpus": ["GPU 0: NVIDIA GB10 (UUID: GPU-0)"], "packages": "/opt/packages"}
            return Answer(0, json.dumps(got).encode())
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
        return next((row["process"] or "?" for row in self.see_listening() if row["port"] == port), "")

    def see_listening(self) -> list[dict[str, Any]]:
        rows = [("0.0.0.0", one.port, one.pid, one.name) for one in self.strangers if one.port]
        for life in self.lives():
            rows += [(address, port, None, "") for address, port in life.ports()]
        names = ("address", "port", "pid", "process")
        return [dict(zip(names, row, strict=True)) | {"uid": 0} for row in rows]

    # what it answers

    def answer(self, question: Question) -> Answer:
        """Host.ask, one question."""
        with LOCK:
            if question in BY_QUESTION:
                return healthy(BY_QUESTION[question])
            if question.argv[:4] == ("python3", "-I", "-S", "-"):
                name = FAR[question.stdin]
                got = getattr(self, f"tell_{name}")(json.loads(question.argv[4]))
                return got if isinstance(got, Answer) else Answer(0, json.dumps(got).encode())
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
        """The scripts that are sent, known by their text. The docker story runs them for real."""
        _, _, script, _, *words = argv
        if self.docker.trouble and script not in (clocks.LIMIT_SCRIPT, clocks.RESET_SCRIPT):
            return Answer(1, err=self.docker.trouble[1].encode())
        containers = self.docker.containers.values()
        if script == words_for.END_SCRIPT:
            names = [one.name for one in containers if one.carries(words[0])]
            self.docker.answer(("stop", "-t", words[1], *names))
            return self.docker.answer(("rm", "--force", "--volumes", *names))
        if script in (clocks.LIMIT_SCRIPT, clocks.RESET_SCRIPT):
            return self.set_clocks(*words)
        if script == words_for.BUILD_SCRIPT:
            tag, image, folder = words
            return self.docker.build(tag, image, self.read(f"{folder}/Dockerfile"))
        named = next((one for one in containers if one.name == words[0]), None)
        if script == words_for.STARTED_SCRIPT:
            started = named and named.state != "created" and named.labels.get(words[1]) == words[2]
            return Answer(0 if started else 1)
        assert script == words_for.STOPPED_SCRIPT
        return Answer(0 if named and not named.running else 1)

    def set_clocks(self, path: str, mhz: str = "") -> Answer:
        """Limit the GPU's clocks, or put them back; the scripts are run for real elsewhere."""
        note = self.see_clock_limit()
        if not mhz and note["mhz"] is None:
            return Answer(0)
        if not self.sudo and (mhz or note["current"]):
            return Answer(1, err=b"sudo: a password is required\n")
        if mhz and not self.locks:
            return Answer(1, err=b"Setting locked GPU clocks is not supported for GPU 0000000F:01:00.0.\n")
        if mhz:
            self.gpu_limit_mhz = int(mhz)
            self.files[path] = (json.dumps({"sm_max_mhz": int(mhz), "boot": str(self.boots)}).encode(), 0o600)
            return Answer(0)
        self.gpu_limit_mhz = None if note["current"] else self.gpu_limit_mhz
        del self.files[path]
        return Answer(0)

    def see_clock_limit(self) -> dict[str, Any]:
        note = json.loads(self.files.get(f"{DATA}/{clocks.NOTE}", (b"{}",))[0])
        current = note.get("boot") == str(self.boots)
        return {"mhz": note.get("sm_max_mhz"), "current": current, "others": list(self.limiters)}

    @property
    def address(self) -> str:
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

    # what it answers to the programs of far/, in their own formats: one method a program, one a section

    def sections(self, names: Sequence[str]) -> dict[str, Any]:
        values = {name: getattr(self, f"see_{name}", lambda name=name: getattr(self, name)) for name in names}
        return {name: self.missing.get(name) or {"value": value()} for name, value in values.items()}

    def tell_look(self, given: dict[str, Any]) -> dict[str, Any]:
        return self.sections(given["sections"])

    def tell_kept(self, given: dict[str, Any]) -> dict[str, Any]:
        if given.get("paths") == [self.docker.root]:
            room = {"path": self.docker.root, "free_bytes": self.root_free_bytes}
            return {"disk": {"value": [{**room, "free_inodes": None, "device": 2}]}}
        return self.sections(given["sections"])

    def tell_links(self, given: dict[str, Any]) -> dict[str, Any]:
        return self.sections(["links"])

    def see_identity(self) -> dict[str, Any]:
        groups = ["nvidia"] if self.docker.trouble else ["nvidia", "docker"]
        user = {"user": "nvidia", "uid": 1000, "gid": 1000, "groups": groups, "path": "/usr/bin", "sudo": self.sudo}
        host = {"product": self.product, "hostname": self.name, "kernel": "6.11.0-1016-nvidia", "arch": self.arch}
        host |= {"machine_id": self.see_machine(), "management_address": self.address}
        return user | host | {"data_dir": DATA, "hf_home": HUB}

    def see_clock(self) -> dict[str, Any]:
        return {"time_unix_s": self.desk.time() + self.ahead_s, "synchronised": True}

    def see_memory(self) -> str:
        available = self.available_bytes
        rows = {"MemTotal": self.total_bytes, "MemFree": available - self.cached_bytes, "MemAvailable": available}
        return "".join(f"{name}: {value // 1024} kB\n" for name, value in rows.items())

    def see_processes(self) -> list[dict[str, Any]]:
        return [
            {"pid": pid, "name": name, "rss_bytes": GIB // 2 if on_gpu else held, "container": container}
            for pid, name, held, container, on_gpu in self.rows()
            if container
        ]

    def see_disk(self) -> list[dict[str, Any]]:
        room = {"free_bytes": self.free_bytes, "free_inodes": 1 << 20, "device": 1}
        return [{"path": path, **room} for path in (DATA, HUB, "/var/lib/docker")]

    def see_deployments(self) -> list[dict[str, Any]]:
        before = {name: self.files.get(f"{DATA}/deployments/{name}/before.json") for name in self.kept()}
        return [{"id": name, "before": json.loads(text[0]) if text else None} for name, text in before.items()]

    def see_lock(self) -> dict[str, Any]:
        holder = self.desk.hosts[self.name].lock_holder
        return {"held": holder is not None, **(holder or {})}

    def see_links(self) -> dict[str, Any]:
        netdevs = sorted((port.netdev_row() for port in self.ports), key=lambda row: row["name"])
        links = [port.link() for port in self.ports if port.hca]
        return {"links": links, "netdevs": netdevs, "rdma_device": self.rdma_device}

    def tell_gpu(self, given: dict[str, Any]) -> dict[str, Any]:
        fields = [names[0] for names in given["fields"]]
        code, said = self.smi or (0, SMI.replace("2418", str(min(2418, self.gpu_limit_mhz or 2418))))
        rows = [(pid, name, held >> 20, container) for pid, name, held, container, on_gpu in self.rows() if on_gpu]
        apps = said if code else "".join(f"{pid}, {name}, {mib}\n" for pid, name, mib, _ in rows)
        containers = {str(pid): container for pid, _, _, container in rows}
        gpu, apps = (
            {"fields": fields, "exit": code, "said": said},
            {"exit": code, "said": apps, "containers": containers},
        )
        return {"gpu": {"value": gpu}, "apps": {"value": apps}}

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
        there = [name for name in given["files"] if self.exists(f"{path}/{name}")]
        gone = [f"{name}: not there, and the recipe mounts it" for name in given["files"] if name not in there]
        gone += ["no weight files"] * bool(self.left_out.get(model) and not given["dummy"])
        value = {"model": model, "revision": given["revision"], "commit": "" if model.startswith("/") else commit}
        value |= {"path": path, "files": 5, "bytes": 60 * GIB, "listing": "1f" * 32}
        value["problems"] = [*self.model_problems, *gone]
        value["hashes"] = {name: sha256(self.read(f"{path}/{name}")).hexdigest() for name in there}
        return {"weights": {"value": value}}

    def tell_hub_model(self, given: dict[str, Any]) -> dict[str, Any]:
        token = self.read(given["token_file"]).decode() if given["token_file"] else ""
        if given["model"] not in self.desk.hub:
            return {"error": "Repository not found", "status": 404}
        if self.desk.hub_token and token != self.desk.hub_token:
            return {"error": "Access to model is restricted", "status": 401}
        return {"bytes": 1 * GIB if given.get("leave_out") else 59 * GIB}

    def tell_completion(self, given: dict[str, Any]) -> dict[str, Any]:
        port = int(given["url"].rpartition(":")[2])
        life = next((one for one in self.lives() if one.serving and int(one.flag("--port")) == port), None)
        if life is None:
            return {"health": 0, "models": [], "counters": ""}
        key = self.read(given["key_file"]).decode() if given["key_file"] else ""
        if key != life.secrets.get("VLLM_API_KEY", ""):
            return {"health": 200, "models": [], "counters": "", "status": 401, "error": "Unauthorized"}
        counters = "".join(f'vllm:{name}{{engine="0"}} {value:.1f}\n' for name, value in life.counts.items())
        found = {"health": 200, "models": [life.flag("--served-model-name")], "counters": counters}
        if given["ask"]:
            self.desk.move_bytes(life)
            status, error = self.desk.answers
            text, tokens = (self.desk.says, given["tokens"]) if status == 200 else ("", 0)
            found |= {"status": status, "text": text, "tokens": tokens, "seconds": 0.5, "error": error}
        return found

    # the ends of a fabric test: far/flood, and perftest; each is given its own HCA, GID and address, and the peer's

    def port_at(self, address: str) -> Port:
        return next(port for port in self.ports if port.address == address)

    def started(self, argv: tuple[str, ...], stdin: bytes) -> FakeProcess:
        if source("flood") in stdin:
            return self.flood(json.loads(argv[-1]), stdin.rpartition(source("flood"))[2])
        if source("load") in stdin:
            from fake_load import FakeLoad

            return FakeLoad(self, argv, stdin)
        if "ib_write_bw" in argv:
            self.check_own(argv)
            if "listen" in self.broken:
                return FakeProcess(self.broken["listen"].splitlines(), 1)
            return FakeProcess(["", STARS, "* Waiting for client to connect... *", STARS])
        return FakeProcess()

    def flood(self, given: dict[str, Any], token: bytes) -> FakeProcess:
        assert len(token.strip()) == 32
        if given["role"] in self.broken:
            return FakeProcess([self.broken[given["role"]]], 0)
        if given["role"] == "receive":
            assert self.port_at(given["address"])
            return FakeProcess(['{"port": 40123}'])
        assert given["port"] == 40123
        count = self.port_at(given["own"]).tcp_gbps * 1e9 / 8 * given["seconds"]
        line = {"bytes": int(count), "seconds": float(given["seconds"]), "cpu": self.busiest_core}
        return FakeProcess([json.dumps(line)], 0)

    def check_own(self, words: tuple[str, ...] | list[str]) -> Port:
        """The port that ib_write_bw is given, by HCA and GID index."""
        hca, index = (words[words.index(name) + 1] for name in ("--ib-dev", "--gid-index"))
        port = next(port for port in self.ports if port.hca == hca)
        assert port.gid_index == int(index)
        return port

    def run_ib_write_bw(self, words: list[str]) -> Answer:
        if not self.perftest:
            return Answer(127)
        if words == ["--version"]:
            return Answer(1, b"Version: 24.01\n")
        if "call" in self.broken:
            return Answer(1, err=self.broken["call"].encode())
        port = self.check_own(words)
        assert any(words[-1] == one.address for machine in self.desk if machine is not self for one in machine.ports)
        return Answer(0, REPORT.format(gbps=port.rdma_gbps).encode())
