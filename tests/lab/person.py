"""The person at the keyboard: types `cluster …` in a folder of their own, reads what is said, presses Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from own_lab import Lab

LAB_TINY = Path(__file__).parents[2] / "recipes/lab-tiny.yaml"
CLUSTER = str(Path(sys.executable).with_name("cluster"))
SILENCE_S = 15
HASTY = f"""import sys
from cluster.cli.main import main
from cluster.deploy import rank
rank.PEER_SILENCE_S = {SILENCE_S}
sys.exit(main(sys.argv[1:]))"""
"""`cluster` whose ranks give up a silent peer after 15 s instead of 60."""
PAIR = ("-n", "spark1,spark2", "--tp", "2")
QUICK = ("--set", "image=cluster-lab/vllm:quick")
MP = (*PAIR, *QUICK, "--no-probe", "--backend", "mp")
"""A pair of the quick image without Ray: serves within seconds."""
RAY = (*PAIR, *QUICK, "--no-probe")
"""The same with real Ray."""


def quick(**wishes: Any) -> tuple[str, ...]:
    """What is asked of the quick image's simulation, as words for vLLM (`ready_after_s`, `fail`, `mib`)."""
    return ("--", "--additional-config", json.dumps({"quick": wishes}))


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended; `code` is negative when a signal ended it."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str
    seconds: float

    def __str__(self) -> str:
        return f"$ cluster {' '.join(self.words)}\n{self.out}{self.err}[exit {self.code}, {self.seconds:.1f} s]"

    @property
    def document(self) -> Any:
        """What --json printed: exactly one document."""
        return json.loads(self.out)

    @property
    def errors(self) -> list[dict[str, str]]:
        """The errors shown, each as in a JSON document: error and code, where, rolled_back, hint."""
        found: list[dict[str, str]] = []
        for line in self.err.splitlines():
            label, colon, text = line.partition(": ")
            if label == "error" and colon:
                what, code = re.findall(r"^(.*?)(?: \[([a-z0-9-]+)\])?$", text)[0]
                found.append({"error": what, "code": code})
            elif found and label in ("where", "rolled back", "hint"):
                found[-1][label.replace(" ", "_")] = text
        return found


@dataclass
class Running:
    """A command that runs; what it says so far can be read."""

    words: tuple[str, ...]
    process: subprocess.Popen[bytes]
    out: Path
    err: Path
    began: float = field(default_factory=time.monotonic)

    @property
    def said(self) -> str:
        """Its progress so far."""
        return self.err.read_text(errors="replace")

    def await_said(self, text: str, timeout_s: float = 240) -> None:
        """Wait until its progress holds a text."""
        until = time.monotonic() + timeout_s
        while text not in self.said:
            assert self.process.poll() is None, f"ended before it said {text!r}: {self.ended()}"
            assert time.monotonic() < until, f"did not say {text!r} in {timeout_s:.0f} s: {self.said}"
            time.sleep(0.02)

    def send(self, number: signal.Signals) -> None:
        """A signal for the whole group, as a terminal sends it."""
        os.killpg(self.process.pid, number)

    def ended(self, timeout_s: float = 120) -> Ran:
        """Wait for the end."""
        code = self.process.wait(timeout_s)
        seconds = time.monotonic() - self.began
        return Ran(self.words, code, self.out.read_text(errors="replace"), self.said, seconds)

    def kill(self) -> Ran:
        """SIGKILL, at once."""
        self.send(signal.SIGKILL)
        return self.ended(10)


@dataclass
class Person:
    """Types commands in `place`, which is home and working directory, for the hosts of a lab."""

    lab: Lab
    place: Path
    program: tuple[str, ...] = (CLUSTER,)
    runs: list[Running] = field(default_factory=list)

    def __enter__(self) -> Person:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for run in self.runs:
            if run.process.poll() is None:
                run.kill()

    @property
    def environment(self) -> dict[str, str]:
        """What the command finds."""
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "TMPDIR")}
        own = {"CLUSTER_INVENTORY": str(self.lab.inventory), "HOME": str(self.place)}
        return {**kept, **own, "XDG_STATE_HOME": str(self.place / "state")}

    @property
    def evidence(self) -> list[Path]:
        """The directories of evidence, oldest first."""
        return sorted((self.place / "state/cluster/evidence").glob("*"))

    def own_recipe(self, *lines: str) -> str:
        """The lab's recipe with more lines, under the name `own`: its file."""
        path = self.place / "recipes/own.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join([LAB_TINY.read_text(), *lines, ""]))
        return str(path)

    def start(self, *words: str, **more_environment: str) -> Running:
        """Begin a command."""
        out, err = (self.place / f"{len(self.runs)}.{name}" for name in ("out", "err"))
        with out.open("wb") as to_out, err.open("wb") as to_err:
            process = subprocess.Popen(
                [*self.program, *words],
                stdin=subprocess.DEVNULL,
                stdout=to_out,
                stderr=to_err,
                cwd=self.place,
                env=self.environment | more_environment,
                start_new_session=True,
            )
        self.runs.append(Running(words, process, out, err))
        return self.runs[-1]

    def __call__(self, *words: str, timeout_s: float = 400, **more_environment: str) -> Ran:
        """Type a command and wait for its end."""
        return self.start(*words, **more_environment).ended(timeout_s)

    def must(self, *words: str, timeout_s: float = 400, **more_environment: str) -> Ran:
        """The same for a command that must succeed."""
        ran = self(*words, timeout_s=timeout_s, **more_environment)
        assert ran.code == 0, ran
        return ran

    def assert_unchanged(self, *words: str) -> Ran:
        """Type an `up` of what runs already: it is proven, and nothing is changed."""
        at = words.index("--") if "--" in words else len(words)
        ran = self.must(*words[:at], "--json", *words[at:])
        assert ran.document["changed"] is False, ran
        return ran
