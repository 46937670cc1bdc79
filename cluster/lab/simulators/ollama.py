#!/usr/bin/python3
"""ollama of a simulated Spark: a server that holds memory for each loaded model in a process of its own.

`ollama serve`, `ollama ps`, `ollama run MODEL` (which only loads it), `ollama stop MODEL`. The server answers /api/ps,
and /api/generate without a prompt, which loads a model or, with keep_alive 0, unloads it.
"""

import json
import subprocess
import sys
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PORT = 11434
MIB = 192
runners: dict[str, "subprocess.Popen[bytes]"] = {}


class Api(BaseHTTPRequestHandler):
    """The two requests that the commands send."""

    def do_GET(self) -> None:
        size = {"size": MIB << 20, "size_vram": MIB << 20}
        self.answer({"models": [{"name": name, "model": name, **size} for name in runners]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name, unload = asked["model"], asked.get("keep_alive") == 0
        if unload and name in runners:
            runner = runners.pop(name)
            runner.terminate()
            runner.wait()
        elif not unload and name not in runners:
            runners[name] = subprocess.Popen([sys.executable, __file__, "runner", "--model", name])
        self.answer({"model": name, "response": "", "done": True, "done_reason": "unload" if unload else "load"})

    def answer(self, value: object) -> None:
        """An answer as JSON, without blanks as Ollama's own."""
        text = json.dumps(value, separators=(",", ":")).encode()
        self.send_response(200 if self.path in ("/api/ps", "/api/generate") else 404)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *words: object) -> None:
        """Silent."""


def call(path: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}", data, timeout=5) as answer:
        return json.loads(answer.read())


def main(words: list[str]) -> None:
    if words == ["serve"]:
        ThreadingHTTPServer(("127.0.0.1", PORT), Api).serve_forever()
    elif words[:1] == ["runner"]:
        memory = b"\1" * (MIB << 20)
        time.sleep(1e9)
        del memory
    elif words == ["ps"]:
        print("\n".join(["NAME", *(row["name"] for row in call("/api/ps")["models"])]))
    elif len(words) == 2 and words[0] in ("run", "stop"):
        call("/api/generate", {"model": words[1], "keep_alive": -1 if words[0] == "run" else 0})
    else:
        sys.exit("usage: ollama serve | ps | run MODEL | stop MODEL")


if __name__ == "__main__":
    main(sys.argv[1:])
