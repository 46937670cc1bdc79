"""What is asked of the load client (`far/load.py`) and what it recorded: values, and the wire format between."""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import orjson

from cluster.errors import ClusterError

How = Literal["done", "closed", "reset", "timeout", "refused", "garbled"]

_ENTRY = struct.Struct("<IdI")  # request, seconds since the round began, length


@dataclass(frozen=True, slots=True)
class Ask:
    """One HTTP request. `body` is any JSON value; the path begins below the server's root (`/v1/completions`)."""

    path: str
    body: Any = None
    method: str = ""

    def document(self) -> dict[str, Any]:
        """As the load client reads it."""
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
        """As one line of the load client's stdin."""
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


def count_parts(line: str) -> int:
    """How many lines of data follow the document that the load client prints after a round."""
    try:
        return int(orjson.loads(line)["parts"])
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterError("the load client's answer cannot be read", where=line[:200]) from error


def parse_round(line: str, parts: Sequence[str]) -> RoundRecord:
    """Read that document and its lines of data. Raises ClusterError when it is not one."""
    try:
        document = orjson.loads(line)
        chunks = _split_chunks(document["chunks"], "".join(parts))
        records = tuple(
            Record(t0, end, how if how in get_args(How) else "garbled", error, tuple(chunks.get(index, ())))
            for index, (t0, end, how, error) in enumerate(document["requests"])
        )
        names = {field.name for field in fields(ClientLoad)}
        client = ClientLoad(**{key: float(value) for key, value in document["client"].items() if key in names})
        return RoundRecord(str(document["id"]), records, client)
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, zlib.error, binascii.Error) as error:
        raise ClusterError(f"the load client's answer cannot be read ({error})", where=line[:200]) from error


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
