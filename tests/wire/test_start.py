"""Long-running programs: lines as they come, stdin, and an end in every case."""

from __future__ import annotations

import hashlib
import time

import pytest
from loopback import Sshd, becomes, find_processes

from cluster.argv.far import started
from cluster.errors import ConnectionLostError, InterruptedByUser
from cluster.hosts.wire import WireHost


def test_lines_come_as_they_are_written(host: WireHost) -> None:
    process = host.start(("sh", "-c", "echo first; read word; echo got $word; printf unended"), b"")
    lines = process.lines()
    assert next(lines) == "first"
    process.write(b"it\n")
    assert list(lines) == ["got it", "unended"]
    assert process.close() == 0


def test_both_streams_are_merged(host: WireHost) -> None:
    process = host.start(("sh", "-c", "echo out; echo err >&2; exit 5"))
    assert list(process.lines()) == ["out", "err"]
    assert process.close() == 5


def test_first_input_of_a_megabyte(host: WireHost) -> None:
    process = host.start(("sh", "-c", "head -c 1048576 | sha256sum; exec cat"), b"0123456789abcde\n" * 65536)
    process.write(b"more\n")
    lines = process.lines()
    assert next(lines).split()[0] == hashlib.sha256(b"0123456789abcde\n" * 65536).hexdigest()
    assert next(lines) == "more"
    assert process.close() == 0


def test_input_that_is_never_read_does_not_block_for_ever(host: WireHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.hosts.wire.STALLED_S", 0.5)
    with pytest.raises(ConnectionLostError):
        host.start(("sleep", "3"), b"x" * (8 << 20))


def test_programs_that_cannot_be_started(host: WireHost) -> None:
    for words, code in ((("no-such-program",), 127), (("/etc/passwd",), 126)):
        process = host.start(words)
        assert words[0] in "".join(process.lines())
        assert process.close() == code


def test_signals_are_exit_codes(host: WireHost) -> None:
    process = host.start(("sh", "-c", "kill -9 $$"))
    assert list(process.lines()) == []
    assert process.close() == 137


def test_close_ends_a_program_that_does_not_read(host: WireHost) -> None:
    process = host.start(("sh", "-c", "echo on; sleep 321.25 & exec sleep 321.25"))
    assert next(process.lines()) == "on"
    began = time.monotonic()
    assert process.close(timeout_s=0.5) is None
    assert time.monotonic() - began < 2
    assert becomes(lambda: not find_processes("321.25"), 3.0), "its whole group is ended"


def test_close_ends_a_program_that_only_writes(host: WireHost) -> None:
    process = host.start(("sh", "-c", "trap '' PIPE; while :; do echo 322.25; done"))
    assert next(process.lines()) == "322.25"
    assert process.close(timeout_s=0.3) is None
    assert becomes(lambda: not find_processes("trap '' PIPE; while :; do echo 322.25; done"), 4.0)


def test_writing_to_a_program_that_is_gone(host: WireHost) -> None:
    process = host.start(("true",))
    assert list(process.lines()) == []

    def write_for_a_second() -> None:
        for _ in range(50):
            process.write(b"x" * 100000)
            time.sleep(0.02)

    with pytest.raises(ConnectionLostError):
        write_for_a_second()


def test_a_lost_connection_is_not_a_normal_end(sshd: Sshd) -> None:
    process = sshd.host().start(("sh", "-c", "echo on; kill -9 $(ps -o ppid= -p $PPID); exec sleep 323.25"))
    with pytest.raises(ConnectionLostError):
        list(process.lines())
    assert becomes(lambda: not find_processes("323.25"), 4.0)


def test_a_silent_program_ends_with_the_connection(sshd: Sshd) -> None:
    host = sshd.host()
    process = host.start(("sleep", "324.25"))
    assert becomes(lambda: bool(find_processes("324.25")), 5.0)
    host.close()
    assert becomes(lambda: not find_processes("324.25"), 4.0)
    with pytest.raises(ConnectionLostError):
        process.write(b"x")


def test_interruption_ends_lines_but_not_those_of_a_lasting_program(host: WireHost) -> None:
    short, lasting = host.start(("cat",)), host.start(("cat",), lasting=True)
    host.cancel.set()
    with pytest.raises(InterruptedByUser):
        list(short.lines())
    lasting.write(b"still here\n")
    assert next(lasting.lines()) == "still here"
    assert lasting.close() == 0
    short.close()


def test_a_program_of_ours_with_its_stdin_open(host: WireHost) -> None:
    argv, program = started("hold", {"data_dir": "/nowhere/at/all\0", "who": "w", "why": "y", "silence_s": 5})
    assert "ValueError" in "".join(host.start(argv, program).lines()), "its errors can be read"
