"""The engine core: a process of its own that owns the ranks and steps them when the server asks.

On stdin one number a line (parts to move), on stdout `ready`, then `ok` for each number; the log goes to stderr.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import Any

from .ranks import MIB, make_ranks, name_process
from .words import log, parse


def be_core(words: list[str]) -> int:
    """`vllm engine-core …`: the words of `serve`."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else is printed is log
    name_process("VLLM::EngineCore")
    given = parse(words)
    log("EngineCore", "SIMULATED: this is the quick image of cluster lab, no model is loaded")
    if "fail" in given.quick:
        raise SystemExit(f"RuntimeError: {given.quick['fail']}")
    began, step = time.monotonic(), make_ranks(given)
    size, seconds = given.quick.get("mib", MIB) / 1024, time.monotonic() - began
    log("EngineCore", f"Model loading took {size:.2f} GiB memory and {seconds:.6f} seconds")
    third = given.quick.get("ready_after_s", 0) / 3
    time.sleep(third)
    log("EngineCore", "Dynamo bytecode transform time: 26.28 s")  # this and the next as vLLM 0.24 on a GPU prints them
    time.sleep(third)
    print("Capturing CUDA graphs (decode, FULL):  67%|██████▋   | 2/3 [00:01<00:00,  1.9it/s]", flush=True)
    time.sleep(third)
    answers.write("ready\n")
    for number, line in enumerate(sys.stdin):
        if number >= given.quick.get("hang_after_steps", float("inf")):
            threading.Event().wait()
        step(int(line))
        answers.write("ok\n")
    return 0


class Core:
    """The server's side of the engine core."""

    def __init__(self, words: list[str]) -> None:
        argv, pipe = [sys.executable, sys.argv[0], "engine-core", *words], subprocess.PIPE
        self.process: Any = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=1, text=True)
        self._lock = threading.Lock()

    def is_ready(self) -> bool:
        """Wait until the ranks are there; False when the core ended."""
        return bool(self.process.stdout.readline() == "ready\n")

    def step(self, parts: int) -> None:
        """One step of all ranks. Raises RuntimeError when the core is gone."""
        with self._lock:
            try:
                self.process.stdin.write(f"{parts}\n")
                self.process.stdin.flush()
                answer = self.process.stdout.readline()
            except OSError:
                answer = ""
        if answer != "ok\n":
            raise RuntimeError("EngineCore encountered an issue. See stack trace (above) for the root cause.")
