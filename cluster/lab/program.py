"""Run a program of this machine, and find the lab's own processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cluster.errors import ClusterError


def say(text: str) -> None:
    """One line of progress; standard output is kept for what the user evaluates."""
    sys.stderr.write(f"lab: {text}\n")
    sys.stderr.flush()


def run(
    argv: Sequence[str],
    *,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
    timeout_s: float = 60,
) -> str:
    """Run a program to its end; its standard output. `log` gets both outputs instead.

    It ends with us, so that a killed lab command leaves nothing that still writes.
    Raises ClusterError with the last lines it printed when it fails, is not there or takes too long.
    """
    bound = ["setpriv", "--pdeathsig", "KILL", *argv]
    try:
        with log.open("a") if log else contextlib.nullcontext(subprocess.PIPE) as sink:
            done = subprocess.run(
                bound,
                input=stdin or "",
                env=env,
                stdout=sink,
                stderr=sink,
                text=True,
                errors="replace",
                timeout=timeout_s,
            )
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
