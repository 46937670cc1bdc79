"""Docker's daemon on a host, from `docker info --format '{{json .}}'` (Engine API, SystemInfo)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Docker:
    """The daemon this user can reach. `storage_driver`: `overlay2` or `overlayfs` (containerd's store); `root`: its
    data directory; `runtimes` by name, sorted (a stock Spark lists no `nvidia`); `architecture` as `uname -m`."""

    version: str
    storage_driver: str
    root: str
    runtimes: tuple[str, ...]
    architecture: str
