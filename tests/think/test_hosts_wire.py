"""The wire without a wire: questions into bytes, bytes into answers, and what a login printed before it ended."""

from __future__ import annotations

import json
import zlib
from base64 import b64encode

import pytest

from cluster.argv.far import COMMAND, LOADER, source
from cluster.argv.question import Answer, Question
from cluster.errors import ConnectionLostError, UnreachableError
from cluster.hosts.cancel import Scope
from cluster.hosts.wire import WireHost, ask_request, read_answers

ROW = {"exit": 0, "out": b64encode(b"\0\xff").decode(), "err": "", "cut": False, "seconds": 0.5}
ANSWER = Answer(0, b"\0\xff", b"", False, 0.5)


def framed(marker: str, body: bytes, kind: str = "json") -> bytes:
    return f"\n{marker} {kind} {len(body)}\n".encode() + body


def test_the_command_is_safe_in_every_shell() -> None:
    assert f"python3 -I -S -c '{LOADER}'" == COMMAND
    assert not set(LOADER) & set("'\"\\$`!\n%{}*?~#&|<>"), "nothing that a shell would touch inside single quotes"


def test_a_request_is_the_program_and_then_the_questions() -> None:
    data = ask_request([Question(("a b", "ü"), b"\0", timeout_s=3, limit=9)], "mark")
    length, rest = data.split(b"\n", 1)
    assert rest[: int(length)] == source("run")
    length, asked = rest[int(length) :].split(b"\n", 1)
    assert int(length) == len(asked)
    question = {"argv": ["a b", "ü"], "stdin": "AA==", "timeout_s": 3, "limit": 9, "tail": 0, "changes": False}
    assert json.loads(asked) == {"marker": "mark", "questions": [question]}


@pytest.mark.parametrize("kind", ["json", "zlib"])
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_answers_come_in_any_portions_after_any_banner(kind: str, size: int) -> None:
    body = json.dumps([ROW, {**ROW, "exit": None, "cut": True}]).encode()
    data = b"Welcome!\n mark json 3\n\xff\0" + framed("mark", zlib.compress(body) if kind == "zlib" else body, kind)
    ends = [*range(size, len(data), size), len(data)]
    answers = [read_answers(bytearray(data[:end]), "mark") for end in ends]
    assert answers[:-1] == [None] * (len(ends) - 1)
    assert answers[-1] == [ANSWER, Answer(None, b"\0\xff", b"", True, 0.5)]


@pytest.mark.parametrize(
    "data",
    [
        framed("mark", b"not json"),
        framed("mark", b"not zlib", "zlib"),
        b"\nmark json many\n",
        b"\nmark json 99999999999\n",
        b"x" * (2 << 20),
    ],
)
def test_what_is_no_answer_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_answers(bytearray(data), "mark")


class GonePipe:
    """A login that speaks and ends before anything could be sent."""

    def __init__(self) -> None:
        self._said = [b"This account is ", b"currently not available.\n", b""]

    def send(self, data: bytes) -> None:
        raise ConnectionLostError("the connection to spark1 was lost", code="connection-lost", where="spark1")

    def receive(self, timeout_s: float) -> bytes | None:
        return self._said.pop(0)

    def end_input(self) -> None:
        raise AssertionError

    def exit_code(self, timeout_s: float) -> int | None:
        return 1

    def errors(self) -> str:
        return ""

    def close(self) -> None:
        pass


class GoneHost(WireHost):
    def open(self, deadline: float, scope: Scope) -> GonePipe:
        return GonePipe()


def test_a_login_that_ends_at_once_is_quoted() -> None:
    with pytest.raises(UnreachableError, match="exit 1; output: This account is currently not available"):
        GoneHost("spark1").ask([Question(("true",))])
