"""Known defects of tool calls."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cluster.lab.scripted.asked import Asked, Body
from cluster.lab.scripted.behaviour import Behaviour
from cluster.lab.scripted.forms import Document, Form
from cluster.lab.scripted.said import Call, Said

AUTO = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
Says = Callable[[Asked, Said], Said]


def _auto_refused(body: Body) -> tuple[int, Document] | None:
    wanted = body.get("tools") and body.get("tool_choice", "auto") == "auto"
    error = {"message": AUTO, "type": "BadRequestError", "param": None, "code": 400}
    return (400, {"error": error}) if wanted else None


def _no_tools(body: Body) -> tuple[int, Document] | None:
    message = f"registry.ollama.ai/library/{body['model']} does not support tools"
    error = {"message": message, "type": "api_error", "param": None, "code": None}
    return (400, {"error": error}) if body.get("tools") else None


def _each_call(change: Callable[[Call], Call], *, streamed: bool | None = None) -> Says:
    """Change every call; `streamed`: only where calls are streamed, or only where they are not."""

    def says(asked: Asked, said: Said) -> Said:
        concerned = streamed is None or streamed == asked.stream
        return replace(said, calls=tuple(map(change, said.calls))) if concerned else said

    return says


def _texts(change: Callable[[str], str]) -> Callable[[Call], Call]:
    """Change the texts among a call's arguments, which stay JSON."""

    def changed(call: Call) -> Call:
        arguments = {k: change(v) if isinstance(v, str) else v for k, v in json.loads(call.arguments).items()}
        return replace(call, arguments=json.dumps(arguments, ensure_ascii=False))

    return changed


def _delimited(call: Call) -> Call:
    r"""`{"city": "<|\Paris<|\"|"}`: Gemma's quotation marks, cut and half escaped, in text that was to be JSON."""
    arguments = json.loads(call.arguments)
    parts = [
        f'"{k}": "<|\\{v}<|\\"|"' if isinstance(v, str) else f'"{k}": {json.dumps(v)}' for k, v in arguments.items()
    ]
    return replace(call, arguments="{" + ", ".join(parts) + "}")


def gemma(call: Call) -> str:
    """A call as Gemma 4 writes it."""
    arguments = json.loads(call.arguments)
    told = (f'{k}:<|"|>{v}<|"|>' if isinstance(v, str) else f"{k}:{json.dumps(v)}" for k, v in arguments.items())
    return f"call:{call.name}{{{','.join(told)}}}"


def _leaks(asked: Asked, said: Said) -> Said:
    """After a tool's result, not streamed: the next call comes as text, and the answer ends as if it were one."""
    if asked.stream or not asked.has_results or not said.calls:
        return said
    text = "".join(f"<|tool_call>{gemma(call)}<tool_call|>" for call in said.calls)
    return replace(said, calls=(), content=text, finish="stop")


def _stripped(asked: Asked, said: Said) -> Said:
    leaked = _leaks(asked, said)
    return replace(leaked, content=re.sub(r'<\|?tool_call\|?>|<\|"\|>', "", leaked.content))


def _leaves(asked: Asked, said: Said) -> Said:
    """After a tool's result, not streamed: it says stop where the next call should come."""
    ends = not asked.stream and asked.has_results and said.calls
    return replace(said, calls=(), finish="stop", content="I will look at the balance next.") if ends else said


def _mutters(asked: Asked, said: Said) -> Said:
    """The mark that ends a call stands behind the answer to a tool's result, not streamed."""
    late = not asked.stream and asked.has_results and said.content
    return replace(said, content=said.content + "<tool_call|>") if late else said


def _unparsed(asked: Asked, said: Said) -> Said:
    """No parser: Hermes' calls stay in the text."""
    form = '<tool_call>\n{{"name": "{0.name}", "arguments": {0.arguments}}}\n</tool_call>'
    text = "\n".join(form.format(call) for call in said.calls)
    return replace(said, calls=(), content=text, finish="stop") if said.calls else said


def _other_tool(asked: Asked, said: Said) -> Said:
    """The first of the tools is called, whichever was right."""
    if len(asked.tools) < 2 or not said.calls:
        return said
    tool = asked.tools[0]["function"]
    made = {
        name: 1 if schema["type"] == "integer" else "x" for name, schema in tool["parameters"]["properties"].items()
    }
    return replace(said, calls=(replace(said.calls[0], name=tool["name"], arguments=json.dumps(made)),))


def _in_messages(change: Callable[[list[Any]], list[Any]]) -> dict[str, Any]:
    """Change the calls of documents and of a stream's events."""

    def of(part: Document) -> None:
        if part.get("tool_calls"):
            part["tool_calls"] = change(part["tool_calls"])

    def writes(document: Document) -> Document:
        for choice in document["choices"]:
            of(choice["message"])
        return document

    def sends(events: list[Document | None]) -> list[Document | None]:
        for event in events:
            for choice in event["choices"] if event else ():
                of(choice["delta"])
        return events

    return {"writes": writes, "sends": sends}


