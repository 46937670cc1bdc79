"""The names of all checks, each with the page of docs/runbooks that says what to do: the one place of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cluster.config.find import nearest
from cluster.errors import UsageError

RUNBOOKS: Mapping[str, str] = {
    "platform": "first-set-up#platform",
    "sudo": "first-set-up#before-the-first-command",
    "kernel": "upgrade#kernel",
    "hostname": "first-set-up#names",
    "docker": "it-does-not-start#docker",
    "container": "it-does-not-start#container-and-gpu",
    "names": "it-does-not-start#ports-and-names",
    "ports": "it-does-not-start#ports-and-names",
    "gpu": "it-does-not-start#container-and-gpu",
    "power-cap": "it-is-slow#power-cap",
    "throttle": "it-is-slow#power-cap",
    "wedged": "it-hangs#wedged",
    "gpu-stranger": "memory-is-full#another-tenant",
    "stranger": "memory-is-full#another-tenant",
    "orphan": "memory-is-full#a-leftover-holds-it",
    "tenants": "memory-is-full#another-tenant",
    "memory": "memory-is-full",
    "page-cache": "memory-is-full#page-cache",
    "disk": "memory-is-full#the-disk-is-full",
    "image": "it-does-not-start#image",
    "weights": "it-does-not-start#model",
    "machine-id": "first-set-up#same-machine",
    "clock": "first-set-up#clock",
    "image-parity": "upgrade#the-image-is-not-the-same-on-all-hosts",
    "image-store": "upgrade#the-image-is-not-the-same-on-all-hosts",
    "weights-parity": "swap-a-model#the-hosts-have-different-copies",
    "versions": "upgrade#driver-kernel-firmware",
    "fabric": "first-set-up#fabric-addresses",
    "address": "first-set-up#fabric-addresses",
    "rdma": "it-is-slow#tcp-instead-of-roce",
    "rdma-device": "it-is-slow#tcp-instead-of-roce",
    "twins": "it-is-slow#one-twin",
    "rate": "it-is-slow#bandwidth",
    "mtu": "it-is-slow#mtu",
    "cabling": "first-set-up#fabric-addresses",
    "route": "first-set-up#fabric-addresses",
    "gid": "reboot-or-replace#the-fabric-is-not-what-it-was",
    "firewall": "first-set-up#firewall",
    "ping": "first-set-up#fabric-addresses",
    "drift": "reboot-or-replace#the-fabric-is-not-what-it-was",
    "deployment": "reboot-or-replace#after-a-reboot",
    "transport": "it-is-slow#tcp-instead-of-roce",
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
