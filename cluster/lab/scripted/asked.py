"""What a request for a chat completion asks, and how it is refused: in vLLM 0.32's words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Body = dict[str, Any]
PICTURE_TOKENS = 256
TURN_TOKENS = 4
MOST_TOKENS = 16384
"""Of an answer whose request names no limit."""


class Refused(Exception):
    """An HTTP error: (status, message)."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. `thinking`: asked for, forbidden, or None: left to the server."""

    model: str
    messages: tuple[Body, ...]
    tools: tuple[Body, ...] = ()
    stream: bool = False
    wants_usage: bool = False
    max_tokens: int = MOST_TOKENS
    stop: tuple[str, ...] = ()
    thinking: bool | None = None

    @property
    def text(self) -> str:
        """The text of the user's last message."""
        return next((text_of(one) for one in reversed(self.messages) if one["role"] == "user"), "")

    @property
    def pictures(self) -> tuple[str, ...]:
        """Addresses of the pictures in all messages."""
        parts = (part for one in self.messages if isinstance(one["content"], list) for part in one["content"])
        return tuple(part["image_url"]["url"] for part in parts if part["type"] == "image_url")

    @property
    def has_results(self) -> bool:
        """Whether a tool has been called before."""
        return any(one["role"] == "tool" for one in self.messages)

    @property
    def prompt_tokens(self) -> int:
        """The length of the prompt."""
        turns = sum(TURN_TOKENS + len(tokens(text_of(one))) for one in self.messages)
        return turns + PICTURE_TOKENS * len(self.pictures) + len(tokens(str(self.tools or "")))


def read(body: Body, names: tuple[str, ...], limit: int) -> Asked:
    """Read a request. Raises Refused as vLLM does: another model's name, more tokens than the context has."""
    if body["model"] not in names:
        raise Refused(404, f"The model `{body['model']}` does not exist.")
    longest = body.get("max_tokens") or limit
    if longest > limit:
        wrong = f"max_tokens={longest} cannot be greater than max_model_len={limit}."
        raise Refused(400, f"{wrong} Please request fewer output tokens.")
    asked = read_freely(body)
    if asked.prompt_tokens > limit:
        raise Refused(
            400,
            f"This model's maximum context length is {limit} tokens. However, your prompt contains "
            f"{asked.prompt_tokens} input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt.",
        )
    return asked


def read_freely(body: Body) -> Asked:
    """Read a request, whatever it asks."""
    stop = body.get("stop") or ()
    return Asked(
        model=body["model"],
        messages=tuple(body["messages"]),
        tools=tuple(body.get("tools") or ()) if body.get("tool_choice") != "none" else (),
        stream=bool(body.get("stream")),
        wants_usage=bool((body.get("stream_options") or {}).get("include_usage")),
        max_tokens=body.get("max_tokens") or MOST_TOKENS,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        thinking=_thinking(body),
    )


def _thinking(body: Body) -> bool | None:
    """By the template's switch (vLLM, SGLang, llama.cpp), or by effort (OpenAI, Ollama)."""
    if "reasoning_effort" in body:
        return bool(body["reasoning_effort"] != "none")
    told = (body.get("chat_template_kwargs") or {}).get("enable_thinking")
    return None if told is None else bool(told)


def text_of(message: Body) -> str:
    """The text of a message: of its content, a list of parts or not, and of its calls."""
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "\n".join(part["text"] for part in content if part["type"] == "text")
    return content + "".join(one["function"]["arguments"] for one in message.get("tool_calls") or ())


def tokens(text: str) -> list[str]:
    """A text in pieces as long as a tokenizer's: words of at most eight letters with the blanks before them."""
    return list(_pieces(text))


def _pieces(text: str) -> Iterator[str]:
    return (found.group() for found in re.finditer(r"\s*\w{1,8}|\s*[^\w\s]|\s+", text))
