"""Docker's daemon on a host, from `docker info` as JSON and as people paste it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cluster.argv.question import Answer, Question
from cluster.spark.fact import Missing, as_shape, known, last_words, load_json, plain, refuse
from cluster.spark.finding import Check, Finding

if TYPE_CHECKING:
    from cluster.spark.look import Seen

DOCKER = Check("docker", "it-does-not-start#docker")
"""Fault: Docker does not answer this user, or does not list its containers."""
IMAGE_STORE = Check("image-store", "upgrade#the-image-is-not-the-same-on-all-hosts")
"""Note: the hosts keep images in different stores, so ids of one image differ."""

NO_DAEMON = re.compile(
    "cannot connect to the docker daemon|failed to connect to the docker api|daemon running|daemon is running"
    "|error during connect",
    re.IGNORECASE,
)
PODMAN = "`docker` is podman here; Docker itself is required"


@dataclass(frozen=True, slots=True)
class Docker:
    """The daemon. `storage_driver`: `overlay2`, or containerd's `overlayfs`; `root`: its data directory."""

    version: str
    storage_driver: str
    root: str
    containerd_store: bool = False

    @property
    def image_store(self) -> str:
        """Where images are kept: ids of one image differ between stores."""
        return "containerd" if self.containerd_store else self.storage_driver


def question() -> Question:
    return Question(("docker", "info", "--format", "{{json .}}"))


def parse(answer: Answer) -> Docker | Missing:
    """A daemon that cannot be reached is reported on stderr or in `ServerErrors`."""
    if refused := refuse(answer, "docker"):
        return refused
    try:
        info: Any = load_json(answer.out)
        errors = info.get("ServerErrors") or []
        if errors or answer.exit:
            return explain(" ".join(map(str, errors)) or last_words(answer))
        if "ServerVersion" not in info:
            return Missing(PODMAN, "absent") if "store" in info else Missing("docker info reports no ServerVersion")
    except (ValueError, AttributeError, TypeError):
        return explain(last_words(answer))
    shape = {
        "containerd_store": "io.containerd.snapshotter" in str(info.get("DriverStatus")),
        "version": info["ServerVersion"],
        "storage_driver": info.get("Driver"),
        "root": info.get("DockerRootDir"),
    }
    return as_shape(shape, "docker", Docker)


def explain(said: str) -> Missing:
    """Why docker did not answer, from its words: the wordings of clients 20 to 29."""
    words = plain(said).strip()
    if "podman" in words.lower():
        return Missing(PODMAN, "absent")
    if "permission denied" in words.lower():
        return Missing(f"this user may not use Docker: {words}", "refused")
    if NO_DAEMON.search(words):
        return Missing(f"Docker's daemon does not answer: {words}", "absent")
    return Missing(f"docker: {words or 'failed without an error message'}")


_DRIVER = re.compile(r"^[ \t]*Storage Driver:[ \t]*(?P<driver>\w+)", re.MULTILINE)
_RUNTIMES = re.compile(
    r"^[ \t]*Runtimes:[ \t]*(?P<names>.+)$|^map\[(?P<map>\S*runc.*)\]$|^(?P<json>\{.*\"runc\".*\})$", re.MULTILINE
)
_CDI = re.compile(r"cdi: nvidia\.com/gpu|nvidia\.com/gpu=all")
_PS = re.compile(r"^CONTAINER ID[ \t]+IMAGE\b.*\n(?P<rows>(?:(?:[0-9a-f]{12}\s.*)\n?)*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class DockerText:
    """`storage_driver` is empty when not shown, `nvidia_runtime` None when runtimes are not shown."""

    storage_driver: str
    nvidia_runtime: bool | None
    nvidia_cdi: bool


def recognise(text: str) -> DockerText | None:
    driver, runtimes = _DRIVER.search(text), _RUNTIMES.search(text)
    if not driver and not runtimes:
        return None
    nvidia = any("nvidia" in names for names in runtimes.groups("")) if runtimes else None
    return DockerText(driver["driver"] if driver else "", nvidia, _CDI.search(text) is not None)


def recognise_containers(text: str) -> int | None:
    found = _PS.search(text)
    return len(found["rows"].splitlines()) if found else None


def check_docker(seen: Seen) -> Iterator[Finding]:
    host, account = seen.host, known(seen.identity)
    if not isinstance(seen.docker, Missing) and isinstance(seen.containers, Missing):
        what = "the containers cannot be listed, so nothing can be decided"
        yield DOCKER.fault(host, what, seen.containers.why, f"on {host}: docker ps --all")
    if not isinstance(seen.docker, Missing):
        return
    remedy = {
        "refused": "sudo usermod -aG docker $USER, then log in again",
        "absent": "install Docker, or start it with sudo systemctl start docker",
        "timeout": "sudo systemctl restart docker; look at journalctl -u docker",
    }.get(seen.docker.kind, "docker info")
    why = seen.docker.why
    if account and seen.docker.kind == "refused":
        why += f"; groups of {account.user}: {' '.join(account.groups)}"
    elif account and why.endswith("PATH of a non-login shell"):
        why += f": {account.path}"
    yield DOCKER.fault(host, "Docker cannot be used", why, f"on {host}: {remedy}")


def check_stores(seens: Sequence[Seen]) -> Iterator[Finding]:
    """Docker keeps images in one way everywhere; where it does not, ids of one image differ (its content does not)."""
    stores = {seen.host: daemon.image_store for seen in seens if (daemon := known(seen.docker))}
    what = "the hosts keep images in different stores, so ids differ"
    remedy = "nothing to do for cluster, which compares content; containerd-snapshotter in /etc/docker/daemon.json"
    yield from IMAGE_STORE.differ("note", stores, what, remedy)
