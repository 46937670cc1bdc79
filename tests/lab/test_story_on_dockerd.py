"""The story of tests/docker_story.py, told to a real docker daemon over SSH."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from own_lab import Lab

sys.path.insert(0, str(Path(__file__).parents[1]))

from docker_story import Story, chapters

from cluster.config.inventory import InventoryFile, read_inventory, resolve_hosts
from cluster.hosts.connect import connect

IMAGE = "cluster-lab/vllm:quick"


@pytest.mark.lab
def test_story(lab: Lab) -> None:
    file = InventoryFile(read_inventory(lab.inventory))
    [host] = resolve_hosts(file, ["spark1"], lambda name: False)
    with connect({host.name: host}) as fleet:
        story = Story(lambda question: fleet["spark1"].ask([question])[0], IMAGE)
        story.tidy()
        try:
            for chapter in chapters():
                chapter(story)
        finally:
            story.tidy()
