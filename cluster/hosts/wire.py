"""ask, start and put over any pipe: one constant command, everything else on stdin (`far/run.py`, `far/stream.py`)."""

from __future__ import annotations

import json
import re
import time
import zlib
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict
from typing import Any, Protocol
from uuid import uuid4

from cluster.argv.far import framed, source
from cluster.argv.question import Answer, Question
from cluster.errors import ClusterError, ConnectionLostError, InterruptedByUser, SilentError, UnreachableError
from cluster.hosts.cancel import SLICE_S, Cancel, Scope
from cluster.hosts.target import CONNECT_TIMEOUT_S

STALLED_S = 20.0  # how long sending may make no progress
LARGEST = 1 << 30  # bytes of an answer after decompression
GARBAGE = 1 << 20  # bytes before the marker that are taken for a banner
LONGEST_LINE = 1 << 20  # bytes; a longer line comes in pieces
TRIES = 3
FIRST_PAUSE_S = 0.5
CONNECT_WITHIN_S = 8.0
RETRY_WITHIN_S = 15.0
MARGIN_S = 8.0  # beyond the longest deadline: ending what is late takes two seconds there, the rest is the network's
CHANGE_PATIENCE_S = 10.0  # how long an interrupted run waits for a change under way
GRACE_S = 30.0  # how long a started program may continue after its stdin was closed


class Pipe(Protocol):
    """One running loader (`argv.far.COMMAND`), wherever it runs; `close` releases it, and is harmless when closed.

    `send` writes all of `data` to its stdin and raises ConnectionLostError, also when it stalls for STALLED_S.
    `receive` gives some bytes of its stdout, b"" at the end, None when none came in time; raises ConnectionLostError.
    `exit_code` is None when it has not ended in time or the connection was lost; `errors` is the end of its stderr.
    """

    def send(self, data: bytes) -> None: ...
    def receive(self, timeout_s: float) -> bytes | None: ...
    def end_input(self) -> None: ...
    def exit_code(self, timeout_s: float) -> int | None: ...
    def errors(self) -> str: ...
    def close(self) -> None: ...


def request(program: str, **given: Any) -> bytes:
    """All that is sent to the loader: a program of far/, then what it reads from stdin as JSON."""
    return framed(source(program)) + framed(json.dumps(given).encode())


def ask_request(questions: Sequence[Question], marker: str) -> bytes:
    rows = [asdict(one) | {"stdin": b64encode(one.stdin).decode()} for one in questions]
    return request("run", marker=marker, questions=rows)


def read_answers(seen: bytearray, marker: str) -> list[Answer] | None:
    """The answers in what a host has written so far, after any banner; None while they are incomplete.

    Raises ValueError for what cannot become an answer.
    """
    mark = f"\n{marker} ".encode()
    start = seen.find(mark)
    end = seen.find(b"\n", start + len(mark)) if start >= 0 else -1
    if end < 0:
        if len(seen) > GARBAGE:
            raise ValueError("endless output at login")
        return None
    kind, length = seen[start + len(mark) : end].decode().split()
    if int(length) > LARGEST:
        raise ValueError(f"an answer of {length} bytes")
    if len(seen) < end + 1 + int(length):
        return None
    body = bytes(seen[end + 1 : end + 1 + int(length)])
    try:
        rows = json.loads(zlib.decompressobj().decompress(body, LARGEST) if kind == "zlib" else body)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    return [
        Answer(row["exit"], b64decode(row["out"]), b64decode(row["err"]), row["cut"], row["seconds"]) for row in rows
    ]


