"""ask, start and put over any Line: one constant command, everything else on stdin (`far/run.py`, `far/stream.py`)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import TypeVar
from uuid import uuid4

from cluster.commands.far import far
from cluster.commands.question import Answer, Question
from cluster.errors import ClusterError, ConnectionLostError, InterruptedByUser, UnreachableError
from cluster.hosts.cancel import Cancel, Scope
from cluster.hosts.frame import AnswerReader, frame_questions, frame_start
from cluster.hosts.pipe import Line, Pipe
from cluster.hosts.process import FarProcess

T = TypeVar("T")

SLICE_S = 0.2
TRIES = 3
FIRST_PAUSE_S = 0.5
CONNECT_WITHIN_S = 15.0
ASK_AGAIN_WITHIN_S = 15.0
MARGIN_S = 8.0  # beyond the longest deadline: ending what is late takes two seconds there, the rest is the network's
CHANGE_PATIENCE_S = 10.0  # how long an interrupted run waits for a change under way
GRACE_S = 30.0  # how long a started program may go on after its stdin was closed


class WireHost:
    """A host at the other end of a Line. Keeps the contract of `hosts.protocol.Host`."""

    def __init__(self, name: str, line: Line, cancel: Cancel | None = None) -> None:
        self._name = name
        self._line = line
        self.cancel = cancel or Cancel()

    @property
    def name(self) -> str:
        """What the user calls it."""
        return self._name

    def ask(self, questions: Sequence[Question]) -> list[Answer]:
        """See Host.ask. Raises InterruptedByUser at once when cancelled; a change under way is awaited for 10 s."""
        if not questions:
            return []
        scope = self.cancel.scope
        changes = any(question.changes for question in questions)
        tries = 1 if changes else TRIES
        return _retried(lambda: self._ask_once(questions, changes, scope), scope, tries, ASK_AGAIN_WITHIN_S)

    def start(self, argv: Sequence[str], stdin: bytes = b"", *, lasting: bool = False) -> FarProcess:
        """See Host.start. stderr is merged into the lines."""
        scope = Scope() if lasting else self.cancel.scope
        marker = uuid4().hex
        pipe = self._open(scope)
        with scope.closing(pipe.close):
            pipe.send(frame_start(argv, marker, GRACE_S) + stdin)
        return FarProcess(self._name, pipe, marker, scope)

    def put(self, data: bytes, path: str, mode: int = 0o600) -> None:
        """See Host.put. The bytes travel on stdin only."""
        question = far("put", {"path": path, "mode": mode}, timeout_s=30 + len(data) / 1e6, changes=True)
        program = (*question.argv[:3], "-c", question.stdin.decode(), question.argv[-1])
        answer = self.ask([Question(program, stdin=data, timeout_s=question.timeout_s, changes=True)])[0]
        if answer.exit == 0:
            return
        try:
            why = json.loads(answer.text)["error"]
        except (ValueError, KeyError):
            why = answer.error_text.strip()[-300:] or f"exit {answer.exit}"
        raise ClusterError(f"cannot write {path}: {why}", where=self._name, remedy="check the path's owner and room")

    def close(self) -> None:
        """Close the connection; harmless when it is closed."""
        self._line.close()

    def _open(self, scope: Scope) -> Pipe:
        deadline = time.monotonic() + CONNECT_WITHIN_S
        return _retried(lambda: self._line.open(deadline), scope, TRIES, CONNECT_WITHIN_S)

    def _ask_once(self, questions: Sequence[Question], changes: bool, scope: Scope) -> list[Answer]:
        marker = uuid4().hex
        pipe = self._open(scope)
        try:
            pipe.send(frame_questions(questions, marker))
            return self._await_answers(pipe, AnswerReader(marker), _Patience(questions, changes, scope))
        finally:
            pipe.close()

    def _await_answers(self, pipe: Pipe, reader: AnswerReader, patience: _Patience) -> list[Answer]:
        while True:
            data = pipe.receive(patience.check(self._name))
            if data == b"":
                raise _no_answer(self._name, pipe, reader)
            answers = reader.feed(data) if data else None
            if answers is not None:
                return answers


class _Patience:
    """How long to wait for answers: the deadlines with a margin, less when the user interrupts."""

    def __init__(self, questions: Sequence[Question], changes: bool, scope: Scope) -> None:
        longest = max(question.timeout_s for question in questions)
        self._deadline = time.monotonic() + longest + MARGIN_S
        self._seconds = longest + MARGIN_S
        self._changes = changes
        self._scope = scope
        self._interrupted_at: float | None = None

    def check(self, host: str) -> float:
        """Seconds to wait now. Raises InterruptedByUser, or ConnectionLostError when the deadline has passed."""
        now = time.monotonic()
        if self._scope.is_set:
            self._interrupted_at = self._interrupted_at or now
            if not self._changes or now > self._interrupted_at + CHANGE_PATIENCE_S:
                raise InterruptedByUser("interrupted", where=host)
        if now > self._deadline:
            raise ConnectionLostError(
                f"{host} did not answer within {self._seconds:.0f} s",
                where=host,
                remedy="the host may be thrashing or the network gone: ping it, wait, power-cycle it",
            )
        return SLICE_S


def _no_answer(host: str, pipe: Pipe, reader: AnswerReader) -> UnreachableError:
    """The right error for output that ended without an answer."""
    code = pipe.exit_code(1.0)
    said = " ".join(part for part in (reader.garbage(), pipe.errors().strip()) if part)[-400:]
    if code is None:
        return ConnectionLostError(f"the connection to {host} ended before the answer", where=host)
    if "python3" in said and code in (1, 126, 127):
        return UnreachableError(
            f"no python3 on {host} (the login shell says: {said.splitlines()[-1]})",
            where=host,
            remedy="install it there: sudo apt install python3",
        )
    return UnreachableError(
        f"{host} ran no program of ours: exit {code}" + (f", it says: {said}" if said else ""),
        where=host,
        remedy="see that a plain `ssh HOST python3 -V` works",
    )


def _retried(attempt: Callable[[], T], scope: Scope, tries: int, within_s: float) -> T:
    """Try again with growing pauses while connections are lost, `tries` times at most and not after `within_s`."""
    began, pause = time.monotonic(), FIRST_PAUSE_S
    for left in reversed(range(tries)):
        scope.check()
        try:
            return attempt()
        except ConnectionLostError:
            if not left or time.monotonic() + pause > began + within_s:
                raise
        scope.wait(pause)
        pause *= 2
    raise AssertionError("no try at all")
