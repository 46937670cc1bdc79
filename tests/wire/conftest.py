"""Servers and hosts for the tests of the wire."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import interpreters
import pytest
from loopback import SSHD, Sshd

from cluster.hosts.connect import LocalHost
from cluster.hosts.wire import WireHost


@pytest.fixture(scope="session")
def _needs_openssh() -> None:
    if not Path(SSHD).exists() or not shutil.which("ssh"):
        pytest.skip("these tests need OpenSSH's server and client: scripts/test installs them")


@pytest.fixture(scope="session")
def _sshd_of(_needs_openssh: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Sshd]]:
    """Servers that all tests share, by the version of the interpreter on their PATH; "" for this machine's own."""
    made: dict[str, Sshd] = {}

    def serve(version: str) -> Sshd:
        if version not in made:
            programs = tmp_path_factory.mktemp("programs")
            if version:
                (programs / "python3").symlink_to(os.path.realpath(interpreters.found()[version]))
            made[version] = Sshd(tmp_path_factory.mktemp("sshd") / "server", programs=programs)
        return made[version]

    yield serve
    for server in made.values():
        server.stop()


@pytest.fixture
def sshd(_sshd_of: Callable[[str], Sshd]) -> Iterator[Sshd]:
    """The plain server."""
    server = _sshd_of("")
    yield server
    server.close_hosts()


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


@pytest.fixture(params=["local", *interpreters.found()])
def host(request: pytest.FixtureRequest, _sshd_of: Callable[[str], Sshd]) -> Iterator[WireHost]:
    """A host, as this machine and over SSH, where it has each interpreter in turn: all must behave the same."""
    if request.param == "local":
        yield LocalHost("spark1")
        return
    server = _sshd_of(request.param)
    yield server.host()
    server.close_hosts()


@pytest.fixture(params=interpreters.found().values(), ids=interpreters.found())
def far_python(request: pytest.FixtureRequest) -> str:
    """Each interpreter that a host or an image may have, as far as this machine has it."""
    return str(request.param)


@pytest.fixture
def under_each_python(far_python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test starts with `sys.executable` runs under each of them."""
    monkeypatch.setattr("sys.executable", far_python)
