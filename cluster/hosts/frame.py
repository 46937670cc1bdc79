"""The frames of far/run.py and far/stream.py: questions into bytes, bytes into answers. No I/O."""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Sequence

from cluster.argv.far import framed, source
from cluster.argv.question import Answer, Question

LARGEST = 1 << 30  # bytes of an answer after decompression; more is not an answer of ours
GARBAGE = 1 << 20  # bytes before the marker that are taken for a banner


def frame_questions(questions: Sequence[Question], marker: str) -> bytes:
    """All that is sent to the loader to have `questions` answered: the program, then the request."""
    request = {
        "marker": marker,
        "questions": [
            {
                "argv": list(question.argv),
                "stdin": b64encode(question.stdin).decode(),
                "timeout_s": question.timeout_s,
                "limit": question.limit,
                "tail": question.tail,
            }
            for question in questions
        ],
    }
    return framed(source("run")) + framed(json.dumps(request).encode())


def frame_start(argv: Sequence[str], marker: str, grace_s: float) -> bytes:
    """All that is sent to the loader to have `argv` run until nobody listens."""
    request = {"marker": marker, "argv": list(argv), "grace_s": grace_s}
    return framed(source("stream")) + framed(json.dumps(request).encode())


class AnswerReader:
    """Collects what a host writes until the frame with our marker is complete; what stands before is skipped."""

    def __init__(self, marker: str) -> None:
        self._mark = f"\n{marker} ".encode()
        self._seen = bytearray()
        self._kind = ""
        self._length = -1

    def feed(self, data: bytes) -> list[Answer] | None:
        """The answers when `data` completes them. Raises ValueError when the frame is not ours after all."""
        self._seen += data
        if self._length < 0 and not self._read_head():
            return None
        if len(self._seen) < self._length:
            return None
        body = bytes(self._seen[: self._length])
        if self._kind == "zlib":
            body = _unpack(body)
        return [_read_answer(row) for row in json.loads(body)]

    def _read_head(self) -> bool:
        start = self._seen.find(self._mark)
        end = self._seen.find(b"\n", start + len(self._mark)) if start >= 0 else -1
        if end < 0:
            if len(self._seen) > GARBAGE:
                raise ValueError("endless output at login")
            return False
        kind, length = self._seen[start + len(self._mark) : end].decode().split()
        self._kind, self._length = kind, int(length)
        if self._length > LARGEST:
            raise ValueError(f"an answer of {length} bytes")
        del self._seen[: end + 1]
        return True

    def garbage(self) -> str:
        """What came instead of an answer, for an error message."""
        return self._seen[-400:].decode("utf-8", "replace").strip()


def _unpack(body: bytes) -> bytes:
    try:
        return zlib.decompressobj().decompress(body, LARGEST)
    except zlib.error as error:
        raise ValueError(str(error)) from None


def _read_answer(row: dict[str, object]) -> Answer:
    exit_code, seconds = row["exit"], row["seconds"]
    if not (exit_code is None or isinstance(exit_code, int)) or not isinstance(seconds, int | float):
        raise ValueError("an answer of another shape")
    return Answer(
        exit=exit_code,
        out=b64decode(str(row["out"])),
        err=b64decode(str(row["err"])),
        cut=bool(row["cut"]),
        seconds=float(seconds),
    )
