"""ask, start and put over any Line: one constant command, everything else on stdin (`far/run.py`, `far/stream.py`)."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from uuid import uuid4

from cluster.argv.far import source
from cluster.argv.question import Answer, Question
from cluster.errors import ClusterError, ConnectionLostError, InterruptedByUser, UnreachableError
from cluster.hosts.cancel import Cancel, Scope
from cluster.hosts.frame import AnswerReader, frame_questions, frame_start
from cluster.hosts.pipe import Line, Pipe
from cluster.hosts.process import FarProcess
from cluster.hosts.target import CONNECT_TIMEOUT_S
from cluster.hosts.trouble import no_program, silent_host

SLICE_S = 0.2
TRIES = 3
FIRST_PAUSE_S = 0.5
CONNECT_WITHIN_S = 8.0
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
        pauses = _Pauses(scope, 1 if changes else TRIES, ASK_AGAIN_WITHIN_S)
        while True:
            pipe = self._open(scope)
            try:
                return self._exchange(pipe, questions, changes, scope)
            except ConnectionLostError:
                if not pauses.take():
                    raise
            finally:
                pipe.close()

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
        given = json.dumps({"path": path, "mode": mode})
        words = ("python3", "-I", "-S", "-c", source("put").decode(), given)
        answer = self.ask([Question(words, stdin=data, timeout_s=30 + len(data) / 1e6, changes=True)])[0]
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
        pauses = _Pauses(scope, TRIES, CONNECT_WITHIN_S - CONNECT_TIMEOUT_S)
        while True:
            scope.check()
            try:
                return self._line.open(deadline, scope)
            except ConnectionLostError as error:
                if isinstance(error.__cause__, TimeoutError) or not pauses.take():
                    error.sent = False
                    raise  # when nothing answered, the kernel has tried again and again meanwhile

    def _exchange(self, pipe: Pipe, questions: Sequence[Question], changes: bool, scope: Scope) -> list[Answer]:
        marker = uuid4().hex
        reader = AnswerReader(marker)
        patience = _Patience(questions, changes, scope)
        with scope.changing() if changes else nullcontext(), suppress(_Ended):
            self._send(pipe, frame_questions(questions, marker), reader)
            return self._await_answers(pipe, reader, patience)
        raise no_program(self._name, pipe.exit_code(1.0), f"{reader.garbage()} {pipe.errors()}")

    def _send(self, pipe: Pipe, data: bytes, reader: AnswerReader) -> None:
        """Send; a login that ends before it has read all of it may have said why."""
        try:
            pipe.send(data)
        except ConnectionLostError:
            with suppress(ValueError, ConnectionLostError):
                while said := pipe.receive(SLICE_S):
                    reader.feed(said)
            raise _Ended from None

    def _await_answers(self, pipe: Pipe, reader: AnswerReader, patience: _Patience) -> list[Answer]:
        while True:
            data = pipe.receive(patience.check(self._name))
            if data == b"":
                raise _Ended
            try:
                answers = reader.feed(data) if data else None
            except ValueError as error:
                raise UnreachableError(f"{self._name} gave no answer of ours: {error}", where=self._name) from None
            if answers is not None:
                return answers


class _Ended(Exception):
    """The far program ended without an answer."""


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
            raise silent_host(host, self._seconds, changes=self._changes)
        return SLICE_S


class _Pauses:
    """The growing pauses between tries: `tries` at most, and none that would end after `within_s`."""

    def __init__(self, scope: Scope, tries: int, within_s: float) -> None:
        self._scope = scope
        self._left = tries - 1
        self._until = time.monotonic() + within_s
        self._pause = FIRST_PAUSE_S

    def take(self) -> bool:
        """Wait before the next try; False when there is none."""
        if not self._left or time.monotonic() + self._pause > self._until:
            return False
        self._scope.wait(self._pause)
        self._left -= 1
        self._pause *= 2
        return True
