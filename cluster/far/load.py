"""The load client: sends rounds of HTTP requests, records which bytes came when, and understands none of them.
The same file runs on a host, in a container and on this machine: python3 -I -S load.py

stdin, one JSON document a line; its end, or silence between rounds, stops all at once (the server sees its clients go):
    first line   {"base_url": "http://127.0.0.1:8000", "api_key_file": "PATH" | null}
    then rounds  {"id": "r1", "concurrency": 4, "timeout_s": 600, "warm": "/v1/models" | null,
                  "requests": [{"method": "POST", "path": "/v1/completions", "body": {...} | null}]}
stdout, one JSON document a line:
    {"ready": true, "python": "3.11.2", "hostname": "spark1"}        or {"error": "..."}, and the program ends
    {"progress": "r1", "done": 1, "chunks": 140, "s": 3.0}           once a second while a round runs
    {"id": "r1", "requests": [[t0, end, how, error], ...], "chunks": N, "parts": M,
     "client": {"cpu_s", "wall_s", "lag_max_ms", "lag_mean_ms", "t0_spread_ms", "started_unix_s"}}
    +...    M lines, together base64(zlib(table + bytes)): lines of bounded length pass through any pipe
        times are seconds of one monotonic clock since the round began; t0 is taken just before the bytes are written.
        how: done (the answer's own framing ended) | closed | reset | timeout | refused (no connection).
        table: N entries "<IdI" (request, time, length); the bytes of all chunks follow in the same order.

Connections are kept between rounds and used once (`warm`) before each. Requests are serialised before it; a
connection takes the next request when its own has ended. Failures are recorded, never raised.
"""

import asyncio
import base64
import gc
import json
import os
import socket
import ssl
import stat
import struct
import sys
import threading
import time
import zlib
from collections import deque
from urllib.parse import urlsplit

CONNECT_TIMEOUT_S = 10.0  # and as long for the question that warms a connection
IDLE_S = 900.0  # between rounds; for the day on which the end of stdin does not come through
LAG_PERIOD_S, EVERY = 0.1, 10  # every tenth time, so once a second
BUFFER = memoryview(bytearray(1 << 16))  # shared: a loop reads into it and hands it over in one step
PART_LENGTH, LAST_CHUNK = 1 << 17, b"\r\n0\r\n\r\n"


class Framing:
    """Finds the end of one HTTP/1.1 answer; looks at its head once and afterwards only at the last bytes."""

    __slots__ = ("chunked", "head", "last", "left", "tail")

    def __init__(self):
        self.head, self.tail = b"", b""  # the head is None once it is complete
        self.chunked = self.last = False  # last: the server will close the connection after this answer
        self.left = None  # bytes still to come when Content-Length says so; None: until the end is marked or closed

    def ends(self, data):
        """Whether the answer is complete with these bytes."""
        if self.head is not None:
            self.head += data
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                return False
            data = self.read_head(end)
        if self.chunked:
            self.tail = data[-7:] if len(data) >= 7 else (self.tail + data)[-7:]
            return self.tail == LAST_CHUNK
        if self.left is not None:
            self.left -= len(data)
            return self.left <= 0
        return False

    def read_head(self, end):
        """Learn how the body is delimited; the body bytes that came with the head."""
        head, data = self.head[:end].lower(), self.head[end + 4 :]
        self.head, self.tail = None, b"\r\n"
        self.last = head.startswith(b"http/1.0")
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name == b"transfer-encoding" and b"chunked" in value:
                self.chunked = True
            elif name == b"connection" and value.strip() == b"close":
                self.last = True
            elif name == b"content-length" and value.strip().isdigit():
                self.left = int(value)
        if head.split(b" ", 2)[1:2] in ([b"204"], [b"304"]):
            self.chunked, self.left = False, 0
        return data


