"""known_hosts as sshd(8) describes it, and what a key that a host shows means."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence

import pytest

from cluster.hosts.known_hosts import KnownKey, fingerprint, judge, parse_known_hosts

GITHUB = "AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"  # published with its fingerprint
KEY, OTHER = b"key", b"other"


def line(names: str, key: bytes = KEY, kind: str = "ssh-ed25519", marker: str = "") -> str:
    return f"{marker} {names} {kind} {b64encode(key).decode()} a comment\n".lstrip()


def test_lines_comments_and_nonsense() -> None:
    text = "# comment\n\n" + line("a,b") + "garbage\nname ssh-rsa not-base64!\n" + line("*", marker="@revoked")
    assert parse_known_hosts(text, "file") == [
        KnownKey(("a", "b"), "ssh-ed25519", KEY, "file", 3),
        KnownKey(("*",), "ssh-ed25519", KEY, "file", 6, "@revoked"),
    ]


def test_fingerprint_as_published() -> None:
    (known,) = parse_known_hosts(f"github.com ssh-ed25519 {GITHUB}\n")
    assert fingerprint(known.key) == "SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU"


@pytest.mark.parametrize(
    ("pattern", "name", "claim"),
    [
        ("spark1", "spark1", True),
        ("spark1", "SPARK1", True),
        ("Spark1", "spark1", True),
        ("spark1", "spark12", False),
        ("spark1,192.168.1.41", "192.168.1.41", True),
        ("192.168.1.*", "192.168.1.41", True),
        ("192.168.1.4?", "192.168.1.41", True),
        ("*,!spark1", "spark1", False),
        ("*,!spark1", "spark2", True),
        ("[spark1]:2222", "[spark1]:2222", True),
        ("[spark1]:2222", "spark1", False),
        ("spark1", "[spark1]:2222", False),
        ("[*]:2222", "[spark1]:2222", True),
        ("[fe80::1%eth0]:22", "[fe80::1%eth0]:22", True),
        ("[ab]", "a", False),  # brackets are no character class
        ("|1|F1E1KeoE/eEWhi10WpGv4OdiO6Y=|3988QV0VE8wmZL7suNrYQLITLCg=", "192.168.1.61", True),
        ("|1|F1E1KeoE/eEWhi10WpGv4OdiO6Y=|3988QV0VE8wmZL7suNrYQLITLCg=", "192.168.1.62", False),
        ("|1|broken", "spark1", False),
        ("|1|a|b", "spark1", False),
    ],
)
def test_names(pattern: str, name: str, claim: bool) -> None:
    assert KnownKey(tuple(pattern.split(",")), "ssh-ed25519", KEY, "f", 1).is_for(name) is claim


OWN, CHANGED = line("spark1"), line("spark1", OTHER)
REVOKED, AUTHORITY = line("*", marker="@revoked"), line("*", marker="@cert-authority")
WITH_PORT = ("[spark1]:2222", "spark1")


@pytest.mark.parametrize(
    ("text", "names", "state", "by"),
    [
        (line("other", OTHER) + OWN, ("spark1",), "trusted", 2),
        (CHANGED + OWN, ("spark1",), "trusted", 2),  # one of two known keys of a kind is enough
        (CHANGED, ("spark1",), "changed", 1),
        (line("spark1", OTHER, "ssh-rsa"), ("spark1",), "unknown", 1),  # another kind is not a change
        # the name without the port may trust, but not accuse
        (OWN, WITH_PORT, "trusted", 1),
        (CHANGED, WITH_PORT, "unknown", None),
        (line("[spark1]:2222", OTHER) + OWN, WITH_PORT, "changed", 1),
        (OWN + REVOKED, ("spark1",), "revoked", 2),
        (AUTHORITY, ("spark1",), "unknown", None),  # it is no host key
    ],
)
def test_the_key_that_a_host_shows(text: str, names: Sequence[str], state: str, by: int | None) -> None:
    found, known = judge(parse_known_hosts(text), names, "ssh-ed25519", KEY)
    assert (found, known and known.line) == (state, by)
