"""The operator's disk is full when something fails."""

from __future__ import annotations

import errno
import json
import os
from typing import TYPE_CHECKING

import pytest
from machine import Desk
from typed import Typed

if TYPE_CHECKING:
    from conftest import Disk


def test_the_failure_is_still_told_and_put_back(
    cluster: Typed, desk: Desk, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.fill()
    monkeypatch.setenv("XDG_STATE_HOME", str(disk.place))
    desk.bad_flag = "--max-model-len"
    before = desk.state()
    ran = cluster("up", "toy", "--tp", "2", "--json")
    [error] = json.loads(ran.out)["errors"]
    assert ran.code == 1
    assert desk.last_line in error["error"]
    assert os.strerror(errno.ENOSPC) in ran.err
    after = desk.state()
    assert [one.containers for one in after.values()] == [one.containers for one in before.values()]