class Wire(asyncio.BufferedProtocol):
    """One connection; carries one request at a time."""

    def __init__(self):
        self.gone = False
        self.transport = self.waiting = self.log = self.index = self.framing = None

    def connection_made(self, transport):
        self.transport = transport

    def get_buffer(self, sizehint):
        return BUFFER

    def buffer_updated(self, nbytes):
        now = time.monotonic()
        data = bytes(BUFFER[:nbytes])
        if self.waiting is None:  # nobody asked: a server that says goodbye to an idle connection
            return self.drop()
        self.log.append((self.index, now, data))
        if self.framing.ends(data):
            self.finish(now, "done", "")
            if self.framing.last:
                self.drop()

    def connection_lost(self, exc):
        self.gone = True
        self.finish(time.monotonic(), "reset" if exc else "closed", str(exc) if exc else "")

    def finish(self, now, how, error):
        """Give the outcome to who waits; harmless when nobody does."""
        waiting, self.waiting = self.waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result((now, how, error))

    def drop(self, how="closed", error=""):
        """End the connection at once, and with it the request under way."""
        self.gone = True
        self.finish(time.monotonic(), how, error)
        self.transport.abort()

    async def exchange(self, index, data, timeout_s, log):
        """Send one request, record what comes into `log`; [t0, end, how, error] in monotonic seconds."""
        loop = asyncio.get_running_loop()
        self.index, self.log, self.framing = index, log, Framing()
        waiting = self.waiting = loop.create_future()
        timer = loop.call_later(timeout_s, self.drop, "timeout", f"no complete answer in {timeout_s:g} s")
        t0 = time.monotonic()
        self.transport.write(data)
        outcome = [t0, *await waiting]
        timer.cancel()
        return outcome


class Session:
    """The server's address, the headers of every request, and the connections that are kept."""

    def __init__(self, setup):
        url = urlsplit(setup["base_url"])
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"base_url {setup['base_url']!r} is not http://host:port or https://host:port")
        self.host = url.hostname
        self.port = url.port or (443 if url.scheme == "https" else 80)
        self.tls = ssl.create_default_context() if url.scheme == "https" else None
        self.prefix = url.path.rstrip("/").removesuffix("/v1")
        host = f"Host: {url.netloc.rpartition('@')[2]}"
        self.head = [host, "User-Agent: cluster-bench", "Accept-Encoding: identity", *authorization(setup.get("api_key_file"))]
        self.wires = []

    def encode(self, request):
        """The bytes of one request."""
        given = request.get("body")
        body = b"" if given is None else json.dumps(given, separators=(",", ":")).encode()
        lines = [f"{request.get('method', 'GET')} {self.prefix}{request['path']} HTTP/1.1", *self.head]
        if given is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + body

    async def open(self):
        """A new connection. Raises OSError (a time-out is one) when there is none."""
        connecting = asyncio.get_running_loop().create_connection(Wire, self.host, self.port, ssl=self.tls)
        try:
            return (await asyncio.wait_for(connecting, CONNECT_TIMEOUT_S))[1]
        except asyncio.TimeoutError:
            raise OSError(f"no connection to {self.host} port {self.port} in {CONNECT_TIMEOUT_S:g} s") from None

    async def ready_wire(self, wire, warm):
        """An open connection that has been used once; None when there is no server."""
        for _ in range(2):  # a kept connection may turn out to be closed: then a fresh one
            try:
                if wire is None or wire.gone:
                    wire = await self.open()
            except OSError:
                return None
            if warm is None or "done" in await wire.exchange(0, self.encode({"path": warm}), CONNECT_TIMEOUT_S, []):
                break
        return wire

    async def prepare(self, count, warm):
        """`count` connections, kept ones first; those past the count stay for a later round."""
        kept = self.wires[:count] + [None] * (count - len(self.wires))
        self.wires[:count] = await asyncio.gather(*(self.ready_wire(wire, warm) for wire in kept))


def authorization(path):
    """The header line that carries the API key of a file that only its owner can read; none without a file."""
    if not path:
        return []
    if stat.S_IMODE(os.stat(path).st_mode) & 0o077:
        raise ValueError(f"{path} can be read by others: chmod 600 {path}")
    with open(path, encoding="utf-8") as file:
        key = file.read().strip()
    if not key.isprintable() or not key.isascii():
        raise ValueError("the API key holds characters that a header cannot carry")
    return [f"Authorization: Bearer {key}"] if key else []


