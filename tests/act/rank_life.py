"""What far/rank.py does in a container, as far as it is seen from outside: stages, ports, memory, ends.

Made of nothing but what the container was given: its words, its environment and the files mounted into it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fake_docker import Container, Life

from cluster.argv.question import Answer
from cluster.deploy.prove import POLL_S

if TYPE_CHECKING:
    from machine import Desk, Machine

GIB = 1 << 30
LOAD_S, READY_S = POLL_S, 2 * POLL_S
"""Seconds after the engine's start until the weights are in memory, and until the server answers."""
CORD_ENDED, NOT_JOINED = 76, 75


class RankLife(Life):
    """One rank. `step` lets it go on as far as it can at the present time."""

    def __init__(self, desk: Desk, machine: Machine, container: Container) -> None:
        self.desk, self.machine, self.container = desk, machine, container
        self.wanted: dict[str, Any] = json.loads(self.read("/cluster/rank.json"))
        self.token = self.read("/cluster/ray-token")
        self.rank: int = self.wanted["rank"]
        self.since = desk.now
        self.engine_since: float | None = None
        self.tied: set[int] = set()
        self.silent: dict[int, float] = {}
        self.worker_log: list[str] = []  # Ray's own files of its workers' output
        self.ray = self.joined = self.has_loaded = self.serving = self.over = False
        self.secrets: dict[str, str] = {}
        names = ("num_requests_running", "num_requests_waiting", "generation_tokens_total", "prompt_tokens_total")
        self.counts = dict.fromkeys(names, 0.0)
        self.tell("started", size=self.wanted["size"], backend=self.wanted["backend"], address=self.wanted["address"])
        if self.wanted["secrets"]:
            self.secrets = json.loads(self.read(self.wanted["secrets"]))
            self.tell("secrets", names=sorted(self.secrets))
        for words in self.wanted["before_serve"]:
            self.tell("before_serve", words=words)

    def read(self, path: str) -> str:
        return self.machine.read(self.container.source_of(path)).decode()

    def say(self, line: str) -> None:
        self.container.log.append((self.desk.now, line))

    def tell(self, stage: str, **more: Any) -> None:
        self.say(json.dumps({"cluster": "rank", "rank": self.rank, "stage": stage, "t": self.desk.now, **more}))

    # what it needs and what it holds

    @property
    def size(self) -> int:
        return int(self.wanted["size"])

    @property
    def engine(self) -> list[str]:
        return list(self.wanted["engine"] or [])

    def flag(self, name: str) -> str:
        return self.engine[self.engine.index(name) + 1] if name in self.engine else ""

    def peers(self) -> dict[int, RankLife]:
        """The other ranks that live, by rank: same secret, at the addresses we were given."""
        addresses = dict(enumerate(self.wanted["addresses"]))
        return {
            life.rank: life
            for life in self.desk.lives()
            if life is not self
            and life.token == self.token
            and addresses.get(life.rank) == life.wanted["address"]
            and not self.desk.cut & {self.machine.name, life.machine.name}
        }

    def ports(self) -> list[tuple[str, int]]:
        held: list[tuple[str, int]] = []
        if self.rank == 0 and self.size > 1:
            held.append((self.wanted["address"], self.wanted["cord_port"]))
        if self.ray:
            words = [word for word in self.wanted["ray_start"] if "-port=" in word or word.startswith("--port=")]
            own = [word for word in words if "worker-port" not in word and "dashboard-port" not in word]
            held += [("0.0.0.0", int(word.partition("=")[2])) for word in own]
        if self.engine_since is not None and self.flag("--master-port") and self.rank == 0:
            held.append((self.wanted["address"], int(self.flag("--master-port"))))
        if self.serving:
            held.append((self.flag("--host"), int(self.flag("--port"))))
        return held

    def processes(self) -> list[tuple[str, int]]:
        """(name, bytes) of the engine processes in the container."""
        rows = [("raylet", GIB // 4)] if self.ray else []
        rows += [("gcs_server", GIB // 8)] if self.ray and self.rank == 0 else []
        rows += [("vllm serve", GIB)] if self.engine_since is not None else []
        return [*rows, ("VLLM::Worker_TP0", self.machine.engine_bytes)] if self.loaded else rows

    @property
    def loaded(self) -> bool:
        """The weights are in memory: the head's engine has put them there, on all ranks."""
        return any(one.rank == 0 and one.has_loaded for one in (self, *self.peers().values()))

    @property
    def rdma(self) -> bool:
        """NCCL uses the HCAs: they are named, and the device was passed."""
        named = self.container.env.get("NCCL_IB_HCA", "")
        return bool(named) and "/dev/infiniband" in self.container.options.get("--device", []) and not self.desk.sockets

    # its course

    def step(self) -> bool:
        """Go on; whether anything changed."""
        if self.over:
            return False
        peers = self.peers()
        for rank in sorted(self.tied):
            why = "" if rank in peers else self.why_lost(rank)
            if why and (self.joined or self.rank):
                return self.end(CORD_ENDED, f"rank {rank} ({self.wanted['addresses'][rank]}){why}")
            if why:
                return self.end(NOT_JOINED, f"peers did not join: rank {rank} ({self.wanted['addresses'][rank]}){why}")
        began = self.tie(peers) or self.start_ray() or self.join(peers)
        return began or self.start_engine() or self.load() or self.guard() or self.serve()

    def why_lost(self, rank: int) -> str:
        """Why a cord has ended, in the words of far/cord; empty while it is only silent."""
        there = next(
            (one for one in self.desk.ranks_of(self.container) if one.labels["cluster.rank"] == str(rank)), None
        )
        if there and there.state == "exited":
            got = [json.loads(text) for _, text in there.log if '"ended"' in text]
            if got and there.exit_code == got[-1]["exit"]:
                return f": {got[-1]['why']}"
        if there and there.running:
            since = self.silent.setdefault(rank, self.desk.now)
            if self.desk.now - since < self.wanted["silence_s"]:
                return ""
            return f" was silent for {self.wanted['silence_s']:g} s: it has no power, hangs, or the link is cut"
        return " is gone, killed or rebooted: it closed the connection"

    def tie(self, peers: dict[int, RankLife]) -> bool:
        wanted = set(range(1, self.size)) if self.rank == 0 else {0}
        if self.size == 1 or self.tied == wanted:
            return False
        new = {rank for rank in wanted & set(peers) - self.tied if not peers[rank].over}
        if new:
            self.tied |= new
            return True
        if self.desk.now - self.since < self.wanted["join_timeout_s"]:
            return False
        addresses, waited = self.wanted["addresses"], f"{self.wanted['join_timeout_s']:g} s"
        if self.rank:
            return self.end(NOT_JOINED, f"rank 0 at {addresses[0]}:27110 did not answer within {waited}: refused")
        missing = "; ".join(f"no rank calls from {addresses[rank]}" for rank in sorted(wanted - self.tied))
        return self.end(NOT_JOINED, f"peers did not join within {waited}: {missing}")

    def start_ray(self) -> bool:
        if not self.wanted["ray_start"] or self.ray or (self.rank and not self.tied):
            return False
        self.ray = True
        self.tell("ray_started")
        return True

    def join(self, peers: dict[int, RankLife]) -> bool:
        if self.joined:
            return False
        if self.rank:
            self.joined = bool(self.tied)
            return self.joined
        ranks = [self, *(peers[rank] for rank in sorted(self.tied))]
        if len(ranks) < self.size or (self.wanted["ray_start"] and not all(one.ray for one in ranks)):
            return False
        self.joined = True
        self.tell("joined", nodes=[{"address": one.wanted["address"], "gpus": 1.0} for one in ranks])
        return True

    def start_engine(self) -> bool:
        if not self.joined or not self.engine or self.engine_since is not None:
            return False
        self.engine_since = self.desk.now
        self.tell("engine_started")
        if self.secrets and self.desk.leaky:
            self.say(f"DEBUG environment: {self.secrets}")
        return True

    def load(self) -> bool:
        if self.has_loaded or self.rank or self.engine_since is None or self.desk.now - self.engine_since < LOAD_S:
            return False
        if len(self.peers()) < self.size - 1:
            return False  # NCCL waits for a peer that it cannot reach
        self.has_loaded = True
        self.say("Loading weights took 2.50 seconds")
        return True

    def guard(self) -> bool:
        """Its guard's limit is crossed while the head's engine has the weights loaded."""
        why = self.machine.guard_says
        if not why or not self.loaded:
            return False
        self.say(why)
        return self.end(77, why, missing_bytes=GIB // 10, total_bytes=121 * GIB)

    def serve(self) -> bool:
        if self.serving or not self.has_loaded or self.desk.now - (self.engine_since or 0) < READY_S:
            return False
        why = self.desk.trouble(self)
        taken = self.machine.holder_of(int(self.flag("--port")))
        if why or taken:
            why = why or f"OSError: [Errno 98] Address already in use ({taken})"
            self.say(why)
            return self.end(1, f"engine exited with 1: {why}")
        self.serving = True
        for life in (self, *self.peers().values()) if self.size > 1 else ():
            using = "IB : Using [0]rocep1s0f0:1/RoCE" if life.rdma else "Socket : Using [0]enp1s0f0np0"
            life.say(f"{life.machine.name}:7:7 [0] NCCL INFO NET/{using}")
        return True

    def end(self, code: int, why: str, **more: int) -> bool:
        self.over = True
        self.tell("ended", why=why, exit=code, **more)
        self.container.end(code, self.desk.now)
        return True

    def stop(self) -> int:
        self.over = True
        self.tell("ended", why="asked to end (SIGTERM)", exit=0)
        return 0

    def exec(self, argv: Sequence[str]) -> Answer:
        """`docker exec`: Ray's nodes, the search for NCCL's lines in Ray's logs, and whether it runs."""
        if list(argv[4:]) == ["true"]:
            return Answer(0)
        if list(argv[:3]) == ["timeout", "-k", "2"] and list(argv[4:]) == ["python3", "/cluster/ray_nodes.py"]:
            assert self.read("/cluster/ray_nodes.py")
            if not self.ray:
                return Answer(1, json.dumps({"error": "ConnectionError: no GCS"}).encode())
            ranks = [self, *self.peers().values()]
            nodes = [{"address": one.wanted["address"], "alive": True, "gpus": 1.0} for one in ranks if one.ray]
            return Answer(0, json.dumps({"nodes": nodes}).encode())
        if "grep" in argv:
            found = [line for line in self.worker_log if re.search(argv[argv.index("-rhsE") + 1], line)]
            return Answer(0 if found else 1, "".join(f"{line}\n" for line in found).encode())
        return super().exec(argv)
