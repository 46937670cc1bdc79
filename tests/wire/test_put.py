"""Files arrive whole, with their mode, and secrets are seen nowhere on the way."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import pytest
from loopback import Sshd

from cluster.argv.question import Question
from cluster.errors import ClusterError
from cluster.hosts.wire import WireHost


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_bytes_mode_and_parents(host: WireHost, tmp_path: Path) -> None:
    data = bytes(range(256)) * 4096
    host.put(data, str(tmp_path / "new" / "er" / "file"))
    assert (tmp_path / "new" / "er" / "file").read_bytes() == data
    assert mode(tmp_path / "new" / "er" / "file") == 0o600
    assert mode(tmp_path / "new" / "er") == mode(tmp_path / "new") == 0o700


def test_overwriting_is_a_rename(host: WireHost, tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_bytes(b"old")
    with place.open("rb") as reader:
        host.put(b"", str(place), 0o644)
        assert reader.read() == b"old"
    assert place.read_bytes() == b""
    assert mode(place) == 0o644
    assert list(tmp_path.iterdir()) == [place]


def test_home_is_the_home_there(sshd: Sshd) -> None:
    sshd.host().put(b"here", "~/a b/$HOME/file")
    assert (sshd.home / "a b" / "$HOME" / "file").read_bytes() == b"here"


def test_a_place_that_cannot_be(host: WireHost, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ClusterError, match=r"cannot write .*file/below") as raised:
        host.put(b"x", str(tmp_path / "file" / "below"))
    assert raised.value.where == "spark1"
    (tmp_path / "folder").mkdir()
    with pytest.raises(ClusterError, match="cannot write"):
        host.put(b"x", str(tmp_path / "folder"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"], "nothing half done stays behind"


def test_a_secret_is_in_no_command_line_and_no_environment(host: WireHost, tmp_path: Path) -> None:
    secret, over = b"hf_planted_token_7d1f", threading.Event()
    seen = {secret: 0, b"import sys;b=sys.stdin.buffer": 0}

    def look() -> None:
        while not over.is_set():
            for path in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    text = (path / "cmdline").read_bytes() + (path / "environ").read_bytes()
                    seen.update({word: seen[word] + 1 for word in seen if word in text})

    looking = threading.Thread(target=look)
    looking.start()
    for number in range(5):
        host.put(secret, str(tmp_path / f"token{number}"))
        host.ask([Question(("sh", "-c", "cat > /dev/null; sleep 0.1"), stdin=secret)])
    over.set()
    looking.join()
    assert seen[b"import sys;b=sys.stdin.buffer"], "the far program itself was seen, so the look was in time"
    assert not seen[secret]
