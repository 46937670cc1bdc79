"""A program of far/ that only asks docker, run as it is over a docker command of a test."""

from __future__ import annotations

import builtins
import io
import json
import subprocess
from collections.abc import Sequence
from functools import cache
from types import CodeType, SimpleNamespace
from typing import Any, Protocol

from cluster.argv.far import text
from cluster.argv.question import Answer


class Docker(Protocol):
    """What `docker WORDS…` says."""

    def answer(self, words: Sequence[str], stdin: bytes = b"") -> Answer: ...


@cache
def compiled(name: str) -> CodeType:
    return compile(text(name), f"far/{name}.py", "exec")


def run_over(docker: Docker, name: str, given: Any) -> Answer:
    """What far/<name>.py prints when `docker` is the docker command of its host."""
    printed = io.BytesIO()

    def popen(argv: Sequence[str], *, stderr: int, **_: Any) -> Any:
        assert argv[0] == "docker"
        said = docker.answer(tuple(argv[1:]))
        if said.exit == 127:
            raise FileNotFoundError(argv[0])
        out = io.BytesIO(said.out + (said.err if stderr == subprocess.STDOUT else b""))
        return SimpleNamespace(stdout=out, stderr=io.BytesIO(said.err), wait=lambda: said.exit, kill=lambda: None)

    modules = {
        "subprocess": SimpleNamespace(**{**vars(subprocess), "Popen": popen}),
        "sys": SimpleNamespace(argv=["-", json.dumps(given)], stdout=SimpleNamespace(buffer=printed)),
    }

    def bring(wanted: str, *rest: Any) -> Any:
        return modules.get(wanted) or builtins.__import__(wanted, *rest)

    for module in ("prelude", name):
        scope = {"__name__": "__main__", "__builtins__": {**vars(builtins), "__import__": bring}}
        exec(compiled(module), scope)
        modules["cluster.far.prelude"] = SimpleNamespace(**scope)
    return Answer(0, printed.getvalue())
