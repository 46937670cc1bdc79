"""What the tests of facts share: samples, answers, and running a program of far/ as a host would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from cluster.argv.far import far
from cluster.argv.question import Answer, Question

SAMPLES = Path(__file__).parent.parent / "samples"


def sample(name: str) -> str:
    """A recorded output of the field."""
    return (SAMPLES / name).read_text()


def said(value: Any) -> Answer:
    """An answer that is a JSON document."""
    return Answer(0, json.dumps(value).encode())


def ask(question: Question, env: dict[str, str] | None = None) -> Answer:
    """Ask this machine, with python3 being the interpreter of the tests (itself: any user may run it)."""
    program = (
        [os.path.realpath(sys.executable), *question.argv[1:]] if question.argv[0] == "python3" else list(question.argv)
    )
    ended = subprocess.run(program, input=question.stdin, capture_output=True, env=env, timeout=20, check=False)
    return Answer(ended.returncode, ended.stdout, ended.stderr)


def run_far(name: str, given: Any, env: dict[str, str] | None = None) -> Answer:
    """Run far/<name>.py here."""
    return ask(far(name, given), env)


def put(root: Path, files: dict[str, str]) -> None:
    """Write files below a directory, as sysfs and /proc show them."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def put_program(folder: Path, name: str, text: str) -> dict[str, str]:
    """Write a script of that name; the environment in which only it and the system's own programs are found."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return {"PATH": f"{folder}:/bin:/usr/bin", "HOME": str(folder)}
