"""Words for Ollama's API on the host itself; `curl` is everywhere that Ollama was installed with its own script."""

from __future__ import annotations

import json

from cluster.commands.question import Question

ROOT = "http://127.0.0.1:11434"
GONE_S = 30


def api_ps() -> Question:
    """Which models are in memory."""
    return Question(("curl", "-fsS", "--max-time", "3", f"{ROOT}/api/ps"))


def unload(model: str) -> Question:
    """Take one model out of memory; it is loaded again when somebody asks it something."""
    body = json.dumps({"model": model, "keep_alive": 0})
    words = ("curl", "-fsS", "--max-time", "20", f"{ROOT}/api/generate", "-d", body)
    return Question(words, timeout_s=25, changes=True)


def await_unloaded() -> Question:
    """Wait until no model is in memory any more; fails after 30 s."""
    asks = f"curl -fs {ROOT}/api/ps | grep -q '\"models\":\\[\\]' && exit 0"
    script = f"for try in $(seq {GONE_S}); do {asks}; sleep 1; done; echo Ollama still holds a model >&2; exit 1"
    return Question(("sh", "-c", script), timeout_s=2 * GONE_S, changes=True)