def _merged(calls: list[Any]) -> list[Any]:
    """All calls in one, as for a client that finds no index: names and arguments one behind the other."""
    function = {key: "".join(one["function"].get(key, "") for one in calls) for key in ("name", "arguments")}
    return [calls[0] | {"index": 0, "function": function}]


def _objects(calls: list[Any]) -> list[Any]:
    def read(function: Document) -> Document:
        return function | {"arguments": json.loads(function["arguments"])}

    return [one | {"function": read(one["function"])} for one in calls]


def _behind_twice(call: Call) -> Call:
    return replace(call, arguments=call.arguments * 2)


def _number_as_text(call: Call) -> Call:
    return replace(call, arguments=re.sub(r": (\d+)", r': "\1"', call.arguments))


def _first_lost(asked: Asked, said: Said) -> Said:
    """Of two streamed calls the first has lost its arguments."""
    if not asked.stream or len(said.calls) < 2:
        return said
    return replace(said, calls=(replace(said.calls[0], arguments="{}"), *said.calls[1:]))


WHOLE = Form(whole_calls=True)
TAGS = r"<(\w+)"

WRONG = (
    Behaviour("auto-refused", 'HTTP 400 for tool_choice "auto"', "write-up on MTP, May 2026", refuses=_auto_refused),
    Behaviour(
        "no-tools",
        "HTTP 400 for tools: the model has none",
        "Ollama, server/routes.go",
        refuses=_no_tools,
        owner="library",
        tells=None,
    ),
    Behaviour(
        "html-doubled",
        "`<<htmlhtml` in streamed arguments",
        "vLLM PR 38909 (issue 38910)",
        says=_each_call(_texts(lambda text: re.sub(TAGS, r"<<\1\1", text)), streamed=True),
    ),
    Behaviour(
        "html-brackets",
        "`<<html` in streamed arguments",
        "write-up on Gemma 4 31B, April 2026",
        says=_each_call(_texts(lambda text: re.sub(TAGS, r"<<\1", text)), streamed=True),
    ),
    Behaviour(
        "html-names",
        "`<htmlhtml` in streamed arguments",
        "vLLM PR 38909 (issue 38910)",
        says=_each_call(_texts(lambda text: re.sub(TAGS, r"<\1\1", text)), streamed=True),
    ),
    Behaviour(
        "html-lost",
        "`<` is lost in streamed arguments",
        "vLLM issue 38910",
        says=_each_call(_texts(lambda text: text.replace("<p", "p")), streamed=True),
    ),
    Behaviour(
        "marks-in-json",
        r'`"<|\Paris<|\"|"` in streamed arguments',
        "vLLM issue 38946",
        says=_each_call(_delimited, streamed=True),
    ),
    Behaviour(
        "marks-in-texts",
        'streamed arguments are JSON with `<|"` in it',
        "vLLM issue 44522",
        says=_each_call(_texts(lambda text: f'<|"{text}"|>'), streamed=True),
    ),
    Behaviour(
        "cut-json",
        "the last brace of streamed arguments is lost",
        "vLLM issue 38946",
        says=_each_call(lambda call: replace(call, arguments=call.arguments[:-1]), streamed=True),
    ),
    Behaviour(
        "json-twice",
        "streamed arguments come twice",
        "parsers that send the whole at the end again",
        says=_each_call(_behind_twice, streamed=True),
    ),
    Behaviour("call-leaks", "not streamed, after a result: a call as text", "vLLM issue 39043", says=_leaks),
    Behaviour("call-leaks-bare", "the same, its marks stripped", "vLLM issues 39043, 38855", says=_stripped),
    Behaviour("loop-ends", "not streamed, after a result: stop instead of a call", "vLLM issue 39043", says=_leaves),
    Behaviour("mark-behind", "not streamed, after a result: a mark behind the text", "vLLM issue 39043", says=_mutters),
    Behaviour("no-parser", "calls stay in the text", "SGLang without --tool-call-parser", says=_unparsed),
    Behaviour(
        "first-arguments-lost", "the first of two streamed calls has no arguments", "vLLM issue 41967", says=_first_lost
    ),
    Behaviour("merged", "two calls come as one", "Ollama issue 7881", form=WHOLE, **_in_messages(_merged)),
    Behaviour(
        "one-index",
        "all streamed calls have index 0",
        "Ollama issue 7881",
        form=WHOLE,
        sends=_in_messages(lambda calls: [one | {"index": 0} for one in calls])["sends"],
    ),
    Behaviour("objects", "arguments are objects, not text", "Ollama's own API", form=WHOLE, **_in_messages(_objects)),
    Behaviour("no-ids", "calls have no id", "OpenAI's API", says=_each_call(lambda call: replace(call, id=""))),
    Behaviour(
        "one-id", "all calls have one id", "OpenAI's API", says=_each_call(lambda call: replace(call, id="call_0"))
    ),
    Behaviour("other-tool", "another tool is called", "models too small", says=_other_tool),
    Behaviour("number-as-text", "a number is a text", "OpenAI's API", says=_each_call(_number_as_text)),
    Behaviour(
        "stop-beside-calls",
        "finish_reason is stop beside calls",
        "write-up on Gemma 4 31B, April 2026",
        says=lambda asked, said: replace(said, finish="stop") if said.calls else said,
    ),
)
