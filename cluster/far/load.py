"""The load client: sends rounds of HTTP requests, records which bytes came when, and understands none of them.
stdin, one JSON document a line; its end, or silence between rounds, stops all at once (the server sees its clients go):
    first line   {"urls": ["http://127.0.0.1:8000"], "api_key_file": "PATH" | null}
    then rounds  {"id": "r1", "concurrency": 4, "timeout_s": 600, "warm": "/v1/models" | null,
                  "asks": [{"path": "/v1/completions", "body": {...} | null, "server": 0}]}
                 POST with a body, else GET; server: which of the urls
stdout, one JSON document a line:
    {"ready": true, "python": "3.11.2", "hostname": "spark1"}      or {"error": "..."}, and the program ends
    {"progress": "r1", "done": 1, "chunks": 140, "s": 3.0}         once a second while a round runs
    {"id": "r1", "requests": [[t0, end, how, error], ...], "chunks": N, "parts": M,
     "client": {"cpu_s", "wall_s", "lag_max_ms", "lag_mean_ms", "t0_spread_ms", "started_unix_s"}}
    +...    M lines, together base64(zlib(table + bytes)): lines of bounded length pass through any pipe
        times: seconds of one monotonic clock since the round began; t0 is taken just before the bytes are written.
        how: done (the answer's own framing ended) | closed | reset | timeout | garbled | refused (no connection).
        table: N entries "<IdI" (request, time, length); the bytes of all chunks follow in the same order.

Connections are kept between rounds and used once (`warm`) before each; requests are serialised before it. Failures are
recorded, never raised.
"""

import asyncio
import base64
import gc
import json
import os
import socket
import ssl
import struct
import sys
import threading
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

CONNECT_TIMEOUT_S = 10.0  # and as long for the question that warms a connection
IDLE_S = 900.0  # between rounds; in case the end of stdin does not arrive
LAG_PERIOD_S, EVERY = 0.1, 10  # every tenth time, so once a second
LOST = OSError, asyncio.TimeoutError  # the latter is one of the former from Python 3.11 on
BUFFER = memoryview(bytearray(1 << 16))  # shared: a loop reads into it and passes it on in one step
PART_LENGTH = 1 << 17

Log = list[tuple[int, float, bytes]]  # request, when, which bytes
Outcome = tuple[float, float, str, str]  # t0, end, how, error


class Framing:
    """Finds the end of one HTTP/1.1 answer; reads its head and the lines between chunks only."""

    __slots__ = ("chunked", "head", "last", "left", "line")

    def __init__(self) -> None:
        self.head: bytes | None = b""  # None once it is complete
        self.line = b""  # the begin of a line between chunks
        self.chunked = self.last = False  # last: the server will close the connection after this answer
        # bytes of the body or chunk still to come; None: until closed, or trailers (chunked)
        self.left: int | None = None

    def ends(self, data: bytes) -> bool:
        """Whether the answer is complete with these bytes."""
        if self.head is not None:
            self.head += data
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                return False
            data = self.read_head(self.head[:end].lower(), self.head[end + 4 :])
        if self.chunked:
            return self.skip_chunks(data)
        if self.left is not None:
            self.left -= len(data)
            return self.left <= 0
        return False

    def skip_chunks(self, data: bytes) -> bool:
        """Go from chunk to chunk; whether the last one and its trailers are complete. Raises ValueError: no HTTP."""
        data, self.line, at = self.line + data, b"", self.left or 0
        while at < len(data):
            end = data.find(b"\r\n", at)
            if end < 0:
                self.line, at = data[at:], len(data)
            elif self.left is None:  # behind the last chunk: an empty line is the end
                if end == at:
                    return True
                at = end + 2
            elif size := int(data[at:end].partition(b";")[0], 16):
                at, self.left = end + 4 + size, 0
            else:
                at, self.left = end + 2, None
        if self.left is not None:
            self.left = at - len(data)
        return False

    def read_head(self, head: bytes, data: bytes) -> bytes:
        """Learn how the body is delimited; the body bytes that came with the head."""
        fields = {name: value.strip() for name, _, value in (line.partition(b":") for line in head.split(b"\r\n"))}
        length, empty = fields.get(b"content-length", b""), head.split(b" ", 2)[1:2] in ([b"204"], [b"304"])
        self.head, self.chunked = None, not empty and b"chunked" in fields.get(b"transfer-encoding", b"")
        self.last = head.startswith(b"http/1.0") or fields.get(b"connection") == b"close"
        self.left = 0 if self.chunked or empty else int(length) if length.isdigit() else None
        return data


