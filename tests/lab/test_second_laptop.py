"""A second laptop: its inventory calls the same hosts otherwise. On the quick image."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hosts_now import HOSTS, assert_nothing_of_ours, containers
from own_lab import Lab
from person import MP, QUICK, Person

NAMES = dict(zip(HOSTS, ("left", "right"), strict=True))


@pytest.fixture
def second(lab: Lab, tmp_path: Path) -> str:
    """The lab's inventory with other names for its hosts."""
    told = yaml.safe_load(lab.inventory.read_text())
    hosts = {NAMES[name]: entry for name, entry in told["hosts"].items()}
    path = tmp_path / "second.yaml"
    path.write_text(yaml.safe_dump(told | {"hosts": hosts, "groups": {}}, sort_keys=False))
    return str(path)


def test_another_inventory_sees_the_same_deployment(lab: Lab, person: Person, second: str) -> None:
    person.must("up", *MP)
    before = containers(lab)
    [told] = person.must("status", "-i", second, "--json").document["deployments"]
    assert (told["state"], told["hosts"]) == ("ready", list(NAMES.values()))
    again = person.must("up", "-i", second, "--tp", "2", *QUICK, "--backend", "mp", "--json")
    assert (again.document["changed"], again.document["hosts"]) == (False, list(NAMES.values()))
    assert containers(lab) == before
    labels = lab.tell("spark1", "docker inspect --format '{{index .Config.Labels \"cluster.hosts\"}}' $(docker ps -q)")
    assert re.fullmatch(r"[0-9a-f]{12},[0-9a-f]{12}", labels)
    for host in HOSTS:
        assert lab.tell(host, "cat /etc/machine-id") not in lab.tell("spark1", "docker inspect $(docker ps -q)")
    person.must("down", "-i", second)
    assert_nothing_of_ours(lab)
