"""Connections that are prepared at the same moment do not share what fabric writes while it reads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.hosts.ssh import _prepare


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads change places as often as they can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def test_many_are_prepared_at_once(hasty: None) -> None:
    target: Any = SimpleNamespace(hostname="192.168.1.41", user="nvidia", port=22)
    sock: Any = None
    trust: Any = SimpleNamespace()
    failed: list[Exception] = []

    def prepare() -> None:
        try:
            for _ in range(50):
                _prepare("spark1", target, trust, sock)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=prepare) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
