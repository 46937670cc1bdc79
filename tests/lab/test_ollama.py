"""Ollama beside us on a host: its models are unloaded when that was agreed to, and only then."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable

from own_lab import Lab
from person import CLUSTER, MP, Person

Make = Callable[[str, str], None]
MODEL = "gemma3:27b"
RUNNER = "pgrep -f '[o]llama runner' || true"


def test_unloaded_when_agreed_and_not_before(lab: Lab, person: Person, broken: Make) -> None:
    broken("spark2", "ollama")
    assert lab.tell("spark2", RUNNER)
    ran = person.must("up", *MP, "--dry-run", "--unload-ollama")
    assert f'/api/generate -d \'{{"model": "{MODEL}", "keep_alive": 0}}\'' in ran.out
    person.must("up", *MP, "--yes")
    assert lab.tell("spark2", RUNNER)
    person.must("down")
    person.must("up", *MP, "--unload-ollama")
    assert lab.tell("spark2", "ollama ps") == "NAME"
    assert lab.tell("spark2", RUNNER) == ""
    assert f"unload {MODEL} from Ollama" in lab.tell("spark2", "cat ~/.local/share/cluster/audit.log")


def test_asked_on_a_terminal_when_memory_is_missing(lab: Lab, person: Person, broken: Make) -> None:
    for fault in ("ollama", "low-memory"):
        broken("spark1", fault)
    said = on_terminal(person, "up", *MP, answer="n")
    assert f"Ollama holds memory on spark1: {MODEL} (0.2 GiB): unload first? [y/N]" in said
    assert "GiB are to be had" in said
    assert lab.tell("spark1", RUNNER)


def on_terminal(person: Person, *words: str, answer: str) -> str:
    """What stands on the terminal after a command whose questions were all answered in one way."""
    line = shlex.join([CLUSTER, *words])
    done = subprocess.run(
        ["script", "-qec", line, "/dev/null"], input=f"{answer}\n".encode(), capture_output=True, timeout=240,
        cwd=person.place, env=person.environment | {"TERM": "dumb", "COLUMNS": "300"},
    )  # fmt: skip
    return done.stdout.decode(errors="replace")
