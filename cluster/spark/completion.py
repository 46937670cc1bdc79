"""What the server on the head says: its health, its models, its queue, and one real completion."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.argv.far import far
from cluster.argv.question import Answer, Question
from cluster.spark import metrics
from cluster.spark.fact import Missing
from cluster.spark.metrics import Load
from cluster.spark.sanity import insane


@dataclass(frozen=True, slots=True)
class Server:
    """Where an API is, as seen from the head, the model's name in it, and the private file that holds its key."""

    url: str
    model: str
    key_file: str = ""

    @classmethod
    def of_spec(cls, spec: Mapping[str, Any], home: str) -> Server:
        """The API of a deployment whose directory on the head is `home`."""
        recipe, bind = spec["recipe"], spec["bind"]
        address = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(bind, f"[{bind}]" if ":" in bind else bind)
        key_file = f"{home}/api-key" if "VLLM_API_KEY" in spec["secrets"] else ""
        return cls(f"http://{address}:{recipe['port']}", recipe["served_model_name"] or recipe["model"], key_file)


@dataclass(frozen=True, slots=True)
class Completion:
    """The server's answers. `text`, `tokens` and `seconds` are of the completion, empty when none was asked for.

    `load` is what vLLM's own counters say, None for another server.
    `status` is that of the completion's HTTP answer, `error` the server's own words when it was not 200.
    """

    healthy: bool
    models: tuple[str, ...]
    load: Load | None = None
    status: int = 0
    text: str = ""
    tokens: int = 0
    seconds: float = 0.0
    error: str = ""

    def wrong(self, served_name: str, *, judge_text: bool) -> str:
        """What is wrong with it in a few words, empty when nothing is."""
        if not self.healthy:
            return "/health is not 200"
        if served_name not in self.models:
            return f"/v1/models has {', '.join(self.models) or 'nothing'}, not {served_name}"
        if self.status != 200:
            return f"the completion ended with HTTP {self.status}: {self.error[:300]}"
        if self.tokens < 1:
            return "the completion has no token"
        wrong = insane(self.text) if judge_text else ""
        return f"the completion {wrong}" if wrong else ""


def question(server: Server, *, ask: bool, timeout_s: float, tokens: int = 24) -> Question:
    """Ask /health and /v1/models, and with `ask` for one completion of at most `tokens` tokens."""
    given = {"url": server.url, "model": server.model, "key_file": server.key_file, "ask": ask, "tokens": tokens,
             "timeout_s": timeout_s}  # fmt: skip
    return far("completion", given, timeout_s=timeout_s + 5)


def parse(answer: Answer) -> Completion | Missing:
    """Read what far/completion printed."""
    try:
        told = json.loads(answer.text)
        return Completion(
            told["health"] == 200, tuple(told["models"]), _load(told.get("counters") or ""), told.get("status") or 0,
            told.get("text") or "", told.get("tokens") or 0, told.get("seconds") or 0.0, told.get("error") or "",
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError):
        why = answer.error_text.strip()[-200:] or "the program did not answer"
        return Missing(why, "timeout" if answer.exit is None else "unreadable")


def _load(counters: str) -> Load | None:
    looks = metrics.recognise(counters)
    return looks[-1] if looks else None


def recognise(text: str) -> str | None:
    """The text of a completion in an answer of an OpenAI API that somebody pasted; None when there is none."""
    start = text.find('{"')
    if start < 0 or '"choices"' not in text:
        return None
    try:
        told, _ = json.JSONDecoder().raw_decode(text, start)
        choice = told["choices"][0]
        said = choice["text"] if "text" in choice else choice["message"]["content"]
    except (ValueError, KeyError, TypeError, IndexError):
        return None
    return said if isinstance(said, str) else None
