"""How the commands behave in a shell: pipes, colour, --json, hostile words, logs. On the quick image."""

from __future__ import annotations

import os
import re
import subprocess
import time
from signal import SIGINT

import pytest
from own_lab import Lab
from person import CLUSTER, MP, Person
from waiting import eventually


@pytest.fixture(scope="module")
def serving(resident: Person) -> Person:
    """A pair that only is looked at."""
    resident.must("up", *MP)
    return resident


def shell(person: Person, line: str, **more_environment: str) -> subprocess.CompletedProcess[str]:
    """A line typed into bash, with `cluster` on its PATH."""
    environment = person.environment | more_environment
    environment["PATH"] = f"{os.path.dirname(CLUSTER)}:{environment['PATH']}"
    words = ["bash", "-o", "pipefail", "-c", line]
    return subprocess.run(words, capture_output=True, text=True, env=environment, cwd=person.place, timeout=200)


@pytest.mark.parametrize(
    "command",
    ["--help", "status", "logs -f", "exec -- seq 100000"],
)
def test_output_into_head(serving: Person, command: str) -> None:
    """`| head -1`: one line, no traceback, no complaint about the pipe, and it ends."""
    done = shell(serving, f"cluster {command} | head -1; echo ${{PIPESTATUS[1]}}")
    assert len(done.stdout.splitlines()) == 2, done
    assert "Traceback" not in done.stderr, done.stderr
    assert "BrokenPipe" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_no_colour_in_pipes_nor_with_no_color(serving: Person) -> None:
    piped = serving.must("status")
    assert "\x1b" not in piped.out + piped.err
    terminal = f"script -qec '{CLUSTER} status' /dev/null"
    coloured = shell(serving, terminal, TERM="xterm-256color")
    plain = shell(serving, terminal, TERM="xterm-256color", NO_COLOR="1")
    assert "\x1b[1m" in coloured.stdout or "\x1b[3" in coloured.stdout
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", plain.stdout), plain.stdout


def test_narrow_terminal(serving: Person) -> None:
    done = shell(serving, f"script -qec 'stty cols 40; {CLUSTER} status' /dev/null", TERM="xterm", COLUMNS="40")
    assert "spark2" in done.stdout
    assert "Traceback" not in done.stdout


def test_exec_tells_each_hosts_outcome(serving: Person) -> None:
    ran = serving("exec", "--", "sh", "-c", "hostname; test $(hostname) = spark1 || exit 7")
    assert ran.code == 1
    assert ran.out == "spark1: spark1\nspark2: spark2\n"
    assert "spark2: exit 7" in ran.err
    late = serving("exec", "-n", "spark2", "--timeout", "1", "--", "sleep", "77")
    assert late.code == 1
    assert late.seconds < 20
    assert "sleep 77" not in serving.lab.tell("spark2", "ps axww -o args")


def test_logs_follow_until_ctrl_c(lab: Lab, serving: Person) -> None:
    run = serving.start("logs", "-f", "--tail", "1")
    eventually(lambda: "spark1:" in run.out.read_text(), 30, "the first line", every_s=0.1)
    lab.tell("spark1", "curl -s http://127.0.0.1:8000/planted-in-the-log")
    eventually(lambda: "planted-in-the-log" in run.out.read_text(), 30, run.out.read_text, every_s=0.1)
    run.send(SIGINT)
    began = time.monotonic()
    ran = run.ended()
    assert time.monotonic() - began < 5
    assert ran.code == 130, ran
    assert "Traceback" not in ran.err
    assert "docker logs" not in lab.tell("spark1", "sleep 1; ps axww -o args= | grep -v grep")
