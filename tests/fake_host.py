"""A host for tests: keeps the contract of Host, remembers everything, fails when asked to."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from cluster.argv.far import source
from cluster.argv.question import Answer, Question
from cluster.errors import ClusterError, ConnectionLostError
from cluster.hosts.cancel import Cancel, Scope


@dataclass
class Faults:
    """What goes wrong on a FakeHost. Changes are counted from 1, over the life of the host."""

    unreachable: ClusterError | None = None  # raised by everything
    lose_answer_of: int = 0  # the n-th change is carried out, its answer is lost
    fail_at: int = 0  # the n-th change is not carried out and exits 1
    interrupt_at: int = 0  # Ctrl-C just before the n-th change


@dataclass(frozen=True)
class Put:
    path: str
    data: bytes
    mode: int


def lost(name: str) -> ConnectionLostError:
    return ConnectionLostError(f"the connection to {name} was lost", code="connection-lost", where=name)


@dataclass
class FakeHost:
    """`handler` answers each question, `writer` takes each file; what was asked, put and started is kept in lists.

    Lock holders (`far/hold`) are answered as the real one does; `lock_holder` makes the lock taken.
    """

    name: str
    handler: Callable[[Question], Answer]
    starter: Callable[[tuple[str, ...], bytes], FakeProcess] | None = None
    writer: Callable[[Put], None] | None = None
    cancel: Cancel = field(default_factory=Cancel)
    faults: Faults = field(default_factory=Faults)
    asked: list[Question] = field(default_factory=list)
    puts: list[Put] = field(default_factory=list)
    started: list[tuple[str, ...]] = field(default_factory=list)
    audit: list[dict[str, object]] = field(default_factory=list)
    lock_holder: dict[str, object] | None = None
    lock_generation: int = 0
    changes: int = 0
    asks: int = 0
    closed: bool = False

    def ask(self, questions: Sequence[Question]) -> list[Answer]:
        scope = self.cancel.scope
        self._reach(scope)
        self.asks += 1
        answers, numbers = [], []
        for question in questions:
            self.asked.append(question)
            numbers.append(self._count_change() if question.changes else -1)
            failed = numbers[-1] == self.faults.fail_at
            answers.append(Answer(1, err=b"told to fail") if failed else self.handler(question))
        self._after_changes(numbers)
        return answers

    def start(self, argv: Sequence[str], stdin: bytes = b"", *, lasting: bool = False) -> FakeProcess:
        scope = Scope() if lasting else self.cancel.scope
        self._reach(scope)
        self.started.append(tuple(argv))
        if source("hold") in stdin:
            process: FakeProcess = _FakeHolder(self, json.loads(argv[-1]))
        elif self.starter is not None:
            process = self.starter(tuple(argv), stdin)
        else:
            process = FakeProcess()
        process.scope = scope
        return process

    def put(self, data: bytes, path: str, mode: int = 0o600) -> None:
        self._reach(self.cancel.scope)
        number = self._count_change()
        if number == self.faults.fail_at:
            raise ClusterError(f"cannot write {path}: told to fail", code="file-not-written", where=self.name)
        self.puts.append(Put(path, data, mode))
        if self.writer is not None:
            self.writer(self.puts[-1])
        self._after_changes([number])

    def close(self) -> None:
        self.closed = True

    def _reach(self, scope: Scope) -> None:
        scope.check()
        if self.faults.unreachable is not None:
            raise self.faults.unreachable

    def _count_change(self) -> int:
        if self.changes + 1 == self.faults.interrupt_at:
            self.faults.interrupt_at = 0
            raise KeyboardInterrupt
        self.changes += 1
        return self.changes

    def _after_changes(self, numbers: Sequence[int]) -> None:
        if self.faults.lose_answer_of in numbers:
            raise lost(self.name)


class FakeProcess:
    """A started program: `say` makes it print a line, `end` ends it; what was written to it is kept."""

    def __init__(self, lines: Sequence[str] = (), exit_code: int | None = None) -> None:
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.written = bytearray()
        self.exit_code: int | None = None
        self.ended = False
        self.scope = Scope()
        for line in lines:
            self.say(line)
        if exit_code is not None:
            self.end(exit_code)

    def say(self, line: str) -> None:
        self._lines.put(line)

    def end(self, exit_code: int = 0) -> None:
        self.exit_code = exit_code
        self.ended = True
        self._lines.put(None)

    def lines(self) -> Iterator[str]:
        while True:
            self.scope.check()
            try:
                line = self._lines.get(timeout=0.02)
            except queue.Empty:
                continue
            if line is None:
                return
            yield line

    def write(self, data: bytes) -> None:
        if self.ended:
            raise ConnectionLostError("the program is gone", code="connection-lost")
        self.written += data

    def close(self, timeout_s: float = 5.0) -> int | None:
        if not self.ended:
            self.end(0)
        return self.exit_code


class _FakeHolder(FakeProcess):
    """far/hold on a FakeHost: one holder at a time."""

    def __init__(self, host: FakeHost, given: dict[str, object]) -> None:
        super().__init__()
        self._host = host
        self._mine = {"who": given["who"], "since": 0.0, "why": given["why"]}
        other = host.lock_holder or {"who": "ada@desk (pid 7)", "since": 0.0, "why": "bench"}
        if host.lock_holder is None and given["generation"] in (None, host.lock_generation):
            host.lock_holder = self._mine
            host.lock_generation += 1
            self.say(json.dumps({"held": True, "generation": host.lock_generation}))
        else:
            self.say(json.dumps({"held": False, "generation": host.lock_generation, **other}))
            self.end(0)

    def write(self, data: bytes) -> None:
        super().write(data)
        for line in data.decode().splitlines():
            command, _, text = line.partition(" ")
            if command == "beat":
                self.say(json.dumps({"beat": int(text)}))
            elif command == "audit":
                self._host.audit.append({"who": self._mine["who"], **json.loads(text)})

    def end(self, exit_code: int = 0) -> None:
        if self._host.lock_holder is self._mine:
            self._host.lock_holder = None
        super().end(exit_code)
