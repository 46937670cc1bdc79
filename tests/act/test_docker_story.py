"""The docker of the tests, told the story that a real daemon is told in tests/lab/test_story_on_dockerd.py."""

import sys
from pathlib import Path

from machine import IMAGE, Desk

sys.path.insert(0, str(Path(__file__).parents[1]))

from docker_story import Story, chapters


def test_story(desk: Desk) -> None:
    story = Story(desk["spark1"].answer, IMAGE)
    for chapter in chapters():
        chapter(story)
    assert not desk["spark1"].docker.containers