class FarProcess:
    """Keeps the contract of `hosts.protocol.Process`. stderr comes merged into the lines."""

    def __init__(self, host: str, pipe: Pipe, marker: str, scope: Scope) -> None:
        self._host = host
        self._pipe = pipe
        self._mark = f"\n{marker}\n".encode()
        self._scope = scope
        self._started = False
        self._seen = bytearray()

    def lines(self) -> Iterator[str]:
        """See Process.lines. Raises InterruptedByUser when canceled, ConnectionLostError when the host is lost."""
        data: bytes | None = None
        while data != b"":
            self._scope.check()
            data = self._pipe.receive(SLICE_S)
            self._seen += data or b""
            if not self._started:
                _, mark, after = self._seen.partition(self._mark)
                if not mark:
                    continue
                self._started, self._seen = True, after
            *complete, self._seen = self._seen.split(b"\n")
            if len(self._seen) > LONGEST_LINE:
                complete, self._seen = [*complete, self._seen], bytearray()
            for line in complete:
                yield line.decode("utf-8", "replace")
        code, rest = self._pipe.exit_code(2.0), self._seen.decode("utf-8", "replace")
        if code is None or not self._started:
            raise no_program(self._host, code, f"{'' if self._started else rest} {self._pipe.errors()}")
        if rest:
            yield rest

    def write(self, data: bytes) -> None:
        self._pipe.send(data)

    def close(self, timeout_s: float = 5.0) -> int | None:
        """See Process.close."""
        deadline = time.monotonic() + timeout_s
        try:
            self._pipe.end_input()
            while timeout_s > 0 and self._pipe.receive(min(SLICE_S, max(0.0, deadline - time.monotonic()))) != b"":
                if time.monotonic() >= deadline:
                    return None
            return self._pipe.exit_code(max(0.0, deadline - time.monotonic()))
        except ConnectionLostError:
            return None
        finally:
            self._pipe.close()


def no_program(host: str, code: int | None, output: str) -> UnreachableError:
    """The far program ended without an answer. `code`: the login shell's, None when the connection was lost."""
    output = output.strip()[-400:]
    if code is None:
        what = f"the connection to {host} ended before the answer"
        return ConnectionLostError(what, code="connection-lost", where=host)
    if code in (1, 127) and "python3" in output and re.search("not found|unknown command", output, re.IGNORECASE):
        what = f"python3 not found on {host}: {output.splitlines()[-1]}"
        remedy = f"on {host} run: sudo apt install python3"
        return UnreachableError(what, code="python-missing", where=host, remedy=remedy)
    what = f"the login on {host} ran no program: exit {code}; output: {output or 'none'}"
    return UnreachableError(what, code="login-failed", where=host, remedy=f"check that `ssh {host} python3 -V` works")


def pauses(scope: Scope, tries: int, until: float) -> Iterator[bool]:
    """Waits before each further of `tries`, longer each time; ends when a pause would end after `until` (monotonic)."""
    for number in range(tries - 1):
        pause_s = FIRST_PAUSE_S * 2**number
        if time.monotonic() + pause_s > until:
            return
        scope.wait(pause_s)
        yield True


