"""More than two: TP over three hosts, and two pipeline stages, in a lab of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from own_lab import DIRECTORY, Lab
from person import QUICK, Person

pytestmark = pytest.mark.campaign
THREE = ("spark1", "spark2", "spark3")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    lab = Lab(Path(f"{DIRECTORY}-three"))
    try:
        lab.must("up", "--hosts", "3")
        with Person(lab, tmp_path_factory.mktemp("three")) as made:
            yield made
    finally:
        lab.must("down")


@pytest.mark.parametrize(
    ("hosts", "words"),
    [(THREE, ("--tp", "3", "--backend", "mp")), (THREE[1:], ("--pp", "2", "--backend", "mp"))],
    ids=["tensor parallel 3", "pipeline parallel 2"],
)
def test_start_status_and_down(three: Person, hosts: tuple[str, ...], words: tuple[str, ...]) -> None:
    told = three.must("up", "-n", ",".join(hosts), *words, *QUICK, "--json").document
    assert told["changed"] is True
    [shown] = three.must("status", "--json").document["deployments"]
    assert (shown["state"], sorted(shown["ranks"])) == ("ready", sorted(hosts)), shown
    three.must("down")
    for host in THREE:
        assert three.lab.tell(host, "docker ps -aq; ls -A ~/.local/share/cluster/deployments 2>/dev/null; true") == ""
