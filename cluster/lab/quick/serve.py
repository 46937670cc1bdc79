"""`vllm` of the quick image: serve, and the two kinds of process that it starts."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from argparse import Namespace

from .core import Core, be_core
from .model import Tokenizer, find
from .ranks import be_worker, start_worker
from .server import Server
from .words import parse

VERSION = "0.32.0"


def log(text: str) -> None:
    """One line as vLLM writes them."""
    print(f"(APIServer pid={os.getpid()}) INFO {time.strftime('%m-%d %H:%M:%S')} [quick] {text}", flush=True)


def main(words: list[str]) -> int:
    """Carry out a command line."""
    if words == ["--version"]:
        print(VERSION)
        return 0
    verb, rest = (words[0], words[1:]) if words else ("", [])
    if verb == "engine-core":
        return be_core(rest)
    if verb == "worker":
        return be_worker(int(rest[0]), int(rest[1]), rest[2])
    if verb != "serve":
        print("the quick image of cluster lab knows `vllm serve` and `vllm --version`", file=sys.stderr)
        return 2
    return serve(parse(rest), rest)


def serve(given: Namespace, words: list[str]) -> int:
    """Start the ranks, then answer until one of them ends."""
    log("SIMULATED: this is the quick image of cluster lab; it answers without a model")
    try:
        folder = find(given.model, given.revision)
    except OSError as problem:
        print(f"OSError: We couldn't find the model in the cached files: {problem}", flush=True)
        return 1
    if given.headless:
        return be_headless(given)
    core = Core(words)
    signal.signal(signal.SIGTERM, lambda *_: leave(core))
    if not core.await_ready():
        print(
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}", flush=True
        )
        return core.wait() or 1
    server = Server(given, core, Tokenizer(folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    log(f"Starting vLLM server on http://{given.host}:{given.port}")
    print("INFO:     Application startup complete.", flush=True)
    code = core.wait()
    print(f"EngineDeadError: EngineCore ended with {code}", flush=True)
    return code or 1


def be_headless(given: Namespace) -> int:
    """A further rank of the mp backend: no HTTP, one worker."""
    worker = start_worker(given.node_rank, given)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    return worker.wait()


def leave(core: Core) -> None:
    """Asked to end."""
    core.end()
    os._exit(0)
