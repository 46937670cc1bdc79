"""Files a user might write, commands they might type, and exactly what they are told.

Each file of tests/transcripts/config is one story: `--- FILE` starts a file's text (FILE ending in ` crlf` is written
with CRLF, ` bom` with a byte-order mark), `$ cluster …` a command; the lines up to the next `$`, `---` or end are its
stderr (stdout where the line starts with `| `), the last one `exit N`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cluster.cli.main import main

STORIES = sorted((Path(__file__).resolve().parents[1] / "transcripts/config").glob("*.txt"))


@dataclass
class Command:
    """A command line and what it should say."""

    words: list[str]
    said: list[str] = field(default_factory=list)


def write(name: str, lines: list[str]) -> None:
    file, _, kind = name.partition(" ")
    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{line}\n" for line in lines)
    data = text.replace("\n", "\r\n").encode() if kind == "crlf" else text.encode()
    path.write_bytes(b"\xef\xbb\xbf" + data if kind == "bom" else data)


def read_story(text: str) -> Iterator[Command | tuple[str, list[str]]]:
    current: list[str] = []
    for line in text.splitlines():
        if line.startswith("--- "):
            current = []
            yield line[4:], current
        elif line.startswith("$ cluster "):
            command = Command(shlex.split(line)[2:])
            current = command.said
            yield command
        else:
            current.append(line)


@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem)
def test_a_story(
    story: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CLUSTER_INVENTORY", raising=False)
    for part in list(read_story(story.read_text(encoding="utf-8"))):
        if isinstance(part, tuple):
            write(*part)
            continue
        code = main(part.words)
        told = capsys.readouterr()
        said = [f"| {line}" for line in told.out.splitlines()] + told.err.splitlines() + [f"exit {code}"]
        assert [re.sub(re.escape(str(tmp_path)), "~", line).rstrip() for line in said] == part.said


def test_there_are_stories() -> None:
    assert len(STORIES) >= 10
