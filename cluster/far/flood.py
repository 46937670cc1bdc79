"""Fills one link with TCP for some seconds: one end receives, the other sends, over several connections.

First word: JSON {"role": "receive", "address", "streams", "deadline_s"}, or {"role": "send", "own", "address", "port",
"streams", "seconds", "deadline_s"}. stdin: one line, a token that only the two ends know; the program ends when stdin
does, and at its deadline by SIGALRM.
stdout, one JSON a line. Receiver: {"port"} as soon as it listens on its own address. Sender: {"bytes", "seconds",
"cpu"}: the bytes as counted where they arrived, the busy share (0 to 1) of the busiest core of both machines meanwhile
(null when unknown). Either one: {"error": text}.

Neither end copies (sendfile from memory; MSG_TRUNC, see tcp(7)), so that the link is measured before the CPU is. A
connection that does not begin with the token is closed and not counted.
"""

import contextlib
import hmac
import json
import os
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

from cluster.far.prelude import Json, given, say

CHUNK = 1 << 20
PATIENCE_S = 3.0  # to connect, and for a caller to show its token


def receive(wanted: dict[str, Json], token: bytes) -> None:
    address = wanted["address"]
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family, backlog=64)
    say(port=listener.getsockname()[1])
    while True:
        caller, _ = listener.accept()
        threading.Thread(target=drain, args=(caller, token), daemon=True).start()


def drain(caller: socket.socket, token: bytes) -> None:
    """Take all that a caller sends; answer how much that was, and how busy this machine."""
    scratch, total = bytearray(CHUNK), 0
    with caller, contextlib.suppress(OSError):  # the caller sees it too, and says so
        caller.settimeout(PATIENCE_S)
        if not hmac.compare_digest(caller.recv(len(token)), token):
            return
        caller.settimeout(None)
        before = core_times()
        while count := caller.recv_into(scratch, CHUNK, socket.MSG_TRUNC):
            total += count
        caller.sendall(json.dumps([total, busiest(before)]).encode() + b"\n")


def send(wanted: dict[str, Json], token: bytes) -> None:
    place, own = (wanted["address"], wanted["port"]), (wanted["own"], 0)
    calls = [socket.create_connection(place, PATIENCE_S, own) for _ in range(wanted["streams"])]
    memory = os.memfd_create("flood")
    os.ftruncate(memory, CHUNK)
    before, start = core_times(), time.monotonic()
    pool = ThreadPoolExecutor(len(calls))
    filling = [pool.submit(fill, call, token, memory, start + wanted["seconds"]) for call in calls]
    ends = [each.result() for each in as_completed(filling)]  # the first error at once
    seconds = time.monotonic() - start
    shares = [share for share in (busiest(before), *(share for _, share in ends)) if share is not None]
    say(bytes=sum(count for count, _ in ends), seconds=seconds, cpu=max(shares, default=None))


def fill(call: socket.socket, token: bytes, memory: int, until: float) -> tuple[int, float | None]:
    """Send until then; what the other end answers."""
    call.settimeout(None)
    call.sendall(token)
    while time.monotonic() < until:
        os.sendfile(call.fileno(), memory, 0, CHUNK)
    call.shutdown(socket.SHUT_WR)
    with call.makefile("rb") as lines:
        total, share = json.loads(lines.readline())
    return total, share


def core_times() -> list[tuple[int, int]]:
    """[(busy, all)] ticks of each core so far; see proc_pid_stat(5) and proc_stat(5)."""
    cores = []
    with open("/proc/stat") as file:
        for line in file:
            name, *fields = line.split()
            if name.startswith("cpu") and name != "cpu":
                ticks = [int(field) for field in fields[:8]]
                cores.append((sum(ticks) - ticks[3] - ticks[4], sum(ticks)))
    return cores


def busiest(before: list[tuple[int, int]]) -> float | None:
    """The busy share of the core that was busiest since then, None when that is not known."""
    pairs = zip(before, core_times(), strict=False)
    return max(((busy - was) / (now - then) for (was, then), (busy, now) in pairs if now > then), default=None)


def main() -> None:
    wanted = given()
    token = sys.stdin.buffer.readline().strip()
    signal.alarm(int(wanted["deadline_s"]))
    threading.Thread(target=lambda: os._exit(len(sys.stdin.buffer.read()) or 1), daemon=True).start()
    try:
        {"receive": receive, "send": send}[wanted["role"]](wanted, token)
    except (OSError, ValueError) as error:
        say(error=getattr(error, "strerror", None) or str(error) or type(error).__name__)
    os._exit(0)  # not through the interpreter's end, which would wait for whoever reads stdin


if __name__ == "__main__":
    main()
