"""A lab on this machine: every path, the lock, and the record of what was made."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from cluster.errors import LockedError, UsageError
from cluster.lab.shape import Spark

DEFAULT = "/var/lib/cluster-lab"


class HostPlace:
    """Where one host keeps its files; `lab down` removes them all.

    `upper` differs from the root file system that all hosts share, `docker` is Docker's data root, `boot` is what
    `inside/init.py` reads, `still` holds its counters.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.upper, self.docker = root, root / "upper", root / "docker"
        self.boot, self.still = root / "boot.json", root / "still"


@dataclass
class Place:
    """A lab's directory. `cache` outlives `lab down`: root file systems, engine, model, images. `gpu`: its hosts have
    real cards of this machine.

    `key` opens every host, `record` says what was made and what is broken on purpose, `log` is the output of the
    programs that build the lab.
    """

    root: Path
    cache: Path
    gpu: bool = False

    def __post_init__(self) -> None:
        self.inventory = self.root / "inventory.yaml"
        self.key = self.root / "id_ed25519"
        self.known_hosts = self.root / "known_hosts"
        self.record = self.root / "lab.json"
        self.log = self.root / "build.log"

    def host(self, name: str) -> HostPlace:
        return HostPlace(self.root / "hosts" / name)


@dataclass(slots=True)
class LabRecord:
    """What the lab's file holds: by host its faults, and its limit of memory in GiB. Which processes run is not in it:
    that is read from /proc."""

    number: int = 0
    hosts: int = 0
    gpu: bool = False
    faults: dict[str, list[str]] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)

    @property
    def sparks(self) -> tuple[Spark, ...]:
        made = (Spark(number, self.number) for number in range(1, self.hosts + 1))
        return tuple(replace(spark, memory_gib=self.memory.get(spark.name, 0)) for spark in made)


def place_of(directory: str | None) -> Place:
    """The place of a lab: `--dir`, else $CLUSTER_LAB_DIR, else /var/lib/cluster-lab.

    The cache is in it, unless $CLUSTER_LAB_CACHE says that several labs share one.
    """
    root = Path(directory or os.environ.get("CLUSTER_LAB_DIR") or DEFAULT).expanduser().absolute()
    cache = Path(os.environ.get("CLUSTER_LAB_CACHE") or root / "cache").expanduser().absolute()
    place = Place(root, cache)
    place.gpu = read_record(place).gpu
    return place


def read_record(place: Place) -> LabRecord:
    """What was recorded; an empty record when there is none, or when it cannot be read."""
    try:
        return LabRecord(**json.loads(place.record.read_text()))
    except (OSError, ValueError, TypeError):
        return LabRecord()


def write_record(place: Place, record: LabRecord) -> None:
    fresh = place.record.with_suffix(".new")
    fresh.write_text(json.dumps(asdict(record), indent=1) + "\n")
    fresh.replace(place.record)


@contextlib.contextmanager
def locked(place: Place) -> Iterator[None]:
    """Hold the lab's directory alone.

    Raises LockedError when another lab command holds it, UsageError when other files are in the directory.
    """
    place.root.mkdir(parents=True, exist_ok=True, mode=0o755)
    strange = [path for path in place.root.iterdir() if path.name != "cache"]
    if strange and not (place.root / ".lock").exists():
        what = f"{place.root} is not empty and no lab's directory"
        raise UsageError(what, code="lab-dir", remedy="name another one: --dir DIR")
    with open(os.open(place.root / ".lock", os.O_RDWR | os.O_CREAT, 0o600), "r+", errors="replace") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            what = f"another lab command works in {place.root} (process {file.read().strip() or 'unknown'})"
            remedy = "wait for it, or end it; the next `cluster lab up` or `down` cleans up"
            raise LockedError(what, code="lab-busy", remedy=remedy) from None
        file.truncate(0)
        print(os.getpid(), file=file, flush=True)
        yield


BUILT = ("host-root*", "image-root*", "engine*", "model*", "images*", "debs", ".lock")


def purge(place: Place) -> None:
    """Remove everything that a lab leaves after `down`, and the directories when nothing else is in them."""
    for pattern in BUILT:
        for path in place.cache.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name in ("build.log", "daemon.log", ".lock"):
        (place.root / name).unlink(missing_ok=True)
    for folder in (place.cache, place.root):
        with contextlib.suppress(OSError):
            folder.rmdir()


@contextlib.contextmanager
def building(place: Place) -> Iterator[None]:
    """Hold the cache alone, waiting while another lab builds in it: labs of different directories may share one."""
    place.cache.mkdir(parents=True, exist_ok=True)
    with (place.cache / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
