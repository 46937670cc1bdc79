"""Whether an answer calls tools as it should: the form of calls, their arguments against the schema; pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from cluster.probe.answer import Answer, ToolCall
from cluster.probe.case import Defect, Subject, Verdict, failed, skipped
from cluster.probe.chat import Tool, leaked, read_arguments
from cluster.probe.defects import ARGUMENTS_LOST, BROKEN_JSON, DOUBLED, LOOP_ENDS
from cluster.spark.sanity import TOOL_MARKS

REFUSALS = re.compile(
    r"""["']?auto["']?\ tool\ choice\ requires  # vLLM without a parser
    | tool-call-parser | (?i:tools\ param\ requires) | (?i:unsupported\ param:\ tools)  # vLLM, llama.cpp
    | (?i:does\ not\ support\ tools)            # Ollama
    """,
    re.VERBOSE,
)
OTHER_PARSER = "the server has a parser, but not for what this model writes: --tool-call-parser names it"
LACKS_TOOLS = re.compile(r"does not support tools", re.IGNORECASE)

TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "array": (list,),
    "object": (dict,),
}  # fmt: skip

PARSERS = (("gemma-?4", "gemma4"), (r"qwen-?3(\.[5-9]|-?coder)", "qwen3_coder"), ("qwen", "hermes"),
           ("gpt-oss", "openai"))  # fmt: skip
"""vLLM's parser by the model's name (its documentation on tool calling)."""


def parser_for(model: str) -> str:
    """vLLM's parser for a model's tool calls; NAME when its name does not tell."""
    return next((parser for pattern, parser in PARSERS if re.search(pattern, model.lower())), "NAME")


def flags_to_add(subject: Subject) -> str:
    """What makes a server take tools."""
    if subject.engine == "llamacpp":
        return "start llama-server with --jinja and a chat template that knows tools"
    if subject.engine == "sglang":
        return "start SGLang with --tool-call-parser"
    parser = parser_for(subject.model)
    if subject.tools is None:
        return f"start vLLM with --enable-auto-tool-choice --tool-call-parser {parser}"
    return f"cluster up … --set vllm.enable-auto-tool-choice=true --set vllm.tool-call-parser={parser}"


def refused(answer: Answer) -> bool:
    """Whether the server does not take tools at all."""
    return bool(answer.error and REFUSALS.search(answer.error))


def judge_calls(subject: Subject, answer: Answer, tools: Sequence[Tool], *, later: bool = False) -> Verdict | None:
    """What is wrong with an answer that has to call tools; None when it calls some, each in good form.

    `later`: it follows a tool's result.
    """
    wrong = _not_called(subject, answer)
    if wrong:
        return wrong
    for number, call in enumerate(answer.tool_calls):
        ids = [other.id for other in answer.tool_calls[:number]]
        wrong = judge_call(answer, call, tools) or _wrong_id(answer, call, ids)
        if wrong:
            return wrong
    if mark := leaked(answer):
        defect = loop_defect(subject, answer) if later else None
        return failed(f"besides the call, {mark!r} stands in the text", answer, defect=defect)
    if answer.finish_reason != "tool_calls":
        given = repr(answer.finish_reason) if answer.finish_reason else "missing"
        why = f"finish_reason is {given} beside tool calls, not 'tool_calls'"
        defect = loop_defect(subject, answer) if answer.finish_reason == "stop" else None
        return failed(f"{why}: clients that look at it stop there", answer, defect=defect)
    return None


def _not_called(subject: Subject, answer: Answer) -> Verdict | None:
    """No answer, or one without calls."""
    if refused(answer):
        return skipped("the server takes no tools, see tools-auto")
    if answer.error:
        return failed("the server answered with an error", answer)
    if answer.finish_reason == "length":
        return cut(answer)
    if answer.tool_calls:
        return None
    if mark := leaked(answer):
        why = f"the call stands in the text ({mark!r}), not in tool_calls"
        return failed(why, answer, remedy=OTHER_PARSER if subject.tools else flags_to_add(subject))
    return failed("no tool was called", answer)


def cut(answer: Answer) -> Verdict:
    """An answer that the limit of tokens ended: while it was thinking nothing is known, else it does not stop."""
    tokens = f"{answer.completion_tokens} tokens" if answer.completion_tokens else "the limit of tokens"
    if answer.reasoning and not answer.content and not answer.tool_calls:
        return skipped(f"still thinking after {tokens}: not judged", answer)
    return failed(f"it did not come to an end within {tokens}", answer)


def loop_defect(subject: Subject, answer: Answer) -> Defect | None:
    """The known defect of vLLM that marks in a text, or a loop that ends early, look like when nothing is streamed."""
    return LOOP_ENDS if not answer.events and subject.engine in ("", "vllm") else None


def _wrong_id(answer: Answer, call: ToolCall, others: Sequence[str]) -> Verdict | None:
    if not call.id:
        return failed(f"the call of {call.name} has no id, so its result cannot be given back", answer)
    if call.id in others:
        return failed(f"two calls have the id {call.id!r}", answer)
    return None


def judge_call(answer: Answer, call: ToolCall, tools: Sequence[Tool]) -> Verdict | None:
    """What is wrong with one call; None when nothing is."""
    names = [one["function"]["name"] for one in tools]
    if not call.is_text:
        return failed(f"the arguments of {call.name} are an object, where the API has a text", answer)
    if call.name in {one + other for one in names for other in names}:
        return failed(f"two calls come as one, {call.name!r}: they have the same index", answer)
    if call.name not in names:
        return failed(f"it calls {call.name!r}; offered were {', '.join(names)}", answer)
    arguments, wrong = read_arguments(call)
    streamed, half = bool(answer.events), len(call.arguments) // 2
    if wrong and call.arguments[:half] == call.arguments[half:]:
        return failed(f"the arguments of {call.name} come twice", answer)
    if wrong:
        return failed(wrong, answer, defect=_of_text(call.arguments) if streamed else None)
    if mark := TOOL_MARKS.search(call.arguments.replace('\\"', '"')):
        why = f"the model's own marks ({mark.group()!r}) are in the arguments of {call.name}"
        return failed(why, answer, defect=BROKEN_JSON if streamed else None)
    schema = tools[names.index(call.name)]["function"]["parameters"]
    wrong = against(schema, arguments)
    lost = ARGUMENTS_LOST if streamed and not arguments and len(answer.tool_calls) > 1 else None
    return failed(f"{call.name}: {wrong}", answer, defect=lost) if wrong else None


def _of_text(arguments: str) -> Defect | None:
    """The known defect that unreadable arguments look like."""
    if is_doubled(arguments):
        return DOUBLED
    return BROKEN_JSON if TOOL_MARKS.search(arguments) else None


def is_doubled(text: str) -> bool:
    """Whether markup came twice: `<<`, or the name of a tag twice in a row."""
    return bool(re.search(r"<<|<(\w{2,})\1[\s>]", text))


def against(schema: dict[str, Any], arguments: dict[str, Any]) -> str:
    """What of arguments does not fit a tool's schema: missing, of another type, not one of the allowed values."""
    for name in schema["required"]:
        if name not in arguments:
            return f"the argument {name!r} is missing"
    for name, value in arguments.items():
        told = schema["properties"].get(name)
        if told and not _is_a(told["type"], value):
            return f"the argument {name!r} is {value!r}, not of type {told['type']}"
        if told and value not in told.get("enum", [value]):
            return f"the argument {name!r} is {value!r}, allowed is {', '.join(map(str, told['enum']))}"
    return ""


def _is_a(kind: str, value: Any) -> bool:
    """Whether a value is of a JSON schema's type; a whole number may be written as a float."""
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, TYPES[kind]) or (kind == "integer" and isinstance(value, float) and value.is_integer())
