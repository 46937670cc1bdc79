"""From inventory entries to a fleet: who is this machine, who is reached over SSH."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Mapping
from functools import partial
from typing import Any

from cluster.config.inventory import HostEntry
from cluster.hosts.cancel import Cancel
from cluster.hosts.fleet import Fleet, in_parallel, values
from cluster.hosts.local import LocalHost
from cluster.hosts.protocol import Host
from cluster.hosts.target import SshTarget, resolve


def connect(entries: Mapping[str, HostEntry], *, limit: int = 32, cancel: Cancel | None = None) -> Fleet:
    """A fleet of the inventory's hosts. Connections are opened when first used, in parallel, and then kept.

    This machine is reached without SSH. It is this machine when everything ssh would be told leads here: the address
    is one of our own (it can be bound to), with ssh's usual port, no jump host, no proxy and our own user. Addresses of
    other network namespaces are not our own, so whoever lives there is reached over SSH. Whoever wants ssh to this
    machine nevertheless gives another port. Two names of one machine are found later, by machine-id.

    Raises UsageError when ssh cannot make sense of an entry.
    """
    cancel = cancel or Cancel()
    jobs = {name: partial(_host, name, entry, cancel) for name, entry in entries.items()}
    return Fleet(list(values(in_parallel(jobs, limit, cancel)).values()), limit, cancel)


def _host(name: str, entry: HostEntry, cancel: Cancel) -> Host:
    target = resolve(name, entry)
    if leads_here(target):
        return LocalHost(name, cancel)
    from cluster.hosts.ssh import SshHost

    return SshHost(name, target, cancel)


def leads_here(target: SshTarget) -> bool:
    """Whether ssh to the target would end on this machine as this user. See `connect` for the rule."""
    if target.port != 22 or target.proxy_command or target.user != getpass.getuser():
        return False
    try:
        found = socket.getaddrinfo(target.hostname, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(_is_own(family, address) for family, _, _, _, address in found)


def _is_own(family: int, address: tuple[Any, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address[0], 0, *address[2:]))
    except OSError:
        return False
    return True
