"""The pages of docs/runbooks, typed into the lab: what they show is what is printed.

Each page runs top to bottom, on whole and empty hosts, with these orders in comments:

- `break HOST FAULT`, `mend HOST`: `cluster lab` does it
- `exit N`: how the next command ends, when not with 0
- `type TEXT`: the next command is run on a terminal, and this answers its question
- `ctrl-c TEXT`: the next command is interrupted once it has printed this
- `skip REASON`: the next command, or block of commands, cannot be run here

A line shown below a command must be among those that it printed: numbers, identifiers and blanks may differ, `…` stands
for anything. What a reader types and the lab needs otherwise is changed in `Desk` and nowhere else.
"""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pytest
from hosts_now import HOSTS, take_all_away
from own_lab import Lab
from person import CLUSTER
from runbook_pages import Order, Typed, pages, steps

RECIPE = """
model: cluster-lab/tiny-gemma-4
weights: dummy
image: cluster-lab/vllm:quick
platform: any
backend: mp
vllm: {enforce-eager: true, max-model-len: 20480}
shm_gib: 2
memory: {per_host_gib: {1: 4, 2: 4}}
bench: {pp: [512], tg: [32], depth: [0, 2048], runs: 3}
"""
"""A toy in place of the recipe that `up` takes by default: starts within seconds, no Ray."""
LONGEST_S = 120
VARIES = re.compile(r"(?P<any>…)|(?P<key>SHA256:\S+)|(?P<id>\b[0-9a-f]{8,}\b)|(?P<number>\d+)|(?P<blank>\s+)")
LIKE = {"any": ".*", "key": r"SHA256:\S+", "id": "[0-9a-f]+", "number": r"\d+", "blank": r"\s+"}
"""What differs from run to run, and what may stand in its place."""


@dataclass
class Desk:
    """The reader's machine: a home with an inventory, and a toy in place of the large recipes."""

    lab: Lab
    home: Path
    names: dict[str, str] = field(default_factory=dict)
    """What a page says → what it is here."""

    def __post_init__(self) -> None:
        self.names = {f"192.168.1.4{number}": self.lab.address(host) for number, host in enumerate(HOSTS, 1)}
        self.names |= {"nvidia@": "spark@", "~/": f"{self.home}/"}
        recipes, ssh, config = (self.home / name for name in ("recipes", ".ssh", ".config/cluster"))
        for folder in (recipes, ssh, config):
            folder.mkdir(parents=True)
        for name in ("gemma-4-31b-fp8", "gemma-4-26b-a4b-fp8"):
            (recipes / f"{name}.yaml").write_text(RECIPE)
        (ssh / "known_hosts").write_text((self.lab.root / "known_hosts").read_text())
        key = f"identity_file: {self.lab.root / 'id_ed25519'}, known_hosts_file: ~/.ssh/known_hosts"
        rows = "".join(f"  {host}: {{address: {self.lab.address(host)}}}\n" for host in HOSTS)
        (config / "inventory.yaml").write_text(f"defaults: {{user: spark, {key}}}\nhosts:\n{rows}")

    @property
    def environment(self) -> dict[str, str]:
        """What a command finds."""
        path = f"{Path(CLUSTER).parent}:{os.environ['PATH']}"
        return {"PATH": path, "HOME": str(self.home), "LANG": "C.UTF-8", "COLUMNS": "300", "TERM": "dumb"}

    def here(self, text: str) -> str:
        """A page's words as they are here. A `~/` is left to the shell."""
        for said, is_here in self.names.items():
            text = text if said == "~/" else text.replace(said, is_here)
        return text

    def told(self, text: str) -> str:
        """What was printed, in a page's words."""
        for said, is_here in self.names.items():
            text = text.replace(is_here, said)
        return text

    def type(self, typed: Typed, told: Mapping[str, str]) -> tuple[int, str]:
        """Type one command as the orders say; its exit code and all that it printed, in a page's words."""
        command = self.here(typed.command)
        if typed.host:
            done = self.lab.ssh(typed.host, command)
            return done.returncode, done.stdout + done.stderr
        if "type" in told:
            code, printed = self._on_terminal(command, told["type"])
        else:
            code, printed = self._in_pipe(command, told.get("ctrl-c", ""))
        return code, self.told(printed.decode(errors="replace"))

    def _start(self, command: str, stdin: int, out: int | IO[bytes]) -> subprocess.Popen[bytes]:
        words = ["bash", "-c", command]
        return subprocess.Popen(
            words, cwd=self.home, env=self.environment, stdin=stdin, stdout=out, stderr=out, start_new_session=True
        )

    def _on_terminal(self, command: str, answer: str) -> tuple[int, bytes]:
        inside, outside = pty.openpty()
        process = self._start(command, outside, outside)
        os.close(outside)
        printed = answer_terminal(inside, answer)
        return process.wait(LONGEST_S), printed

    def _in_pipe(self, command: str, stop_at: str) -> tuple[int, bytes]:
        printed = self.home / "printed"
        with printed.open("wb") as out:
            process = self._start(command, subprocess.DEVNULL, out)
        if stop_at:
            await_text(printed, stop_at, process)
            os.killpg(process.pid, signal.SIGINT)
        return process.wait(LONGEST_S), printed.read_bytes()


