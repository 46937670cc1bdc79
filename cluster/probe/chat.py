"""The bodies that cases send, the tools they offer, and how arguments of calls are read; pure.

Bodies are greedy (temperature 0, a fixed seed) and have a limit of tokens, so that a probe ends and repeats. What a
server refuses of OPTIONAL_FIELDS is left out by whoever drives the case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from cluster.bench.records import Ask
from cluster.probe.answer import Answer, ToolCall
from cluster.probe.case import Subject
from cluster.spark import sanity

CHAT = "/v1/chat/completions"
OPTIONAL_FIELDS = ("stream_options", "seed", "temperature", "chat_template_kwargs", "reasoning_effort")
MAX_TOKENS = 2048
"""Of an answer that may think first. A 31B on one Spark says about 7 tokens a second."""

Message = dict[str, Any]
Tool = dict[str, Any]


def chat(
    subject: Subject,
    messages: str | Sequence[Message],
    *,
    tools: Sequence[Tool] = (),
    tool_choice: str = "auto",
    stream: bool = False,
    max_tokens: int = MAX_TOKENS,
    thinking: bool | None = None,
    **more: Any,
) -> Ask:
    """A chat completion; a text alone is the user's only message.

    `thinking`: asked for or forbidden where the server knows how; None leaves it to the server, as most clients do.
    `more` goes into the body as it is.
    """
    said = [user(messages)] if isinstance(messages, str) else list(messages)
    limit = subject.limit or subject.configured
    body: dict[str, Any] = {"model": subject.model, "messages": said}
    body["max_tokens"] = min(max_tokens, limit // 2) if limit else max_tokens
    body |= {"temperature": 0, "seed": 1, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    if tools:
        body |= {"tools": list(tools), "tool_choice": tool_choice}
    return Ask(CHAT, body | _thinking(subject, thinking) | more)


def _thinking(subject: Subject, thinking: bool | None) -> dict[str, Any]:
    """How an engine is told to think or not: vLLM, SGLang and llama.cpp by template, Ollama by effort."""
    if thinking is None:
        return {}
    if subject.engine == "ollama":
        return {"reasoning_effort": "medium" if thinking else "none"}
    return {"chat_template_kwargs": {"enable_thinking": thinking}}


def without(ask: Ask, name: str) -> Ask:
    """The same request without one field of its body, where it has one."""
    if ask.body is None:
        return ask
    return Ask(ask.path, {key: value for key, value in ask.body.items() if key != name}, ask.method)


def user(content: Any) -> Message:
    """A message of the user: text, or a list of parts (text, image_url)."""
    return {"role": "user", "content": content}


def system(text: str) -> Message:
    """The instruction before everything."""
    return {"role": "system", "content": text}


def result(call: ToolCall, content: str) -> Message:
    """What a tool gave back."""
    return {"role": "tool", "tool_call_id": call.id, "content": content}


def tool(name: str, about: str, parameters: dict[str, dict[str, Any]], required: Sequence[str] | None = None) -> Tool:
    """A tool as OpenAI's API has it; `parameters` by name, as JSON schema. All are required unless some are named."""
    schema = {
        "type": "object",
        "properties": parameters,
        "required": list(parameters if required is None else required),
    }
    return {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}


def read_arguments(call: ToolCall) -> tuple[dict[str, Any], str]:
    """A call's arguments and what is wrong with their form: empty when they are a JSON object."""
    try:
        found = orjson.loads(call.arguments)
    except ValueError:
        return {}, f"the arguments of {call.name} are not JSON"
    if not isinstance(found, dict):
        return {}, f"the arguments of {call.name} are JSON, but no object"
    return found, ""


def leaked(answer: Answer) -> str:
    """Marks in the text that a parser should have taken away, as they stand there; empty when there are none."""
    return sanity.leaked(answer.content) or sanity.thinks_aloud(answer.content)
