"""A program that runs on a host for as long as we hold it (`far/stream.py` at the other end)."""

from __future__ import annotations

import time
from collections.abc import Iterator

from cluster.errors import ConnectionLostError
from cluster.hosts.cancel import Scope
from cluster.hosts.pipe import Pipe
from cluster.hosts.trouble import no_program

SLICE_S = 0.2
LONGEST_LINE = 1 << 20  # bytes; a longer line comes in pieces


class FarProcess:
    """Keeps the contract of `hosts.protocol.Process`. stderr comes merged into the lines."""

    def __init__(self, host: str, pipe: Pipe, marker: str, scope: Scope) -> None:
        self._host = host
        self._pipe = pipe
        self._mark = f"\n{marker}\n".encode()
        self._scope = scope
        self._begun = False
        self._seen = bytearray()

    def lines(self) -> Iterator[str]:
        """See Process.lines. Raises InterruptedByUser when cancelled, ConnectionLostError when the host is lost."""
        while True:
            self._scope.check()
            data = self._pipe.receive(SLICE_S)
            if data:
                self._seen += data
                yield from self._whole_lines()
            elif data == b"":
                self._check_end()
                if self._begun and self._seen:
                    yield self._seen.decode("utf-8", "replace")
                return

    def write(self, data: bytes) -> None:
        """Send bytes to the program's stdin. Raises ConnectionLostError when it is gone."""
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

    def _whole_lines(self) -> Iterator[str]:
        if not self._begun:
            start = self._seen.find(self._mark)
            if start < 0:
                return
            del self._seen[: start + len(self._mark)]
            self._begun = True
        *whole, rest = self._seen.split(b"\n")
        while len(rest) > LONGEST_LINE:
            whole.append(rest[:LONGEST_LINE])
            rest = rest[LONGEST_LINE:]
        self._seen = bytearray(rest)
        for line in whole:
            yield line.decode("utf-8", "replace")

    def _check_end(self) -> None:
        """Raise when the output ended because the connection did."""
        code = self._pipe.exit_code(2.0)
        if code is None or not self._begun:
            said = "" if self._begun else self._seen.decode("utf-8", "replace")
            raise no_program(self._host, code, f"{said} {self._pipe.errors()}")