def answer_terminal(descriptor: int, answer: str) -> bytes:
    """All that is printed on a terminal until its last program ends; its question is answered once."""
    said, answered = b"", False
    try:
        while part := os.read(descriptor, 65536):
            said += part
            if not answered and said.endswith(b"[y/N] "):
                os.write(descriptor, f"{answer}\n".encode())
                answered = True
    except OSError:  # Linux says EIO at the end
        pass
    os.close(descriptor)
    return said


def await_text(path: Path, text: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until a command has printed a text."""
    until = time.monotonic() + LONGEST_S
    while text not in path.read_text(errors="replace"):
        assert process.poll() is None, path.read_text()
        assert time.monotonic() < until, path.read_text()
        time.sleep(0.05)


def pattern(shown: str) -> re.Pattern[str]:
    """What a line of a page matches."""
    parts, at = [], 0
    for found in VARIES.finditer(shown):
        parts += [re.escape(shown[at : found.start()]), LIKE[found.lastgroup or ""]]
        at = found.end()
    return re.compile("".join(parts) + re.escape(shown[at:]) + r"\s*")


def assert_shown(at: str, typed: Typed, told: Mapping[str, str], code: int, printed: str) -> None:
    """A command ended as the page says and printed what the page shows."""
    ran = f"{at}: {typed.command}\n{printed}[exit {code}]"
    assert code == int(told.get("exit", 0)), ran
    lines = printed.splitlines()
    for shown in typed.shown:
        assert any(pattern(shown).fullmatch(line) for line in lines), f"not printed: {shown}\nby {ran}"


@pytest.fixture
def desk(lab: Lab, tmp_path: Path) -> Iterator[Desk]:
    """A new desk before whole and empty hosts; they are so again afterwards."""
    yield Desk(lab, tmp_path)
    lab.must("mend")
    take_all_away(lab)


OFTEN = ("first-set-up", "it-does-not-start", "swap-a-model")
"""Tried at every change; the others in the campaign."""
PAGES = [pytest.param(page, marks=() if page.stem in OFTEN else pytest.mark.campaign, id=page.stem) for page in pages()]


@pytest.mark.parametrize("page", PAGES)
def test_page_is_true(desk: Desk, page: Path) -> None:
    told: dict[str, str] = {}
    for step in steps(page):
        at = f"{page.name}:{step.line}"
        if isinstance(step, Order) and step.word in ("break", "mend"):
            desk.lab.must(step.word, *step.text.split())
        elif isinstance(step, Order):
            assert step.word in ("exit", "type", "ctrl-c", "skip"), at
            told[step.word] = step.text
        elif isinstance(step, Typed) and "skip" not in told:
            assert_shown(at, step, told, *desk.type(step, told))
            told.clear()
        else:
            assert told.pop("skip", ""), f"{at}: say why it is not run"
    assert not told, f"{page.name}: about no command: {told}"
