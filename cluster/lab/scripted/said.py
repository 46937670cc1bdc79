"""What a model says to a request, before any server has put it into a form."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cluster.lab.scripted.asked import Asked, tokens


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool; `arguments` as JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Said:
    """One answer. `finish`: stop, length or tool_calls; `stopped_at`: the stop string that ended it."""

    model: str
    content: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    finish: str = "stop"
    stopped_at: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0


def finished(asked: Asked, said: Said) -> Said:
    """An answer within its limits: ended before a stop string and at max_tokens, its tokens counted."""
    content, stopped_at = said.content, None
    for stop in asked.stop:
        if stop in content:
            content, stopped_at = content.partition(stop)[0], stop
    said = replace(said, content=content, stopped_at=stopped_at, finish="tool_calls" if said.calls else "stop")
    return replace(_cut(said, asked.max_tokens), prompt_tokens=asked.prompt_tokens)


def _cut(said: Said, most: int) -> Said:
    """The first tokens of an answer: its thoughts, its text, its calls. A call that does not fit is not made."""
    reasoning, content = tokens(said.reasoning), tokens(said.content)
    calls = sum(len(tokens(call.name + call.arguments)) for call in said.calls)
    spent = len(reasoning) + len(content) + calls
    if spent <= most:
        return replace(said, completion_tokens=spent)
    kept = "".join(content[: max(0, most - len(reasoning))])
    said = replace(said, reasoning="".join(reasoning[:most]), content=kept, calls=())
    return replace(said, finish="length", stopped_at=None, completion_tokens=most)
