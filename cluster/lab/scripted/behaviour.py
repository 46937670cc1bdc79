"""A behaviour: where a server departs from the right answer, as small changes on the way from request to bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cluster.lab.scripted.asked import Asked, Body
from cluster.lab.scripted.forms import Document, Form
from cluster.lab.scripted.said import Said

MODEL = "gemma-4-31b"
LIMIT = 65536
PLAIN = Form()


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One way to serve. `source`: who met it.

    `refuses`: an HTTP error for a body, None to serve it. `reads`: what it makes of a request; `says`: of the right
    answer; `writes`: of an answer's document; `sends`: of a stream's events, where None is the [DONE]. `ends`: after
    which part of the bytes of a chat the connection closes; `silent`: no byte ever comes. `names`: its models, `lists`
    those that /v1/models has, where they are others. `limit`: tokens of its context, None for one that refuses neither
    lengths nor names; `tells`: what it says of it. `thinks`: unless it is forbidden.
    """

    name: str
    what: str
    source: str
    form: Form = PLAIN
    refuses: Callable[[Body], tuple[int, Document] | None] = lambda body: None
    reads: Callable[[Asked], Asked] = lambda asked: asked
    says: Callable[[Asked, Said], Said] = lambda asked, said: said
    writes: Callable[[Document], Document] = lambda document: document
    sends: Callable[[list[Document | None]], list[Document | None]] = lambda events: events
    ends: float = 1.0
    silent: bool = False
    names: tuple[str, ...] = (MODEL,)
    lists: tuple[str, ...] = ()
    owner: str = "vllm"
    limit: int | None = LIMIT
    tells: int | None = LIMIT
    thinks: bool = False
