"""Runs questions side by side on this machine and answers them in one frame.

stdin: one line with a length, then that many bytes of JSON:
    {"marker": word, "questions": [{"argv": [word], "stdin": base64, "timeout_s": number, "limit": bytes,
     "tail": bytes}]}
stdout: a line end, the marker, "json" or "zlib", a length and a line end; then that many bytes of JSON:
    [{"exit": number or null, "out": base64, "err": base64, "cut": bool, "seconds": number}]
What comes on stdout before the marker is not from this program. When stdin ends before the answer (the connection is
lost), every program started here is ended and nothing is answered.

One thread, one poll loop. Programs are started with fork and not with `subprocess`, which waits for exec: a program
on a dead network disk would hold up all others.
"""

import base64
import json
import os
import select
import signal
import sys
import time
import zlib

from cluster.far.prelude import CHUNK, PATIENCE_S, Json, become, read_request, shell_code, signal_group, watch_signals

LINGER_S = 0.3  # how long a grandchild may hold the output open after the program has ended
DRAIN = 16 << 20  # bytes thrown away past the limit before the program is ended
PATIENT_DRAIN = 1 << 30  # the same where the end of the output is wanted
COMPRESS_FROM = 4096


class Printed:
    """What one stream printed: its beginning, its end where that is wanted, and how many bytes between are lost."""

    def __init__(self, limit: int, tail: int) -> None:
        self.limit, self.tail, self.lost = limit, tail, 0
        self.beginning, self.end = bytearray(), bytearray()

    def add(self, data: bytes) -> None:
        room = max(0, self.limit - len(self.beginning))
        self.beginning += data[:room]
        self.end += data[room:]
        extra = max(0, len(self.end) - self.tail)
        self.lost += extra
        del self.end[:extra]

    def text(self) -> bytes:
        gap = b"\n[cluster: %d bytes are left out here]\n" % self.lost if self.tail and self.lost else b""
        return bytes(self.beginning + gap + self.end)


class Program:
    """One question's program: its pipes, what it printed, and when patience ends."""

    def __init__(self, question: dict[str, Json], poll: select.poll) -> None:
        self.poll = poll
        limit, tail = int(question["limit"]), int(question["tail"])
        self.drain = PATIENT_DRAIN if tail else DRAIN
        self.feed = memoryview(base64.b64decode(question["stdin"]))
        self.printed = {"out": Printed(limit, tail), "err": Printed(limit, tail)}
        self.streams: dict[int, str] = {}  # fd -> "in", "out" or "err"
        self.started = time.monotonic()
        self.signals = [signal.SIGTERM, signal.SIGKILL]
        self.signal_at = self.deadline = self.started + float(question["timeout_s"])
        self.late = self.done = False
        self.status: int | None = None  # as waitpid gives it
        self.listen_until = self.seconds = 0.0
        self.pid = self.start(question["argv"])

    def start(self, argv: list[str]) -> int:
        out, err = os.pipe(), os.pipe()
        source, feed = os.pipe() if self.feed else (os.open(os.devnull, os.O_RDONLY), None)
        pid = os.fork()
        if pid == 0:
            become(argv, source, out[1], err[1])
        for fd in (source, out[1], err[1]):
            os.close(fd)
        self.watch(out[0], "out", select.POLLIN)
        self.watch(err[0], "err", select.POLLIN)
        if feed is not None:
            os.set_blocking(feed, False)
            self.watch(feed, "in", select.POLLOUT)
        return pid

    def watch(self, fd: int, stream: str, events: int) -> None:
        self.streams[fd] = stream
        self.poll.register(fd, events)

    def drop(self, fd: int) -> None:
        self.poll.unregister(fd)
        os.close(fd)
        del self.streams[fd]

    def move(self, fd: int) -> None:
        """Move bytes over one pipe that is ready."""
        if self.streams[fd] != "in":
            if data := os.read(fd, CHUNK):
                self.printed[self.streams[fd]].add(data)
                self.listen_until = time.monotonic() + LINGER_S
            else:
                self.drop(fd)
            return
        try:
            self.feed = self.feed[os.write(fd, self.feed[:CHUNK]) :]
        except BlockingIOError:
            return
        except OSError:  # it does not read any more
            self.feed = self.feed[:0]
        if not self.feed:
            self.drop(fd)

    @property
    def lost(self) -> int:
        return sum(output.lost for output in self.printed.values())

    def tick(self, now: float) -> None:
        """Notice the end; signal what is late or endless."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status, self.listen_until = status, now + LINGER_S
        if self.status is not None:
            if now >= self.listen_until or not {"out", "err"} & set(self.streams.values()):
                self.finish(now)
        elif self.lost > self.drain and len(self.signals) == 2:
            self.end(now)
        elif now >= self.signal_at:
            self.late = self.late or now >= self.deadline
            self.end(now)

    def end(self, now: float) -> None:
        """The next harder signal to the whole group; after the last one, give up (a program in state D)."""
        if self.signals:
            signal_group(self.pid, self.signals.pop(0))
            self.signal_at = now + PATIENCE_S
        else:
            self.finish(now)

    def finish(self, now: float) -> None:
        if len(self.signals) < 2:
            signal_group(self.pid, signal.SIGKILL)  # what of its group outlived it
        for fd in list(self.streams):
            self.drop(fd)
        self.seconds, self.done = now - self.started, True

    def answer(self) -> dict[str, Json]:
        ended = not self.late and self.status is not None
        return {
            "exit": shell_code(os.waitstatus_to_exitcode(self.status or 0)) if ended else None,
            **{stream: base64.b64encode(output.text()).decode() for stream, output in self.printed.items()},
            "cut": self.lost > 0,
            "seconds": round(self.seconds, 6),
        }


def run(questions: list[dict[str, Json]]) -> list[dict[str, Json]] | None:
    """All answers, in order; None when the connection was lost meanwhile, or at a signal."""
    poll, wake, leaving = select.poll(), watch_signals(), False
    poll.register(wake, select.POLLIN)
    poll.register(0, select.POLLIN)
    children = [Program(question, poll) for question in questions]
    while True:
        now = time.monotonic()
        for child in children:
            if not child.done:
                child.tick(now)
        running = [child for child in children if not child.done]
        if not running:
            return None if leaving else [child.answer() for child in children]
        until = min(child.signal_at if child.status is None else child.listen_until for child in running)
        streams = {fd: child for child in running for fd in child.streams}
        ended = False
        for fd, _ in poll.poll(max(0.0, until - now) * 1000 + 1):
            if fd in streams:
                if fd in streams[fd].streams:
                    streams[fd].move(fd)
            elif fd == wake:
                ended = ended or not set(os.read(wake, CHUNK)) <= {signal.SIGCHLD}
            elif not os.read(0, CHUNK):
                poll.unregister(0)
                ended = True
        if ended and not leaving:
            leaving = True
            for child in children:
                child.signal_at = now


def main() -> None:
    request = read_request(sys.stdin.buffer)
    if (answers := run(request["questions"])) is not None:
        body, kind = json.dumps(answers).encode(), "json"
        if len(body) > COMPRESS_FROM:
            body, kind = zlib.compress(body, 1), "zlib"
        sys.stdout.buffer.write(f"\n{request['marker']} {kind} {len(body)}\n".encode() + body)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
