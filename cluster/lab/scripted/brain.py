"""The pretended model: reads a conversation and answers it, from what stands there, what it sees and what it knows."""

from __future__ import annotations

from dataclasses import replace

from cluster.lab.scripted import calling, known, seen
from cluster.lab.scripted.asked import Asked
from cluster.lab.scripted.said import Said, finished


def answer(asked: Asked, *, thinks: bool = False) -> Said:
    """The right answer. `thinks`: whether it does when it is neither asked to nor forbidden."""
    said = _without_thoughts(asked)
    if thinks if asked.thinking is None else asked.thinking:
        said = replace(said, reasoning=known.thoughts(asked.text))
    return finished(asked, said)


def _without_thoughts(asked: Asked) -> Said:
    calls = calling.calls(asked)
    if calls:
        return Said(asked.model, calls=calls)
    if asked.pictures:
        return Said(asked.model, "\n".join(map(seen.describe, asked.pictures)))
    return Said(asked.model, calling.report(asked) or known.reply(asked.text))
