"""The load client and the server of known timing as real processes on loopback."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from cluster.bench.loader import Batch, BatchRecord, Loader, ProcessLoader, load_command

SERVER = Path(__file__).parents[1] / "known_server.py"


class Child:
    """A program as hosts.protocol.Process describes it, without a host."""

    def __init__(self, argv: Sequence[str], stdin: bytes, env: dict[str, str] | None = None) -> None:
        pipe = subprocess.PIPE
        self.popen = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, env=env)
        self.write(stdin)

    def lines(self) -> Iterator[str]:
        assert self.popen.stdout
        for line in self.popen.stdout:
            yield line.decode().rstrip("\n")

    def write(self, data: bytes) -> None:
        assert self.popen.stdin
        self.popen.stdin.write(data)
        self.popen.stdin.flush()

    def close(self, timeout_s: float = 5.0) -> int | None:
        assert self.popen.stdin
        assert self.popen.stdout
        with suppress(BrokenPipeError):  # it has ended, with some of its input unread
            self.popen.stdin.close()
        try:
            return self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
            return None
        finally:
            self.popen.stdout.close()


@contextmanager
def known_server(*words: str) -> Iterator[str]:
    """The address of a running server of known timing."""
    server = Child([sys.executable, str(SERVER), *words], b"")
    try:
        yield f"http://127.0.0.1:{json.loads(next(server.lines()))['port']}"
    finally:
        server.close()


@contextmanager
def load_client(url: str, env: dict[str, str] | None = None, **target: str) -> Iterator[ProcessLoader]:
    """A running load client."""
    argv, stdin = load_command([url], **target)
    child = Child(argv, stdin, env)
    try:
        yield ProcessLoader(child)
    finally:
        child.close()


class Watching:
    """A load client whose questions are kept."""

    def __init__(self, loader: Loader) -> None:
        self.loader, self.where = loader, loader.where
        self.asks: list = []

    def send(self, wanted: Batch) -> BatchRecord:
        self.asks += wanted.asks
        return self.loader.send(wanted)

    @property
    def bodies(self) -> list[dict]:
        """What was asked of the model, without the questions that only count tokens."""
        return [ask.body for ask in self.asks if "completions" in ask.path and ask.body.get("stream")]
