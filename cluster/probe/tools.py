"""Does the server call tools: the eight cases of the write-up on Gemma 4 31B, and two more that cost people a day."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from unicodedata import combining, normalize

import orjson

from cluster.bench.loader import Ask
from cluster.probe.ask import (
    DEFECTS,
    Case,
    CaseOver,
    ProbedServer,
    Reply,
    Talk,
    Tool,
    ToolCall,
    chat,
    expect,
    fail,
    skip,
)
from cluster.spark.server import TOOL_MARKS, leaked, thinks_aloud

REFUSALS = re.compile(
    r"""["']?auto["']?\ tool\ choice\ requires  # vLLM without a parser
    | tool-call-parser | (?i:tools\ param\ requires) | (?i:unsupported\ param:\ tools)  # vLLM, llama.cpp
    | (?i:does\ not\ support\ tools)            # Ollama
    """,
    re.VERBOSE,
)
OTHER_PARSER = "the server has a parser, but not for what this model writes: --tool-call-parser names it"

PARSERS = {"gemma-?4": "gemma4", r"qwen-?3(\.[5-9]|-?coder)": "qwen3_coder", "qwen": "hermes", "gpt-oss": "openai"}
"""vLLM's parser by the model's name (its documentation on tool calling)."""


def flags_to_add(server: ProbedServer) -> str:
    if server.engine == "llamacpp":
        return "start llama-server with --jinja and a chat template that knows tools"
    parser = next((one for pattern, one in PARSERS.items() if re.search(pattern, server.model.lower())), "NAME")
    if server.tools is None:
        return f"start vLLM with --enable-auto-tool-choice --tool-call-parser {parser}"
    return f"cluster up … --set vllm.enable-auto-tool-choice=true --set vllm.tool-call-parser={parser}"


def check_calls(server: ProbedServer, reply: Reply, tools: Sequence[Tool], *, later: bool = False) -> None:
    """A reply calls tools, each in good form. `later`: it follows a tool's result."""
    if REFUSALS.search(reply.error):
        skip("the server takes no tools, see tools-auto")
    expect(not reply.error, "the server answered with an error", reply)
    check_length(reply)
    mark = mark_in(reply)
    if mark and not reply.tool_calls:
        remedy = OTHER_PARSER if server.tools else flags_to_add(server)
        fail(f"the call stands in the text ({mark!r}), not in tool_calls", reply, remedy=remedy)
    expect(reply.tool_calls, "no tool was called", reply)
    ids = [call.id for call in reply.tool_calls]
    for call in reply.tool_calls:
        check_call(reply, call, tools)
        expect(call.id, f"the call of {call.name} has no id, so its result cannot be given back", reply)
        expect(ids.count(call.id) == 1, f"two calls have the id {call.id!r}", reply)
    defect, reason = loop_defect(server, reply), reply.finish_reason
    expect(not mark, f"besides the call, {mark!r} stands in the text", reply, defect=defect if later else "")
    why = f"finish_reason is {repr(reason) if reason else 'missing'} beside tool calls, not 'tool_calls': "
    why += "clients that look at it stop there"
    expect(reason == "tool_calls", why, reply, defect=defect if reason == "stop" else "")


def check_length(reply: Reply) -> None:
    """The limit of tokens did not end it: while it was thinking nothing is known, else it does not stop."""
    if reply.finish_reason == "length":
        tokens = f"{reply.completion_tokens} tokens" if reply.completion_tokens else "the limit of tokens"
        if reply.reasoning and not reply.content and not reply.tool_calls:
            skip(f"still thinking after {tokens}: not judged", reply)
        fail(f"it did not come to an end within {tokens}", reply)


def mark_in(reply: Reply) -> str:
    """A mark in the text that a parser should have taken away; empty when there is none."""
    return leaked(reply.content) or thinks_aloud(reply.content)


def loop_defect(server: ProbedServer, reply: Reply) -> str:
    """The known defect of vLLM that marks in a text, or a loop that ends early, look like when nothing is streamed."""
    return "loop_ends" if not reply.events and server.engine in ("", "vllm") else ""


def check_call(reply: Reply, call: ToolCall, tools: Sequence[Tool]) -> None:
    """One call is of a tool that was offered, with arguments of its schema."""
    schemas = {one["function"]["name"]: one["function"]["parameters"] for one in tools}
    text, streamed = call.arguments, bool(reply.events)
    expect(isinstance(text, str), f"the arguments of {call.name} are an object, where the API has a text", reply)
    is_joined = call.name in {one + other for one in schemas for other in schemas}
    expect(not is_joined, f"two calls come as one, {call.name!r}: they have the same index", reply)
    expect(call.name in schemas, f"it calls {call.name!r}; offered were {', '.join(schemas)}", reply)
    try:
        arguments = orjson.loads(text)
    except ValueError:
        is_twice = text[: len(text) // 2] == text[len(text) // 2 :]
        expect(not (text and is_twice), f"the arguments of {call.name} come twice", reply)
        known = "doubled" if is_doubled(text) else "broken_json" if TOOL_MARKS.search(text) else ""
        fail(f"the arguments of {call.name} are not JSON", reply, defect=known if streamed else "")
    expect(isinstance(arguments, dict), f"the arguments of {call.name} are JSON, but no object", reply)
    if mark := TOOL_MARKS.search(text.replace('\\"', '"')):
        why = f"the model's own marks ({mark.group()!r}) are in the arguments of {call.name}"
        fail(why, reply, defect="broken_json" if streamed else "")
    lost = "arguments_lost" if streamed and not arguments and len(reply.tool_calls) > 1 else ""
    wrong = mismatch(schemas[call.name], arguments)
    expect(not wrong, f"{call.name}: {wrong}", reply, defect=lost)


def is_doubled(text: str) -> bool:
    """Whether markup came twice: `<<`, or the name of a tag twice in a row."""
    return bool(re.search(r"<<|<(\w{2,})\1[\s>]", text))


def mismatch(schema: dict[str, Any], arguments: dict[str, Any]) -> str:
    """What of arguments does not fit a tool's schema; a whole number may be written as a float. Empty when all does."""
    for name in schema["required"]:
        if name not in arguments:
            return f"the argument {name!r} is missing"
    for name, value in arguments.items():
        expected = schema["properties"].get(name, {})
        is_whole = type(value) in (int, float) and value == int(value)
        if not {"string": isinstance(value, str), "integer": is_whole}.get(expected.get("type"), True):
            return f"the argument {name!r} is {value!r}, not of type {expected['type']}"
        if value not in expected.get("enum", [value]):
            return f"the argument {name!r} is {value!r}, allowed is {', '.join(expected['enum'])}"
    return ""


MOST_STEPS = 6

Loop = Generator[Ask, Reply, list[Reply]]


def call_until_answered(
    server: ProbedServer, asked: Ask, tools: Sequence[Tool], results: Mapping[str, str], first: Reply | None = None
) -> Loop:
    """Ask, and give each call its tool's result, until a reply calls nothing; all replies.

    `first`: the reply to `asked`, when it is known already.
    """
    replies: list[Reply] = []
    messages = list(asked.body["messages"])
    while len(replies) < MOST_STEPS:
        reply = first or (yield Ask(asked.path, asked.body | {"messages": messages}))
        first = None
        if replies and not reply.tool_calls:
            expect(not reply.error, "the server answered with an error when it was given a tool's result", reply)
            mark, defect = mark_in(reply), loop_defect(server, reply)
            expect(not mark, f"{mark!r} stands in the text", reply, defect=defect)
            check_length(reply)
            expect(reply.content.strip(), "the answer to a tool's result is empty", reply, defect=defect)
            return [*replies, reply]
        check_calls(server, reply, tools, later=bool(replies))
        replies.append(reply)
        messages.append(reply.turn())
        for call in reply.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": results[call.name]})
    fail(f"it calls tools for {MOST_STEPS} steps and never answers", replies[-1])


def tool(name: str, about: str, required: Sequence[str] | None = None, /, **parameters: Any) -> Tool:
    """A tool as OpenAI's API has it; `parameters`: the type of each, or its allowed words. All are required unless
    some are named.
    """
    properties = {
        key: {"type": kind} if isinstance(kind, str) else {"type": "string", "enum": kind}
        for key, kind in parameters.items()
    }
    schema = {"type": "object", "properties": properties, "required": list(required or parameters)}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}


UNITS = ["celsius", "fahrenheit"]
WEATHER = tool("get_weather", "The weather in a city now.", ["city"], city="string", unit=UNITS)
CLOCK = tool("get_local_time", "The time of day in a city now.", city="string")
TIMER = tool("set_timer", "Start a countdown.", minutes="integer", label="string")
MAIL = tool("send_mail", "Send an e-mail.", to="string", text="string")
SAVE = tool("save_file", "Write a text file.", path="string", content="string")
ORDER = tool("look_up_order", "Where an order is.", order="string")
STOCK = tool("count_stock", "How many pieces of a product are in stock.", product="string")
PRICE = tool("get_price", "What one piece of a product costs.", product="string")
CUSTOMER = tool("find_customer", "The number of a customer by name.", name="string")
BALANCE = tool("get_balance", "What a customer owes, by number.", customer="integer")

PAGE = """<!DOCTYPE html>
<html>
<head><title>Probe</title></head>
<body>
<h1>Hello</h1>
<p class="note">One <b>bold</b> word.</p>
<ul><li>first</li><li>second</li></ul>
</body>
</html>"""


def _arguments(reply: Reply, name: str) -> list[dict[str, Any]]:
    return [orjson.loads(call.arguments) for call in reply.tool_calls if call.name == name]


def _names(value: Any, word: str) -> bool:
    """Whether an argument holds a word, however it is written."""
    return word in "".join(one for one in normalize("NFKD", str(value).lower()) if not combining(one))


def auto_accepted(server: ProbedServer) -> Talk:
    """Tools and `tool_choice: "auto"` are not refused, and no other model answers.

    A client that sends tools and leaves the choice to the model must not be turned away.
    """
    reply = yield chat(server, "Say hello.", tools=[WEATHER], max_tokens=32)
    if not reply.error:  # a router's fallback gives itself away: another model answers where no tools are given
        if reply.model not in ("", server.model):
            plain = yield chat(server, "Say hello.", max_tokens=16)
            is_same = plain.error or plain.model in ("", reply.model)
            why = f"asked with tools, {reply.model} answers; without them, {plain.model} does"
            expect(is_same, why, reply, defect="failover")
        return
    expect(REFUSALS.search(reply.error), 'a request with tools and tool_choice "auto" ends in an error', reply)
    if "does not support tools" in reply.error.lower():
        skip("the model takes no tools; a router sends such requests to another one", reply)
    if server.tools is False:
        skip("the recipe asks for no tools", reply, remedy=flags_to_add(server))
    why = f'tool_choice "auto" is refused with HTTP {reply.status}: a router with a fallback sends it to another model'
    fail(why, reply, remedy=flags_to_add(server))


def single_call(server: ProbedServer, *, stream: bool) -> Talk:
    """One call is made, of the tool that was offered, with the city that was asked for."""
    reply = yield chat(server, "What is the weather in Paris now? Call the tool.", tools=[WEATHER], stream=stream)
    check_calls(server, reply, [WEATHER])
    count = len(reply.tool_calls)
    expect(count == 1, f"{count} calls where one was asked for", reply)
    city = _arguments(reply, "get_weather")[0]["city"]
    expect(_names(city, "paris"), "asked for Paris, the city is another one", reply)


def parallel_calls(server: ProbedServer) -> Talk:
    """Two tools in one reply; a model that calls one after the other is not at fault."""
    text = "Call both tools now, in one step: the weather in Oslo, and the local time in Tokyo."
    tools = [WEATHER, CLOCK]
    asked = chat(server, text, tools=tools)
    reply = yield asked
    check_calls(server, reply, tools)
    cities = {"get_weather": "oslo", "get_local_time": "tokyo"}
    given = {name: _arguments(reply, name)[:1] for name in cities}
    is_right = all(_names(one["city"], city) for name, city in cities.items() for one in given[name])
    expect(is_right, "asked for Oslo's weather and Tokyo's time, a call has another city", reply)
    if not all(given.values()):
        results = {"get_weather": '{"sky": "clear"}', "get_local_time": '{"time": "08:15"}'}
        replies = yield from call_until_answered(server, asked, tools, results, reply)
        if not _not_called(replies, results):
            skip("it calls one tool after the other, not both at once", reply)
        fail("one of two calls that were asked for was not made", reply)


def agent(server: ProbedServer, *, stream: bool) -> Talk:
    """A call, its result, the answer: it tells what the tool gave."""
    text = "Where is order K-2281, and in which locker does it lie? Look it up."
    found = '{"order": "K-2281", "status": "arrived", "locker": 4719}'
    asked = chat(server, text, tools=[ORDER], stream=stream)
    replies = yield from call_until_answered(server, asked, [ORDER], {"look_up_order": found})
    _check_reports(replies[-1], "4719")


def html(server: ProbedServer) -> Talk:
    """A page saved by a tool: each of its tags comes once."""
    text = f"Save exactly this page as page.html with the tool, every character as it is:\n\n{PAGE}"
    reply = yield chat(server, text, tools=[SAVE], stream=True)
    check_calls(server, reply, [SAVE])
    content = _arguments(reply, "save_file")[0]["content"]
    expect(not is_doubled(content), "markup in the arguments came twice", reply, defect="doubled")
    wanted, given = _tags(PAGE), _tags(content)
    lost, added = Counter(wanted) - Counter(given), Counter(given) - Counter(wanted)
    difference = f"missing {' '.join(lost) or 'nothing'}, too many {' '.join(added) or 'nothing'}"
    expect(wanted == given, f"the markup in the arguments is not the page's: {difference}", reply)


def _tags(text: str) -> list[str]:
    """The tags of a text; quotes and capitals make no difference."""
    return [" ".join(one.lower().replace("'", '"').split()) for one in re.findall(r"<[^<>]+>", text)]


def choice_of_three(server: ProbedServer) -> Talk:
    """The right one of three tools is called, with a number that is a number."""
    tools = [MAIL, TIMER, WEATHER]
    reply = yield chat(server, "Set a timer for 12 minutes with the label tea.", tools=tools)
    check_calls(server, reply, tools)
    is_one = [call.name for call in reply.tool_calls] == ["set_timer"]
    expect(is_one, "one call of set_timer was to be made, others were", reply)
    [timer] = _arguments(reply, "set_timer")
    is_right = timer["minutes"] == 12 and _names(timer["label"], "tea")
    expect(is_right, "asked for 12 minutes and the label tea, the arguments are others", reply)


def full_loop(server: ProbedServer) -> Talk:
    """Two tools are both called, and the answer tells what they gave."""
    text = "How many blue mugs are in stock, and what does one cost? Use the tools, then state both numbers."
    results = {"count_stock": '{"pieces": 137}', "get_price": '{"price": 8.45, "currency": "EUR"}'}
    tools = [STOCK, PRICE]
    asked = chat(server, text, tools=tools, stream=True)
    replies = yield from call_until_answered(server, asked, tools, results)
    missing = _not_called(replies, results)
    expect(not missing, f"it answers without having called {missing}", replies[-1])
    _check_reports(replies[-1], "137", "8.45")


def steps(server: ProbedServer) -> Talk:
    """A call that needs another one's result: it goes on to the second call and the answer.

    Not streamed. Ending early is a known limitation of vLLM.
    """
    text = "What does the customer Mira Solberg owe? Find her number first, then her balance. Tell me the amount."
    results = {"find_customer": '{"customer": 58213}', "get_balance": '{"balance": 246.8, "currency": "EUR"}'}
    tools = [CUSTOMER, BALANCE]
    try:
        replies = yield from call_until_answered(server, chat(server, text, tools=tools), tools, results)
        missing, defect = _not_called(replies, results), loop_defect(server, replies[-1])
        expect(not missing, f"it answers without having called {missing}", replies[-1], defect=defect)
    except CaseOver as over:
        if not over.verdict.defect.startswith(DEFECTS["loop_ends"]["name"]):
            raise
        why = f"known limitation of vLLM: {over.verdict.why}"
        raise CaseOver(replace(over.verdict, outcome="not applicable", why=why)) from None
    given = [one for reply in replies for one in _arguments(reply, "get_balance")]
    is_right = given[0]["customer"] == 58213
    expect(is_right, "the second call does not have the number that the first one gave", replies[-1])
    _check_reports(replies[-1], "246.8")


def _not_called(replies: Sequence[Reply], results: Mapping[str, str]) -> str:
    called = {call.name for reply in replies for call in reply.tool_calls}
    return ", ".join(name for name in results if name not in called)


def _check_reports(reply: Reply, *numbers: str) -> None:
    """An answer reports what the tools gave, in whatever words; 8,45 and 4,719 are numbers, too."""
    said = "".join(reply.content.split())
    forms = (said, said.replace(",", "."), said.replace(",", ""))
    missing = ", ".join(number for number in numbers if not any(number in form for form in forms))
    expect(not missing, f"the answer does not contain the tool's result ({missing})", reply)


_case = partial(Case, group="tools")  # write-up on Gemma 4 31B, April 2026; the first: on MTP, May 2026

CASES = (
    _case("tools-auto", 'tool_choice "auto" accepted', auto_accepted, quick=True, judges_text=False),
    _case("tools-single", "one call", partial(single_call, stream=False), quick=True),
    _case("tools-single-streamed", "one call, streamed", partial(single_call, stream=True), quick=True),
    _case("tools-parallel", "two calls at once", parallel_calls),
    _case("tools-agent", "call, result, answer", partial(agent, stream=False)),
    _case("tools-agent-streamed", "call, result, answer, streamed", partial(agent, stream=True)),
    _case("tools-html", "HTML in streamed arguments", html),  # vLLM PR 38909
    _case("tools-choice", "the right one of three", choice_of_three),
    _case("tools-loop", "two tools, results, answer, streamed", full_loop),
    _case("tools-steps", "a call made from another's result", steps),  # vLLM issue 39043
)
