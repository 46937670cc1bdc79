"""Another time zone and another locale than the author's: the same findings, times and exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parents[1] / "samples"
HERE = {"TZ": "UTC", "LC_ALL": "C.UTF-8"}
COMMANDS: dict[str, tuple[str, ...]] = {
    "causes in the order of time": ("explain", *map(str, sorted((SAMPLES / "ranks").iterdir()))),
    "published dates": ("recipes", "show", "gemma-4-31b-nvfp4"),
    "a stored result": ("report", str(SAMPLES / "result_schema_1.json"), "-o", "page.html"),
    "fit": ("fit", "--offline", "gemma-4-26b-a4b-fp8"),
    "help": ("up", "--help"),
}


def run(words: tuple[str, ...], place: Path, **env: str) -> tuple[int, bytes]:
    """Exit code, and all that was said and written."""
    page = place / "page.html"
    page.unlink(missing_ok=True)
    kept = {"PATH": os.environ["PATH"], "HOME": str(place), "COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, "-m", "cluster.cli.main", *words], capture_output=True, env=kept | env, cwd=place, timeout=50
    )
    return done.returncode, done.stdout + done.stderr + (page.read_bytes() if page.exists() else b"")


@pytest.mark.parametrize("what", COMMANDS)
def test_the_same_is_said(what: str, tmp_path: Path) -> None:
    expected = run(COMMANDS[what], tmp_path, **HERE)
    assert len(expected[1].splitlines()) > 3, expected
    assert run(COMMANDS[what], tmp_path, **HERE | {"TZ": "Asia/Tokyo"}) == expected
    code, text = run(COMMANDS[what], tmp_path, TZ="UTC", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert (code, len(text.splitlines())) == (expected[0], len(expected[1].splitlines()))
