"""The names of all checks, each with the page of docs/runbooks that says what to do: the one place of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cluster.config.find import nearest
from cluster.errors import UsageError

RUNBOOKS: Mapping[str, str] = {
    "platform": "first-set-up",
    "sudo": "first-set-up",
    "kernel": "it-does-not-start",
    "hostname": "first-set-up",
    "docker": "it-does-not-start",
    "container": "it-does-not-start",
    "names": "it-does-not-start",
    "ports": "it-does-not-start",
    "gpu": "it-does-not-start",
    "power-cap": "it-is-slow",
    "throttle": "it-is-slow",
    "wedged": "it-hangs",
    "gpu-stranger": "memory-is-full",
    "stranger": "memory-is-full",
    "orphan": "memory-is-full",
    "tenants": "memory-is-full",
    "memory": "memory-is-full",
    "page-cache": "memory-is-full",
    "disk": "memory-is-full",
    "image": "it-does-not-start",
    "weights": "it-does-not-start",
    "machine-id": "first-set-up",
    "clock": "first-set-up",
    "image-parity": "upgrade",
    "image-store": "upgrade",
    "weights-parity": "swap-a-model",
    "versions": "upgrade",
    "fabric": "first-set-up",
    "rdma": "first-set-up",
    "rdma-device": "it-does-not-start",
    "twins": "it-is-slow",
    "rate": "it-is-slow",
    "mtu": "it-is-slow",
    "cabling": "first-set-up",
    "route": "it-is-slow",
    "gid": "it-hangs",
    "firewall": "it-hangs",
    "ping": "first-set-up",
    "drift": "reboot-or-replace",
    "deployment": "it-does-not-start",
    "fabric-speed": "it-is-slow#bandwidth",
}
"""Check → the file's stem, with `#anchor` where one section is meant."""

WATCHED: Mapping[str, str] = {
    "wedge": "it-hangs#wedged",
    "rank": "it-hangs#a-rank-is-gone",
    "server": "it-hangs",
    "memory-low": "memory-is-full",
    "memory-falling": "memory-is-full",
    "clocks": "it-is-slow#power-cap",
    "link": "it-hangs#the-link-is-cut",
    "socket-fallback": "it-is-slow#tcp-instead-of-roce",
}
"""The same for what is only found by watching; no start waits for it, so `--force` does not know it."""


def check_names(given: Iterable[str]) -> frozenset[str]:
    """Names of checks as `--force` takes them. Raises UsageError for a name that no check has."""
    given = frozenset(given)
    for name in sorted(given - RUNBOOKS.keys()):
        known = ", ".join(RUNBOOKS)
        near = nearest(name, RUNBOOKS)
        raise UsageError(
            f"--force {name}: there is no check of that name", remedy=f"{near}; all: {known}" if near else known
        )
    return given