class WireHost(ABC):
    """A host on which loaders can be started. Keeps the contract of `hosts.protocol.Host`."""

    def __init__(self, name: str, cancel: Cancel | None = None) -> None:
        self.name = name
        self.cancel = cancel or Cancel()

    @abstractmethod
    def open(self, deadline: float, scope: Scope) -> Pipe:
        """Start one loader there, before `deadline` (of time.monotonic); any number at the same time.

        Raises ConnectionLostError when trying again may help, UnreachableError when not, InterruptedByUser.
        """

    def close(self) -> None:  # noqa: B027 - this machine has nothing to close
        """Close the connection; harmless when it is closed. The next `open` makes a new one."""

    def ask(self, questions: Sequence[Question]) -> list[Answer]:
        """See Host.ask. Raises InterruptedByUser at once when canceled; a change under way is awaited for 10 s."""
        if not questions:
            return []
        scope = self.cancel.scope
        changes = any(question.changes for question in questions)
        tries = pauses(scope, 1 if changes else TRIES, time.monotonic() + RETRY_WITHIN_S)
        while True:
            pipe = self._open(scope)
            try:
                with scope.changing() if changes else nullcontext():
                    return self._exchange(pipe, questions, changes, scope)
            except ConnectionLostError:
                if not next(tries, False):
                    raise
            finally:
                pipe.close()

    def start(self, argv: Sequence[str], stdin: bytes = b"", *, lasting: bool = False) -> FarProcess:
        """See Host.start. stderr is merged into the lines."""
        scope = Scope() if lasting else self.cancel.scope
        marker = uuid4().hex
        pipe = self._open(scope)
        with scope.closing(pipe.close):
            pipe.send(request("stream", marker=marker, argv=list(argv), grace_s=GRACE_S) + stdin)
        return FarProcess(self.name, pipe, marker, scope)

    def put(self, data: bytes, path: str, mode: int = 0o600) -> None:
        """See Host.put. The bytes travel on stdin only."""
        words = ("python3", "-I", "-S", "-c", source("put").decode(), json.dumps({"path": path, "mode": mode}))
        [answer] = self.ask([Question(words, stdin=data, timeout_s=30 + len(data) / 1e6, changes=True)])
        if answer.exit == 0:
            return
        try:
            why = json.loads(answer.text)["error"]
        except ValueError:
            why = answer.error_text.strip()[-300:] or f"exit {answer.exit}"
        remedy = f"on {self.name} check the owner of that path and the free space"
        raise ClusterError(f"cannot write {path}: {why}", code="file-not-written", where=self.name, remedy=remedy)

    def _open(self, scope: Scope) -> Pipe:
        deadline = time.monotonic() + CONNECT_WITHIN_S
        tries = pauses(scope, TRIES, deadline - CONNECT_TIMEOUT_S)
        while True:
            scope.check()
            try:
                return self.open(deadline, scope)
            except ConnectionLostError as error:
                # after a timeout there is no other try: the kernel has repeated its own meanwhile
                if isinstance(error.__cause__, TimeoutError) or not next(tries, False):
                    error.sent = False
                    raise

    def _exchange(self, pipe: Pipe, questions: Sequence[Question], changes: bool, scope: Scope) -> list[Answer]:
        """Send questions and wait for their answers: the longest deadline with a margin, less after Ctrl-C."""
        marker, seen = uuid4().hex, bytearray()
        patience_s = max(question.timeout_s for question in questions) + MARGIN_S
        deadline = time.monotonic() + patience_s
        data: bytes | None = None
        try:
            pipe.send(ask_request(questions, marker))
        except ConnectionLostError:  # the login ended before it had read all of it, perhaps after an error message
            with suppress(ConnectionLostError):
                while (data := pipe.receive(SLICE_S)) and len(seen) < GARBAGE:
                    seen += data
            data = b""
        ends_at = float("inf")  # after Ctrl-C
        while data != b"":
            now = time.monotonic()
            if scope.is_set():
                ends_at = min(ends_at, now + (CHANGE_PATIENCE_S if changes else 0.0))
                if now >= ends_at:
                    raise InterruptedByUser(where=self.name)
            if now > deadline:  # another try would not help; only a change's answer counts as lost
                what = f"{self.name} did not answer within {patience_s:.0f} s"
                remedy = "it may be thrashing, or the network is down: ping it, wait, power-cycle it"
                kind = ConnectionLostError if changes else SilentError
                raise kind(what, code="host-silent", where=self.name, remedy=remedy)
            data = pipe.receive(SLICE_S)
            seen += data or b""
            try:
                answers = read_answers(seen, marker) if data else None
            except ValueError as error:
                what = f"invalid answer from {self.name}: {error}"
                raise UnreachableError(what, code="answer-invalid", where=self.name) from None
            if answers is not None:
                return answers
        output = seen[-400:].decode("utf-8", "replace")
        raise no_program(self.name, pipe.exit_code(1.0), f"{output} {pipe.errors()}")
