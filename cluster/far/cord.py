"""The cord: one TCP connection over the fabric from each rank to rank 0, so that no rank runs on alone.

Lies beside rank.py, which imports it. JSON messages, one a line: rank 0 sends {"nonce"}; the caller answers
{"rank", "proof"} with an HMAC that only somebody with the deployment's ray-token can make; rank 0 answers
{"refused": ""} or says why. Then both ends send {"beat"} now and then, and {"ended": why} when they end.
Other messages are the caller's: rank 0 sends {"restart_ray": true} after it has restarted its own Ray, and
{"serving": true} once the server answers.
"""

import asyncio
import hmac
import json
import os
import time
from collections.abc import Callable
from typing import Any

HELLO_S = 5.0
GONE = (OSError, ValueError, asyncio.TimeoutError)  # what reading may raise; the last is its own until 3.11


class NotTied(Exception):
    """A cord that could not be made."""


def send(writer: asyncio.StreamWriter, **message: Any) -> None:
    """One message; a lost connection is noticed by its reader."""
    writer.write(json.dumps(message).encode() + b"\n")


async def receive(reader: asyncio.StreamReader, timeout_s: float) -> dict[str, Any]:
    """The next message of a cord. Raises one of GONE."""
    line = await asyncio.wait_for(reader.readline(), timeout_s)
    message = json.loads(line) if line else None
    if not isinstance(message, dict):
        raise ConnectionError("it closed the connection")
    return message


class Cord:
    """Rank 0 holds one line to each other rank, every other rank one to rank 0.

    `wanted` is rank.json; `lost` is called once a line that ends: the peer's rank, why, whether it sent that itself;
    `received` is called with each message of a peer.
    """

    def __init__(
        self,
        wanted: dict[str, Any],
        secret: bytes,
        lost: Callable[[int, str, bool], None],
        received: Callable[[dict[str, Any]], None],
    ) -> None:
        self.rank, self.addresses, self.port = wanted["rank"], wanted["addresses"], wanted["cord_port"]
        self.silence_s, self.secret, self.lost, self.received = wanted["silence_s"], secret, lost, received
        self.lines: dict[int, asyncio.StreamWriter] = {}
        self.running: list[Any] = []  # the loop itself keeps only weak references

    def proof(self, nonce: Any, rank: Any) -> str:
        """The answer to a nonce, which needs the deployment's ray-token."""
        return hmac.new(self.secret, json.dumps(["cord", nonce, rank]).encode(), "sha256").hexdigest()

    async def listen(self) -> None:
        """Rank 0: accept lines on its own fabric address only. Raises NotTied when the port is taken."""
        try:
            self.running.append(await asyncio.start_server(self._admit, self.addresses[0], self.port))
        except OSError as error:
            raise NotTied(f"the cord cannot listen: {error}") from None
        self.running.append(asyncio.create_task(self._beat()))

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Ask a caller to prove itself; keep its line, or send and log why not."""
        caller, nonce, hello = writer.get_extra_info("peername")[0], os.urandom(16).hex(), dict[str, Any]()
        try:
            send(writer, nonce=nonce)
            hello = await receive(reader, HELLO_S)
            refusal = self._refusal(hello, nonce, caller)
            send(writer, refused=refusal)
        except GONE as error:
            refusal = f"no hello: {error or 'silent'}"
        if refusal:
            print(f"cord: refused {caller}: {refusal}\n", end="", flush=True)
            writer.close()
            return
        self.lines[hello["rank"]] = writer
        await self._follow(hello["rank"], reader)

    def _refusal(self, hello: dict[str, Any], nonce: str, caller: str) -> str:
        rank = hello.get("rank")
        if not hmac.compare_digest(self.proof(nonce, rank), str(hello.get("proof"))):
            return "wrong secret: its ray-token is not that of this deployment"
        if rank not in range(1, len(self.addresses)) or self.addresses[rank] != caller:
            return f"rank {rank} does not live at {caller}"
        return f"rank {rank} has tied its cord already" if rank in self.lines else ""

    async def tie(self, patience_s: float) -> None:
        """Other ranks: call rank 0 from their own address until it answers. Raises NotTied."""
        deadline, where = time.monotonic() + patience_s, f"rank 0 at {self.addresses[0]}:{self.port}"
        own = (self.addresses[self.rank], 0)
        while True:
            try:
                call = asyncio.open_connection(self.addresses[0], self.port, local_addr=own)
                reader, writer = await asyncio.wait_for(call, HELLO_S)
                nonce = (await receive(reader, HELLO_S)).get("nonce")
                send(writer, rank=self.rank, proof=self.proof(nonce, self.rank))
                refusal = (await receive(reader, HELLO_S)).get("refused")
                break
            except GONE as error:
                if time.monotonic() > deadline:
                    raise NotTied(f"{where} did not answer within {patience_s:g} s: {error}") from None
                await asyncio.sleep(0.3)
        if refusal != "":
            raise NotTied(f"{where} refused this rank: {refusal}")
        self.lines[0] = writer
        self.running += [asyncio.create_task(self._follow(0, reader)), asyncio.create_task(self._beat())]

    async def _follow(self, rank: int, reader: asyncio.StreamReader) -> None:
        """Read a line until it or its rank ends, and report why."""
        who, message = f"rank {rank} ({self.addresses[rank]})", dict[str, Any]()
        try:
            while "ended" not in message:
                message = await receive(reader, self.silence_s)
                self.received(message)
            why = f"{who}: {message['ended']}"
        except asyncio.TimeoutError:
            why = f"{who} was silent for {self.silence_s:g} s: it has no power, hangs, or the link is cut"
        except GONE as error:
            why = f"{who} is gone, killed or rebooted: {error}"
        self.lost(rank, why, "ended" in message)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(min(5.0, self.silence_s / 4))
            self.broadcast(beat=True)

    def broadcast(self, without: int | None = None, **message: Any) -> None:
        """Send to all lines but one."""
        for rank, writer in self.lines.items():
            if rank != without:
                send(writer, **message)