async def work(session, slot, queue, requests, timeout_s, log, outcomes):
    """Take requests for one connection until none is left; a lost connection is opened anew."""
    while queue:
        index, began = queue.popleft(), time.monotonic()
        try:
            if session.wires[slot] is None or session.wires[slot].gone:
                session.wires[slot] = await session.open()
            outcomes[index] = await session.wires[slot].exchange(index, requests[index], timeout_s, log)
        except OSError as error:
            outcomes[index] = [began, time.monotonic(), "refused", str(error)]


async def watch(name, lags, log, outcomes):
    """How late the event loop wakes us (ms), again and again; once a second, how far the round is."""
    while True:
        due = time.monotonic() + LAG_PERIOD_S
        await asyncio.sleep(LAG_PERIOD_S)
        lags.append(1e3 * max(0.0, time.monotonic() - due))
        if len(lags) % EVERY == 0:
            say({"progress": name, "done": sum(map(bool, outcomes)), "chunks": len(log), "s": len(lags) / EVERY})


async def run_round(session, spec):
    """Carry out one round; the document that tells what happened, and its parts."""
    requests = [session.encode(request) for request in spec["requests"]]
    count = max(1, min(int(spec.get("concurrency", 1)), len(requests)))
    await session.prepare(count, spec.get("warm"))
    queue, log, outcomes, lags = deque(range(len(requests))), [], [None] * len(requests), []
    given = requests, float(spec.get("timeout_s", 600)), log, outcomes
    watching = asyncio.ensure_future(watch(spec["id"], lags, log, outcomes))
    gc.collect()
    gc.disable()
    started, cpu, origin = time.time(), time.process_time(), time.monotonic()
    try:
        await asyncio.gather(*(work(session, slot, queue, *given) for slot in range(count)))
    finally:
        client = {"cpu_s": time.process_time() - cpu, "wall_s": time.monotonic() - origin, "started_unix_s": started}
        gc.enable()
        watching.cancel()
    firsts = [outcome[0] for outcome in outcomes[:count]] or [origin]
    client["t0_spread_ms"] = 1e3 * (max(firsts) - min(firsts))
    client["lag_max_ms"], client["lag_mean_ms"] = max(lags, default=0.0), sum(lags) / max(1, len(lags))
    return describe(spec["id"], outcomes, log, origin, client)


def describe(name, outcomes, log, origin, client):
    """The document of one round and its parts; see the head of this file."""
    table = b"".join(struct.pack("<IdI", index, now - origin, len(data)) for index, now, data in log)
    packed = base64.b64encode(zlib.compress(table + b"".join(data for _, _, data in log), 1)).decode()
    parts = [packed[at : at + PART_LENGTH] for at in range(0, len(packed), PART_LENGTH)]
    requests = [[t0 - origin, end - origin, how, error] for t0, end, how, error in outcomes]
    return {"id": name, "requests": requests, "chunks": len(log), "parts": len(parts), "client": client}, parts


def say(document, parts=()):
    """One line on stdout, and one for each part."""
    print(json.dumps(document, separators=(",", ":")), *parts, sep="\n+", flush=True)


async def serve(lines):
    """Answer the lines of stdin, one after the other, until there are no more."""
    try:
        session = Session(json.loads(await lines.get()))
    except (ValueError, KeyError, OSError) as error:
        say({"error": f"{type(error).__name__}: {error}"})
        return
    say({"ready": True, "python": sys.version.split()[0], "hostname": socket.gethostname()})
    while True:
        line = await asyncio.wait_for(lines.get(), IDLE_S)
        say(*await run_round(session, json.loads(line)))


async def main():
    """Read stdin in a thread of its own, so that its end is noticed in the middle of a round."""
    loop, lines = asyncio.get_running_loop(), asyncio.Queue()
    serving = asyncio.ensure_future(serve(lines))

    def read():
        for line in sys.stdin.buffer:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(serving.cancel)

    threading.Thread(target=read, daemon=True).start()
    await asyncio.wait([serving])
    if not serving.cancelled():
        serving.result()


if __name__ == "__main__":
    code = 0
    try:
        asyncio.run(main())
    except (KeyboardInterrupt, BrokenPipeError, asyncio.TimeoutError):
        code = 130
    os._exit(code)  # the reading thread may sit in read(); there is nothing left to clean up
