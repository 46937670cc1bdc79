"""Reads saved evidence back, each part as a text to explain. Nothing is unpacked to disk."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

from cluster.diagnosis.scan import Source
from cluster.diagnosis.text import CHUNK

ERROR = "error.txt"
BESIDE = (ERROR, "kernel.txt", "docker.txt", "uname.txt", "meminfo.txt", "gpu.txt")
"""Files (`HOST-…`) about a host or a failure, not of what failed; see Source.beside."""
OWN = "diagnosis.txt"
CLOCK = "clock.json"
"""`HOST-clock.json`: how far that host's clock is ahead of the one that all times are told by."""
MOST_AHEAD_S = 1e9
RAY_WORKER = "worker-"
MOST_MEMBERS = 1000
LARGEST_JSON = 4 << 20


def sources(directory: Path) -> Iterator[Source]:
    """The texts of a directory, those of evidence by what they are. Raises OSError."""
    files = [file for file in directory.iterdir() if file.is_file() and file.name != OWN]
    for path in sorted(files, key=lambda file: (file.name == ERROR, file.name)):
        host, name = of_host(path.name)
        if name == CLOCK:
            continue
        ahead_s = ahead(path.with_name(f"{host}-{CLOCK}")) if host else 0.0
        for source in of_file(path, host, name):
            yield replace(source, ahead_s=ahead_s)


def of_file(path: Path, host: str, name: str) -> Iterator[Source]:
    """The texts of one file."""
    if name == "ray-logs.tar":
        yield from members(path, host)
    elif name == "inspect.json" and host:
        yield Source(str(path), (state_of(path),), host)
    elif name == "docker.txt" and host:
        yield Source(str(path), about(path, container_id(path.with_name(f"{host}-inspect.json"))), host, True)
    else:
        yield Source(str(path), pieces(path), host, name in BESIDE, hearsay=name == ERROR)


def of_host(name: str) -> tuple[str, str]:
    """`spark1-log.txt` as host and file; no host for a file that evidence has not, or not of a host."""
    host, _, rest = name.rpartition("-ray-logs.tar")
    if host and not rest:
        return host, "ray-logs.tar"
    host, _, rest = name.rpartition("-")
    return (host, rest) if rest in (*BESIDE, "log.txt", "inspect.json", CLOCK) else ("", name)


def ahead(path: Path) -> float:
    """Seconds by which the times of a host are too late; 0 when it is not known."""
    try:
        told = float(json.loads(path.read_bytes()[:LARGEST_JSON])["ahead_s"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError, OverflowError):
        return 0.0
    return told if abs(told) < MOST_AHEAD_S else 0.0


def pieces(path: Path) -> Iterator[bytes]:
    """A file's bytes, a megabyte at a time. Raises OSError."""
    with path.open("rb") as file:
        yield from read(file)


def read(file: IO[bytes]) -> Iterator[bytes]:
    """A stream's bytes to its end."""
    while piece := file.read(CHUNK):
        yield piece


def members(path: Path, host: str) -> Iterator[Source]:
    """Each log in a tar of Ray's session; what a worker printed is the rank's own. A tar that was cut ends early."""
    try:
        with tarfile.open(path, "r:") as tar:
            for count, member in enumerate(tar):
                name = member.name.rpartition("/")[2]
                file = tar.extractfile(member) if member.isreg() and member.size else None
                if file is not None:
                    yield Source(f"{path}/{name}", until_cut(file), host, not name.startswith(RAY_WORKER))
                if count >= MOST_MEMBERS:
                    return
    except tarfile.TarError:
        return


def until_cut(file: IO[bytes]) -> Iterator[bytes]:
    """A member's bytes, as far as the tar holds them."""
    try:
        yield from read(file)
    except tarfile.TarError:
        return


def inspected(path: Path) -> dict[str, object]:
    """The one container of a saved `docker inspect`; empty when there is none."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(LARGEST_JSON))[0]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def state_of(path: Path) -> bytes:
    """How Docker says that a container is, a line for each word: the rest of `docker inspect` is intent."""
    return json.dumps(inspected(path).get("State") or {}, indent=1).encode()


def container_id(path: Path) -> str:
    """The container's full id; empty when it is not known."""
    return str(inspected(path).get("Id") or "")


def about(path: Path, id: str) -> Iterator[bytes]:
    """The lines of Docker's journal about one container; the daemon says much of others."""
    with path.open("rb") as file:
        yield from (line for line in file if id and id.encode() in line)
