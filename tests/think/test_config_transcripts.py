"""Files a user might write, commands they might type, and exactly what is printed.

Each file of tests/transcripts/config is one story: `--- FILE` starts a file's text (FILE ending in ` crlf` is written
with CRLF, ` bom` with a byte-order mark), `$ cluster …` a command; the lines up to the next `$`, `---` or end are its
stderr (stdout where the line starts with `| `), the last one `exit N`. UPDATE_TRANSCRIPTS=1 writes them.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from cluster.cli.main import main

STORIES = sorted((Path(__file__).resolve().parents[1] / "transcripts/config").glob("*.txt"))


def write(name: str, lines: list[str]) -> None:
    file, _, kind = name.partition(" ")
    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{line}\n" for line in lines)
    data = text.replace("\n", "\r\n").encode() if kind == "crlf" else text.encode()
    path.write_bytes(b"\xef\xbb\xbf" + data if kind == "bom" else data)


@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem)
def test_a_story(
    story: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CLUSTER_INVENTORY", raising=False)
    before, printed = story.read_text(encoding="utf-8"), ""
    for part in re.split(r"^(?=--- |\$ cluster )", before, flags=re.MULTILINE):
        head, *lines = part.splitlines() or [""]
        if head.startswith("$ cluster "):
            code = main(shlex.split(head)[2:])
            shown = capsys.readouterr()
            rows = [*(f"| {line}" for line in shown.out.splitlines()), *shown.err.splitlines(), f"exit {code}"]
            lines = [line.replace(str(tmp_path), "~").rstrip() for line in rows]
        elif head:
            write(head.removeprefix("--- "), lines)
        printed += "".join(f"{line}\n" for line in (head, *lines) if head)
    if os.environ.get("UPDATE_TRANSCRIPTS"):
        story.write_text(printed, encoding="utf-8")
    assert printed == before or os.environ.get("UPDATE_TRANSCRIPTS")


def test_there_are_stories() -> None:
    assert len(STORIES) >= 10
