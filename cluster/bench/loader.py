"""The seam to the load client: a round goes in, its record comes out. `ProcessLoader` runs `far/load.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from cluster.bench.records import Round, RoundRecord, parse_round
from cluster.commands.far import source
from cluster.errors import ClusterError, ConnectionLostError
from cluster.hosts.protocol import Process

_BOOT = "import sys; exec(compile(sys.stdin.buffer.read(int(sys.argv[1])), 'load.py', 'exec'))"


class Loader(Protocol):
    """Something that sends rounds. Failures of single requests are in the record, not raised."""

    @property
    def where(self) -> str:
        """The machine the client runs on, for the report."""
        ...

    def send(self, wanted: Round) -> RoundRecord:
        """Carry out one round. Raises ClusterError when the client itself failed."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """The server to measure. The key is read where the client runs: from a variable, or a file of mode 0600."""

    base_url: str
    api_key_env: str = ""
    api_key_file: str = ""

    def line(self) -> bytes:
        """The load client's first line."""
        document = {
            "base_url": self.base_url,
            "api_key_env": self.api_key_env or None,
            "api_key_file": self.api_key_file or None,
        }
        return orjson.dumps(document) + b"\n"


def load_argv(python: str = "python3") -> tuple[str, ...]:
    """The words that start the load client on a host or in a container; `load_stdin` is what it must be given."""
    return (python, "-I", "-S", "-c", _BOOT, str(len(source("load"))))


def load_stdin(target: Target) -> bytes:
    """What the load client reads first: its own text, then the target."""
    return source("load") + target.line()


class ProcessLoader:
    """A running load client: `ProcessLoader(host.start(load_argv(), load_stdin(target)))`."""

    def __init__(self, process: Process) -> None:
        """Wait until the client is ready. Raises ClusterError with its own words when it is not."""
        self._process = process
        self._lines: Iterator[str] = iter(process.lines())
        hello = self._next()
        if "error" in hello:
            raise ClusterError(f"the load client cannot start: {hello['error']}")
        self._where = str(hello.get("hostname", ""))
        self.python = str(hello.get("python", ""))

    @property
    def where(self) -> str:
        """The host name of the machine the client runs on."""
        return self._where

    def send(self, wanted: Round) -> RoundRecord:
        """Carry out one round; returns when all its requests have ended."""
        self._process.write(wanted.line())
        record = parse_round(self._line())
        if record.id != wanted.id or len(record.records) != len(wanted.asks):
            raise ClusterError(f"the load client answered round {record.id!r} when {wanted.id!r} was asked")
        return record

    def close(self) -> int | None:
        """End the client, and with it what it has under way."""
        return self._process.close()

    def _line(self) -> str:
        for line in self._lines:
            if line.startswith("{"):
                return line
        raise ConnectionLostError("the load client ended", remedy="run `cluster status`, then the same command again")

    def _next(self) -> dict[str, Any]:
        document: dict[str, Any] = orjson.loads(self._line())
        return document
