"""`inventory add` against a real sshd: the key is seen, asked about, recorded once; the inventory gets its lines."""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from loopback import Sshd, make_key, public

from cluster.argv.question import Question
from cluster.cli.main import main, parse
from cluster.config.inventory import read_inventory
from cluster.errors import RefusedError, UsageError
from cluster.screen import Screen


class Answering(Screen):
    """A screen whose user answers always the same."""

    def __init__(self, answer: bool) -> None:
        super().__init__()
        self.answer = answer
        self.asked: list[str] = []

    def confirm(self, question: str) -> bool:
        self.asked.append(question)
        return self.answer


def add(screen: Screen, *words: str) -> int:
    from cluster.cli.inventory import run

    return run(parse(["inventory", "add", *words]), screen)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """An inventory and a known_hosts file that are not there yet."""
    return tmp_path / "made" / "inv.yaml", tmp_path / "ssh" / "known"


def words(sshd: Sshd, files: tuple[Path, Path]) -> list[str]:
    address = f"{getpass.getuser()}@127.0.0.1:{sshd.port}"
    return ["spark1", address, "-i", str(files[0]), "--known-hosts-file", str(files[1])]


def test_yes_records_key_and_host_once(sshd: Sshd, files: tuple[Path, Path]) -> None:
    inventory, known = files
    screen = Answering(True)
    assert add(screen, *words(sshd, files)) == 0
    assert screen.asked == [f"record it in {known}?"]
    assert known.read_text().split()[-2:] == public(sshd.folder / "host_ed25519").split()
    assert known.stat().st_mode & 0o777 == 0o600
    [answer] = sshd.host(known_hosts_file=str(known)).ask([Question(("echo", "hello"))])
    assert answer.text == "hello\n", "the recorded key is the one that hosts are checked with"
    entry = read_inventory(inventory).hosts["spark1"]
    assert (entry.address, entry.port, entry.user) == ("127.0.0.1", sshd.port, getpass.getuser())
    before = (inventory.read_bytes(), known.read_bytes())
    again = Answering(False)
    assert add(again, *words(sshd, files)) == 0
    assert add(again, "spark1", "-i", str(inventory)) == 0
    assert again.asked == []
    assert (inventory.read_bytes(), known.read_bytes()) == before


