# mypy: disable-error-code="import-not-found,import-untyped,misc,no-any-return,attr-defined"
"""The ranks behind the server: Ray actors that hold real GPUs of Ray, or processes that talk over a socket.

Both move real bytes over the address they were given, so that counters grow as they would.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from argparse import Namespace
from typing import Any, Protocol

PART = 16 << 10  # bytes a rank gets and gives for each token
JOIN_S = 600.0
MIB = 64


class Ranks(Protocol):
    """What the engine core steps."""

    def step(self, parts: int) -> None:
        """Move `parts` times 16 KiB to each other rank and back."""
        ...


def log(text: str) -> None:
    """One line as vLLM writes them."""
    print(f"(EngineCore pid={os.getpid()}) INFO {time.strftime('%m-%d %H:%M:%S')} [quick] {text}", flush=True)


def name_process(title: str) -> None:
    """What `ps` and nvidia-smi show."""
    import setproctitle

    setproctitle.setproctitle(title)


class Alone:
    """One rank: the engine core itself holds the memory."""

    def __init__(self, given: Namespace) -> None:
        self._ballast = ballast(given)

    def step(self, parts: int) -> None:
        """Nothing moves."""


class RayRanks:
    """One actor with one of Ray's GPUs for each rank; the engine ends when one of them does."""

    def __init__(self, given: Namespace) -> None:
        import ray

        ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
        await_gpus(ray, given.size)
        mib = given.quick.get("mib", MIB)

        class RayWorkerProc:
            def __init__(self) -> None:
                self.ballast = bytearray(os.urandom(1 << 20) * mib)

            def run(self) -> None:
                threading.Event().wait()

            def step(self, data: bytes) -> bytes:
                return data

        actor = ray.remote(num_gpus=1, max_concurrency=4)(RayWorkerProc)
        self._ray = ray
        self._actors = [actor.remote() for _ in range(given.size)]
        ray.get([one.step.remote(b"") for one in self._actors], timeout=JOIN_S)
        runs = [one.run.remote() for one in self._actors]
        threading.Thread(target=self._watch, args=(runs,), daemon=True).start()

    def step(self, parts: int) -> None:
        """Move bytes by Ray's own calls."""
        data = bytes(PART)
        for _ in range(parts):
            self._ray.get([one.step.remote(data) for one in self._actors], timeout=60)

    def _watch(self, runs: list[Any]) -> None:
        try:
            self._ray.get(runs)
        except Exception as error:
            first = str(error).strip().splitlines()[0]
            log(f"ERROR Worker proc died unexpectedly: {type(error).__name__}: {first}")
        os._exit(1)


def await_gpus(ray: Any, size: int) -> None:
    """Wait as vLLM does for its placement group, and say so as it does."""
    began = time.monotonic()
    shown = 0.0
    while ray.cluster_resources().get("GPU", 0) < size:
        waited = time.monotonic() - began
        if waited - shown >= 10:
            shown = waited
            specs = [{"GPU": 1.0}] * size
            log(f"Waiting for creating a placement group of specs for {waited:.0f} seconds. specs={specs}.")
        time.sleep(0.2)


class SocketRanks:
    """Rank 0 of the mp backend: listens on the master's address; a worker process of its own holds the memory."""

    def __init__(self, given: Namespace) -> None:
        self._own = start_worker(0, given)
        self._links: list[socket.socket] = []
        with socket.create_server((given.master_addr, given.master_port)) as door:
            door.settimeout(JOIN_S)
            while len(self._links) < given.nnodes - 1:
                self._links.append(door.accept()[0])

    def step(self, parts: int) -> None:
        """Move bytes there and back. A peer that is gone is not noticed: vLLM's own mp backend does not either."""
        for link in self._links:
            for _ in range(parts):
                link.sendall(bytes(PART))
                receive(link, PART)


def start_worker(rank: int, given: Namespace) -> subprocess.Popen[bytes]:
    """A worker process; it ends with its parent."""
    where = f"{given.master_addr}:{given.master_port}" if rank else ""
    words = [sys.executable, sys.argv[0], "worker", str(rank), str(given.quick.get("mib", MIB)), where]
    return subprocess.Popen(words, stdin=subprocess.PIPE)


def be_worker(rank: int, mib: int, master: str) -> int:
    """`vllm worker`: hold memory; with a master, give back what it sends."""
    name_process(f"VLLM::Worker_TP{rank}")
    held = bytearray(os.urandom(1 << 20) * mib)
    threading.Thread(target=end_with_parent, daemon=True).start()
    if not master:
        threading.Event().wait()
    address, _, port = master.rpartition(":")
    link = connect(address, int(port))
    while data := receive(link, PART):
        link.sendall(data)
    threading.Event().wait()  # a worker whose master is gone lives on, as vLLM's does
    return len(held)


def end_with_parent() -> None:
    """stdin ends with the parent."""
    sys.stdin.buffer.read()
    os._exit(0)


def connect(address: str, port: int) -> socket.socket:
    """Connect to the master as soon as it listens."""
    until = time.monotonic() + JOIN_S
    while True:
        try:
            return socket.create_connection((address, port), timeout=None)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def receive(link: socket.socket, size: int) -> bytes:
    """Exactly `size` bytes; nothing when the other end closed."""
    data = b""
    while len(data) < size:
        part = link.recv(size - len(data))
        if not part:
            return b""
        data += part
    return data


def ballast(given: Namespace) -> bytearray:
    """Memory that this process really uses."""
    return bytearray(os.urandom(1 << 20) * given.quick.get("mib", MIB))


def make_ranks(given: Namespace) -> Ranks:
    """The ranks that the words ask for."""
    if given.distributed_executor_backend == "ray":
        return RayRanks(given)
    if given.nnodes > 1:
        return SocketRanks(given)
    if given.size > 1:
        raise SystemExit(f"World size ({given.size}) is larger than the number of available GPUs (1) in this node.")
    return Alone(given)
