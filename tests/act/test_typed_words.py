"""Empty words, secret files that cannot be read, and what stays after a download."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_docker import Image
from loops import each
from machine import IMAGE, Desk
from typed import UP, Typed

EMPTY = """
probe --only ''
probe --only ,
probe --only tools,
probe --only xyzzy
down -n ''
down -n spark1,
status --nodes ' '
up ''
up -r ''
up toy --api-key-file ''
up toy --hub-token-file ''
up toy --force ''
up toy --bind ''
up toy --set ''
up toy -e ''
bench --model ''
bench --base-url ''
bench --suite ''
doctor --bundle ''
report -o ''
report ''
fit --model-dir ''
explain ''
sweep toy --vary ''
recipes show ''
status -i ''
''
up empty.yaml
up toy --tp 2 -e NOVALUE
"""


@each("words", EMPTY.strip().splitlines())
def test_empty_words_are_refused_before_any_host_is_asked(words: str, cluster: Typed, desk: Desk, place: Path) -> None:
    (place / "empty.yaml").write_text("")
    ran = cluster.ends(2, *shlex.split(words))
    named = words.split()[-2] if re.search(r"-\w+ ''$", words) else ""
    assert named in ran.err
    assert not [question for host in desk.hosts.values() for question in host.asked]


def test_an_empty_word_of_a_command_is_the_commands(cluster: Typed) -> None:
    assert "No such file or directory" in cluster("exec", "--", "cat", "").all


SPOIL: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "folder": Path.mkdir,
    "binary": lambda path: path.write_bytes(b"\xff\xfe\x00key"),
    "empty": lambda path: path.write_text("\n"),
    "two lines": lambda path: path.write_text("sk-one\nsk-two\n"),
}


TAKES_A_FILE = (
    "up toy --api-key-file",
    "up toy --hub-token-file",
    "pull toy --hub-token-file",
    "probe --base-url http://127.0.0.1:9 --api-key-file",
    "bench --base-url http://127.0.0.1:9 --api-key-file",
)
SPOILED = [*((TAKES_A_FILE[0], spoil) for spoil in SPOIL), *((words, "missing") for words in TAKES_A_FILE[1:])]


@pytest.mark.parametrize(("words", "spoil"), SPOILED)
def test_a_secret_file_that_cannot_be_read(words: str, spoil: str, cluster: Typed, desk: Desk, place: Path) -> None:
    SPOIL[spoil](place / "secret")
    ran = cluster.ends(2, *words.split(), "secret")
    assert ran.error["error"].startswith(f"{words.split()[-1]} secret: ")
    assert not [question for host in desk.hosts.values() for question in host.asked]


@pytest.mark.parametrize("words", ["pull toy --yes", "up toy --tp 2 --yes"])
def test_what_was_fetched_before_a_refusal_is_named(words: str, cluster: Typed, desk: Desk) -> None:
    """The worker has no image yet, and its registry has another one behind the same tag."""
    desk["spark2"].docker.images.clear()
    desk["spark2"].docker.registry = {IMAGE: Image(IMAGE, layers=("sha256:aaaa", "sha256:dddd"))}
    ran = cluster.ends(4, *words.split())
    assert IMAGE in desk["spark2"].docker.images
    assert f"image {IMAGE} on spark2" in ran.error["rolled back"]


def test_doctor_asks_no_completion_of_a_deployment_that_is_in_use(cluster: Typed, desk: Desk) -> None:
    cluster.must(*UP)
    before = [port.bytes for machine in desk for port in machine.ports]
    desk.hosts["spark1"].lock_holder = {"who": "ann@desk (pid 1)", "why": "bench toy", "since": 1.0}
    ran = cluster("doctor", "toy")
    assert "ann@desk (pid 1): bench toy" in ran.all
    assert [port.bytes for machine in desk for port in machine.ports] == before