def test_no_records_nothing_and_without_a_terminal_the_answer_is_no(
    sshd: Sshd, files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match="nothing was recorded"):
        add(Answering(False), *words(sshd, files))
    assert main(["inventory", "add", *words(sshd, files)]) == 2
    assert "SHA256:" in capsys.readouterr().err
    assert not files[0].exists()
    assert not files[1].exists()
    assert main(["inventory", "add", *words(sshd, files), "--yes", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["added"], said["key_added"], said["kind"]) == (True, True, "ssh-ed25519")
    assert files[0].exists()


@pytest.mark.parametrize("is_known", [True, False])
def test_a_known_key_is_not_asked_about_and_another_has_a_line_of_its_own(
    is_known: bool, sshd: Sshd, files: tuple[Path, Path]
) -> None:
    files[1].parent.mkdir()
    mine = f"# mine\n{sshd.name} {public(sshd.folder / 'host_ed25519')}" if is_known else "# mine\nb ssh-ed25519 AAAA"
    files[1].write_text(mine)
    screen = Answering(not is_known)
    assert add(screen, *words(sshd, files)) == 0
    assert len(screen.asked) == (not is_known)
    lines = files[1].read_text().splitlines()
    assert lines[:2] == mine.splitlines()
    assert len(lines) == (2 if is_known else 3)


def test_a_changed_key_is_refused(make_sshd: Callable[..., Any], files: tuple[Path, Path], tmp_path: Path) -> None:
    sshd = make_sshd()
    files[1].parent.mkdir()
    other = make_key(tmp_path / "other")
    files[1].write_text(f"{sshd.name} {public(other)}\n")
    before = files[1].read_bytes()
    with pytest.raises(RefusedError) as caught:
        add(Answering(True), *words(sshd, files), "--yes")
    assert caught.value.code == "host-key-changed"
    assert caught.value.where == f"{files[1]}:1"
    assert f"ssh-keygen -R '{sshd.name}' -f {files[1]}" in caught.value.remedy
    assert files[1].read_bytes() == before
    assert not files[0].exists()


def test_what_is_there_must_agree(sshd: Sshd, files: tuple[Path, Path]) -> None:
    add(Answering(True), *words(sshd, files))
    before = files[0].read_bytes()
    same = words(sshd, files)
    plain = ["spark1", "127.0.0.1", *same[2:]]
    other_address = ["spark1", "10.9.9.9", "-i", str(files[0])]
    for key, given in (
        ("port", [*plain, "--port", "1"]),
        ("user", [*plain, "--user", "somebody-else"]),
        ("jump", [*same, "--jump", "gate"]),
        ("address", other_address),
    ):
        with pytest.raises(UsageError, match=f"hosts.spark1.{key} is ") as caught:
            add(Answering(True), *given)
        assert caught.value.code == "host-exists"
    assert files[0].read_bytes() == before


def test_a_second_host_keeps_what_the_user_wrote(sshd: Sshd, files: tuple[Path, Path]) -> None:
    inventory = files[0]
    inventory.parent.mkdir()
    text = "# my desk\nhosts:\n  old: {address: 10.0.0.9}   # the first\n\n# end\ngroups: {all: [old]}\n"
    inventory.write_text(text)
    inventory.chmod(0o640)
    add(Answering(True), *words(sshd, files))
    lines = inventory.read_text().splitlines(keepends=True)
    added = [line for line in lines if "spark1" in line]
    assert len(added) == 1
    lines.remove(added[0])
    assert "".join(lines) == text
    assert inventory.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (["spark1", "127.0.0.1", "--port", "{closed}"], 3, "Connection refused"),
        (["spark1", "no-such-host.invalid"], 3, "spark1 shows no host key"),
        (["spark1", "127.0.0.1", "--port", "99999"], 2, "[value-invalid]"),
        (["spark1", "127.0.0.1", "--port", "{closed}", "--user", "ada"], 3, "`ssh -p {closed} -l ada 127.0.0.1`"),
        (["spark1", "127.0.0.1", "--jump", "a@127.0.0.1:{closed}"], 3, "`ssh -J a@127.0.0.1:{closed} 127.0.0.1`"),
        (["spark1", "ada@127.0.0.1:22", "--port", "3"], 2, "port: 22 in ada@127.0.0.1:22, and --port 3 [address-con"),
        (["spark1", "ada@127.0.0.1", "--user", "bob"], 2, "[address-conflict]"),
        (["spark1", "a/b"], 2, "[address-invalid]"),
        (["a:b", "127.0.0.1"], 2, "[value-invalid]"),
        (["spark1", "127.0.0.1", "--identity-file", "/no/such/key"], 2, "/no/such/key"),
    ],
)
def test_what_cannot_be_added(
    more: list[str], code: int, message: str, files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        closed = str(probe.getsockname()[1])
    given = [word.replace("{closed}", closed) for word in more]
    assert main(["inventory", "add", *given, "-i", str(files[0]), "--known-hosts-file", str(files[1]), "-y"]) == code
    assert message.replace("{closed}", closed) in capsys.readouterr().err
    assert not files[0].exists()


def test_the_key_of_a_host_behind_another(make_sshd: Callable[..., Any], files: tuple[Path, Path]) -> None:
    gate, behind = make_sshd(), make_sshd()
    files[1].parent.mkdir()
    files[1].write_text(f"{gate.name} {public(gate.folder / 'host_ed25519')}\n")
    more = ["--jump", f"{getpass.getuser()}@127.0.0.1:{gate.port}", "--identity-file", str(gate.key)]
    assert add(Answering(True), *words(behind, files), *more) == 0
    assert files[1].read_text().split()[-2:] == public(behind.folder / "host_ed25519").split()
    assert "Accepted publickey" in (gate.folder / "log").read_text()
    assert read_inventory(files[0]).hosts["spark1"].jump == more[1]
