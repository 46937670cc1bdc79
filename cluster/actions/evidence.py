"""What explains a failure, saved on this machine before anything is put back."""

from __future__ import annotations

import os
import time
from pathlib import Path

from cluster.actions.prove import Subject
from cluster.commands.docker import docker_inspect, docker_logs
from cluster.commands.question import Answer, Question
from cluster.errors import ClusterError, InterruptedByUser
from cluster.hosts.fleet import Fleet
from cluster.screen import Screen

RAY_LOGS = "/tmp/ray/session_latest/logs"
LIMIT = 32 << 20
KEPT = 20
"""Directories of evidence that are kept; the oldest go."""


def state_dir() -> Path:
    """Where cluster keeps files on this machine ($XDG_STATE_HOME/cluster)."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "cluster"


def save(subject: Subject, fleet: Fleet, screen: Screen, failure: ClusterError) -> str:
    """Ask every host for logs, inspect, Ray's session logs and the kernel's journal; the directory they lie in.

    Never raises: what could not be had is written down instead. Secrets are taken out.
    """
    place = state_dir() / "evidence" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{subject.deployment}"
    hidden = [value for value in subject.wanted.secrets.values() if len(value) >= 4]
    asked = {host: list(questions(subject.container(host)).values()) for host in subject.wanted.names}
    try:
        place.mkdir(parents=True, mode=0o700, exist_ok=True)
        write(place / "error.txt", "\n".join(f"{label}: {text}" for label, text in failure.lines()).encode(), hidden)
        for host, outcome in fleet.ask(asked).items():
            if outcome.value is None:
                write(place / f"{host}-unreachable.txt", str(outcome.error).encode(), hidden)
                continue
            for name, answer in zip(questions(""), outcome.value, strict=True):
                write(place / f"{host}-{name}", said(answer), hidden)
        forget_oldest(place.parent)
    except InterruptedByUser:  # a second Ctrl-C leaves at once
        raise
    except (OSError, ClusterError) as error:
        screen.warn(f"evidence could not be saved: {error}")
        return ""
    screen.note(f"evidence: {place}")
    return str(place)


def questions(container: str) -> dict[str, Question]:
    """File name → what is asked."""
    ray = ("docker", "cp", "--follow-link", f"{container}:{RAY_LOGS}", "-")
    journal = ("journalctl", "--no-pager", "-k", "-o", "short-iso", "--since", "-15min", "-n", "2000")
    logs = docker_logs(container)
    return {
        "log.txt": Question(logs.argv, timeout_s=20, limit=LIMIT),
        "inspect.json": docker_inspect(container),
        "ray-logs.tar": Question(ray, timeout_s=20, limit=LIMIT),
        "kernel.txt": Question(journal, timeout_s=10),
    }


def said(answer: Answer) -> bytes:
    """What a program printed, its complaints after it."""
    ended = b"" if answer.exit == 0 else f"\n[exit {answer.exit}]\n".encode()
    return answer.out + answer.err + ended


def write(path: Path, data: bytes, hidden: list[str]) -> None:
    """Write a private file with secrets replaced by as many stars (a tar keeps its lengths)."""
    for value in hidden:
        data = data.replace(value.encode(), b"*" * len(value.encode()))
    path.write_bytes(data)
    path.chmod(0o600)


def forget_oldest(directory: Path) -> None:
    """Keep the newest directories of evidence."""
    for old in sorted(directory.iterdir())[:-KEPT]:
        for file in old.iterdir():
            file.unlink()
        old.rmdir()