class Wire(asyncio.BufferedProtocol):
    """One connection, for one request at a time."""

    transport: asyncio.Transport
    framing: Framing
    log: Log

    def __init__(self) -> None:
        self.gone, self.index = False, 0
        self.waiting: asyncio.Future[tuple[float, str, str]] | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> Any:
        return BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        now, data = time.monotonic(), bytes(BUFFER[:nbytes])
        if self.waiting is None:  # a server closes an idle connection with a message
            self.drop()
            return
        self.log.append((self.index, now, data))
        try:
            ended = self.framing.ends(data)
        except ValueError as error:
            self.drop("garbled", str(error))
            return
        if ended:
            self.finish(now, "done", "")
            if self.framing.last:
                self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        self.finish(time.monotonic(), "reset" if exc else "closed", str(exc) if exc else "")

    def finish(self, now: float, how: str, error: str) -> None:
        """Give the outcome to the exchange that waits for it, if one does."""
        waiting, self.waiting = self.waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result((now, how, error))

    def drop(self, how: str = "closed", error: str = "") -> None:
        """End the connection at once, and with it the request under way."""
        self.gone = True
        self.finish(time.monotonic(), how, error)
        self.transport.abort()

    async def exchange(self, index: int, data: bytes, timeout_s: float, log: Log) -> Outcome:
        """Send one request, record what comes into `log`; t0 and end in monotonic seconds."""
        loop = asyncio.get_running_loop()
        self.index, self.log, self.framing = index, log, Framing()
        waiting = self.waiting = loop.create_future()
        timer = loop.call_later(timeout_s, self.drop, "timeout", f"no complete answer in {timeout_s:g} s")
        t0 = time.monotonic()
        self.transport.write(data)
        end, how, error = await waiting
        timer.cancel()
        return t0, end, how, error


