# mypy: disable-error-code="import-not-found,import-untyped,no-any-return"
"""Requests as values, and the JSON that vLLM would answer: no sockets. Of the model only its tokenizer is used."""

from __future__ import annotations

import os
import time
import uuid
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ANSWER = "Paris, says the simulated model, and goes on with words that mean nothing at all"


def find(model: str, revision: str) -> Path:
    """The snapshot's folder. Raises FileNotFoundError as an offline vLLM would fail."""
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser() / "hub"
    repository = home / ("models--" + model.replace("/", "--"))
    ref = repository / "refs" / revision
    commit = ref.read_text().strip() if ref.is_file() else revision
    folder = Path(model) if model.startswith("/") else repository / "snapshots" / commit
    if not (folder / "config.json").exists():
        offline = os.environ.get("HF_HUB_OFFLINE", "")
        raise FileNotFoundError(f"{model}: no config.json in {folder} (HF_HUB_OFFLINE={offline})")
    return folder


class Tokenizer:
    """Text to ids and back."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer as Real

        self._real = Real.from_file(str(folder / "tokenizer.json"))

    def encode(self, text: str, special: bool = True) -> list[int]:
        return self._real.encode(text, add_special_tokens=special).ids

    def decode(self, ids: list[int]) -> str:
        return self._real.decode(ids)


def word(index: int) -> str:
    words = ANSWER.split()
    return " " + words[index % len(words)]


class Refused(Exception):
    """An HTTP error: (status, message)."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a body asks for; `head` begins each answer to it."""

    head: dict[str, Any]
    chat: bool
    prompt_tokens: int
    count: int
    stream: bool
    usage_at_end: bool
    usage_always: bool

    def usage(self, done: int) -> dict[str, Any]:
        total = self.prompt_tokens + done
        return {"prompt_tokens": self.prompt_tokens, "total_tokens": total, "completion_tokens": done}


def read_request(body: dict[str, Any], chat: bool, given: Namespace, tokenizer: Tokenizer) -> Request:
    """What a body asks for. Raises Refused as vLLM would answer."""
    model = body.get("model") or given.names[0]
    if model not in given.names:
        raise Refused(404, f"The model `{model}` does not exist.")
    if chat and body.get("tool_choice") == "auto" and not given.enable_auto_tool_choice:
        raise Refused(400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
    if chat:  # four more for each turn
        texts = [str(message.get("content") or "") for message in body.get("messages") or []]
        prompt = sum(len(tokenizer.encode(text)) + 4 for text in texts)
    else:
        prompt = count_prompt(body.get("prompt", ""), tokenizer)
    count = body.get("max_completion_tokens") or body.get("max_tokens") or (64 if chat else 16)
    if prompt + count > given.max_model_len:
        limit = f"This model's maximum context length is {given.max_model_len} tokens."
        raise Refused(400, f"{limit} However, you requested {count} output tokens and your prompt contains {prompt}.")
    options, stream = body.get("stream_options") or {}, bool(body.get("stream"))
    prefix, kind = ("chatcmpl-", "chat.completion") if chat else ("cmpl-", "text_completion")
    name = {"id": prefix + uuid.uuid4().hex[:16], "object": f"{kind}.chunk" if chat and stream else kind}
    head = {**name, "created": int(time.time()), "model": model}
    usage = bool(options.get("include_usage")), bool(options.get("continuous_usage_stats"))
    return Request(head, chat, prompt, int(count), stream, *usage)


def count_prompt(prompt: Any, tokenizer: Tokenizer) -> int:
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        return len(prompt)
    if isinstance(prompt, list) and len(prompt) == 1:
        return count_prompt(prompt[0], tokenizer)
    if not isinstance(prompt, str):
        raise Refused(400, "the quick image takes one prompt: a text or a list of token ids")
    return len(tokenizer.encode(prompt))


def whole(request: Request) -> dict[str, Any]:
    text = "".join(word(index) for index in range(request.count))
    message = {"role": "assistant", "content": text.strip(), "tool_calls": []}
    part: dict[str, Any] = {"message": message} if request.chat else {"text": text}
    choice = {"index": 0, **part, "logprobs": None, "finish_reason": "length", "stop_reason": None}
    return request.head | {"choices": [choice], "usage": request.usage(request.count)}


def chunk(request: Request, index: int) -> dict[str, Any]:
    """One token of a stream; index −1 is the role that a chat begins with."""
    text = word(index) if index >= 0 else ""
    first = {"role": "assistant", "content": ""} if index < 0 else {"content": text}
    part: dict[str, Any] = {"delta": first} if request.chat else {"text": text}
    finish = "length" if index + 1 == request.count else None
    row = request.head | {"choices": [{"index": 0, **part, "logprobs": None, "finish_reason": finish}]}
    if request.usage_always:
        row["usage"] = request.usage(index + 1)
    return row


def last(request: Request) -> dict[str, Any]:
    """The chunk with the usage and no choice."""
    return request.head | {"choices": [], "usage": request.usage(request.count)}


def error(status: int, message: str) -> dict[str, Any]:
    kind = {400: "BadRequestError", 401: "AuthenticationError", 404: "NotFoundError"}.get(status, "InternalServerError")
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}
