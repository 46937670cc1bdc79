"""A hostile host: whatever its programs print, or do not, nothing breaks, nothing hangs, and memory stays bounded."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from loopback import PATH, Sshd, find_processes

READER = Path(__file__).with_name("explain_host.py")
MOST_MB, MOST_S = 250, 60
"""What reading one host may add to the size of `cluster`, and how long that may take."""

LONG = """\
import sys
step = "2026-11-28T04:00:%02d.000000000Z (EngineCore pid=1) INFO 11-28 04:00:00 [core.py:1] step %d: all is well\\n"
for at in range(1_000_000):
    if at == 99:
        print("2026-11-28T04:00:01.000000000Z ValueError: No available memory for the cache blocks.")
    sys.stdout.write(step % (at % 60, at))
for at in range(5000):
    print("2026-11-28T04:01:00.000000000Z RuntimeError: Engine core initialization failed. Failed core proc(s): {}")
"""
HOW: dict[str, str] = {
    "garbage": "exec head -c 3000000 /dev/urandom",
    "one endless line": "exec tr '\\0' x </dev/zero",
    "endless complaints": "exec yes 'ERROR: endless' >&2",
    "terminal codes": "yes '\033[2J\033[31mERROR\033]0;t\007\r' | head -n 20000",
    "no output": "exit 0",
    "nothing but an error": "exit 77",
    "deep JSON": "head -c 900000 /dev/zero | tr '\\0' '['",
    "hanging": "exec sleep 307.25",
    "hanging, deaf": "trap '' TERM; while :; do sleep 307.5; done",
}


def hostile(make_sshd: Callable[..., Sshd], folder: Path, does: str) -> Sshd:
    """A host whose docker, nvidia-smi and journalctl are one script."""
    bin = folder / "bin"
    bin.mkdir()
    for name in ("docker", "nvidia-smi", "journalctl"):
        (bin / name).write_text(f"#!/bin/sh\n{does}\n")
        (bin / name).chmod(0o755)
    return make_sshd(login=f'PATH={bin}:{PATH}; export PATH; exec sh -c "$SSH_ORIGINAL_COMMAND"')


def read(sshd: Sshd, most_s: float) -> dict[str, Any]:
    """What the reader tells; no question may take longer than `most_s`."""
    words = [sys.executable, str(READER), sshd.entry().model_dump_json(), str(most_s)]
    done = subprocess.run(words, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("how", HOW)
def test_nothing_breaks(how: str, make_sshd: Callable[..., Sshd], tmp_path: Path) -> None:
    told = read(hostile(make_sshd, tmp_path, HOW[how]), 2)
    assert told["seconds"] < MOST_S, told
    assert told["grown_mb"] < MOST_MB, told
    assert told["root"] is None or told["root"][0] == "unknown", told
    assert all("Missing(" in fact or fact == "()" for fact in told["facts"].values()), told
    assert not [pid for mark in ("307.25", "307.5", "ERROR: endless") for pid in find_processes(mark)]


def test_a_log_of_100_mb_whose_cause_stands_early(make_sshd: Callable[..., Sshd], tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text(LONG)
    told = read(hostile(make_sshd, tmp_path, f'[ "$1" = logs ] && exec python3 {tmp_path}/long.py; exit 1'), 20)
    assert told["root"] == ["kv-cache-none", "spark1-log.txt"], told
    assert told["findings"] == ["fault kv-cache-none"]
    print({name: told[name] for name in ("seconds", "grown_mb", "kept_mb")})
    assert told["seconds"] < MOST_S, told
    assert told["grown_mb"] < MOST_MB, told
    assert 8 < told["kept_mb"] < 9
