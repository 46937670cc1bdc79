"""`cluster` as a user types it, on a desk of simulated machines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from machine import Desk

from cluster.cli.main import main

INVENTORY = """\
hosts:
  spark1: {address: 192.168.1.41, user: nvidia}
  spark2: {address: 192.168.1.42, user: nvidia}
default_recipe: toy
"""
THREE = INVENTORY.replace("default_recipe", "  spark3: {address: 192.168.1.43}\ndefault_recipe")
UP = ("up", "toy", "--tp", "2")
RECIPE = """\
model: example/toy
architecture: ToyForCausalLM
image: example.org/vllm:1
backend: ray
vllm: {max-model-len: 4096, gpu-memory-utilization: 0.8}
env: {VLLM_LOGGING_LEVEL: INFO}
memory: {per_host_gib: {1: 100, 2: 95}}
needs: {vllm: ">=0.19", ray: ">=2.52"}
ready_timeout_s: 60
"""


def write_files(folder: Path, recipe: str = RECIPE) -> None:
    for name, text in {"inventory/default.yaml": INVENTORY, "recipes/toy.yaml": recipe}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


@dataclass
class Ran:
    """How a command ended. `err` holds progress and errors."""

    code: int
    out: str
    err: str

    @property
    def all(self) -> str:
        return self.out + self.err

    def errors(self) -> list[list[str]]:
        found = re.findall(r"^error: .*(?:\n(?:where|rolled back|hint): .*)*", self.err, re.MULTILINE)
        return [error.split("\n") for error in found]

    @property
    def error(self) -> dict[str, str]:
        [lines] = self.errors()
        return dict(line.split(": ", 1) for line in lines)


@dataclass
class Typed:
    desk: Desk
    place: Path
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *words: str) -> Ran:
        self.capsys.readouterr()
        try:
            code = main(words, connect=self.desk.connect)
        except SystemExit as ended:
            code = int(ended.code or 0)
        got = self.capsys.readouterr()
        return Ran(code, got.out, got.err)

    def ends(self, code: int, *words: str) -> Ran:
        ran = self(*words)
        assert ran.code == code, ran.all
        return ran

    def must(self, *words: str) -> Ran:
        return self.ends(0, *words)

    def copy(self) -> Typed:
        return Typed(self.desk.copy(), self.place, self.capsys)
