# mypy: disable-error-code="import-not-found,import-untyped,misc,no-any-return,attr-defined"
"""The ranks behind the server: Ray actors that hold real GPUs of Ray, or processes that talk over a socket.

Both move real bytes over the address they were given, so that counters grow as they would.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from .words import log

PART = 16 << 10  # bytes a rank gets and gives for each token
JOIN_S = 600.0
MIB = 64

Step = Callable[[int], None]  # moves so many parts to each other rank and back


def make_ranks(given: Namespace) -> Step:
    if given.distributed_executor_backend == "ray":
        return ray_ranks(given)
    if given.nnodes > 1:
        return socket_ranks(given)
    if given.size > 1:
        raise SystemExit(f"World size ({given.size}) is larger than the number of available GPUs (1) in this node.")
    held = load(given.quick)  # one rank: the engine core itself holds the memory
    return lambda parts: held.extend(())


def load(quick: dict[str, Any]) -> list[bytes]:
    """Memory that this process really uses: `mib`, and `grow_mib` more from `grow_after_s` later on."""
    held = list[bytes]()
    take(held, quick.get("mib", MIB), quick.get("mib_s", 0))
    more = held, quick.get("grow_mib", 0), quick.get("grow_mib_s", 0)
    threading.Timer(quick.get("grow_after_s", 0), take, more).start()
    return held


def take(held: list[bytes], mib: int, mib_s: float) -> None:
    """Use `mib` more, so many a second, 0: all in one jump."""
    began, piece = time.monotonic(), 16 if mib_s else mib
    for taken in range(0, mib, piece or 1):
        held.append(b"x" * (min(piece, mib - taken) << 20))
        if mib_s:
            time.sleep(max(0.0, began + (taken + piece) / mib_s - time.monotonic()))


def name_process(title: str) -> None:
    import setproctitle

    setproctitle.setproctitle(title)


def ray_ranks(given: Namespace) -> Step:
    """One actor with one of Ray's GPUs for each rank; the engine ends when one of them does."""
    import ray

    ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    await_gpus(ray, given.size)
    quick = given.quick

    class RayWorkerProc:
        def __init__(self) -> None:
            sys.path.insert(0, "/opt/quick")  # its process was started by Ray
            from quick.ranks import load

            self.held = load(quick)

        def run(self) -> None:
            threading.Event().wait()

        def step(self, data: bytes) -> bytes:
            return data

    actor = ray.remote(num_gpus=1, max_concurrency=4)(RayWorkerProc)
    actors = [actor.remote() for _ in range(given.size)]
    ray.get([one.step.remote(b"") for one in actors], timeout=JOIN_S)
    runs = [one.run.remote() for one in actors]

    def watch() -> None:
        try:
            ray.get(runs)
        except Exception as error:
            first = str(error).strip().splitlines()[0]
            log("EngineCore", f"ERROR Worker proc died unexpectedly: {type(error).__name__}: {first}")
        os._exit(1)

    def step(parts: int) -> None:
        for _ in range(parts):
            ray.get([one.step.remote(bytes(PART)) for one in actors], timeout=60)

    threading.Thread(target=watch, daemon=True).start()
    return step


def await_gpus(ray: Any, size: int) -> None:
    """Wait as vLLM does for its placement group, with its log lines."""
    began, shown = time.monotonic(), 0.0
    while ray.cluster_resources().get("GPU", 0) < size:
        waited = time.monotonic() - began
        if waited - shown >= 10:
            shown, specs = waited, [{"GPU": 1.0}] * size
            what = f"Waiting for creating a placement group of specs for {waited:.0f} seconds. specs={specs}."
            log("EngineCore", what)
        time.sleep(0.2)


def socket_ranks(given: Namespace) -> Step:
    """Rank 0 of the mp backend: listens on the master's address; a worker process of its own holds the memory.

    A peer that is gone is not noticed: vLLM's own mp backend does not either.
    """
    own, links = start_worker(0, given, stdout=subprocess.PIPE), list[socket.socket]()
    assert own.stdout
    print(own.stdout.readline().decode(), end="", flush=True)  # it has loaded
    with socket.create_server((given.master_addr, given.master_port)) as door:
        door.settimeout(JOIN_S)
        while len(links) < given.nnodes - 1:
            links.append(door.accept()[0])

    def step(parts: int) -> None:
        assert own.stdin  # its end would end the worker
        for link in links:
            for _ in range(parts):
                link.sendall(bytes(PART))
                receive(link, PART)

    return step


def start_worker(rank: int, given: Namespace, stdout: int | None = None) -> subprocess.Popen[bytes]:
    where = f"{given.master_addr}:{given.master_port}" if rank else ""
    words = [sys.executable, sys.argv[0], "worker", str(rank), json.dumps(given.quick), where]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=stdout)


def be_worker(rank: int, quick: dict[str, Any], master: str) -> int:
    """`vllm worker`: hold memory; with a master, return what it sends."""
    name_process(f"VLLM::Worker_TP{rank}")
    threading.Thread(target=lambda: os._exit(len(sys.stdin.buffer.read())), daemon=True).start()
    began, held = time.monotonic(), load(quick)
    log("Worker", f"Loading weights took {time.monotonic() - began:.2f} seconds")
    if master:
        address, _, port = master.rpartition(":")
        link = connect(address, int(port))
        while data := receive(link, PART):
            link.sendall(data)
    threading.Event().wait()  # a worker whose master is gone runs on, as vLLM's does
    return len(held)


def connect(address: str, port: int) -> socket.socket:
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
    while len(data) < size and (part := link.recv(size - len(data))):
        data += part
    return data if len(data) == size else b""
