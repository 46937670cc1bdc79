"""The lab that tests of this folder share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from own_lab import DIRECTORY, Lab


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Two hosts, up for the whole session."""
    if os.geteuid() != 0:
        pytest.skip("the lab needs root")
    made = Lab(Path(DIRECTORY))
    made.must("up", "--hosts", "2")
    yield made
    made.must("down")


@pytest.fixture
def broken(lab: Lab) -> Iterator[Callable[[str, str], None]]:
    """`broken("spark2", "mtu")` makes a fault; all faults are mended when the test ends."""

    def make(host: str, fault: str) -> None:
        lab.must("break", host, fault)

    yield make
    lab.must("mend")
