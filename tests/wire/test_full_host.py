"""A disk that is full on a host: one clear error, the old file whole, nothing beside, and the lock is still held."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest
from loopback import Sshd

from cluster.errors import ClusterError
from cluster.hosts.fleet import Fleet
from cluster.hosts.lock import Lock
from cluster.hosts.wire import WireHost

if TYPE_CHECKING:
    from conftest import Disk

FULL = os.strerror(errno.ENOSPC)


def test_the_old_file_stays(host: WireHost, disk: Disk) -> None:
    old = disk.place / "file"
    old.write_text("old")
    disk.fill()
    for path in (old, disk.place / "new" / "file"):
        with pytest.raises(ClusterError) as raised:
            host.put(bytes(300_000), str(path))
        assert FULL in raised.value.what
        assert raised.value.where == "spark1"
    assert old.read_text() == "old"
    assert sorted(path.name for path in disk.place.rglob("*") if path.is_file()) == ["file", "filler"]


def test_a_lock_outlives_the_audit_that_cannot_be_written(sshd: Sshd, disk: Disk) -> None:
    with Lock(Fleet([sshd.host("spark1")]), "up", {"spark1": str(disk.place)}, silence_s=5, beat_s=0.2) as lock:
        disk.fill()
        for number in range(60):
            lock.note("spark1", f"step {number} {'x' * 200}")
        for _ in range(3):
            sshd.host().ask([])
        lock.require()
        assert not lock.lost()


def test_a_lock_on_a_full_disk(sshd: Sshd, disk: Disk) -> None:
    disk.fill()
    with pytest.raises(ClusterError) as raised, Lock(Fleet([sshd.host("spark1")]), "up", {"spark1": str(disk.place)}):
        pass
    assert FULL in raised.value.what
    assert raised.value.where == "spark1"
