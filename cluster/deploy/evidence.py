"""What explains a failure, saved on this machine before anything is put back."""

from __future__ import annotations

import heapq
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path

from cluster.argv.docker import docker_inspect, docker_logs
from cluster.argv.question import Answer, Question
from cluster.config.redact import hide
from cluster.deploy.prove import Subject
from cluster.errors import ClusterError, InterruptedByUser
from cluster.hosts.fleet import Fleet
from cluster.hosts.protocol import Host
from cluster.screen import Screen
from cluster.spark import clock
from cluster.spark.fact import Missing

RAY_LOGS = "/tmp/ray/session_latest/logs"
RAY_LIMIT = 12 << 20
BEGINNING, END = 2 << 20, 6 << 20
"""Bytes of each stream of a rank's log: of a longer one the first and the last."""
JOURNAL_BEGINNING, JOURNAL_END = 256 << 10, 2 << 20
"""The same of a journal. `journalctl -n` would keep the first lines after --since (252), not the last."""
GPU = "name,power.draw,clocks.sm,temperature.gpu,utilization.gpu"
SLACK_S = 60
KEPT = 20
"""Directories of evidence that are kept; the oldest go."""
OURS = re.compile(r"\d{8}-\d{6}-\d+-")
"""How the name of such a directory begins."""


