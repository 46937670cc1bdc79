"""Servers and hosts for the tests of the wire."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from loopback import SSHD, Sshd

from cluster.hosts.local import LocalHost
from cluster.hosts.wire import WireHost


@pytest.fixture(scope="session")
def _needs_openssh() -> None:
    if not Path(SSHD).exists() or not shutil.which("ssh"):
        pytest.skip("these tests need OpenSSH's server and client: scripts/test installs them")


@pytest.fixture(scope="session")
def _shared_sshd(_needs_openssh: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    server = Sshd(tmp_path_factory.mktemp("sshd") / "server")
    yield server
    server.stop()


@pytest.fixture
def sshd(_shared_sshd: Sshd) -> Iterator[Sshd]:
    """The plain server, the same for all tests."""
    yield _shared_sshd
    _shared_sshd.close_hosts()


@pytest.fixture
def make_sshd(_needs_openssh: None, tmp_path: Path) -> Iterator[Callable[..., Sshd]]:
    """Makes servers with peculiarities."""
    made: list[Sshd] = []

    def make(**how: Any) -> Sshd:
        made.append(Sshd(tmp_path / f"server{len(made)}", **how))
        return made[-1]

    yield make
    for server in made:
        server.close_hosts()
        server.stop()


@pytest.fixture(params=["ssh", "local"])
def host(request: pytest.FixtureRequest, sshd: Sshd) -> WireHost:
    """A host, over SSH and as this machine: both must behave the same."""
    return sshd.host() if request.param == "ssh" else LocalHost("spark1")
