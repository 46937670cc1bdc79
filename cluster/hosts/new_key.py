"""The key that a host shows to OpenSSH itself, and how it gets into known_hosts.

OpenSSH's client is used, not ssh-keyscan: it goes through jump hosts, keeps HostKeyAlias, writes the name exactly as
it will look it up, and hashes it when the user's configuration says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cluster.config.inventory import HostEntry
from cluster.errors import ClusterError, UnreachableError, UsageError
from cluster.hosts.known_hosts import KnownKey, parse_known_hosts
from cluster.hosts.target import SshTarget

DEADLINE_S = 45
_OPTIONS = (
    "BatchMode=yes", "StrictHostKeyChecking=accept-new", "GlobalKnownHostsFile=/dev/null", "KnownHostsCommand=none",
    "CheckHostIP=no", "UpdateHostKeys=no", "PreferredAuthentications=none", "ControlMaster=no", "ControlPath=none",
    "ClearAllForwardings=yes", "PermitLocalCommand=no", "RemoteCommand=none", "ConnectTimeout=10", "LogLevel=ERROR",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ShownKey:
    """A host's key as seen now, and the line that makes it known."""

    key: KnownKey
    line: str


def see_key(name: str, entry: HostEntry, target: SshTarget) -> ShownKey:
    """Connect up to the key exchange, without logging in. `target` is what `resolve` made of the entry.

    Raises UnreachableError with ssh's own words, UsageError when there is no ssh.
    """
    if not shutil.which("ssh"):
        raise UsageError("there is no `ssh` here, which is asked for the host's key", remedy="install OpenSSH's client")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "known_hosts"
        try:
            done = subprocess.run(
                _words(entry, target, file),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=DEADLINE_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UnreachableError(f"{name} did not show a key within {DEADLINE_S} s", where=name) from None
        text = file.read_text(errors="replace") if file.exists() else ""
    keys = parse_known_hosts(text)
    if not keys:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise UnreachableError(
            f"{name} shows no host key: {said[-1] if said else 'ssh said nothing'}",
            where=name,
            remedy=f"see that `ssh {entry.address}` gets as far as asking about the key",
        )
    return ShownKey(keys[-1], text.splitlines()[keys[-1].line - 1])


def _words(entry: HostEntry, target: SshTarget, file: Path) -> list[str]:
    words = ["ssh", "-T"]
    for option in (*_OPTIONS, f"UserKnownHostsFile={file}"):
        words += ["-o", option]
    if target.proxy_command:
        words += ["-o", f"ProxyCommand={target.proxy_command.replace('%', '%%')}"]
    for flag, value in (("-p", entry.port), ("-l", entry.user)):
        if value:
            words += [flag, str(value)]
    return [*words, "--", entry.address, "true"]


def record_key(shown: ShownKey, file: Path) -> None:
    """Append the line to a known_hosts file, which is made (0600, its folder 0700) when there is none.

    Raises ClusterError when it cannot be written.
    """
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(handle, "r+b") as known:
            size = known.seek(0, os.SEEK_END)
            known.seek(max(size - 1, 0))
            ended = size == 0 or known.read(1) == b"\n"
            known.write((b"" if ended else b"\n") + shown.line.encode() + b"\n")
    except OSError as error:
        raise ClusterError(f"{file}: the key cannot be recorded: {error.strerror or error}") from error
