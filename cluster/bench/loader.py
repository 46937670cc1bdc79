"""The seam to the load client: a round goes in, its record comes out. `ProcessLoader` runs `far/load.py`."""

from __future__ import annotations

import base64
import binascii
import struct
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal, Protocol, get_args

import orjson

from cluster.argv.docker import attend
from cluster.argv.far import WORDS, framed, source
from cluster.errors import ClusterError, ConnectionLostError
from cluster.hosts.protocol import Process

How = Literal["done", "closed", "reset", "timeout", "refused", "garbled"]

_ENTRY = struct.Struct("<IdI")  # request, seconds since the round began, length


@dataclass(frozen=True, slots=True)
class Ask:
    """One HTTP request. `body` is any JSON value; the path begins below the server's root (`/v1/completions`)."""

    path: str
    body: Any = None
    method: str = ""

    def document(self) -> dict[str, Any]:
        method = self.method or ("GET" if self.body is None else "POST")
        return {"method": method, "path": self.path, "body": self.body}


@dataclass(frozen=True, slots=True)
class Round:
    """Requests sent over `concurrency` warmed connections, each taking the next when its own has ended."""

    id: str
    asks: tuple[Ask, ...]
    concurrency: int = 1
    timeout_s: float = 600.0
    warm: str | None = "/v1/models"

    def line(self) -> bytes:
        document = {
            "id": self.id,
            "concurrency": self.concurrency,
            "timeout_s": self.timeout_s,
            "warm": self.warm,
            "requests": [ask.document() for ask in self.asks],
        }
        return orjson.dumps(document) + b"\n"


@dataclass(frozen=True, slots=True)
class Record:
    """One request as it went over the wire; seconds of one monotonic clock since the round began."""

    t0_s: float
    end_s: float
    how: How
    error: str
    chunks: tuple[tuple[float, bytes], ...]


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """What the client says of itself for one round; the lag is that of its event loop."""

    cpu_s: float = 0.0
    wall_s: float = 0.0
    lag_max_ms: float = 0.0
    lag_mean_ms: float = 0.0
    t0_spread_ms: float = 0.0
    started_unix_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """A round as it was recorded; `records` in the order of the round's asks."""

    id: str
    records: tuple[Record, ...]
    client: ClientLoad


def parse_round(line: str, more: Callable[[], str]) -> RoundRecord:
    """Read the document that the load client prints after a round; `more` gives the lines of data that follow it.

    Raises ClusterError when it is not one.
    """
    try:
        document = orjson.loads(line)
        chunks = _split_chunks(document["chunks"], "".join(more() for _ in range(document["parts"])))
        records = tuple(
            Record(t0, end, how if how in get_args(How) else "garbled", error, tuple(chunks.get(index, ())))
            for index, (t0, end, how, error) in enumerate(document["requests"])
        )
        names = {field.name for field in fields(ClientLoad)}
        client = ClientLoad(**{key: float(value) for key, value in document["client"].items() if key in names})
        return RoundRecord(str(document["id"]), records, client)
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, zlib.error, binascii.Error) as error:
        raise ClusterError(
            f"the load client's answer cannot be read ({error})", code="load-client-invalid", where=line[:200]
        ) from error


def _split_chunks(count: int, packed: str) -> dict[int, list[tuple[float, bytes]]]:
    """The recorded (time, bytes) by request."""
    data = zlib.decompress(base64.b64decode(packed))
    at = count * _ENTRY.size
    found: dict[int, list[tuple[float, bytes]]] = {}
    for index, seconds, length in _ENTRY.iter_unpack(data[:at]):
        found.setdefault(index, []).append((seconds, data[at : at + length]))
        at += length
    if at != len(data):
        raise ValueError(f"{len(data)} bytes recorded, {at} announced")
    return found


class Loader(Protocol):
    """Something that sends rounds. Failures of single requests are in the record, not raised."""

    @property
    def where(self) -> str:
        """The machine the client runs on, and the container."""
        ...

    def send(self, wanted: Round) -> RoundRecord:
        """Carry out one round. Raises ClusterError when the client itself failed."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """The server to measure. The key is read where the client runs, from a file of mode 0600."""

    base_url: str
    api_key_file: str = ""

    def line(self) -> bytes:
        return orjson.dumps({"base_url": self.base_url, "api_key_file": self.api_key_file or None}) + b"\n"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a round is: answers that have ended, portions of bytes that came (about a token each), seconds."""

    round: str
    done: int
    chunks: int
    seconds: float


def load_command(target: Target, container: str = "") -> tuple[tuple[str, ...], bytes]:
    """Words and first stdin of the load client, for `Host.start`: on the host itself, or in one of its containers."""
    words = attend(container, WORDS) if container else WORDS
    return words, framed(source("load")) + target.line()


RESTART_WITHIN_S, PAUSE_S = 180.0, 2.0


class ProcessLoader:
    """A running load client: `ProcessLoader(host.start(*load_command(target)))`."""

    def __init__(self, process: Process, container: str = "", start: Callable[[], Process] | None = None) -> None:
        """Wait until the client, in this container or in none, is ready. Raises ClusterError with its words if not.

        `on_progress` may be set: it is called about once a second while a round runs. `start` makes another client, for
        the round after the one that lost this one.
        """
        self.on_progress: Callable[[Progress], None] = lambda progress: None
        self._start, self._container, self._lost = start, container, False
        self._said: deque[str] = deque(maxlen=3)
        self._begin(process)

    def _begin(self, process: Process) -> None:
        self._process = process
        self._lines: Iterator[str] = iter(process.lines())
        hello: dict[str, Any] = orjson.loads(self._line("{"))
        if "error" in hello:
            raise ClusterError(f"the load client cannot start: {hello['error']}", code="load-client-failed")
        inside = f", in the container {self._container}" if self._container else ""
        self.where = f"{hello.get('hostname', '')}{inside}"
        self.python = str(hello.get("python", ""))

    def send(self, wanted: Round) -> RoundRecord:
        """Carry out one round; returns when all its requests have ended. After ConnectionLostError the next round is
        sent by a new client."""
        if self._lost and self._start:
            self._restart(self._start)
        try:
            self._process.write(wanted.line())
            record = parse_round(self._line("{"), lambda: self._line("+")[1:])
        except ConnectionLostError:
            self._lost = True
            raise
        if record.id != wanted.id or len(record.records) != len(wanted.asks):
            raise ClusterError(
                f"the load client answered round {record.id!r}, expected {wanted.id!r}", code="load-client-invalid"
            )
        return record

    def _restart(self, start: Callable[[], Process]) -> None:
        """Another client in place of a lost one; its host may be unreachable for a while."""
        self._process.close(0)
        self._said.clear()
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
        """The next line that begins with `mark`; others are what Python or docker says on stderr."""
        for line in self._lines:
            if line.startswith('{"progress"'):
                progress = orjson.loads(line)
                self.on_progress(Progress(progress["progress"], progress["done"], progress["chunks"], progress["s"]))
                continue
            if line.startswith(mark):
                return line
            self._said.append(line.strip())
        said = f": {' / '.join(self._said)}" if self._said else ""
        raise ConnectionLostError(
            f"the load client ended{said}",
            code="load-client-lost",
            remedy="run `cluster status`, then the same command again",
        )
