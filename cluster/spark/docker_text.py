"""What `docker info` and `docker ps` print for people."""

from __future__ import annotations

import re
from dataclasses import dataclass

_DRIVER = re.compile(r"^[ \t]*Storage Driver:[ \t]*(?P<driver>\w+)", re.MULTILINE)
_RUNTIMES = re.compile(
    r"^[ \t]*Runtimes:[ \t]*(?P<names>.+)$|^map\[(?P<map>\S*runc.*)\]$|^(?P<json>\{.*\"runc\".*\})$", re.MULTILINE
)
_CDI = re.compile(r"cdi: nvidia\.com/gpu|nvidia\.com/gpu=all")
_PS = re.compile(r"^CONTAINER ID[ \t]+IMAGE\b.*\n(?P<rows>(?:(?:[0-9a-f]{12}\s.*)\n?)*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class DockerText:
    """The image store (`overlay2`, `overlayfs` for containerd's; empty when not shown), whether NVIDIA's runtime is
    registered (None when runtimes are not shown), and whether its devices are known through CDI."""

    storage_driver: str
    nvidia_runtime: bool | None
    nvidia_cdi: bool


def recognise(text: str) -> DockerText | None:
    """`docker info`, whole or in part, None when it is not there."""
    driver, runtimes = _DRIVER.search(text), _RUNTIMES.search(text)
    if not driver and not runtimes:
        return None
    listed = " ".join(filter(None, runtimes.groups())) if runtimes else None
    nvidia = None if listed is None else "nvidia" in listed
    return DockerText(driver["driver"] if driver else "", nvidia, _CDI.search(text) is not None)


def recognise_containers(text: str) -> int | None:
    """How many containers `docker ps` lists, None when its header is not there."""
    found = _PS.search(text)
    return len(found["rows"].splitlines()) if found else None
