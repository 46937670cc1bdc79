"""The HTTP side: vLLM's routes, with timing that is the same each time and better with more ranks."""

from __future__ import annotations

import json
import threading
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .answers import Refused, Request, Tokenizer, chunk, error, last, read_request, whole
from .core import Core

PREFILL_T_S = 20_000.0
DECODE_T_S = 100.0
SPEED_UP = 0.7  # what each further rank adds


class QuickServer(ThreadingHTTPServer):
    """The listening server and what its handlers share."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, given: Namespace, core: Core, tokenizer: Tokenizer) -> None:
        super().__init__((given.host, given.port), Handler)
        self.given, self.core, self.tokenizer = given, core, tokenizer
        self.speed = 1 + SPEED_UP * (given.size - 1)
        self.seats = threading.Semaphore(given.max_num_seqs)
        self.numbers: Counter[str] = Counter()
        self.guard = threading.Lock()

    def add(self, name: str, value: float) -> None:
        with self.guard:
            self.numbers[name] += value  # type: ignore[assignment]

    @contextmanager
    def running(self) -> Iterator[None]:
        self.add("num_requests_waiting", 1)
        with self.seats:
            self.add("num_requests_waiting", -1)
            self.add("num_requests_running", 1)
            try:
                yield
            finally:
                self.add("num_requests_running", -1)

    def tokens(self, request: Request) -> Iterator[int]:
        """Token numbers, each when it is due."""
        due = time.monotonic() + request.prompt_tokens / (PREFILL_T_S * self.speed)
        self.core.step(1 + request.prompt_tokens // 1024)
        self.add("prompt_tokens_total", request.prompt_tokens)
        for index in range(request.count):
            due += 1 / (DECODE_T_S * self.speed)
            self.core.step(1)
            time.sleep(max(0.0, due - time.monotonic()))
            self.add("generation_tokens_total", 1)
            yield index
        self.add("request_success_total", 1)

    def metrics(self) -> str:
        names = ("num_requests_running", "num_requests_waiting", "prompt_tokens_total", "generation_tokens_total")
        labels, text = f'{{engine="0",model_name="{self.given.names[0]}"}}', ""
        for name in (*names, "request_success_total", "kv_cache_usage_perc"):
            kind = "counter" if name.endswith("_total") else "gauge"
            text += f"# TYPE vllm:{name} {kind}\nvllm:{name}{labels} {float(self.numbers[name])}\n"
        return text


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # small writes leave at once
    server: QuickServer

    def do_GET(self) -> None:
        given = self.server.given
        if self.path == "/health":
            self.give(200, b"", "text/plain")
        elif self.path == "/metrics":
            self.give(200, self.server.metrics().encode(), "text/plain; version=0.0.4; charset=utf-8")
        elif self.path == "/version":
            self.give_json(200, {"version": "0.32.0+quick.simulated"})
        elif self.path == "/v1/models" and self.allowed():
            base = {"object": "model", "owned_by": "vllm", "root": given.model, "max_model_len": given.max_model_len}
            rows = [{"id": name, "created": 0, **base} for name in given.names]
            self.give_json(200, {"object": "list", "data": rows})
        elif self.path != "/v1/models":
            self.give_json(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            body = json.loads(raw or b"{}")
            if self.path in ("/v1/completions", "/v1/chat/completions"):
                if self.allowed():
                    self.complete(read_request(body, "chat" in self.path, self.server.given, self.server.tokenizer))
            elif self.path == "/tokenize":
                ids = self.server.tokenizer.encode(body.get("prompt", ""), body.get("add_special_tokens", True))
                limit = self.server.given.max_model_len
                self.give_json(200, {"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": None})
            elif self.path == "/detokenize":
                self.give_json(200, {"prompt": self.server.tokenizer.decode(body["tokens"])})
            else:
                self.give_json(404, {"detail": "Not Found"})
        except Refused as refused:
            self.give_json(refused.args[0], error(*refused.args))
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            self.give_json(400, error(400, f"{type(problem).__name__}: {problem}"))
        except RuntimeError as problem:
            self.give_json(500, error(500, str(problem)))

    def complete(self, request: Request) -> None:
        with self.server.running():
            if not request.stream:
                list(self.server.tokens(request))
                self.give_json(200, whole(request))
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream; charset=utf-8")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            if request.chat:
                self.event(json.dumps(chunk(request, -1)))
            for index in self.server.tokens(request):
                self.event(json.dumps(chunk(request, index)))
            if request.usage_at_end:
                self.event(json.dumps(last(request)))
            self.event("[DONE]")
            self.wfile.write(b"0\r\n\r\n")

    def event(self, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def allowed(self) -> bool:
        """Check the API key, if there is one; answer 401 when it is wrong."""
        key = self.server.given.api_key
        if key and self.headers.get("Authorization") != f"Bearer {key}":
            self.give_json(401, error(401, "Unauthorized"))
            return False
        return True

    def give_json(self, status: int, value: Any) -> None:
        self.give(status, json.dumps(value).encode(), "application/json")

    def give(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """One line a request, as uvicorn writes it."""
        print(f'INFO:     {self.client_address[0]}:{self.client_address[1]} - "{self.requestline}" {code}', flush=True)
