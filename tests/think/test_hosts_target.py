"""`ssh -G` read into a target."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.config.inventory import HostEntry
from cluster.hosts.target import SshTarget, expand, jump_command, parse_options, read_options

# OpenSSH 9.2, `ssh -G spark-one`, shortened
SAID = """\
host spark-one
user ada
hostname 192.168.1.41
port 2222
identitiesonly yes
connecttimeout 7
hostkeyalias spark
identityagent ~/agent of %r
identityfile ~/.ssh/id_rsa
identityfile /keys/%h/%%d
globalknownhostsfile /etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2
userknownhostsfile /home/ada/.ssh/known_hosts
proxycommand none
"""
PLAIN = parse_options("user ada\nhostname spark\nport 22\nuserknownhostsfile /u\nglobalknownhostsfile /g\n")


def test_everything_that_is_read() -> None:
    home = str(Path.home())
    assert read_options(parse_options(SAID), "spark-one") == SshTarget(
        hostname="192.168.1.41",
        port=2222,
        user="ada",
        identity_files=(f"{home}/.ssh/id_rsa", "/keys/192.168.1.41/%d"),
        identities_only=True,
        agent=f"{home}/agent of ada",
        host_key_alias="spark",
        known_hosts=("/home/ada/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"),
        connect_timeout_s=7.0,
    )


@pytest.mark.parametrize(
    ("said", "agent"),
    [("none", ""), ("SSH_AUTH_SOCK", "/run/a"), ("$MY_AGENT", "/run/b"), ("/run/c", "/run/c"), (None, "/run/a")],
)
def test_agents(said: str | None, agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/a")
    monkeypatch.setenv("MY_AGENT", "/run/b")
    options = {**PLAIN, "identityagent": [said]} if said else PLAIN
    assert read_options(options, "spark").agent == agent


def test_known_hosts(tmp_path: Path) -> None:
    """A path with blanks is one path when it exists; `none` is none."""
    (tmp_path / "known hosts").write_text("")
    said = {"userknownhostsfile": [f"{tmp_path}/known hosts", "none"], "globalknownhostsfile": ["/a /b"]}
    assert read_options(PLAIN | said, "spark").known_hosts == (f"{tmp_path}/known hosts", "/a", "/b")


def test_tokens() -> None:
    assert expand("nc %h %p %%h %x", {"h": "spark", "p": "22"}) == "nc spark 22 %h %x"


@pytest.mark.parametrize(
    ("hostname", "port", "alias", "key_name"),
    [
        ("spark", 22, "", "spark"),
        ("spark", 2222, "", "[spark]:2222"),
        ("fe80::1", 22, "", "fe80::1"),
        ("spark", 2222, "alias", "alias"),
    ],
)
def test_the_name_in_known_hosts(hostname: str, port: int, alias: str, key_name: str) -> None:
    assert SshTarget(hostname, port, "ada", host_key_alias=alias).key_name == key_name


def test_jump_hosts_as_ssh_itself_would_go() -> None:
    target = SshTarget("192.168.1.41", 22, "ada", connect_timeout_s=7)
    entry = HostEntry(address="spark")
    begin = "ssh -o BatchMode=yes -o ConnectTimeout=7"
    assert jump_command("gate", target, entry) == f"{begin} -W 192.168.1.41:22 -- ssh://gate"
    assert jump_command("a,b,ada@c:9", target, entry) == f"{begin} -J a,b -W 192.168.1.41:22 -- ssh://ada@c:9"
    six = SshTarget("fd00::41", 22, "ada", connect_timeout_s=7)
    assert jump_command("ssh://gate:9", six, entry) == f"{begin} -W '[fd00::41]:22' -- ssh://gate:9"


def test_the_inventorys_key_and_known_hosts_count_for_jump_hosts_too() -> None:
    target = SshTarget("spark", 22, "ada", identity_files=("/k/my id",), known_hosts=("/k/known",))
    entry = HostEntry(address="spark", identity_file="/k/my id", known_hosts_file="/k/known")
    command = jump_command("gate", target, entry)
    assert "-i '/k/my id'" in command
    assert 'UserKnownHostsFile="/k/known" ~/.ssh/known_hosts\'' in command
