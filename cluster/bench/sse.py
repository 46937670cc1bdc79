"""Server-sent events as the WHATWG specification delimits them, over bytes that come in any portions."""

from __future__ import annotations


class EventSplitter:
    """Gives the data of each event once its blank line is there.

    Lines end in LF, CR or CRLF, also when CR and LF come in different portions; comments and fields other than
    `data` are left out; several data lines are joined by LF. Bytes stay bytes until an event is complete, so a
    character split over two portions is whole again.
    """

    __slots__ = ("_rest", "_skip_lf", "_started")

    def __init__(self) -> None:
        self._rest = b""
        self._skip_lf = False
        self._started = False

    def feed(self, data: bytes) -> list[bytes]:
        """The events that these bytes complete."""
        if not data:
            return []
        if self._skip_lf and data[:1] == b"\n":
            data = data[1:]
        self._skip_lf = False
        if b"\r" in data:
            self._skip_lf = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        rest = self._rest + data
        if not self._started and len(rest) >= 3:
            self._started = True
            rest = rest.removeprefix(b"\xef\xbb\xbf")
        *blocks, self._rest = rest.split(b"\n\n")
        return [event for block in blocks if (event := _event(block)) is not None]

    def finish(self) -> list[bytes]:
        """What is left at the end of the stream: servers exist that leave out the last blank line."""
        rest, self._rest = self._rest, b""
        event = _event(rest)
        return [] if event is None else [event]


def _event(block: bytes) -> bytes | None:
    """The data of one event; None when it has none."""
    if block.startswith(b"data: ") and b"\n" not in block:
        return block[6:]
    lines = [line for line in block.split(b"\n") if line.startswith(b"data:") or line == b"data"]
    if not lines:
        return None
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)
