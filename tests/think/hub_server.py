"""A hub of one model on 127.0.0.1, and the other server its files are on: ranges, redirects, refusals, silence."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class HubServer:
    """What it has and how it behaves; `asked`: (server, path, range, authorization) of each request."""

    files: dict[str, bytes]
    model: str = "org/toy"
    token: str = ""  # required for files, when given
    refuse: dict[str, tuple[int, dict[str, str]]] = field(default_factory=dict)  # part of a path → status, headers
    fail_first: int = 0  # so many requests get 503
    short_first: int = 0  # so many files are cut in transfer
    ranges: bool = True
    about: bytes = b""  # instead of the list of files
    asked: list[tuple[str, str, str, str]] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    silent: bool = False
    endpoint: str = ""
    files_at: str = ""

    def of(self, server: str) -> list[tuple[str, str, str]]:
        return [(path, given, token) for name, path, given, token in self.asked if name == server]


def handler(hub: HubServer, name: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, token = unquote(self.path), self.headers.get("Authorization", "")
            hub.asked.append((name, path, self.headers.get("Range", ""), token))
            if hub.silent:
                hub.released.wait(20)
                return None
            if hub.fail_first:
                hub.fail_first -= 1
                return self.answer(503, b"later")
            for part, (status, headers) in hub.refuse.items():
                if part in path:
                    return self.answer(status, b"no", **headers)
            if name == "hub" and path.startswith("/old/"):
                return self.answer(307, b"", Location=f"/{path[5:]}")
            if name == "hub" and path.startswith(f"/api/models/{hub.model}/revision/"):
                rows = [{"rfilename": one} for one in hub.files]
                return self.answer(200, hub.about or json.dumps({"sha": COMMIT, "siblings": rows}).encode())
            file = path.removeprefix(f"/{hub.model}/resolve/{COMMIT}/")
            if file == path or file not in hub.files:
                return self.answer(404, b"", **{"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"})
            if name == "hub" and hub.token and token != f"Bearer {hub.token}":
                return self.answer(401, b"", **{"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"})
            if name == "hub" and file.endswith(".safetensors"):
                return self.answer(302, b"", Location=hub.files_at + self.path)
            return self.part(hub.files[file])

        def part(self, content: bytes) -> None:
            wanted = re.fullmatch(r"bytes=0-(\d+)", self.headers.get("Range", ""))
            if not wanted or not hub.ranges:
                return self.answer(200, content)
            if not content:
                return self.answer(416, b"", **{"Content-Range": "bytes */0"})
            sent = content[: int(wanted[1]) + 1]
            return self.answer(206, sent, **{"Content-Range": f"bytes 0-{len(sent) - 1}/{len(content)}"})

        def answer(self, status: int, content: bytes, **headers: Any) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if hub.short_first and status == 206:
                hub.short_first -= 1
                content = content[:-1]
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


@contextmanager
def serving(hub: HubServer) -> Iterator[HubServer]:
    """Both servers, up; `endpoint` and `files_at` are set."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler(hub, name)) for name in ("hub", "files")]
    hub.endpoint, hub.files_at = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
    threads = [threading.Thread(target=server.serve_forever, args=(0.02,)) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        hub.released.set()
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()
