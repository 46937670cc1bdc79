"""The seam to the load client: a batch of requests in, its record out. `ProcessLoader` runs `far/load.py`."""

from __future__ import annotations

import base64
import struct
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import orjson

from cluster.argv.docker import attend
from cluster.argv.far import WORDS, framed, source
from cluster.errors import ClusterError, ConnectionLostError
from cluster.hosts.protocol import Process

How = Literal["done", "closed", "reset", "timeout", "refused", "garbled"]
RESTART_WITHIN_S, PAUSE_S = 180.0, 2.0

_ENTRY = struct.Struct("<IdI")  # request, seconds since the batch began, length


@dataclass(frozen=True, slots=True)
class Ask:
    """One HTTP request: POST with a body (any JSON value), else GET. The path is below the root of the server, of
    several the one with this number."""

    path: str
    body: Any = None
    server: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests sent over `concurrency` warmed connections, each taking the next when its own has ended."""

    id: str
    asks: tuple[Ask, ...]
    concurrency: int = 1
    timeout_s: float = 600.0
    warm: str | None = "/v1/models"

    def line(self) -> bytes:
        return orjson.dumps(self) + b"\n"


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request as it went over the wire; seconds of one monotonic clock since the batch began."""

    t0_s: float
    end_s: float
    how: How
    error: str
    chunks: tuple[tuple[float, bytes], ...]


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """`records` in the order of the batch's asks; `client`: CPU time and lag of the load client (`far/load.py`)."""

    records: tuple[RequestRecord, ...]
    client: dict[str, float] = field(default_factory=dict)


def parse_record(line: str, more: Callable[[], str]) -> BatchRecord:
    """Read the document that the load client prints after a batch; `more` gives the lines of data that follow it."""
    try:
        document = orjson.loads(line)
        data = zlib.decompress(base64.b64decode("".join(more() for _ in range(document["parts"]))))
        at = document["chunks"] * _ENTRY.size
        chunks: list[list[tuple[float, bytes]]] = [[] for _ in document["requests"]]
        for index, seconds, length in _ENTRY.iter_unpack(data[:at]):
            chunks[index].append((seconds, data[at : at + length]))
            at += length
        records = (
            RequestRecord(t0, end, how, error, tuple(some))
            for (t0, end, how, error), some in zip(document["requests"], chunks, strict=True)
        )
        return BatchRecord(tuple(records), document["client"])
    except (ValueError, LookupError, TypeError, struct.error, zlib.error) as error:
        what = f"the load client's answer cannot be read ({error})"
        raise ClusterError(what, code="load-client-invalid", where=line[:200]) from error


class Loader(Protocol):
    """Something that sends batches. Failures of single requests are in the record, not raised."""

    @property
    def where(self) -> str:
        """The machine the client runs on, and the container."""
        ...

    def send(self, batch: Batch, /) -> BatchRecord:
        """Send one batch. Raises ClusterError when the client itself failed."""
        ...


@dataclass(frozen=True, slots=True)
class OneOf:
    """A load client of several servers, as the client of one of them."""

    loader: Loader
    server: int

    @property
    def where(self) -> str:
        return self.loader.where

    def send(self, batch: Batch) -> BatchRecord:
        return self.loader.send(replace(batch, asks=tuple(replace(ask, server=self.server) for ask in batch.asks)))


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a batch is: answers that have ended, portions of bytes that came (about a token each), seconds."""

    done: int
    chunks: int
    seconds: float


def load_command(urls: Sequence[str], api_key_file: str = "", container: str = "") -> tuple[tuple[str, ...], bytes]:
    """Words and first stdin of the load client, for `Host.start`: on the host itself, or in one of its containers.

    The servers' key is read where the client runs, from a file of mode 0600.
    """
    words = attend(container, WORDS) if container else WORDS
    return words, framed(source("load")) + orjson.dumps({"urls": urls, "api_key_file": api_key_file}) + b"\n"


class ProcessLoader:
    """A running load client: `ProcessLoader(host.start(*load_command([url])))`."""

    def __init__(self, process: Process, container: str = "", start: Callable[[], Process] | None = None) -> None:
        """Wait until the client, in this container or in none, is ready. Raises ClusterError with its words if not.

        `on_progress` may be set: it is called about once a second while a batch runs. `start` makes another client, for
        the batch after the one that lost this one.
        """
        self.on_progress: Callable[[Progress], None] = lambda progress: None
        self._start, self._container, self._lost = start, container, False
        self._begin(process)

    def _begin(self, process: Process) -> None:
        self._process = process
        self._lines: Iterator[str] = iter(process.lines())
        hello: dict[str, Any] = orjson.loads(self._line("{"))
        if "error" in hello:
            raise ClusterError(f"the load client cannot start: {hello['error']}", code="load-client-failed")
        self.where = hello.get("hostname", "") + (f", in the container {self._container}" if self._container else "")
        self.python: str = hello.get("python", "")

    def send(self, batch: Batch) -> BatchRecord:
        """Send one batch and wait for its end. After ConnectionLostError the next batch is sent by a new client."""
        if self._lost and self._start:
            self._restart(self._start)
        try:
            self._process.write(batch.line())
            return parse_record(self._line("{"), lambda: self._line("+")[1:])
        except ConnectionLostError:
            self._lost = True
            raise

    def _restart(self, start: Callable[[], Process]) -> None:
        """Another client in place of a lost one; its host may be unreachable for a while."""
        self._process.close(0)
        until = time.monotonic() + RESTART_WITHIN_S
        while self._lost:
            try:
                process = start()
            except ConnectionLostError:
                if time.monotonic() > until:
                    raise
                time.sleep(PAUSE_S)
            else:
                self._begin(process)
                self._lost = False

    def close(self) -> int | None:
        """End the client, and with it what it has under way."""
        return self._process.close()

    def _line(self, mark: str) -> str:
        """The next line that begins with `mark`; others are what Python or docker prints on stderr."""
        others: deque[str] = deque(maxlen=3)
        for line in self._lines:
            if line.startswith('{"progress"'):
                progress = orjson.loads(line)
                self.on_progress(Progress(progress["done"], progress["chunks"], progress["s"]))
            elif line.startswith(mark):
                return line
            else:
                others.append(line.strip())
        words = f": {' / '.join(others)}" if others else ""
        remedy = "run `cluster status`, then the same command again"
        raise ConnectionLostError(f"the load client ended{words}", code="load-client-lost", remedy=remedy)
