"""Host keys are always checked; which keys are offered; and a refusal says what to do."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from loopback import Sshd, make_key, public

from cluster.argv.question import Question
from cluster.errors import ConnectionLostError, UnreachableError, UsageError
from cluster.hosts.ssh import SshHost


def check_login(host: SshHost) -> None:
    assert host.ask([Question(("echo", "in"))])[0].out == b"in\n"


def refusal(host: SshHost) -> UnreachableError:
    with pytest.raises(UnreachableError) as raised:
        host.ask([Question(("true",))])
    assert not isinstance(raised.value, ConnectionLostError), "a key is no reason to try again"
    return raised.value


def print_of(path: Path) -> str:
    return subprocess.check_output(["ssh-keygen", "-l", "-f", f"{path}.pub"], text=True).split()[1]


def knowing(sshd: Sshd, folder: Path, text: str) -> SshHost:
    """A host, with a known_hosts file of this text, in which {key} is its own key, {ed25519} and {rsa} are others."""
    others = {kind: public(make_key(folder / kind, kind)) for kind in ("ed25519", "rsa") if f"{{{kind}}}" in text}
    key = public(sshd.folder / "host_ed25519")
    (folder / "known").write_text(text.format(name=sshd.name, key=key, **others))
    return sshd.host(known_hosts_file=str(folder / "known"))


@pytest.mark.parametrize(
    ("text", "code", "line", "said"),
    [
        ("", "unknown", 0, ""),
        ("# a comment\n{name} {ed25519}\n", "changed", 2, ""),
        ("{name} {key}\n@revoked * {key}\n", "revoked", 2, ""),
        ("@cert-authority {name} {key}\n", "unknown", 0, "authority"),
        ("{name} {rsa}\n", "unknown", 0, "only its ssh-rsa key is known"),
        ("127.0.0.1 {ed25519}\n", "unknown", 0, ""),  # another key of the usual port is no change
    ],
)
def test_host_keys_that_are_refused(text: str, code: str, line: int, said: str, sshd: Sshd, tmp_path: Path) -> None:
    error = refusal(knowing(sshd, tmp_path, text))
    assert (error.code, error.where) == (f"host-key-{code}", f"{tmp_path}/known:{line}" if line else "spark1")
    assert print_of(sshd.folder / "host_ed25519") in error.what
    assert said in error.what
    if code == "changed":
        assert print_of(tmp_path / "ed25519") in error.what
        assert f"ssh-keygen -R '{sshd.name}' -f {tmp_path}/known" in error.remedy
    if code != "revoked":
        assert f"cluster inventory add spark1 {sshd.entry().user}@127.0.0.1:{sshd.port}" in error.remedy


def test_no_known_hosts_file(sshd: Sshd, tmp_path: Path) -> None:
    assert refusal(sshd.host(known_hosts_file=str(tmp_path / "none"))).code == "host-key-unknown"


def test_a_key_known_by_a_hashed_name_or_for_the_usual_port(sshd: Sshd, tmp_path: Path) -> None:
    host, known = knowing(sshd, tmp_path, "{name} {key}\n"), tmp_path / "known"
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", known], check=True, stderr=subprocess.DEVNULL)
    assert "|1|" in known.read_text()
    assert "127" not in known.read_text()
    check_login(host)
    check_login(knowing(sshd, tmp_path, "127.0.0.1 {key}\n"))


@pytest.mark.parametrize("kind", ["rsa", "ecdsa", "ed25519"])
def test_the_kind_that_is_known_is_asked_for(kind: str, make_sshd: Callable[..., Sshd], tmp_path: Path) -> None:
    server = make_sshd(kinds=("rsa", "ecdsa", "ed25519"))
    check_login(knowing(server, tmp_path, f"{server.name} {public(server.folder / f'host_{kind}')}\n"))


def allow(server: Sshd, key: Path) -> Path:
    """A key of another kind or place that the server accepts too."""
    with (server.folder / "id.pub").open("a") as allowed:
        allowed.write(Path(f"{key}.pub").read_text())
    return key


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    socket = tmp_path / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL)
    while not socket.exists():
        pass
    monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
    yield socket
    process.terminate()
    process.wait()


def test_an_agent_holds_the_key(sshd: Sshd, agent: Path, tmp_path: Path) -> None:
    subprocess.run(["ssh-add", "-q", sshd.key], check=True)
    target = replace(sshd.host().target, agent=str(agent))
    check_login(SshHost("spark1", replace(target, identity_files=(), identities_only=False)))
    key = Path(f"{sshd.key}.pub")
    (tmp_path / "only.pub").write_text(key.read_text())
    check_login(SshHost("spark1", replace(target, identity_files=(str(tmp_path / "only"),), identities_only=True)))
    error = refusal(sshd.host(identity_file=str(make_key(tmp_path / "wrong"))))
    assert "agent:" not in error.what, "no other keys of the agent when one is named"


def test_an_agent_holds_the_locked_key_of_the_inventory(
    make_sshd: Callable[..., Sshd], agent: Path, tmp_path: Path
) -> None:
    server = make_sshd()
    key = allow(server, make_key(tmp_path / "key"))
    subprocess.run(["ssh-add", "-q", key], check=True)
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", key], check=True, stdout=subprocess.DEVNULL)
    check_login(server.host(identity_file=str(key)))
    Path(f"{key}.pub").unlink()
    check_login(server.host(identity_file=str(key)))


def test_an_agent_that_is_gone(sshd: Sshd, tmp_path: Path) -> None:
    check_login(SshHost("spark1", replace(sshd.host().target, agent=str(tmp_path / "nobody"))))


def test_keys_that_are_refused(sshd: Sshd, tmp_path: Path) -> None:
    wrong = make_key(tmp_path / "wrong")
    error = refusal(sshd.host(identity_file=str(wrong)))
    assert error.code == "ssh-publickey"
    assert str(wrong) in error.what
    assert f"ssh-copy-id -p {sshd.port}" in error.remedy
    locked = make_key(tmp_path / "locked", passphrase="secret")
    error = refusal(sshd.host(identity_file=str(locked)))
    assert (error.code, error.remedy) == ("ssh-key-locked", f"ssh-add {locked}")
    (tmp_path / "text").write_text("hello")
    assert "unreadable" in refusal(sshd.host(identity_file=str(tmp_path / "text"))).what
    error = refusal(sshd.host(user="nobody-here"))
    assert (error.code, error.where) == ("ssh-publickey", "nobody-here@127.0.0.1")
    with pytest.raises(UsageError) as raised:
        sshd.host(identity_file="/nowhere/id")
    assert raised.value.code == "ssh-key-file"
    assert "spark1" in raised.value.where


def test_too_many_keys(make_sshd: Callable[..., Sshd], tmp_path: Path) -> None:
    server = make_sshd(options="MaxAuthTries 2\n")
    keys = tuple(str(make_key(tmp_path / f"wrong{number}")) for number in range(4))
    error = refusal(SshHost("spark1", replace(server.host().target, identity_files=keys)))
    assert "too many keys" in error.what


def test_passwords_only(make_sshd: Callable[..., Sshd]) -> None:
    error = refusal(make_sshd(options="PubkeyAuthentication no\nPasswordAuthentication yes\n").host())
    assert "it accepts only password" in error.what


def test_other_kinds_of_keys(make_sshd: Callable[..., Sshd], tmp_path: Path) -> None:
    server = make_sshd()
    for kind in ("rsa", "ecdsa"):
        check_login(server.host(identity_file=str(allow(server, make_key(tmp_path / kind, kind)))))
