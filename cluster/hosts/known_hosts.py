"""Host keys: what known_hosts files say, and how the key that a host shows gets into them."""

from __future__ import annotations

import hashlib
import hmac
import os
import shlex
import subprocess
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from cluster.config.inventory import HostEntry
from cluster.errors import ClusterError, UnreachableError
from cluster.hosts.target import SshTarget


@dataclass(frozen=True, slots=True)
class KnownKey:
    """One line of a known_hosts file; `text` as it is written."""

    names: tuple[str, ...]
    kind: str  # ssh-ed25519, …
    key: bytes
    file: str
    line: int
    marker: str = ""  # "@revoked", "@cert-authority"
    text: str = field(default="", compare=False)

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    def is_for(self, name: str) -> bool:
        """Whether the line is about `name` (`host` or `[host]:port`): literally, by pattern, or hashed."""
        refused = [pattern[1:] for pattern in self.names if pattern.startswith("!")]
        return not any(_matches(one, name) for one in refused) and any(_matches(one, name) for one in self.names)


def _matches(pattern: str, name: str) -> bool:
    name = name.lower()
    if pattern.startswith("|1|"):
        try:
            salt, wanted = (b64decode(part) for part in pattern.split("|")[2:4])
        except ValueError:
            return False
        return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), wanted)
    # only * and ? are special to ssh; brackets are literal, they stand around hosts with a port
    return fnmatchcase(name, pattern.lower().replace("[", "[[]"))


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
                keys.append(KnownKey(tuple(words[0].split(",")), words[1], key, file, number, marker, line))
    return keys


KeyState = Literal["trusted", "unknown", "changed", "revoked"]


def judge(keys: Sequence[KnownKey], names: Sequence[str], kind: str, key: bytes) -> tuple[KeyState, KnownKey | None]:
    """Whether the key that a host shows may be trusted, and the line that decides, None when none is about the host.

    `names`: where to look, the first one being the host's own. A key that is known under a later name is trusted (ssh
    looks up `host` too when `[host]:port` is unknown); only another key of the same kind under the first name means
    that the key has changed.
    """
    for known in keys:
        if known.marker == "@revoked" and known.key == key and any(map(known.is_for, names)):
            return "revoked", known
    plain = [known for known in keys if not known.marker]
    own = [known for known in plain if known.is_for(names[0])]
    for known in own or [known for known in plain if any(map(known.is_for, names))]:
        if known.key == key:
            return "trusted", known
    for known in own:
        if known.kind == kind:
            return "changed", known
    return "unknown", own[0] if own else None


ALGORITHMS = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}
"""What a host is asked to show for a kind of key in known_hosts, where that is not the kind itself."""


class Trust:
    """The host keys known for one target."""

    def __init__(self, name: str, target: SshTarget) -> None:
        self._name = name
        self._target = target
        self._keys = read_known_hosts(target.known_hosts)

    def order(self, algorithms: tuple[str, ...]) -> tuple[str, ...]:
        """Host key algorithms with those first whose keys are known, so that the host shows one that we can check."""
        names, wanted = self._target.key_names, set[str]()
        for known in self._keys:
            if not known.marker and any(map(known.is_for, names)):
                wanted.update(ALGORITHMS.get(known.kind, (known.kind,)))
        return tuple(sorted(algorithms, key=lambda algorithm: algorithm not in wanted))

    def missing_host_key(self, client: object, hostname: str, shown: Any) -> None:
        """As paramiko asks. Raise UnreachableError unless the shown key (a PKey) is the known one."""
        target, name, kind, key = self._target, self._name, shown.get_name(), shown.asbytes()
        state, known = judge(self._keys, target.key_names, kind, key)
        port = f":{target.port}" if target.port != 22 else ""
        address = f"[{target.hostname}]" if port and ":" in target.hostname else target.hostname
        add = f"cluster inventory add {name} {target.user}@{address}{port}"
        if known and state == "revoked":
            what = f"{name}: its host key {fingerprint(key)} is marked as revoked"
            remedy = "do not connect; ask whoever marked it"
            raise UnreachableError(what, code="host-key-revoked", where=known.place, remedy=remedy)
        if known and state == "changed":
            what = f"{name}: the host key has changed: known {fingerprint(known.key)}, shown {fingerprint(key)}"
            remedy = f"if the host was reinstalled: ssh-keygen -R '{target.key_name}' -f {known.file}, then {add};"
            remedy += " if not, somebody may be in between"
            raise UnreachableError(what, code="host-key-changed", where=known.place, remedy=remedy)
        if state == "unknown":
            what = f"{name}: unknown host key {fingerprint(key)} ({kind})"
            if known:
                what += f"; only its {known.kind} key is known ({known.place})"
            elif any(one.marker == "@cert-authority" and one.is_for(target.key_name) for one in self._keys):
                what += "; known_hosts names an authority for it, which is not used here"
            remedy = f"compare the fingerprint, then run: {add}"
            raise UnreachableError(what, code="host-key-unknown", where=name, remedy=remedy)


DEADLINE_S = 45
OPTIONS = """
    BatchMode=yes StrictHostKeyChecking=accept-new GlobalKnownHostsFile=/dev/null KnownHostsCommand=none CheckHostIP=no
    UpdateHostKeys=no PreferredAuthentications=none ControlMaster=no ControlPath=none ClearAllForwardings=yes
    PermitLocalCommand=no RemoteCommand=none ConnectTimeout=10 LogLevel=ERROR
"""


def see_key(name: str, entry: HostEntry, target: SshTarget) -> KnownKey:
    """Connect up to the key exchange, without logging in. Raises UnreachableError in ssh's words."""
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
            what = f"{name} did not show a host key within {DEADLINE_S} s"
            raise UnreachableError(what, code="host-key-not-shown", where=name) from None
        keys = read_known_hosts([str(file)])
    if not keys:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no output of ssh"]
        options_given = (("-p", entry.port), ("-l", entry.user), ("-J", entry.jump))
        typed = shlex.join(["ssh", *(str(word) for row in options_given if row[1] for word in row), entry.address])
        remedy = f"check that `{typed}` gets as far as asking about the key"
        what = f"{name} shows no host key: {lines[-1]}"
        raise UnreachableError(what, code="host-key-not-shown", where=name, remedy=remedy)
    return keys[-1]


def record_key(shown: KnownKey, file: Path) -> None:
    """Append the line to a file, made (0600, its folder 0700) when there is none. Raises ClusterError."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(handle, "r+b") as known:
            text = known.read()
            known.write((b"" if not text or text.endswith(b"\n") else b"\n") + shown.text.encode() + b"\n")
    except OSError as error:
        what = f"{file}: the key cannot be recorded: {error.strerror or error}"
        raise ClusterError(what, code="file-not-written") from error
