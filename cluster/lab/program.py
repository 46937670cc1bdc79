"""Run programs of this machine, make things once, wait, and find the lab's own processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.errors import ClusterError


def say(text: str) -> None:
    """One line of progress; standard output is for what the user evaluates."""
    print(f"lab: {text}", file=sys.stderr, flush=True)


def made_once(path: Path, what: str, make: Callable[[Path], object]) -> Path:
    """`path`, made at first use: `make` fills a place beside it, which is then renamed, so it is never half made."""
    if not path.exists():
        say(what)
        fresh = path.with_name(f"{path.name}.part")
        shutil.rmtree(fresh, ignore_errors=True)
        make(fresh)
        fresh.rename(path)
    return path


def await_that(
    done: Callable[[], object], otherwise: str, *, code: str = "lab-start-failed", timeout_s: float = 10, log: str = ""
) -> None:
    """Ask until it is done. Raises ClusterError with `otherwise` when time is over."""
    until = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > until:
            raise ClusterError(otherwise, code=code, where=log)
        time.sleep(0.02)


def run(
    argv: Sequence[str],
    *,
    stdin: str = "",
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
    timeout_s: float = 60,
) -> str:
    """Run a program to its end; its standard output. `log` gets both outputs instead.

    It ends with this process, so that a killed lab command leaves nothing that still writes.
    Raises ClusterError with the last lines it printed when it fails, is not there or takes too long.
    """
    bound = ["setpriv", "--pdeathsig", "KILL", *argv]
    try:
        with log.open("a") if log else contextlib.nullcontext(subprocess.PIPE) as sink:
            streams: Any = {"input": stdin, "stdout": sink, "stderr": sink, "text": True, "errors": "replace"}
            done = subprocess.run(bound, **streams, env=env, timeout=timeout_s)
    except FileNotFoundError:
        raise ClusterError("setpriv: not found", code="program-missing", remedy="install util-linux") from None
    except subprocess.TimeoutExpired:
        raise ClusterError(f"timed out after {timeout_s:.0f} s: {' '.join(argv)}", code="program-failed") from None
    if done.returncode != 0:
        said = log.read_text(errors="replace") if log else done.stderr or done.stdout
        what = f"exit {done.returncode}: {' '.join(argv)}: {' | '.join(said.strip().splitlines()[-3:])}"
        raise ClusterError(what, code="program-failed", where=f"see {log}" if log else "")
    return done.stdout or ""


def processes_with(words: Sequence[str]) -> Iterator[int]:
    """Ids of the processes whose command line ends with these words."""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and words_of(int(entry))[-len(words) :] == list(words):
            yield int(entry)


def words_of(pid: int) -> list[str]:
    """A process's command line; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")[:-1]
    except OSError:
        return []
