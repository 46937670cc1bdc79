"""The form that a server gives to an answer: one document, or the events of a stream. All that a Form can say is
right, servers differ in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cluster.lab.scripted.asked import Asked, tokens
from cluster.lab.scripted.said import Call, Said

Document = dict[str, Any]
HEAD: Document = {"id": "chatcmpl-0123456789abcdef", "created": 1790000000}


@dataclass(frozen=True, slots=True)
class Form:
    """How one server writes what it says. What is not named is as vLLM 0.32 does it.

    `reasoning`: the name of the channel. `opens`: the first event has the role alone. `each`: fields that stand in the
    delta of every event beside its own; `choice`: fields beside a delta or message; `event`: fields of every event;
    `extra`: fields beside the usage. `filler`: the content of a message that has none. `no_calls`: an empty list of
    calls stands in messages without any. `portion`: tokens an event, 0 for all at once. `whole_calls`: a call comes in
    one event. `gaps`: an event without text follows each that has some. `last`: the reason of the end comes with the
    last text, not in an event of its own. `told`: the model's name in answers, where it is not the one asked for. The
    others are about bytes: the end of a line, what begins an event, comments between events, characters cut in two, a
    stream that ends with its connection.
    """

    reasoning: str = "reasoning"
    opens: bool = True
    each: Document = field(default_factory=dict)
    choice: Document = field(default_factory=lambda: {"logprobs": None})
    event: Document = field(default_factory=dict)
    filler: str | None = None
    no_calls: bool = False
    portion: int = 1
    whole_calls: bool = False
    gaps: bool = False
    last: bool = False
    extra: Document = field(default_factory=dict)
    told: str = ""
    newline: str = "\n"
    data: str = "data: "
    comments: bool = False
    splits: bool = False
    until_close: bool = False


def document(form: Form, said: Said) -> Document:
    """An answer in one piece."""
    calls = [{"id": one.id, "type": "function", "function": _function(one)} for one in said.calls]
    message: Document = {"role": "assistant", "content": said.content or form.filler}
    if said.reasoning or form.no_calls:
        message[form.reasoning] = said.reasoning or None
    if calls or form.no_calls:
        message["tool_calls"] = calls
    choice = {
        "index": 0,
        "message": message,
        **form.choice,
        "finish_reason": said.finish,
        "stop_reason": said.stopped_at,
    }
    head = HEAD | {"object": "chat.completion", "model": form.told or said.model}
    return head | {"choices": [choice], "usage": usage(said)} | form.extra


def _function(call: Call) -> Document:
    return {"name": call.name, "arguments": call.arguments}


def usage(said: Said) -> Document:
    """Token counts."""
    total = said.prompt_tokens + said.completion_tokens
    return {"prompt_tokens": said.prompt_tokens, "completion_tokens": said.completion_tokens, "total_tokens": total}


def events(form: Form, asked: Asked, said: Said) -> list[Document]:
    """The events of a stream, without the [DONE] behind them."""
    head = HEAD | {"object": "chat.completion.chunk", "model": form.told or said.model} | form.event
    deltas = list(_deltas(form, said))
    rows = [head | {"choices": [_choice(form, delta)]} for delta in deltas]
    if not form.last or not deltas:
        rows.append(head | {"choices": [_choice(form, form.each if form.each else {})]})
    end = {"finish_reason": said.finish, "stop_reason": said.stopped_at}
    rows[-1]["choices"][0] |= end
    if form.opens:
        first = {"role": "assistant", "content": ""} | form.each
        rows.insert(0, head | {"choices": [_choice(form, first)]})
    if asked.wants_usage:
        rows.append(head | {"choices": [], "usage": usage(said)} | form.extra)
    return rows


def _choice(form: Form, delta: Document) -> Document:
    return {"index": 0, "delta": delta, **form.choice, "finish_reason": None}


def _deltas(form: Form, said: Said) -> Iterator[Document]:
    """The deltas with something in them: thoughts, text, calls."""
    for name, text in ((form.reasoning, said.reasoning), ("content", said.content)):
        for portion in _portions(form, text):
            yield {**form.each, name: portion}
            if form.gaps:
                yield {**form.each, name: ""}
    for index, call in enumerate(said.calls):
        whole = {"index": index, "id": call.id, "type": "function", "function": _function(call)}
        if form.whole_calls:
            yield {**form.each, "tool_calls": [whole]}
            continue
        yield {**form.each, "tool_calls": [whole | {"function": {"name": call.name, "arguments": ""}}]}
        for portion in _portions(form, call.arguments):
            yield {**form.each, "tool_calls": [{"index": index, "function": {"arguments": portion}}]}


def _portions(form: Form, text: str) -> Iterator[str]:
    """A text in as many tokens at once as the form says."""
    pieces = tokens(text)
    size = form.portion or max(1, len(pieces))
    return ("".join(pieces[at : at + size]) for at in range(0, len(pieces), size))
