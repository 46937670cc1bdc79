"""What explains a failure, saved here before anything is rolled back, and read again as sources to explain."""

from __future__ import annotations

import gzip
import heapq
import json
import os
import re
import shutil
import tarfile
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import orjson

from cluster.argv.docker import docker_inspect, docker_logs
from cluster.argv.question import Answer, Question
from cluster.config.secrets import hide
from cluster.deploy.prove import Subject
from cluster.errors import ClusterError, InterruptedByUser
from cluster.hosts.fleet import Fleet
from cluster.hosts.fleet import errors as errors_of
from cluster.hosts.protocol import Host
from cluster.screen import Screen
from cluster.spark import clock
from cluster.spark.fact import Missing

if TYPE_CHECKING:
    from cluster.diagnosis.scan import Source

RAY_LOGS = "/tmp/ray/session_latest/logs"
RAY_LIMIT = 12 << 20
BEGINNING, END = 2 << 20, 6 << 20
"""Bytes of each stream of a rank's log: of a longer one the first and the last."""
JOURNAL_BEGINNING, JOURNAL_END = 256 << 10, 2 << 20
"""The same of a journal. `journalctl -n` would keep the first lines after --since (252), not the last."""
GPU = "name,power.draw,clocks.sm,temperature.gpu,utilization.gpu"
GZIP = b"\x1f\x8b\x08"
SLACK_S = 60
KEPT = 20
"""Directories of evidence that are kept; the oldest go, and what else lies beside them is left alone."""
OURS = re.compile(r"\d{8}-\d{6}-\d+-")
"""How the name of such a directory begins."""


def save(subject: Subject, fleet: Fleet, screen: Screen, failure: ClusterError, seconds: float) -> str:
    """Ask every host for what explains a failure of the last `seconds`; the directory it lies in.

    What could not be read is written down instead, and what could not be written is left out, as are secrets. A first
    Ctrl-C leaves out the rest; raises InterruptedByUser or KeyboardInterrupt when `failure` is one already.
    """
    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    place = home / "cluster" / "evidence" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{subject.deployment}"
    secrets, ray = subject.wanted.secrets.values(), subject.wanted.backend == "ray"
    since = f"-{seconds + SLACK_S:.0f}s"
    asked = {host: questions(subject.container(host), since, ray=ray) for host in subject.wanted.names}
    try:
        place.mkdir(parents=True, mode=0o700, exist_ok=True)
        write(place / "error.txt", "\n".join(f"{label}: {text}" for label, text in failure.lines()).encode(), secrets)
        collect(asked, fleet, place, secrets)
    except (InterruptedByUser, KeyboardInterrupt):
        if isinstance(failure, InterruptedByUser):  # a second Ctrl-C leaves at once
            raise
        fleet.cancel.renew()
        screen.warn("interrupted: the rest of the evidence is left out")
    except (OSError, ClusterError) as error:
        screen.warn(f"not all of the evidence could be saved: {error}")
    if not place.is_dir():
        return ""
    ours = [one for one in place.parent.iterdir() if OURS.match(one.name) and one.is_dir()]
    for old in sorted(ours)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)  # another process may be removing it, too
    screen.note(f"evidence: {place}")
    return str(place)


def questions(container: str, since: str, *, ray: bool, tail: int | None = None) -> dict[str, Question]:
    """File name → what is asked. `since` is a time as journalctl takes it; `tail` lines of the log, else all.

    Beside the rank's log: the kernel's and Docker's lines, and numbers that distinguish causes. `journalctl -k` would
    print the kernel's lines of this boot only; the last ones before a crash are in the boot before.
    """
    session = ("docker", "cp", "--follow-link", f"{container}:{RAY_LOGS}", "-")
    journal = ("journalctl", "--no-pager", "-o", "short-iso", "--since", since)
    return {
        "log.txt": Question(docker_logs(container, tail=tail).argv, timeout_s=20, limit=BEGINNING, tail=END),
        "inspect.json": docker_inspect(container),
        **({RAY_TAR: Question(session, timeout_s=20, limit=RAY_LIMIT)} if ray else {}),
        "kernel.txt": Question((*journal, "_TRANSPORT=kernel"), limit=JOURNAL_BEGINNING, tail=JOURNAL_END),
        "docker.txt": Question((*journal, "-u", "docker"), limit=JOURNAL_BEGINNING, tail=JOURNAL_END),
        "uname.txt": Question(("uname", "-a")),
        "meminfo.txt": Question(("cat", "/proc/meminfo")),
        "gpu.txt": Question(("nvidia-smi", f"--query-gpu={GPU}", "--format=csv")),
    }


