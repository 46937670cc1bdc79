"""The sockets: every behaviour at a path of its own, on loopback."""

from __future__ import annotations

import asyncio
import json
import sys

from cluster.lab.scripted.behaviour import Behaviour
from cluster.lab.scripted.reply import BEHAVIOURS, Reply, reply, whole


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, at_root: Behaviour) -> None:
        self.at_root = at_root
        self.buffer = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, found, rest = self.buffer.partition(b"\r\n\r\n")
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        length = int(lengths[0].split(b":")[1]) if lengths else 0
        if found and len(rest) >= length:
            self.buffer = rest[length:]
            self.send(self.answer(head.split(b" ")[1].decode(), rest[:length]))

    def answer(self, path: str, data: bytes) -> Reply:
        """One request; the first part of its path may name a behaviour."""
        behaviour = BEHAVIOURS.get(path.split("/")[1], self.at_root)
        try:
            return reply(behaviour, path, json.loads(data) if data else None)
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            return whole(400, {"error": {"message": f"{type(problem).__name__}: {problem}", "code": 400}})

    def send(self, answer: Reply) -> None:
        self.transport.write(b"".join(answer.portions))
        if answer.closes:
            self.transport.close()


async def serve(at_root: Behaviour, port: int) -> None:
    """Serve until stdin ends; the port goes to stdout."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(at_root), "127.0.0.1", port)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