def state_dir() -> Path:
    """Where cluster keeps files on this machine ($XDG_STATE_HOME/cluster)."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "cluster"


def save(subject: Subject, fleet: Fleet, screen: Screen, failure: ClusterError, seconds: float) -> str:
    """Ask every host for what explains a failure of the last `seconds`; the directory it lies in.

    What could not be had is written down instead, and what could not be written is left out. Secrets are taken out.
    A first Ctrl-C leaves out the rest; raises InterruptedByUser or KeyboardInterrupt when `failure` is one already.
    """
    place = state_dir() / "evidence" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{subject.deployment}"
    secrets = subject.wanted.secrets.values()
    since = f"-{seconds + SLACK_S:.0f}s"
    ray = subject.wanted.backend == "ray"
    asked = {host: questions(subject.container(host), since, ray=ray) for host in subject.wanted.names}
    try:
        place.mkdir(parents=True, mode=0o700, exist_ok=True)
        write(place / "error.txt", "\n".join(f"{label}: {text}" for label, text in failure.lines()).encode(), secrets)
        collect(asked, fleet, place, secrets)
    except (InterruptedByUser, KeyboardInterrupt):
        if isinstance(failure, InterruptedByUser):  # a second Ctrl-C leaves at once
            raise
        fleet.cancel.renew()
        screen.warn("interrupted: the rest of the evidence is left out")
    except (OSError, ClusterError) as error:
        screen.warn(f"not all of the evidence could be saved: {error}")
    if not place.is_dir():
        return ""
    forget_oldest(place.parent)
    screen.note(f"evidence: {place}")
    return str(place)


def questions(container: str, since: str, *, ray: bool, tail: int | None = None) -> dict[str, Question]:
    """File name → what is asked. `since` is a time as journalctl takes it; `tail` lines of the log, else all.

    Beside what the rank said: what the kernel and Docker say of it, and numbers that tell causes apart. `journalctl -k`
    would be the kernel's words of this boot alone; the last ones before a crash stand in the boot before.
    """
    logs = docker_logs(container, tail=tail)
    session = ("docker", "cp", "--follow-link", f"{container}:{RAY_LOGS}", "-")
    journal = ("journalctl", "--no-pager", "-o", "short-iso", "--since", since)
    gpu = ("nvidia-smi", f"--query-gpu={GPU}", "--format=csv")
    return {
        "log.txt": Question(logs.argv, timeout_s=20, limit=BEGINNING, tail=END),
        "inspect.json": docker_inspect(container),
        **({"ray-logs.tar": Question(session, timeout_s=20, limit=RAY_LIMIT)} if ray else {}),
        "kernel.txt": Question((*journal, "_TRANSPORT=kernel"), limit=JOURNAL_BEGINNING, tail=JOURNAL_END),
        "docker.txt": Question((*journal, "-u", "docker"), limit=JOURNAL_BEGINNING, tail=JOURNAL_END),
        "uname.txt": Question(("uname", "-a")),
        "meminfo.txt": Question(("cat", "/proc/meminfo")),
        "gpu.txt": Question(gpu),
    }


def collect(
    asked: Mapping[str, Mapping[str, Question]], fleet: Fleet, place: Path, secrets: Iterable[str] = ()
) -> tuple[dict[str, str], list[ClusterError]]:
    """Ask hosts and write each answer to `place/HOST-NAME`. What could not be had: `HOST-NAME` → why; errors of hosts.

    Raises OSError when files cannot be written, InterruptedByUser.
    """
    missing: dict[str, str] = {}
    errors: list[ClusterError] = []
    for host, ahead_s in clocks(fleet, tuple(asked)).items():
        write(place / f"{host}-clock.json", json.dumps({"ahead_s": round(ahead_s, 3)}).encode(), ())
    for host, outcome in fleet.ask({host: tuple(files.values()) for host, files in asked.items()}).items():
        if outcome.value is None:
            errors += [outcome.error] if outcome.error else []
            missing[f"{host}-unreachable.txt"] = str(outcome.error)
            write(place / f"{host}-unreachable.txt", str(outcome.error).encode(), secrets)
            continue
        for name, answer in zip(asked[host], outcome.value, strict=True):
            write(place / f"{host}-{name}", said(answer), secrets)
            if why := unread(answer):
                missing[f"{host}-{name}"] = why
    return missing, errors


def clocks(fleet: Fleet, hosts: Sequence[str]) -> dict[str, float]:
    """How many seconds each host's clock is ahead of this machine's; hosts that do not tell are left out."""

    def ask(host: Host) -> clock.Clock | Missing:
        began = fleet.time.time()
        [answer] = host.ask([clock.question()])
        return clock.parse(answer, (began, fleet.time.time()))

    told = {name: outcome.value for name, outcome in fleet.each(ask, hosts).items()}
    return {name: one.ahead_s for name, one in told.items() if isinstance(one, clock.Clock)}


def unread(answer: Answer) -> str:
    """Why an answer holds nothing; empty when it does."""
    if answer.exit is None and not answer.out:
        return f"no answer within {answer.seconds:.0f} s"
    hidden = "not seeing messages from" in answer.error_text  # journalctl: the user is not in its group
    if answer.exit in (0, None) and not hidden:
        return ""
    lines = answer.error_text.strip().splitlines() or [f"exit {answer.exit}"]
    return "this user may not read it" if hidden else lines[0][:200]


def said(answer: Answer) -> bytes:
    """What a program printed on both streams; lines that begin with docker's times in the order of these."""
    ended = b"" if answer.exit == 0 else f"\n[exit {answer.exit}]\n".encode()
    if not answer.out or not answer.err:
        return answer.out + answer.err + ended
    merged = BytesIO()
    merged.writelines(line for _, line in heapq.merge(timed(answer.out), timed(answer.err), key=lambda row: row[0]))
    return merged.getvalue() + ended


def timed(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Each line with docker's time of it, or of the last line that had one."""
    time = b""
    for line in BytesIO(data):
        stamp = line[:30]
        time = stamp if stamp[:2] == b"20" and stamp[10:11] == b"T" else time
        yield time, line if line.endswith(b"\n") else line + b"\n"


def write(path: Path, data: bytes, secrets: Iterable[str]) -> None:
    """Write a private file without these values."""
    path.write_bytes(hide(data, secrets))
    path.chmod(0o600)


def forget_oldest(directory: Path) -> None:
    """Keep the newest directories of evidence; what else lies beside them is left alone. Never raises."""
    ours = [one for one in directory.iterdir() if OURS.match(one.name) and one.is_dir()]
    for old in sorted(ours)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)  # another process may be removing it, too
