"""Runs one program for as long as somebody listens.

stdin: one line with a length, then that many bytes of JSON: {"marker": word, "argv": [word], "grace_s": seconds};
everything after that is the program's own stdin.
stdout: a line end, the marker and a line end; then what the program writes, stderr merged into stdout.
Exit code: the program's, 128 + signal, 127 when it is not there, 126 when it may not be run.

The program's whole process group is ended when nobody reads our output any more (the connection is gone) or when
stdin has ended and `grace_s` has passed.
"""

import json
import os
import select
import signal
import sys
import time

PATIENCE_S = 1.0  # from SIGTERM to SIGKILL
CHUNK = 65536


def become(argv, source):
    """In the forked child: turn into the program. Never returns."""
    try:
        os.setsid()
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(source, 0)
        os.dup2(1, 2)
        os.closerange(3, 1024)
        os.execvp(argv[0], argv)
    except (FileNotFoundError, NotADirectoryError) as error:
        code, why = 127, error.strerror
    except Exception as error:
        code, why = 126, getattr(error, "strerror", None) or str(error)
    try:
        os.write(2, b"%s: %s\n" % (argv[0] if argv else b"no words", why.encode()))
    finally:
        os._exit(code)


class Feed:
    """Carries our stdin to the program's, a chunk at a time."""

    def __init__(self, fd, first):
        self.fd = fd
        self.data = memoryview(first)
        self.ended = False  # our own stdin has ended
        os.set_blocking(fd, False)

    def write(self):
        """Pass on what we hold; close the program's stdin after the last of it."""
        try:
            if self.data:
                self.data = self.data[os.write(self.fd, self.data) :]
        except BlockingIOError:
            pass
        except OSError:  # it does not read any more
            self.data = self.data[:0]
            self.close()
        if self.ended and not self.data:
            self.close()

    def read(self):
        data = os.read(0, CHUNK)
        self.ended = not data
        if self.fd is not None:
            self.data = memoryview(data)

    def close(self):
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def events(feed, wake, timeout_s):
    """Wait; the set of descriptors that are ready. Descriptor 1 is in it when nobody reads our output any more."""
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    poll.register(1, 0)
    if feed.data and feed.fd is not None:
        poll.register(feed.fd, select.POLLOUT)
    elif not feed.ended:
        poll.register(0, select.POLLIN)
    return {fd for fd, _ in poll.poll(timeout_s * 1000 + 1)}


def attend(pid, feed, grace_s):
    """Feed the program until it ends; end it when nobody listens. Its status as waitpid gives it."""
    wake = watch_signals()
    signals, signal_at = [signal.SIGTERM, signal.SIGKILL], None
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            if len(signals) < 2:
                send(pid, signal.SIGKILL)
            return status
        now = time.monotonic()
        if signal_at is not None and now >= signal_at:
            if not signals:
                os._exit(1)
            send(pid, signals.pop(0))
            signal_at = now + PATIENCE_S
        ready = events(feed, wake, 3600.0 if signal_at is None else max(0.0, signal_at - now))
        if 0 in ready:
            feed.read()
        feed.write()
        gone = 1 in ready or (wake in ready and not only_children(wake))
        if gone and len(signals) == 2:
            signal_at = now
        elif feed.ended and signal_at is None:
            signal_at = now + grace_s
        if gone:
            time.sleep(0.01)  # descriptor 1 stays ready


def watch_signals():
    """A descriptor that becomes readable with each signal; its bytes are the signals' numbers."""
    wake, wake_up = os.pipe()
    os.set_blocking(wake_up, False)
    signal.set_wakeup_fd(wake_up)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return wake


def only_children(wake):
    return set(os.read(wake, CHUNK)) <= {signal.SIGCHLD}


def send(pid, number):
    try:
        os.killpg(pid, number)
    except OSError:
        pass


def main():
    if sys.version_info < (3, 10):
        sys.exit("python3 here is %d.%d, 3.10 or newer is needed" % sys.version_info[:2])
    stdin = sys.stdin.buffer
    line = stdin.readline()
    text = stdin.read(int(line)) if line.strip() else b""
    if not text or len(text) != int(line):
        sys.exit(1)
    request = json.loads(text)
    os.set_blocking(0, False)
    first = stdin.read1(1 << 20) or b""  # what came along with the request
    os.set_blocking(0, True)
    os.write(1, f"\n{request['marker']}\n".encode())
    source, feed = os.pipe()
    pid = os.fork()
    if pid == 0:
        become([word.encode("utf-8", "surrogateescape") for word in request["argv"]], source)
    os.close(source)
    status = attend(pid, Feed(feed, first), float(request["grace_s"]))
    code = os.waitstatus_to_exitcode(status)
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
