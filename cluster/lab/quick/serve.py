"""`vllm` of the quick image: serve, and the two kinds of process that it starts."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from argparse import Namespace

from .answers import Tokenizer, find
from .core import Core, be_core
from .ranks import be_worker, start_worker
from .server import QuickServer
from .words import log, parse


def main(words: list[str]) -> int:
    verb, rest = (words[0], words[1:]) if words else ("", [])
    if verb == "--version":
        print("0.32.0")
        return 0
    if verb == "engine-core":
        return be_core(rest)
    if verb == "worker":
        return be_worker(int(rest[0]), json.loads(rest[1]), rest[2])
    if verb == "serve":
        return serve(parse(rest), rest)
    print("the quick image of cluster lab knows `vllm serve` and `vllm --version`", file=sys.stderr)
    return 2


def serve(given: Namespace, words: list[str]) -> int:
    """Start the ranks, then answer until one of them ends."""
    log("APIServer", "SIMULATED: this is the quick image of cluster lab; it answers without a model")
    try:
        folder = find(given.model, given.revision)
    except OSError as problem:
        print(f"OSError: We couldn't find the model in the cached files: {problem}", flush=True)
        return 1
    if given.headless:  # a further rank of the mp backend: no HTTP, one worker
        worker = start_worker(given.node_rank, given)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        return worker.wait()
    core = Core(words)

    def leave(*_: object) -> None:
        core.process.terminate()
        os._exit(0)

    signal.signal(signal.SIGTERM, leave)
    if not core.is_ready():
        why = "Engine core initialization failed. See root cause above. Failed core proc(s): {}"
        print(f"RuntimeError: {why}", flush=True)
        return core.process.wait() or 1
    server = QuickServer(given, core, Tokenizer(folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    log("APIServer", f"Starting vLLM server on http://{given.host}:{given.port}")
    print("INFO:     Application startup complete.", flush=True)
    code = core.process.wait()
    print(f"EngineDeadError: EngineCore ended with {code}", flush=True)
    return code or 1
