"""Which tools a conversation wants called, with which arguments: read from the tools' schemas, the user's text and
the results that are there. Only how a value of some name is written in a text is known beforehand."""

from __future__ import annotations

import json
import re
from typing import Any

from cluster.lab.scripted.asked import Asked
from cluster.lab.scripted.said import Call

WRITTEN = {
    "city": r"\bin ([A-Z]\w+)",
    "minutes": r"(\d+) minutes",
    "label": r"label (\w+)",
    "path": r"as (\S+\.\w+)",
    "content": r"(?s)\n\n(.+)",
    "order": r"order ([A-Z]-\d+)",
    "product": r"many (\w+ \w+) are",
    "name": r"customer ([A-Z]\w+ [A-Z]\w+)",
    "customer": r"customer (\d+)",
}
GENERAL = {"find", "look", "send", "with", "what", "many", "where", "number", "piece"}
"""Words in names and descriptions of tools that do not tell what they are for."""


def calls(asked: Asked) -> tuple[Call, ...]:
    """The calls to make now: of tools that the text speaks of, not called yet, whose arguments are all known."""
    done = {one["function"]["name"] for message in asked.messages for one in message.get("tool_calls") or ()}
    known = _results(asked)
    found: list[Call] = []
    for tool in (one["function"] for one in asked.tools):
        at = _spoken_of(tool, asked.text)
        if tool["name"] in done or at is None:
            continue
        arguments = {
            name: value
            for name, schema in tool["parameters"]["properties"].items()
            if (value := known.get(name, _written(name, schema, asked.text[at:], asked.text))) is not None
        }
        if set(tool["parameters"]["required"]) <= arguments.keys():
            number = len(done) + len(found)
            found.append(Call(f"call_{number:08x}", tool["name"], json.dumps(arguments, ensure_ascii=False)))
    return tuple(found)


def report(asked: Asked) -> str:
    """A sentence with all that the tools gave; empty when there is nothing."""
    facts = ", ".join(f"{name} {value}" for name, value in _results(asked).items())
    return f"This is what I found: {facts}." if facts else ""


def _results(asked: Asked) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for message in asked.messages:
        if message["role"] == "tool":
            found |= json.loads(message["content"])
    return found


def _spoken_of(tool: dict[str, Any], text: str) -> int | None:
    """Where a text names what a tool is for, by a word of its name or description; None when nowhere."""
    words = re.findall(r"[a-z]{4,}", f"{tool['name']} {tool['description']}".lower().replace("_", " "))
    stems = {word.rstrip("s") for word in words} - GENERAL
    places = [found.start() for stem in stems if (found := re.search(rf"\b{stem}", text.lower()))]
    return min(places, default=None)


def _written(name: str, schema: dict[str, Any], rest: str, text: str) -> Any:
    """A value as the text gives it, first where the tool is spoken of; None when it does not."""
    pattern = WRITTEN.get(name, r"(?!)")
    found = re.search(pattern, rest) or re.search(pattern, text)
    if not found:
        return None
    return int(found.group(1)) if schema["type"] == "integer" else found.group(1)
