"""What a name means is what ssh says it means: aliases, Include, Match, jump hosts, HostKeyAlias, proxies."""

from __future__ import annotations

import getpass
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from loopback import Sshd, public

from cluster.argv.question import Question
from cluster.config.inventory import HostEntry
from cluster.errors import UnreachableError, UsageError
from cluster.hosts.connect import LocalHost, connect
from cluster.hosts.fleet import values
from cluster.hosts.ssh import SshHost
from cluster.hosts.target import resolve


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes `ssh` read a configuration of ours and not the user's."""

    def configure(text: str) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (tmp_path / "ssh_config").write_text(text)
        ssh = shutil.which("ssh", path="/usr/bin:/bin")
        (folder / "ssh").write_text(f'#!/bin/sh\nexec {ssh} -F {tmp_path}/ssh_config "$@"\n')
        (folder / "ssh").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        return tmp_path

    return configure


def check_answers(entry: HostEntry) -> None:
    host = SshHost("spark1", resolve("spark1", entry))
    assert host.ask([Question(("echo", "there"))])[0].out == b"there\n"
    host.close()


def test_an_alias_with_include_and_match(sshd: Sshd, configured: Callable[[str], Path], tmp_path: Path) -> None:
    configured(
        f"Include {tmp_path}/more\nMatch originalhost spark-* user {getpass.getuser()}\n  Port {sshd.port}\n"
        f"Host *\n  UserKnownHostsFile {sshd.known_hosts}\n"
    )
    (tmp_path / "more").write_text(
        f"Host spark-one\n  HostName 127.0.0.1\n  IdentityFile {sshd.key}\nHost *\n  User {getpass.getuser()}\n"
    )
    target = resolve("spark1", HostEntry(address="spark-one"))
    assert (target.hostname, target.port, target.user) == ("127.0.0.1", sshd.port, getpass.getuser())
    assert str(sshd.key) in target.identity_files
    check_answers(HostEntry(address="spark-one"))


def test_the_inventory_wins_over_the_configuration(configured: Callable[[str], Path], sshd: Sshd) -> None:
    configured("Host *\n  Port 9\n  User somebody\n  UserKnownHostsFile /nowhere\n  IdentityFile /nowhere/id\n")
    check_answers(sshd.entry())


def test_a_host_key_alias_and_several_known_hosts_files(
    sshd: Sshd, configured: Callable[[str], Path], tmp_path: Path
) -> None:
    configured(f"Host *\n  UserKnownHostsFile {tmp_path}/none {sshd.known_hosts}\n")
    check_answers(sshd.entry(known_hosts_file=""))
    known = tmp_path / "known"
    known.write_text(f"my-spark {public(sshd.folder / 'host_ed25519')}\n")
    configured("Host *\n  HostKeyAlias my-spark\n")
    check_answers(sshd.entry(known_hosts_file=str(known)))


def test_a_jump_host(sshd: Sshd, make_sshd: Callable[..., Sshd], configured: Callable[[str], Path]) -> None:
    jump = make_sshd()
    configured(f"Host the-jump\n  HostName 127.0.0.1\n  Port {jump.port}\n  IdentityFile {jump.key}\n")
    with sshd.known_hosts.open("a") as known:
        known.write(jump.known_hosts.read_text())
    (jump.folder / "id.pub").write_text((sshd.folder / "id.pub").read_text())
    check_answers(sshd.entry(jump=f"{getpass.getuser()}@the-jump"))
    assert "127.0.0.1 port" in (jump.folder / "log").read_text(), "the connection went through the jump host"


def test_a_jump_host_that_is_not_trusted(sshd: Sshd, make_sshd: Callable[..., Sshd]) -> None:
    jump = make_sshd()
    with pytest.raises(UnreachableError, match="Host key verification failed") as raised:
        SshHost("spark1", resolve("spark1", sshd.entry(jump=f"127.0.0.1:{jump.port}"))).ask([Question(("true",))])
    assert "ssh" in raised.value.remedy


PIPE_TO = (
    "import socket,sys,threading,os; s=socket.create_connection((sys.argv[1],int(sys.argv[2])));"
    "threading.Thread(target=lambda:[os.write(1,d) for d in iter(lambda:s.recv(9999),b'')],daemon=True).start();"
    "[s.sendall(d) for d in iter(lambda:os.read(0,9999),b'')]"
)


def test_a_proxy_command(sshd: Sshd, configured: Callable[[str], Path]) -> None:
    configured(f'Host spark-one\n  ProxyCommand python3 -c "{PIPE_TO}" 127.0.0.1 %p\n')
    known = sshd.folder / "known_as_spark-one"
    known.write_text(f"[spark-one]:{sshd.port} {public(sshd.folder / 'host_ed25519')}\n")
    check_answers(sshd.entry(address="spark-one", known_hosts_file=str(known)))


def test_a_configuration_that_ssh_refuses(configured: Callable[[str], Path]) -> None:
    configured("Host *\n  Prot 22\n")
    with pytest.raises(UsageError, match="Bad configuration option") as raised:
        resolve("spark1", HostEntry(address="spark-one"))
    assert raised.value.where == "host spark1"


def test_without_openssh_there_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError) as raised:
        resolve("spark1", HostEntry(address="spark-one"))
    assert raised.value.code == "ssh-missing"


def test_this_machine_is_reached_without_ssh(sshd: Sshd) -> None:
    mine = HostEntry(address="127.0.0.1", user=getpass.getuser())
    fleet = connect({"here": mine, "there": sshd.entry()})
    assert [type(host) for host in fleet.hosts.values()] == [LocalHost, SshHost]
    assert [answers[0].text for answers in values(fleet.ask_all([Question(("echo", "up"))])).values()] == ["up\n"] * 2
    fleet.close()


@pytest.mark.parametrize(
    "entry",
    [
        HostEntry(address="127.0.0.1", user="somebody-else"),
        HostEntry(address="127.0.0.1", port=2222),
        HostEntry(address="127.0.0.1", jump="somewhere"),
        HostEntry(address="192.0.2.1"),
        HostEntry(address="spark.invalid"),
    ],
)
def test_what_is_not_this_machine(entry: HostEntry) -> None:
    (host,) = connect({"there": entry})
    assert isinstance(host, SshHost)


def test_an_ipv6_address(make_sshd: Callable[..., Sshd]) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 here")
    server = make_sshd(options="ListenAddress ::1\n")
    known = server.known_hosts.read_text().replace("127.0.0.1", "::1")
    server.known_hosts.write_text(known)
    check_answers(server.entry(address="::1"))
    server.known_hosts.write_text("")
    with pytest.raises(UnreachableError) as raised:
        SshHost("spark1", resolve("spark1", server.entry(address="::1"))).ask([Question(("true",))])
    assert f"@[::1]:{server.port}" in raised.value.remedy
