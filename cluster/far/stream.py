"""Runs one program for as long as somebody listens.

stdin: one line with a length, then that many bytes of JSON: {"marker": word, "argv": [word], "grace_s": seconds};
everything after that is the program's own stdin.
stdout: a line end, the marker and a line end; then what the program writes, stderr merged into stdout.
Exit code: the program's, 128 + signal, 127 when it is not there, 126 when it may not be run.

The program's whole process group is ended when nobody reads our output any more (the connection is gone) or when
stdin has ended and `grace_s` has passed.
"""

import os
import select
import signal
import sys
import time

from cluster.far.prelude import CHUNK, PATIENCE_S, Json, become, read_request, shell_code, signal_group, watch_signals


class Feed:
    """Passes our stdin on to the program's, a chunk at a time."""

    def __init__(self, fd: int, first: bytes) -> None:
        self.fd: int | None = fd
        self.data = memoryview(first)
        self.ended = False  # our own stdin has ended
        os.set_blocking(fd, False)

    def write(self) -> None:
        """Pass on what was read; close the program's stdin after the last of it."""
        if self.fd is None:
            return
        done = False
        try:
            if self.data:
                self.data = self.data[os.write(self.fd, self.data) :]
            done = self.ended and not self.data
        except BlockingIOError:
            return
        except OSError:  # it does not read any more
            self.data, done = self.data[:0], True
        if done:
            os.close(self.fd)
            self.fd = None

    def read(self) -> None:
        data = os.read(0, CHUNK)
        self.ended = not data
        if self.fd is not None:
            self.data = memoryview(data)


def attend(pid: int, feed: Feed, grace_s: float) -> int:
    """Feed the program until it ends; end it when nobody listens. Its status as waitpid gives it."""
    wake = watch_signals()
    signals, signal_at = [signal.SIGTERM, signal.SIGKILL], float("inf")
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            if len(signals) < 2:
                signal_group(pid, signal.SIGKILL)
            return status
        now = time.monotonic()
        if now >= signal_at:
            if not signals:
                os._exit(1)
            signal_group(pid, signals.pop(0))
            signal_at = now + PATIENCE_S
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        poll.register(1, 0)  # ready when nobody reads our output any more
        if feed.data and feed.fd is not None:
            poll.register(feed.fd, select.POLLOUT)
        elif not feed.ended:
            poll.register(0, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(min(3600.0, max(0.0, signal_at - now)) * 1000 + 1)}
        if 0 in ready:
            feed.read()
        feed.write()
        gone = 1 in ready or (wake in ready and not set(os.read(wake, CHUNK)) <= {signal.SIGCHLD})
        if gone and len(signals) == 2:
            signal_at = now
        elif feed.ended and signal_at == float("inf"):
            signal_at = now + grace_s
        if gone:
            time.sleep(0.01)  # descriptor 1 stays ready


def main() -> None:
    stdin: Json = sys.stdin.buffer
    request = read_request(stdin)
    os.set_blocking(0, False)
    first = stdin.read1(1 << 20) or b""  # what came along with the request
    os.set_blocking(0, True)
    os.write(1, f"\n{request['marker']}\n".encode())
    source, feed = os.pipe()
    pid = os.fork()
    if pid == 0:
        become(request["argv"], source, 1, 1)
    os.close(source)
    status = attend(pid, Feed(feed, first), float(request["grace_s"]))
    sys.exit(shell_code(os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    main()