class Client:
    """One server's address, the headers of every request, and the open connections."""

    def __init__(self, base_url: str, api_key_file: str | None) -> None:
        url = urlsplit(base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"base_url {base_url!r} is not http://host:port or https://host:port")
        self.host = url.hostname
        self.port = url.port or (443 if url.scheme == "https" else 80)
        self.tls = ssl.create_default_context() if url.scheme == "https" else None
        self.prefix = url.path.rstrip("/").removesuffix("/v1")
        host = f"Host: {url.netloc.rpartition('@')[2]}"
        self.head = [host, "User-Agent: cluster-bench", "Accept-Encoding: identity", *authorize(api_key_file)]
        self.wires: dict[int, Wire] = {}

    def encode(self, path: str, content: Any = None) -> bytes:
        target, body = f"{self.prefix}{path} HTTP/1.1", b""
        lines = [f"GET {target}", *self.head]
        if content is not None:
            body = json.dumps(content, separators=(",", ":")).encode()
            lines = [f"POST {target}", *self.head, "Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + body

    async def wire(self, slot: int) -> Wire:
        """The connection of this number, opened when there is none. Raises what LOST names when there is no server."""
        if slot not in self.wires or self.wires[slot].gone:
            connecting = asyncio.get_running_loop().create_connection(Wire, self.host, self.port, ssl=self.tls)
            _, self.wires[slot] = await asyncio.wait_for(connecting, CONNECT_TIMEOUT_S)
        return self.wires[slot]

    async def warm(self, slot: int, path: str | None) -> None:
        """Open a connection and use it once; an old one may turn out to be closed: then a new one."""
        request = self.encode(path or "")
        with suppress(*LOST):
            for _ in range(2):
                wire = await self.wire(slot)
                if not path or "done" in await wire.exchange(0, request, CONNECT_TIMEOUT_S, []):
                    break


def authorize(path: str | None) -> list[str]:
    """The header line with the API key of a file that only its owner can read; none without a file."""
    if path and os.stat(path).st_mode & 0o077:
        raise ValueError(f"{path} can be read by others: chmod 600 {path}")
    key = Path(path).read_text(encoding="utf-8").strip() if path else ""
    if not (key.isprintable() and key.isascii()):
        raise ValueError("the API key holds characters that a header cannot carry")
    return [f"Authorization: Bearer {key}"] if key else []


class RunningRound:
    """What is still to be sent, which bytes came, how each request ended."""

    def __init__(self, servers: Sequence[Client], spec: dict[str, Any]) -> None:
        self.name, self.timeout_s, self.warm = spec["id"], spec["timeout_s"], spec["warm"]
        self.clients = [servers[ask["server"]] for ask in spec["asks"]]  # by request
        self.requests = [servers[ask["server"]].encode(ask["path"], ask["body"]) for ask in spec["asks"]]
        self.slots = range(min(max(1, spec["concurrency"]), len(self.requests)))
        self.queue, self.log, self.lags = [*reversed(range(len(self.requests)))], Log(), list[float]()
        self.outcomes: list[Outcome | None] = [None] * len(self.requests)

    async def work(self, slot: int) -> None:
        """Send requests over one connection to each server until none is left; a lost one is opened once more."""
        while self.queue:
            index, start = self.queue.pop(), time.monotonic()
            try:
                wire = await self.clients[index].wire(slot)
                self.outcomes[index] = await wire.exchange(index, self.requests[index], self.timeout_s, self.log)
            except LOST as error:
                why = str(error) or f"not in {CONNECT_TIMEOUT_S:g} s"
                self.outcomes[index] = (start, time.monotonic(), "refused", why)

    async def watch(self) -> None:
        """How late the event loop wakes (ms), until it is cancelled; once a second, how far the round is."""
        while True:
            due = time.monotonic() + LAG_PERIOD_S
            await asyncio.sleep(LAG_PERIOD_S)
            self.lags.append(1e3 * max(0.0, time.monotonic() - due))
            if (count := len(self.lags)) % EVERY == 0:
                done = sum(map(bool, self.outcomes))
                say({"progress": self.name, "done": done, "chunks": len(self.log), "s": count / EVERY})

    async def run(self) -> tuple[dict[str, Any], list[str]]:
        """The document of what happened and its parts, see the head of this file."""
        await asyncio.gather(*(self.clients[slot].warm(slot, self.warm) for slot in self.slots))
        watching = asyncio.ensure_future(self.watch())
        gc.collect()
        gc.disable()
        started, cpu, origin = time.time(), time.process_time(), time.monotonic()
        await asyncio.gather(*map(self.work, self.slots))
        client = {"cpu_s": time.process_time() - cpu, "wall_s": time.monotonic() - origin, "started_unix_s": started}
        gc.enable()
        watching.cancel()
        outcomes, log = [outcome for outcome in self.outcomes if outcome], self.log
        firsts = [outcome[0] for outcome in outcomes[: len(self.slots)]] or [origin]
        client["t0_spread_ms"] = 1e3 * (max(firsts) - min(firsts))
        client["lag_max_ms"] = max(self.lags, default=0.0)
        client["lag_mean_ms"] = sum(self.lags) / max(1, len(self.lags))
        table = b"".join(struct.pack("<IdI", index, now - origin, len(data)) for index, now, data in log)
        packed = base64.b64encode(zlib.compress(table + b"".join(data for _, _, data in log), 1)).decode()
        parts = [packed[at : at + PART_LENGTH] for at in range(0, len(packed), PART_LENGTH)]
        requests = [[t0 - origin, end - origin, how, error] for t0, end, how, error in outcomes]
        return {"id": self.name, "requests": requests, "chunks": len(log), "parts": len(parts), "client": client}, parts


def say(document: dict[str, Any], parts: Sequence[str] = ()) -> None:
    print(json.dumps(document, separators=(",", ":")), *parts, sep="\n+", flush=True)


async def serve(lines: asyncio.Queue[bytes]) -> None:
    """Answer the lines of stdin, one after the other, until there are no more."""
    try:
        setup = json.loads(await lines.get())
        servers = [Client(url, setup["api_key_file"]) for url in setup["urls"]]
    except (ValueError, KeyError, OSError) as error:
        say({"error": f"{type(error).__name__}: {error}"})
        return
    say({"ready": True, "python": sys.version.split()[0], "hostname": socket.gethostname()})
    while True:
        line = await asyncio.wait_for(lines.get(), IDLE_S)
        say(*await RunningRound(servers, json.loads(line)).run())


async def main() -> None:
    """Read stdin in a thread of its own, so that its end is noticed in the middle of a round."""
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[bytes]()
    serving = asyncio.ensure_future(serve(lines))

    def read() -> None:
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
