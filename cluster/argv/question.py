"""What is asked of a host, and its answer: two values, no behavior."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Question:
    """One program to run on a host. The words arrive there unchanged; no shell sees them.

    `timeout_s`, `limit` (bytes kept of stdout, and as many of stderr) and `tail` (bytes kept of the end of each, where
    it is longer) are enforced on the host.
    A question that `changes` something is sent only once.
    """

    argv: tuple[str, ...]
    stdin: bytes = b""
    timeout_s: float = 10.0
    limit: int = 1 << 20
    tail: int = 0
    changes: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What a question gave. `exit` is None when the deadline ended the program.

    A program that is not there exits 127, one that may not be run 126, one ended by a signal 128 + signal.
    `cut`: output past the limit was dropped; between a beginning and a `tail` a line says so. In `text` (of stdout) and
    `error_text` bytes that are not UTF-8 are replaced.
    """

    exit: int | None
    out: bytes = b""
    err: bytes = b""
    cut: bool = False
    seconds: float = 0.0

    @property
    def text(self) -> str:
        return self.out.decode("utf-8", "replace")

    @property
    def error_text(self) -> str:
        return self.err.decode("utf-8", "replace")
