"""A server that gives recorded answers in their order, on loopback: whatever is asked, it has no mind of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Event, Thread
from typing import Any

Answer = str | dict[str, str]
"""The bytes of an HTTP answer as text; as {"cut": …} the connection closes behind them."""
MODEL = "gemma-4-31b"


@dataclass(frozen=True)
class Recorded:
    """What a server answered to the requests of one case, and what is right to say of it.

    `says`: a part of the verdict's words; `reported`: taken for a defect that somebody reported; `unpromised`: the
    outcome without a recipe, where it is another one.
    """

    server: str
    case: str
    answers: Sequence[Answer]
    outcome: str = "pass"
    says: str = ""
    reported: bool = False
    unpromised: str = ""
    models: str = ""

    @property
    def listed(self) -> str:
        """Its answer to /v1/models."""
        if self.models:
            return self.models
        one = {"id": MODEL, "object": "model", "owned_by": "vllm", "root": MODEL, "max_model_len": 65536}
        return whole({"object": "list", "data": [one]})

    def __str__(self) -> str:
        return f"{self.server} {self.case}"


def whole(document: Any) -> str:
    """An answer in one piece."""
    text = json.dumps(document)
    return f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n{text}"


def read_all() -> list[Recorded]:
    """All that were recorded."""
    lines = Path(__file__).with_name("probe_answers.jsonl").read_text(encoding="utf-8").splitlines()
    return [Recorded(**json.loads(line)) for line in lines]


@contextmanager
def serving(listed: str, answers: Sequence[Answer]) -> Iterator[str]:
    """Its address. Without answers (any more) it never answers."""
    left, over = iter(answers), Event()

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            while line := self.rfile.readline():
                length = 0
                while (field := self.rfile.readline()) not in (b"\r\n", b""):
                    name, _, value = field.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                self.rfile.read(length)
                answer = listed if line.startswith(b"GET") else next(left, None)
                if answer is None:
                    over.wait()
                    return
                self.wfile.write((answer if isinstance(answer, str) else answer["cut"]).encode())
                if isinstance(answer, dict):
                    return

    class Server(ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            over.set()
            server.shutdown()
