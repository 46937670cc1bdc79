"""known_hosts as sshd(8) describes it, and what a key that a host shows means."""

from __future__ import annotations

from base64 import b64encode

import pytest

from cluster.hosts.known_hosts import KnownKey, fingerprint, is_named, judge, parse_known_hosts

GITHUB = "AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"  # published with its fingerprint
KEY, OTHER = b"key", b"other"


def line(names: str, key: bytes = KEY, kind: str = "ssh-ed25519", marker: str = "") -> str:
    return f"{marker} {names} {kind} {b64encode(key).decode()} a comment\n".lstrip()


def named(pattern: str) -> KnownKey:
    return KnownKey(tuple(pattern.split(",")), "ssh-ed25519", KEY, "f", 1)


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
    assert is_named(named(pattern), name) is claim


def test_the_known_key_is_trusted() -> None:
    known = parse_known_hosts(line("other", OTHER) + line("spark1"))
    verdict = judge(known, ["spark1"], "ssh-ed25519", KEY)
    assert verdict.is_trusted
    assert verdict.by
    assert verdict.by.line == 2


def test_one_of_two_known_keys_of_a_kind_is_enough() -> None:
    assert judge(parse_known_hosts(line("spark1", OTHER) + line("spark1")), ["spark1"], "ssh-ed25519", KEY).is_trusted


def test_another_key_of_the_kind_is_a_change() -> None:
    verdict = judge(parse_known_hosts(line("spark1", OTHER)), ["spark1"], "ssh-ed25519", KEY)
    assert (verdict.is_trusted, verdict.is_changed) == (False, True)


def test_a_key_of_another_kind_is_not_a_change() -> None:
    verdict = judge(parse_known_hosts(line("spark1", OTHER, "ssh-rsa")), ["spark1"], "ssh-ed25519", KEY)
    assert (verdict.is_trusted, verdict.is_changed) == (False, False)
    assert verdict.by


def test_the_name_without_the_port_may_trust_but_not_accuse() -> None:
    names = ["[spark1]:2222", "spark1"]
    assert judge(parse_known_hosts(line("spark1")), names, "ssh-ed25519", KEY).is_trusted
    assert judge(parse_known_hosts(line("spark1", OTHER)), names, "ssh-ed25519", KEY).by is None
    own = parse_known_hosts(line("[spark1]:2222", OTHER) + line("spark1"))
    assert judge(own, names, "ssh-ed25519", KEY).is_changed


def test_revoked_wins() -> None:
    verdict = judge(parse_known_hosts(line("spark1") + line("*", marker="@revoked")), ["spark1"], "ssh-ed25519", KEY)
    assert (verdict.is_trusted, verdict.is_revoked) == (False, True)


def test_an_authority_is_no_host_key() -> None:
    known = parse_known_hosts(line("*", marker="@cert-authority"))
    assert judge(known, ["spark1"], "ssh-ed25519", KEY).by is None
