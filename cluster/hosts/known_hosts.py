"""Host keys: what known_hosts files say, and whether a key that a host shows is the one we know.

Format: sshd(8), SSH_KNOWN_HOSTS FILE FORMAT. paramiko's own reader takes markers for host names and knows no patterns.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path


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
