"""The named shapes of `cluster bench --suite`: data only. Light to import, since the command line lists the names.

Each suite has the shape of a table that people have published about these models on a DGX Spark, so that a reader can
lay one beside the other. A part is one measurement with its own conditions and its own result file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Part:
    """One measurement of a suite. `question` ends the text of a chat, `extra` are more fields of each request."""

    title: str
    pp: tuple[int, ...] = (128,)
    tg: tuple[int, ...] = (128,)
    depth: tuple[int, ...] = (0,)
    concurrency: tuple[int, ...] = (1,)
    runs: int = 3
    depth_mode: Literal["cold", "prefix-caching"] = "cold"
    chat: bool = False
    natural_stop: bool = False
    question: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Suite:
    """What a suite answers, and its parts in order."""

    about: str
    parts: tuple[Part, ...]


WEATHER = "What is the weather in Paris right now, in degrees Celsius?"
TOOLS = {
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": "The weather in a city at this moment",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "city": {"type": "string", "description": "name of the city"},
                        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                    },
                    "required": ["city"],
                },
            },
        }
    ],
    "tool_choice": "auto",
}

SUITES = {
    "single-stream": Suite(
        "one client, outputs of 100, 500 and 2000 tokens",
        (Part("one client", tg=(100, 500, 2000)),),
    ),
    "concurrency": Suite(
        "1 to 16 clients: all together and each",
        (Part("clients at the same time", tg=(256,), concurrency=(1, 2, 4, 8, 16)),),
    ),
    "prefix-cache": Suite(
        "a prefix of 8192 tokens, cold and from the cache",
        (Part("prefix of 8192 tokens", pp=(32,), tg=(16,), depth=(8192,), depth_mode="prefix-caching"),),
    ),
    "long-context": Suite(
        "cold prompts of 8K, 32K and 100K tokens",
        (Part("cold prompts", pp=(8192, 32768, 100_000), tg=(16,)),),
    ),
    "tool-calls": Suite(
        "a chat without tools and with one that it should call",
        (
            Part("without tools", pp=(64,), tg=(256,), chat=True, natural_stop=True, question=WEATHER),
            Part("with a tool", pp=(64,), tg=(256,), chat=True, natural_stop=True, question=WEATHER, extra=TOOLS),
        ),
    ),
    "sequential": Suite(
        "five outputs of 800 tokens one after the other, then three of 500 at the same time",
        (Part("one after the other", tg=(800,), runs=5), Part("three at the same time", tg=(500,), concurrency=(3,))),
    ),
    "matrix": Suite(
        "pp 128, 512, 2048 × tg 32, 128 × 1, 2, 4 clients",
        (Part("matrix", pp=(128, 512, 2048), tg=(32, 128), concurrency=(1, 2, 4)),),
    ),
}