def collect(
    asked: Mapping[str, Mapping[str, Question]], fleet: Fleet, place: Path, secrets: Iterable[str] = ()
) -> tuple[dict[str, str], list[ClusterError]]:
    """Ask hosts and write each answer to `place/HOST-NAME`. What could not be read: `HOST-NAME` → why; errors of hosts.

    Raises OSError when files cannot be written, InterruptedByUser.
    """
    missing: dict[str, str] = {}

    def ask_clock(host: Host) -> clock.Clock | Missing:
        asked_at = fleet.time.time()
        [answer] = host.ask([clock.question()])
        return clock.parse(answer, (asked_at, fleet.time.time()))

    for host, found in fleet.each(ask_clock, tuple(asked)).items():
        if isinstance(found.value, clock.Clock):
            write(place / f"{host}-{CLOCK}", json.dumps({"ahead_s": round(found.value.ahead_s, 3)}).encode(), ())
    outcomes = fleet.ask({host: tuple(files.values()) for host, files in asked.items()})
    for host, outcome in outcomes.items():
        if outcome.error:
            missing[f"{host}-unreachable.txt"] = str(outcome.error)
            write(place / f"{host}-unreachable.txt", str(outcome.error).encode(), secrets)
        for name, answer in zip(asked[host], outcome.value or (), strict=False):
            write(place / f"{host}-{name}", said(answer), secrets)
            if why := unread(answer):
                missing[f"{host}-{name}"] = why
    return missing, errors_of(outcomes)


def unread(answer: Answer) -> str:
    """Why an answer holds nothing; empty when it does."""
    if answer.exit is None and not answer.out:
        return f"no answer within {answer.seconds:.0f} s"
    hidden = "not seeing messages from" in answer.error_text  # journalctl: the user is not in its group
    if answer.exit in (0, None) and not hidden:
        return ""
    lines = answer.error_text.strip().splitlines() or [f"exit {answer.exit}"]
    return "this user may not read it" if hidden else lines[0][:200]


def said(answer: Answer) -> bytes:
    """What a program printed on both streams; lines that begin with docker's times in the order of these."""
    ended = b"" if answer.exit == 0 else f"\n[exit {answer.exit}]\n".encode()
    if not answer.out or not answer.err:
        return answer.out + answer.err + ended
    merged = heapq.merge(timed(answer.out), timed(answer.err), key=lambda row: row[0])
    return b"".join(line for _, line in merged) + ended


