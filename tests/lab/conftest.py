"""The lab that tests of this folder share, and the person who types `cluster` there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hosts_now import take_all_away
from own_lab import DIRECTORY, Lab
from person import Person

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs the lab, and its patience: engines start, memory comes back.

    What waits for a real engine on two cores may be late once: it is tried once more, and pytest prints that it was.
    """
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.lab)
            item.add_marker(pytest.mark.flaky(reruns=1))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Two hosts, up for the whole session."""
    if os.geteuid() != 0:
        pytest.skip("the lab needs root")
    made = Lab(Path(DIRECTORY))
    made.must("up", "--hosts", "2")
    made.must("mend")
    take_all_away(made)
    yield made
    made.must("down")


@pytest.fixture
def broken(lab: Lab) -> Iterator[Callable[[str, str], None]]:
    """`broken("spark2", "mtu")` makes a fault; all faults are mended when the test ends."""

    def make(host: str, fault: str) -> None:
        lab.must("break", host, fault)

    yield make
    lab.must("mend")


@pytest.fixture
def person(lab: Lab, tmp_path: Path) -> Iterator[Person]:
    """`person("up", "--solo")` types a command; the hosts are empty before the test and after it."""
    with Person(lab, tmp_path) as made:
        yield made
    take_all_away(lab)


@pytest.fixture(scope="module")
def resident(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """The same for tests of one file that share what runs."""
    with Person(lab, tmp_path_factory.mktemp("resident")) as made:
        yield made
    take_all_away(lab)
