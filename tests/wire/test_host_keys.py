"""Host keys are always checked, and a refusal says what to do."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from loopback import Sshd, make_key, public

from cluster.argv.question import Question
from cluster.errors import ConnectionLostError, UnreachableError
from cluster.hosts.ssh import SshHost


def check_trusted(host: SshHost) -> None:
    assert host.ask([Question(("echo", "trusted"))])[0].out == b"trusted\n"


def refusal(host: SshHost) -> UnreachableError:
    with pytest.raises(UnreachableError) as raised:
        host.ask([Question(("echo", "trusted"))])
    assert not isinstance(raised.value, ConnectionLostError), "a key is no reason to try again"
    return raised.value


def print_of(path: Path) -> str:
    return subprocess.check_output(["ssh-keygen", "-l", "-f", f"{path}.pub"], text=True).split()[1]


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_unknown(sshd: Sshd, tmp_path: Path) -> None:
    error = refusal(sshd.host("spark1", known_hosts_file=write(tmp_path / "known", "")))
    assert print_of(sshd.folder / "host_ed25519") in error.what
    assert f"cluster inventory add spark1 {sshd.entry().user}@127.0.0.1:{sshd.port}" in error.remedy


def test_no_known_hosts_file_at_all(sshd: Sshd, tmp_path: Path) -> None:
    assert refusal(sshd.host(known_hosts_file=str(tmp_path / "none"))).code == "host-key-unknown"


def test_changed(sshd: Sshd, tmp_path: Path) -> None:
    other = make_key(tmp_path / "other")
    known = write(tmp_path / "known", f"# a comment\n{sshd.name} {public(other)}\n")
    error = refusal(sshd.host(known_hosts_file=known))
    assert error.code == "host-key-changed"
    assert print_of(other) in error.what
    assert print_of(sshd.folder / "host_ed25519") in error.what
    assert error.where == f"{known}:2"
    assert f"ssh-keygen -R '{sshd.name}' -f {known}" in error.remedy


def test_hashed_names(sshd: Sshd, tmp_path: Path) -> None:
    known = write(tmp_path / "known", f"{sshd.name} {public(sshd.folder / 'host_ed25519')}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", known], check=True, stderr=subprocess.DEVNULL)
    assert "|1|" in Path(known).read_text()
    assert "127" not in Path(known).read_text()
    check_trusted(sshd.host(known_hosts_file=known))


def test_revoked(sshd: Sshd, tmp_path: Path) -> None:
    key = public(sshd.folder / "host_ed25519")
    known = write(tmp_path / "known", f"{sshd.name} {key}\n@revoked * {key}\n")
    error = refusal(sshd.host(known_hosts_file=known))
    assert error.code == "host-key-revoked"
    assert error.where == f"{known}:2"


def test_an_authority_is_not_taken_for_the_host_itself(sshd: Sshd, tmp_path: Path) -> None:
    key = public(sshd.folder / "host_ed25519")
    error = refusal(sshd.host(known_hosts_file=write(tmp_path / "known", f"@cert-authority {sshd.name} {key}\n")))
    assert error.code == "host-key-unknown"
    assert "authority" in error.what


@pytest.mark.parametrize("kind", ["rsa", "ecdsa", "ed25519"])
def test_the_kind_that_is_known_is_asked_for(kind: str, make_sshd: Callable[..., Sshd], tmp_path: Path) -> None:
    server = make_sshd(kinds=("rsa", "ecdsa", "ed25519"))
    known = write(tmp_path / "known", f"{server.name} {public(server.folder / f'host_{kind}')}\n")
    check_trusted(server.host(known_hosts_file=known))


def test_only_another_kind_is_known(make_sshd: Callable[..., Sshd], tmp_path: Path) -> None:
    server = make_sshd(kinds=("ed25519",))
    known = write(tmp_path / "known", f"{server.name} {public(make_key(tmp_path / 'rsa', 'rsa'))}\n")
    error = refusal(server.host(known_hosts_file=known))
    assert error.code == "host-key-unknown"
    assert "only its ssh-rsa key is known" in error.what


def test_a_key_known_for_the_usual_port_counts(sshd: Sshd, tmp_path: Path) -> None:
    check_trusted(
        sshd.host(known_hosts_file=write(tmp_path / "k", f"127.0.0.1 {public(sshd.folder / 'host_ed25519')}\n"))
    )


def test_another_key_for_the_usual_port_is_no_change(sshd: Sshd, tmp_path: Path) -> None:
    error = refusal(
        sshd.host(known_hosts_file=write(tmp_path / "k", f"127.0.0.1 {public(make_key(tmp_path / 'o'))}\n"))
    )
    assert error.code == "host-key-unknown"