def timed(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Each line with docker's time of it, or of the last line that had one."""
    time = b""
    for line in BytesIO(data):
        stamp = line[:30]
        time = stamp if stamp[:2] == b"20" and stamp[10:11] == b"T" else time
        yield time, line if line.endswith(b"\n") else line + b"\n"


def write(path: Path, data: bytes, secrets: Iterable[str]) -> None:
    """Write a private file without these values."""
    path.write_bytes(hide(data, secrets))
    path.chmod(0o600)


ERROR, CLOCK, RAY_TAR = "error.txt", "clock.json", "ray-logs.tar"
"""`HOST-clock.json`: how far that host's clock is ahead of the one that all times are given by."""
BESIDE = (ERROR, "kernel.txt", "docker.txt", "uname.txt", "meminfo.txt", "gpu.txt")
"""Files (`HOST-…`) about a host or a failure, not of what failed; see Source.beside."""
OWN = "diagnosis.txt"
MOST_AHEAD_S = 1e9
RAY_WORKER = "worker-"
MOST_MEMBERS = 1000
LARGEST_JSON = 4 << 20
PIECE_BYTES = 1 << 20


def sources(directory: Path) -> Iterator[Source]:
    """The texts of a directory, those of evidence by what they are. Raises OSError."""
    from cluster.diagnosis.scan import Source

    files = [file for file in directory.iterdir() if file.is_file() and file.name != OWN]
    for path in sorted(files, key=lambda file: (file.name == ERROR, file.name)):
        host, name = of_host(path.name)
        if name == CLOCK:
            continue
        if name == RAY_TAR:
            found: Iterable[Source] = members(path, host)
        elif name == "inspect.json" and host:  # Docker's words on its state, a line for each; the rest is intent
            state = json.dumps(document(path).get("State") or {}, indent=1).encode()
            found = [Source(str(path), (state,), host)]
        elif name == "docker.txt" and host:
            id = str(document(path.with_name(f"{host}-inspect.json")).get("Id") or "")
            found = [Source(str(path), about(path, id), host, True)]
        else:
            found = [Source(str(path), pieces(path), host, name in BESIDE, hearsay=name == ERROR)]
        ahead_s = document(path.with_name(f"{host}-{CLOCK}")).get("ahead_s")
        if not isinstance(ahead_s, int | float) or abs(ahead_s) > MOST_AHEAD_S:
            ahead_s = 0.0
        yield from (replace(source, ahead_s=ahead_s) for source in found)


def of_host(name: str) -> tuple[str, str]:
    """`spark1-log.txt` as host and file; no host for a file that evidence does not have, or not of a host."""
    for file in (*BESIDE, "log.txt", "inspect.json", CLOCK, RAY_TAR):
        host, _, rest = name.rpartition(f"-{file}")
        if host and not rest:
            return host, file
    return "", name


def document(path: Path) -> dict[str, Any]:
    """The object in a JSON file, or the first of several (`docker inspect`); empty when there is none."""
    try:
        with path.open("rb") as file:
            found = orjson.loads(file.read(LARGEST_JSON))  # not json: it stops at deep nesting
    except (OSError, ValueError):
        return {}
    first = found[0] if isinstance(found, list) and found else found
    return first if isinstance(first, dict) else {}


def pieces(path: Path) -> Iterator[bytes]:
    """A file's bytes, unpacked when gzip packed them; it is opened once, since it may be a pipe. Raises OSError, also
    for a damaged packing."""
    with path.open("rb") as file:
        try:
            packed = file.peek(len(GZIP)).startswith(GZIP)
            yield from read(gzip.GzipFile(fileobj=file) if packed else file)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise OSError(None, f"damaged gzip file ({error})", str(path)) from None
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None


def read(file: IO[bytes] | gzip.GzipFile) -> Iterator[bytes]:
    """A stream's bytes to its end, or to where the tar around it was cut."""
    with suppress(tarfile.TarError):
        yield from iter(partial(file.read, PIECE_BYTES), b"")


def members(path: Path, host: str) -> Iterator[Source]:
    """Each log in a tar of Ray's session; what a worker printed is the rank's own. A tar that was cut ends early."""
    from cluster.diagnosis.scan import Source

    with suppress(tarfile.TarError), tarfile.open(path, "r:") as tar:
        for member in islice(tar, MOST_MEMBERS):
            name = member.name.rpartition("/")[2]
            file = tar.extractfile(member) if member.isreg() and member.size else None
            if file is not None:
                yield Source(f"{path}/{name}", read(file), host, not name.startswith(RAY_WORKER))


def about(path: Path, id: str) -> Iterator[bytes]:
    """The lines of Docker's journal about one container."""
    with path.open("rb") as file:
        yield from (line for line in file if id and id.encode() in line)
