"""Ollama on a simulated machine, as far as `curl` to its API tells: the models it holds, and letting them go."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from cluster.commands.question import Answer

if TYPE_CHECKING:
    from spark import Machine


class OllamaEnd:
    """Its models are the strangers' processes that are named after it; `stuck`: it does not let them go."""

    stuck = False

    def run_curl(self: Machine, words: list[str]) -> Answer:
        if not self.held_by_ollama():
            return Answer(7, err=b"curl: (7) Failed to connect to 127.0.0.1 port 11434: Connection refused\n")
        if words[-1].endswith("/api/ps"):
            return Answer(0, json.dumps({"models": self.held_by_ollama()}).encode())
        asked = json.loads(words[words.index("-d") + 1])
        assert asked["keep_alive"] == 0
        if not self.stuck:
            self.strangers = [one for one in self.strangers if f"model{one.pid}" != asked["model"]]
        return Answer(0, b'{"done":true,"done_reason":"unload"}')

    def wait_for_ollama(self: Machine) -> Answer:
        return Answer(1, err=b"Ollama still holds a model\n") if self.held_by_ollama() else Answer(0)

    def held_by_ollama(self: Machine) -> list[dict[str, object]]:
        return [
            {"name": f"model{one.pid}", "model": f"model{one.pid}", "size": one.bytes, "size_vram": one.bytes}
            for one in self.strangers if one.name == "ollama"
        ]  # fmt: skip
