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
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

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

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


def fingerprint(key: bytes) -> str:
    """As `ssh-keygen -l` prints it: SHA256:…"""
    return "SHA256:" + b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def read_known_hosts(files: Iterable[str]) -> list[KnownKey]:
    """All lines of the files that exist and can be read."""
    keys = []
    for file in files:
        with suppress(OSError):
            keys += parse_known_hosts(Path(file).read_text(errors="replace"), file)
    return keys


def parse_known_hosts(text: str, file: str = "") -> list[KnownKey]:
    """The keys in a known_hosts file; comments and lines that are no keys are left out."""
    keys = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) >= 3 and not words[0].startswith("#"):
            with suppress(ValueError):
                key = b64decode(words[2], validate=True)
                keys.append(KnownKey(tuple(words[0].split(",")), words[1], key, file, number, marker))
    return keys


def is_named(known: KnownKey, name: str) -> bool:
    """Whether the line speaks of `name` (`host` or `[host]:port`): literally, by pattern, or hashed."""
    name = name.lower()

    def matches(pattern: str) -> bool:
        if pattern.startswith("|1|"):
            try:
                salt, wanted = (b64decode(part) for part in pattern.split("|")[2:4])
            except ValueError:
                return False
            return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), wanted)
        # only * and ? are special to ssh; brackets are literal, they stand around hosts with a port
        return fnmatchcase(name, pattern.lower().replace("[", "[[]"))

    if any(matches(pattern[1:]) for pattern in known.names if pattern.startswith("!")):
        return False
    return any(matches(pattern) for pattern in known.names)


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
    changed = next((known for known in own if known.kind == kind), None)
    return Verdict(False, is_changed=changed is not None, by=changed or (own[0] if own else None))


ALGORITHMS = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}
"""What a host is asked to show for a kind of key in known_hosts, where that is not the kind itself."""


class Trust:
    """The host keys known for one target."""

    def __init__(self, name: str, target: SshTarget) -> None:
        self._name = name
        self._target = target
        self._names = tuple(dict.fromkeys([target.key_name, target.host_key_alias or target.hostname]))
        self._keys = read_known_hosts(target.known_hosts)

    def order(self, algorithms: tuple[str, ...]) -> tuple[str, ...]:
        """Host key algorithms with those first whose keys are known, so that the host shows one that we can check."""
        kinds = {known.kind for name in self._names for known in lines_for(self._keys, name)}
        wanted = {algorithm for kind in kinds for algorithm in ALGORITHMS.get(kind, (kind,))}
        return tuple(sorted(algorithms, key=lambda algorithm: algorithm not in wanted))

    def missing_host_key(self, client: object, hostname: str, shown: Any) -> None:
        """As paramiko asks. Raise UnreachableError unless the shown key (a PKey) is the known one."""
        kind, key = shown.get_name(), shown.asbytes()
        verdict = judge(self._keys, self._names, kind, key)
        if verdict.is_trusted:
            return
        known, target = verdict.by, self._target
        address = target.hostname
        if target.port != 22:
            address = f"[{address}]:{target.port}" if ":" in address else f"{address}:{target.port}"
        add = f"cluster inventory add {self._name} {target.user}@{address}"
        if known and verdict.is_revoked:
            raise UnreachableError(
                f"{self._name}: its host key {fingerprint(key)} is marked as revoked",
                code="host-key-revoked",
                where=known.place,
                remedy="do not connect; ask whoever marked it",
            )
        if known and verdict.is_changed:
            raise UnreachableError(
                f"{self._name}: the host key has changed: known {fingerprint(known.key)}, shown {fingerprint(key)}",
                code="host-key-changed",
                where=known.place,
                remedy=f"if the host was reinstalled: ssh-keygen -R '{self._names[0]}' -f {known.file}, then {add};"
                " if not, somebody may be in between",
            )
        what = f"{self._name}: unknown host key {fingerprint(key)} ({kind})"
        if known:
            what += f"; only its {known.kind} key is known ({known.place})"
        elif any(one.marker == "@cert-authority" and is_named(one, self._names[0]) for one in self._keys):
            what += "; known_hosts names an authority for it, which is not used here"
        raise UnreachableError(
            what, code="host-key-unknown", where=self._name, remedy=f"compare the fingerprint, then run: {add}"
        )


DEADLINE_S = 45
OPTIONS = """
    BatchMode=yes StrictHostKeyChecking=accept-new GlobalKnownHostsFile=/dev/null KnownHostsCommand=none CheckHostIP=no
    UpdateHostKeys=no PreferredAuthentications=none ControlMaster=no ControlPath=none ClearAllForwardings=yes
    PermitLocalCommand=no RemoteCommand=none ConnectTimeout=10 LogLevel=ERROR
"""


@dataclass(frozen=True, slots=True)
class ShownKey:
    """A host's key as seen now, and the line that makes it known."""

    key: KnownKey
    line: str


def see_key(name: str, entry: HostEntry, target: SshTarget) -> ShownKey:
    """Connect up to the key exchange, without logging in. Raises UnreachableError in ssh's words, UsageError."""
    if not shutil.which("ssh"):
        raise UsageError(
            "ssh not found on this machine", code="ssh-missing", remedy="install OpenSSH's client (openssh-client)"
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "known_hosts"
        options = [*OPTIONS.split(), f"UserKnownHostsFile={file}"]
        if target.proxy_command:
            options.append(f"ProxyCommand={target.proxy_command.replace('%', '%%')}")
        given = [*(("-o", option) for option in options), ("-p", entry.port), ("-l", entry.user)]
        words = ["ssh", "-T", *(str(word) for row in given if row[1] for word in row), "--", entry.address, "true"]
        try:
            done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=DEADLINE_S, check=False)
        except subprocess.TimeoutExpired:
            raise UnreachableError(
                f"{name} did not show a host key within {DEADLINE_S} s", code="host-key-not-shown", where=name
            ) from None
        text = file.read_text(errors="replace") if file.exists() else ""
    keys = parse_known_hosts(text)
    if not keys:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no output of ssh"]
        raise UnreachableError(
            f"{name} shows no host key: {lines[-1]}",
            code="host-key-not-shown",
            where=name,
            remedy=f"check that `ssh {entry.address}` gets as far as asking about the key",
        )
    return ShownKey(keys[-1], text.splitlines()[keys[-1].line - 1])


def record_key(shown: ShownKey, file: Path) -> None:
    """Append the line to a file, made (0600, its folder 0700) when there is none. Raises ClusterError."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(handle, "r+b") as known:
            size = known.seek(0, os.SEEK_END)
            known.seek(max(size - 1, 0))
            ended = size == 0 or known.read(1) == b"\n"
            known.write((b"" if ended else b"\n") + shown.line.encode() + b"\n")
    except OSError as error:
        raise ClusterError(
            f"{file}: the key cannot be recorded: {error.strerror or error}", code="file-not-written"
        ) from error
