"""Words, input and output arrive unchanged, whatever the login shell is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import pytest
from loopback import Sshd

from cluster.argv.question import Question
from cluster.errors import UnreachableError
from cluster.hosts.wire import WireHost

HOSTILE = (
    "two words",
    "",
    "'single'",
    '"double"',
    "$HOME ${HOME} $(id)",
    "`id`",
    "line\nline\n",
    "back\\slash\\",
    "!history",
    "*",
    "~",
    "-n",
    "--",
    "\t",
    "größer 火花 🔥",
    "a;b|c&d>e<f",
    "#no comment",
    "%s %d",
    "{a,b}",
    "^x^y",
    "\x01\x7f",
    "é" * 5000,
    os.fsdecode(b"\xff\xfe not unicode"),
)
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


def test_exit_codes(host: WireHost) -> None:
    asked = [
        ("true",),
        ("sh", "-c", "exit 3"),
        ("no-such-program",),
        ("/etc/passwd",),
        ("/etc/passwd/x",),
        ("sh", "-c", "kill -9 $$"),
    ]
    assert [answer.exit for answer in host.ask([Question(words) for words in asked])] == [0, 3, 127, 126, 127, 137]


def test_output_and_errors_stay_apart(host: WireHost) -> None:
    answer = host.ask([Question(("sh", "-c", "echo out; echo err >&2"))])[0]
    assert (answer.out, answer.err, answer.exit) == (b"out\n", b"err\n", 0)


def test_no_input_is_an_empty_input(host: WireHost) -> None:
    assert host.ask([Question(("cat",))])[0].out == b""


def test_input_that_nobody_reads(host: WireHost) -> None:
    assert host.ask([Question(("true",), stdin=b"x" * (1 << 20))])[0].exit == 0


def test_programs_die_of_a_closed_pipe_as_they_do_in_a_shell(host: WireHost) -> None:
    assert host.ask([Question(("sh", "-c", "yes | head -n 1"))])[0].out == b"y\n"


def test_a_word_that_no_program_can_have(host: WireHost) -> None:
    bad, good = host.ask([Question(("echo", "a\0b")), Question(("echo", "fine"))])
    assert bad.exit == 126
    assert b"null" in bad.err
    assert good.out == b"fine\n"


@pytest.mark.parametrize("shell", ["sh", "bash", "fish"])
def test_no_python_is_one_clear_error(shell: str, make_sshd: Callable[..., Sshd]) -> None:
    path = shutil.which(shell)
    if not path:
        pytest.skip(f"no {shell} here")
    host = make_sshd(login=f'PATH=/nowhere exec {path} -c "$SSH_ORIGINAL_COMMAND"').host()
    with pytest.raises(UnreachableError) as raised:
        host.ask([Question(("true",))])
    assert raised.value.code == "python-missing"


def test_an_old_python_is_named(make_sshd: Callable[..., Sshd]) -> None:
    old = "import sys; sys.version_info = (3, 8, 1); import sys;b=sys.stdin.buffer;exec(b.read(int(b.readline())))"
    host = make_sshd(login=f"exec python3 -I -S -c '{old}'").host()
    with pytest.raises(UnreachableError, match=r"python3 here is 3\.8, 3\.10 or newer is needed"):
        host.ask([Question(("true",))])


def test_a_login_that_is_switched_off(make_sshd: Callable[..., Sshd]) -> None:
    host = make_sshd(login="echo This account is currently not available.; exit 1").host()
    with pytest.raises(UnreachableError, match="This account is currently not available"):
        host.ask([Question(("true",))])


def test_a_login_that_never_stops_talking(make_sshd: Callable[..., Sshd]) -> None:
    host = make_sshd(login="exec yes welcome").host()
    with pytest.raises(UnreachableError, match="endless output"):
        host.ask([Question(("true",))])
