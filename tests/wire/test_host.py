"""ask, start and put on a host: words, bytes, deadlines and limits, files whole, and an end in every case."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from loopback import Sshd, becomes, find_processes

from cluster.argv.far import LOADER, framed, source, started
from cluster.argv.question import Question
from cluster.errors import ClusterError, ConnectionLostError, InterruptedByUser, UnreachableError
from cluster.hosts.fleet import Fleet
from cluster.hosts.lock import Lock
from cluster.hosts.wire import WireHost, ask_request, read_answers

if TYPE_CHECKING:
    from conftest import Disk


HOSTILE = [
    *("two words", "", "'single'", '"double"', "$HOME ${HOME} $(id)", "`id`", "line\nline\n", "back\\slash\\"),
    *("!history", "*", "~", "-n", "--", "\t", "größer 火花 🔥", "a;b|c&d>e<f", "#no comment", "%s %d", "{a,b}", "^x^y"),
    *("\x01\x7f", "é" * 5000, os.fsdecode(b"\xff\xfe not unicode")),
]
ECHO = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(os.fsencode(word) for word in sys.argv[1:]))"
SHELLS = ("sh", "bash", "fish", "zsh", "tcsh", "csh", "ksh")
BANNER = r"""
echo '*** Welcome ***'; echo careful >&2; printf '\n\0\377 {"exit": 0} '
exec sh -c "$SSH_ORIGINAL_COMMAND"
"""


def check_hostile(host: WireHost) -> None:
    data = bytes(range(256)) * 4096
    said, copied = host.ask(
        [Question(("python3", "-c", ECHO, *HOSTILE)), Question(("cat",), stdin=data, limit=1 << 21)]
    )
    assert said.out.split(b"\0") == [os.fsencode(word) for word in HOSTILE]
    assert said.err == b""
    assert copied.out == data
    assert not copied.cut


def test_hostile_words_and_a_megabyte_of_binary(host: WireHost) -> None:
    check_hostile(host)


@pytest.mark.parametrize("shell", [*SHELLS, "a banner"])
def test_login_shells(shell: str, make_sshd: Callable[..., Sshd]) -> None:
    if shell in SHELLS and not shutil.which(shell):
        pytest.skip(f"no {shell} here")
    login = f'exec {shell} -c "$SSH_ORIGINAL_COMMAND"' if shell in SHELLS else BANNER
    host = make_sshd(login=login).host()
    check_hostile(host)
    process = host.start(("cat",), b"first\n")
    lines = process.lines()
    assert next(lines) == "first"
    assert process.close() == 0


def test_exit_codes_input_and_output(host: WireHost) -> None:
    asked: dict[tuple[str, ...], tuple[int, bytes]] = {
        ("true",): (0, b""),
        ("sh", "-c", "exit 3"): (3, b""),
        ("no-such-program",): (127, b""),
        ("/etc/passwd",): (126, b""),
        ("/etc/passwd/x",): (127, b""),
        ("sh", "-c", "kill -9 $$"): (137, b""),
        ("sh", "-c", "echo out; echo err >&2"): (0, b"out\n"),
        ("cat",): (0, b""),  # no input is an empty input
        ("sh", "-c", "yes | head -n 1"): (0, b"y\n"),  # they die of a closed pipe as they do in a shell
        ("echo", "a\0b"): (126, b""),  # a word that no program can have
    }
    answers = dict(zip(asked, host.ask([Question(words) for words in asked]), strict=True))
    assert {words: (answer.exit, answer.out) for words, answer in answers.items()} == asked
    assert answers["sh", "-c", "echo out; echo err >&2"].err == b"err\n"
    assert b"null" in answers["echo", "a\0b"].err
    assert host.ask([Question(("true",), stdin=b"x" * (1 << 20))])[0].exit == 0, "nobody reads the input"


@pytest.mark.parametrize("shell", ["sh", "bash", "fish"])
def test_no_python_is_one_clear_error(shell: str, make_sshd: Callable[..., Sshd]) -> None:
    path = shutil.which(shell)
    if not path:
        pytest.skip(f"no {shell} here")
    host = make_sshd(login=f'PATH=/nowhere exec {path} -c "$SSH_ORIGINAL_COMMAND"').host()
    with pytest.raises(UnreachableError) as raised:
        host.ask([Question(("true",))])
    assert raised.value.code == "python-missing"


OLD = "import sys; sys.version_info = (3, 8, 1); import sys;b=sys.stdin.buffer;exec(b.read(int(b.readline())))"


@pytest.mark.parametrize(
    ("login", "said"),
    [
        ("echo This account is currently not available.; exit 1", "This account is currently not available"),
        ("exec yes welcome", "endless output"),
        (f"exec python3 -I -S -c '{OLD}'", r"python3 here is 3\.8, 3\.10 or newer is needed"),
    ],
)
def test_logins_that_are_of_no_use(login: str, said: str, make_sshd: Callable[..., Sshd]) -> None:
    with pytest.raises(UnreachableError, match=said):
        make_sshd(login=login).host().ask([Question(("true",))])


def test_a_hanging_question_ends_at_its_own_deadline_and_delays_no_other(host: WireHost) -> None:
    began = time.monotonic()
    hanging = Question(("sh", "-c", "echo so far; exec sleep 301.25"), timeout_s=1.0)
    late, quick = host.ask([hanging, Question(("echo", "quick"))])
    assert time.monotonic() - began < 3
    assert (late.exit, late.out) == (None, b"so far\n"), "what was printed before the deadline is kept"
    assert 0.9 < late.seconds < 2
    assert (quick.exit, quick.out) == (0, b"quick\n")
    assert quick.seconds < 0.9
    assert not find_processes("301.25")


def test_a_program_that_ignores_the_first_signal_is_killed_with_its_children(host: WireHost) -> None:
    stubborn = "trap '' TERM; (trap '' TERM; exec sleep 303.5) & while :; do sleep 0.1; done"
    answer = host.ask([Question(("sh", "-c", stubborn), timeout_s=0.3)])[0]
    assert answer.exit is None
    assert answer.seconds < 2.5
    assert becomes(lambda: not find_processes("303.5"), 1.0)


def test_a_program_that_even_sigkill_does_not_end_holds_up_nobody() -> None:
    """As a program in state D; here the signals are taken away from far/run itself."""
    asked = [Question(("sleep", "4.75"), timeout_s=0.2), Question(("echo", "quick"))]
    program = b"import os; os.killpg = lambda *_: None\n" + source("run")
    request = ask_request(asked, "mark")[len(framed(source("run"))) :]
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", LOADER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as far:
        assert far.stdin
        assert far.stdout
        far.stdin.write(framed(program) + request)
        far.stdin.flush()
        answers = read_answers(bytearray(far.stdout.read()), "mark")
        took = time.monotonic() - began
    assert answers
    assert [answer.exit for answer in answers] == [None, 0]
    assert took < 4


def test_a_grandchild_that_keeps_the_output_open_is_not_waited_for(host: WireHost) -> None:
    answer = host.ask([Question(("sh", "-c", "sleep 2 & echo done"))])[0]
    assert (answer.exit, answer.out) == (0, b"done\n")
    assert answer.seconds < 1.5


def test_output_past_the_limit_is_thrown_away_and_said_so(host: WireHost) -> None:
    long, exact = host.ask(
        [
            Question(("sh", "-c", "head -c 100000 /dev/zero; echo x >&2; exit 4"), limit=1000),
            Question(("head", "-c", "1000", "/dev/zero"), limit=1000),
        ]
    )
    assert (long.exit, len(long.out), long.err, long.cut) == (4, 1000, b"x\n", True)
    assert (exact.exit, len(exact.out), exact.cut) == (0, 1000, False)


def test_of_long_output_the_end_is_kept_where_it_is_wanted(host: WireHost) -> None:
    long, short, endless = host.ask(
        [
            Question(("sh", "-c", "seq 1000000; echo x >&2"), limit=10, tail=16),
            Question(("seq", "9"), limit=10, tail=16),
            Question(("sh", "-c", "echo first; exec yes"), limit=10, tail=6, timeout_s=1.5),
        ]
    )
    assert (long.exit, long.err, long.cut) == (0, b"x\n", True)
    assert long.text == "1\n2\n3\n4\n5\n\n[cluster: 6888870 bytes are left out here]\n\n999999\n1000000\n"
    assert (short.out, short.cut) == (b"1\n2\n3\n4\n5\n6\n7\n8\n9\n", False)
    assert (endless.text[:6], endless.text[-4:], endless.cut) == ("first\n", "y\ny\n", True)


def test_endless_output_ends_quickly(host: WireHost) -> None:
    began = time.monotonic()
    out, err = host.ask(
        [
            Question(("yes", "endless"), limit=5000, timeout_s=30),
            Question(("sh", "-c", "exec yes endless >&2"), limit=5000, timeout_s=30),
        ]
    )
    assert time.monotonic() - began < 5
    assert (out.exit, len(out.out), out.cut) == (143, 5000, True)
    assert (err.exit, len(err.err), err.cut) == (143, 5000, True)


def test_both_streams_full_at_once_do_not_block(host: WireHost) -> None:
    both = "import sys; [(sys.stdout.write('o' * 9999), sys.stderr.write('e' * 9999)) for _ in range(100)]"
    answer = host.ask([Question(("python3", "-c", both), stdin=b"i" * (1 << 20))])[0]
    assert (answer.exit, len(answer.out), len(answer.err)) == (0, 999900, 999900)


def test_many_questions_in_one_round_trip_and_none_in_none(host: WireHost) -> None:
    answers = host.ask([Question(("echo", str(number))) for number in range(60)])
    assert [answer.text for answer in answers] == [f"{number}\n" for number in range(60)]
    assert host.ask([]) == []


def test_lines_come_as_they_are_written(host: WireHost) -> None:
    process = host.start(("sh", "-c", "echo first; read word; echo got $word; printf unended"), b"")
    lines = process.lines()
    assert next(lines) == "first"
    process.write(b"it\n")
    assert list(lines) == ["got it", "unended"]
    assert process.close() == 0


@pytest.mark.parametrize(
    ("words", "printed", "code"),
    [
        (("sh", "-c", "echo out; echo err >&2; exit 5"), "out\nerr", 5),
        (("sh", "-c", "kill -9 $$"), "", 137),
        (("no-such-program",), "no-such-program", 127),
        (("/etc/passwd",), "/etc/passwd", 126),
    ],
)
def test_both_streams_are_merged_and_signals_are_codes(
    words: tuple[str, ...], printed: str, code: int, host: WireHost
) -> None:
    process = host.start(words)
    assert printed in "\n".join(process.lines())
    assert process.close() == code


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


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_bytes_mode_and_parents_and_overwriting_is_a_rename(host: WireHost, tmp_path: Path) -> None:
    data, place = bytes(range(256)) * 4096, tmp_path / "new" / "er" / "file"
    host.put(data, str(place))
    assert mode(place) == 0o600
    assert mode(tmp_path / "new" / "er") == mode(tmp_path / "new") == 0o700
    with place.open("rb") as reader:
        host.put(b"", str(place), 0o644)
        assert reader.read() == data
    assert (place.read_bytes(), mode(place)) == (b"", 0o644)
    assert list(place.parent.iterdir()) == [place]


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


FULL = os.strerror(errno.ENOSPC)


def test_the_old_file_stays(host: WireHost, disk: Disk) -> None:
    old = disk.place / "file"
    old.write_text("old")
    disk.fill()
    for path in (old, disk.place / "new" / "file"):
        with pytest.raises(ClusterError) as raised:
            host.put(bytes(300_000), str(path))
        assert FULL in raised.value.what
        assert raised.value.where == "spark1"
    assert old.read_text() == "old"
    assert sorted(path.name for path in disk.place.rglob("*") if path.is_file()) == ["file", "filler"]


def test_a_lock_outlives_the_audit_that_cannot_be_written(sshd: Sshd, disk: Disk) -> None:
    with Lock(Fleet([sshd.host("spark1")]), "up", {"spark1": str(disk.place)}, silence_s=5, beat_s=0.2) as lock:
        disk.fill()
        for number in range(60):
            lock.note("spark1", f"step {number} {'x' * 200}")
        for _ in range(3):
            sshd.host().ask([])
        lock.require()
        assert not lock.lost()


def test_a_lock_on_a_full_disk(sshd: Sshd, disk: Disk) -> None:
    disk.fill()
    with pytest.raises(ClusterError) as raised, Lock(Fleet([sshd.host("spark1")]), "up", {"spark1": str(disk.place)}):
        pass
    assert FULL in raised.value.what
    assert raised.value.where == "spark1"
