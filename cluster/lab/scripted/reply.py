"""What a server of some behaviour answers to one HTTP request; pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cluster.lab.scripted import brain
from cluster.lab.scripted.asked import Body, Refused, read, read_freely
from cluster.lab.scripted.behaviour import Behaviour
from cluster.lab.scripted.forms import Document, Form, document, events
from cluster.lab.scripted.right import RIGHT
from cluster.lab.scripted.wrong import WRONG

BEHAVIOURS = {one.name: one for one in (*RIGHT, *WRONG)}
KINDS = {400: "BadRequestError", 404: "NotFoundError"}


@dataclass(frozen=True, slots=True)
class Reply:
    """The bytes of an answer, in the portions in which they are sent, and whether the connection closes then."""

    portions: tuple[bytes, ...]
    closes: bool = False


def reply(behaviour: Behaviour, path: str, body: Body | None) -> Reply:
    """One answer, headers and all; without portions none ever comes."""
    if path.endswith("/v1/models"):
        return whole(200, _models(behaviour))
    if path.endswith("/health"):
        return whole(200, {})
    if not path.endswith("/v1/chat/completions") or body is None:
        return whole(404, {"detail": "Not Found"})
    if behaviour.silent:
        return Reply(())
    full = _complete(behaviour, body)
    if behaviour.ends == 1.0:
        return full
    data = b"".join(full.portions)
    return Reply((data[: round(len(data) * behaviour.ends)],), closes=True)


def _models(behaviour: Behaviour) -> Document:
    """/v1/models; a second name has the first one's root, as vLLM has it."""
    told = {} if behaviour.tells is None else {"max_model_len": behaviour.tells}
    base = {"object": "model", "created": 1790000000, "owned_by": behaviour.owner, "root": behaviour.names[0], **told}
    return {"object": "list", "data": [{"id": name, **base} for name in behaviour.lists or behaviour.names]}


def _complete(behaviour: Behaviour, body: Body) -> Reply:
    refused = behaviour.refuses(body)
    if refused:
        return whole(*refused)
    try:
        asked = read_freely(body) if behaviour.limit is None else read(body, behaviour.names, behaviour.limit)
        asked = behaviour.reads(asked)
        said = behaviour.says(asked, brain.answer(asked, thinks=behaviour.thinks))
    except Refused as error:
        return whole(error.args[0], error_of(*error.args))
    if not asked.stream:
        return whole(200, behaviour.writes(document(behaviour.form, said)))
    rows: list[Document | None] = [*events(behaviour.form, asked, said), None]
    return streamed(behaviour.form, behaviour.sends(rows))


def error_of(status: int, message: str) -> Document:
    """An error as vLLM words it."""
    return {
        "error": {"message": message, "type": KINDS.get(status, "InternalServerError"), "param": None, "code": status}
    }


def whole(status: int, value: Any) -> Reply:
    """An answer in one piece."""
    data = json.dumps(value, ensure_ascii=False).encode()
    head = f"HTTP/1.1 {status} Said\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return Reply((head.encode() + data,))


def streamed(form: Form, rows: list[Document | None]) -> Reply:
    """Server-sent events, each a portion of its own, or two, cut within a character."""
    framing = "Connection: close" if form.until_close else "Transfer-Encoding: chunked"
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n{framing}\r\n\r\n".encode()
    portions = [portion for row in rows for portion in _portions(form, row)]
    if form.until_close:
        return Reply((head, *portions), closes=True)
    return Reply((head, *(b"%x\r\n%s\r\n" % (len(one), one) for one in portions), b"0\r\n\r\n"))


def _portions(form: Form, row: Document | None) -> Iterator[bytes]:
    text = "[DONE]" if row is None else json.dumps(row, ensure_ascii=False)
    if form.comments:
        yield f": still here{form.newline}{form.newline}".encode()
    data = f"{form.data}{text}{form.newline}{form.newline}".encode()
    cut = next((at for at, byte in enumerate(data) if byte >= 0x80), -1) + 1
    if form.splits and cut:
        yield data[:cut]
        data = data[cut:]
    yield data
