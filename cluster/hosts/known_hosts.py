"""Host keys: what known_hosts files say, and how the key that a host shows gets into them."""

from __future__ import annotations

import hashlib
import hmac
import os
import shutil
import subprocess
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from cluster.config.inventory import HostEntry
from cluster.errors import ClusterError, UnreachableError, UsageError
from cluster.hosts.target import SshTarget


@dataclass(frozen=True, slots=True)
class KnownKey:
    """One line of a known_hosts file."""

    names: tuple[str, ...]
    kind: str  # ssh-ed25519, …
    key: bytes
    file: str
    line: int
    marker: str = ""  # "@revoked", "@cert-authority"


def fingerprint(key: bytes) -> str:
    """As `ssh-keygen -l` prints it: SHA256:…"""
    return "SHA256:" + b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def read_known_hosts(files: Iterable[str]) -> list[KnownKey]:
    """All lines of the files that exist and can be read."""
    keys = []
    for file in files:
        try:
            text = Path(file).read_text(errors="replace")
        except OSError:
            continue
        keys += parse_known_hosts(text, file)
    return keys


def parse_known_hosts(text: str, file: str = "") -> list[KnownKey]:
    """The keys in a known_hosts file; comments and lines that are no keys are left out."""
    keys = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#"):
            continue
        try:
            key = b64decode(words[2], validate=True)
        except ValueError:
            continue
        keys.append(KnownKey(tuple(words[0].split(",")), words[1], key, file, number, marker))
    return keys


def is_named(known: KnownKey, name: str) -> bool:
    """Whether the line speaks of `name` (`host` or `[host]:port`): literally, by pattern, or hashed."""
    name = name.lower()
    found = False
    for pattern in known.names:
        if pattern.startswith("|1|"):
            found = found or _is_hash_of(pattern, name)
        elif pattern.startswith("!"):
            if _matches(pattern[1:], name):
                return False
        else:
            found = found or _matches(pattern, name)
    return found


def _matches(pattern: str, name: str) -> bool:
    # only * and ? are special to ssh; brackets are literal, they stand around hosts with a port
    return fnmatchcase(name, pattern.lower().replace("[", "[[]"))


def _is_hash_of(pattern: str, name: str) -> bool:
    try:
        salt, wanted = (b64decode(part) for part in pattern.split("|")[2:4])
    except ValueError:
        return False
    return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), wanted)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a shown key may be trusted. `by`: the line that decides, None when no line speaks of the host."""

    is_trusted: bool
    is_changed: bool = False
    is_revoked: bool = False
    by: KnownKey | None = None


def lines_for(keys: Sequence[KnownKey], name: str) -> list[KnownKey]:
    """The plain keys (no revoked ones, no authorities) known for `name`."""
    return [known for known in keys if not known.marker and is_named(known, name)]


def judge(keys: Sequence[KnownKey], names: Sequence[str], kind: str, key: bytes) -> Verdict:
    """Judge the key a host shows. `names`: where to look, the first one being the host's own.

    A key that is known under a later name is trusted (ssh looks up `host` too when `[host]:port` is unknown); only
    another key of the same kind under the first name means that the key has changed.
    """
    for known in keys:
        if known.marker == "@revoked" and known.key == key and any(is_named(known, name) for name in names):
            return Verdict(False, is_revoked=True, by=known)
    own = lines_for(keys, names[0])
    for known in own or [known for name in names[1:] for known in lines_for(keys, name)]:
        if known.key == key:
            return Verdict(True, by=known)
    changed = [known for known in own if known.kind == kind]
    if changed:
        return Verdict(False, is_changed=True, by=changed[0])
    return Verdict(False, by=own[0] if own else None)


DEADLINE_S = 45
_OPTIONS = (
    "BatchMode=yes",
    "StrictHostKeyChecking=accept-new",
    "GlobalKnownHostsFile=/dev/null",
    "KnownHostsCommand=none",
    "CheckHostIP=no",
    "UpdateHostKeys=no",
    "PreferredAuthentications=none",
    "ControlMaster=no",
    "ControlPath=none",
    "ClearAllForwardings=yes",
    "PermitLocalCommand=no",
    "RemoteCommand=none",
    "ConnectTimeout=10",
    "LogLevel=ERROR",
)


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
