"""Does the server call tools: the eight cases of the write-up on Gemma 4 31B, and two more that cost people a day."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unicodedata import combining, normalize

from cluster.bench.loader import Ask
from cluster.probe.ask import (
    DEFECTS,
    PASSED,
    Answer,
    Case,
    Subject,
    Talk,
    Tool,
    ToolCall,
    Verdict,
    chat,
    failed,
    leaked,
    read_arguments,
    skipped,
    tool,
)
from cluster.spark.server import TOOL_MARKS

REFUSALS = re.compile(
    r"""["']?auto["']?\ tool\ choice\ requires  # vLLM without a parser
    | tool-call-parser | (?i:tools\ param\ requires) | (?i:unsupported\ param:\ tools)  # vLLM, llama.cpp
    | (?i:does\ not\ support\ tools)            # Ollama
    """,
    re.VERBOSE,
)
OTHER_PARSER = "the server has a parser, but not for what this model writes: --tool-call-parser names it"

PARSERS = (
    ("gemma-?4", "gemma4"),
    (r"qwen-?3(\.[5-9]|-?coder)", "qwen3_coder"),
    ("qwen", "hermes"),
    ("gpt-oss", "openai"),
)
"""vLLM's parser by the model's name (its documentation on tool calling)."""


def parser_for(model: str) -> str:
    """vLLM's parser for a model's tool calls; NAME when its name does not tell."""
    return next((parser for pattern, parser in PARSERS if re.search(pattern, model.lower())), "NAME")


def flags_to_add(subject: Subject) -> str:
    """What makes a server take tools."""
    if subject.engine == "llamacpp":
        return "start llama-server with --jinja and a chat template that knows tools"
    parser = parser_for(subject.model)
    if subject.tools is None:
        return f"start vLLM with --enable-auto-tool-choice --tool-call-parser {parser}"
    return f"cluster up … --set vllm.enable-auto-tool-choice=true --set vllm.tool-call-parser={parser}"


def judge_calls(subject: Subject, answer: Answer, tools: Sequence[Tool], *, later: bool = False) -> Verdict | None:
    """What is wrong with an answer that has to call tools; None when it calls some, each in good form.

    `later`: it follows a tool's result.
    """
    if answer.error and REFUSALS.search(answer.error):
        return skipped("the server takes no tools, see tools-auto")
    if answer.error:
        return failed("the server answered with an error", answer)
    if answer.finish_reason == "length":
        return cut(answer)
    mark = leaked(answer)
    if not answer.tool_calls and mark:
        why = f"the call stands in the text ({mark!r}), not in tool_calls"
        return failed(why, answer, remedy=OTHER_PARSER if subject.tools else flags_to_add(subject))
    if not answer.tool_calls:
        return failed("no tool was called", answer)
    ids: set[str] = set()
    for call in answer.tool_calls:
        if wrong := judge_call(answer, call, tools):
            return wrong
        if not call.id:
            return failed(f"the call of {call.name} has no id, so its result cannot be given back", answer)
        if call.id in ids:
            return failed(f"two calls have the id {call.id!r}", answer)
        ids.add(call.id)
    if mark:
        defect = loop_defect(subject, answer) if later else ""
        return failed(f"besides the call, {mark!r} stands in the text", answer, defect=defect)
    if answer.finish_reason != "tool_calls":
        given = repr(answer.finish_reason) if answer.finish_reason else "missing"
        why = f"finish_reason is {given} beside tool calls, not 'tool_calls': clients that look at it stop there"
        return failed(why, answer, defect=loop_defect(subject, answer) if answer.finish_reason == "stop" else "")
    return None


def cut(answer: Answer) -> Verdict:
    """An answer that the limit of tokens ended: while it was thinking nothing is known, else it does not stop."""
    tokens = f"{answer.completion_tokens} tokens" if answer.completion_tokens else "the limit of tokens"
    if answer.reasoning and not answer.content and not answer.tool_calls:
        return skipped(f"still thinking after {tokens}: not judged", answer)
    return failed(f"it did not come to an end within {tokens}", answer)


def loop_defect(subject: Subject, answer: Answer) -> str:
    """The known defect of vLLM that marks in a text, or a loop that ends early, look like when nothing is streamed."""
    return "loop_ends" if not answer.events and subject.engine in ("", "vllm") else ""


def judge_call(answer: Answer, call: ToolCall, tools: Sequence[Tool]) -> Verdict | None:
    """What is wrong with one call; None when nothing is."""
    schemas = {one["function"]["name"]: one["function"]["parameters"] for one in tools}
    text, streamed = call.arguments, bool(answer.events)
    if not call.is_text:
        return failed(f"the arguments of {call.name} are an object, where the API has a text", answer)
    if call.name in {one + other for one in schemas for other in schemas}:
        return failed(f"two calls come as one, {call.name!r}: they have the same index", answer)
    if call.name not in schemas:
        return failed(f"it calls {call.name!r}; offered were {', '.join(schemas)}", answer)
    arguments, wrong = read_arguments(call)
    if wrong and text[: len(text) // 2] == text[len(text) // 2 :]:
        return failed(f"the arguments of {call.name} come twice", answer)
    if wrong:
        known = "doubled" if is_doubled(text) else "broken_json" if TOOL_MARKS.search(text) else ""
        return failed(wrong, answer, defect=known if streamed else "")
    if mark := TOOL_MARKS.search(text.replace('\\"', '"')):
        why = f"the model's own marks ({mark.group()!r}) are in the arguments of {call.name}"
        return failed(why, answer, defect="broken_json" if streamed else "")
    lost = "arguments_lost" if streamed and not arguments and len(answer.tool_calls) > 1 else ""
    wrong = mismatch(schemas[call.name], arguments)
    return failed(f"{call.name}: {wrong}", answer, defect=lost) if wrong else None


def is_doubled(text: str) -> bool:
    """Whether markup came twice: `<<`, or the name of a tag twice in a row."""
    return bool(re.search(r"<<|<(\w{2,})\1[\s>]", text))


def mismatch(schema: dict[str, Any], arguments: dict[str, Any]) -> str:
    """What of arguments does not fit a tool's schema: missing, of another type, not one of the allowed values."""
    for name in schema["required"]:
        if name not in arguments:
            return f"the argument {name!r} is missing"
    for name, value in arguments.items():
        expected = schema["properties"].get(name)
        if expected and not _is_a(expected["type"], value):
            return f"the argument {name!r} is {value!r}, not of type {expected['type']}"
        if expected and value not in expected.get("enum", [value]):
            return f"the argument {name!r} is {value!r}, allowed is {', '.join(map(str, expected['enum']))}"
    return ""


def _is_a(kind: str, value: Any) -> bool:
    """Whether a value is of a type of our tools; a whole number may be written as a float."""
    if kind == "string":
        return isinstance(value, str)
    return not isinstance(value, bool) and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))


MOST_STEPS = 6


@dataclass(slots=True)
class ToolLoop:
    """How a loop went: its answers, the tools that were called, and what was wrong, if anything was."""

    answers: list[Answer] = field(default_factory=list)
    called: set[str] = field(default_factory=set)
    wrong: Verdict | None = None

    @property
    def last(self) -> Answer:
        """The newest answer."""
        return self.answers[-1]


def call_until_answered(
    subject: Subject,
    asked: Ask,
    tools: Sequence[Tool],
    results: Mapping[str, str],
    *,
    first: Answer | None = None,
) -> Generator[Ask, Answer, ToolLoop]:
    """Ask, and give each call its tool's result, until an answer calls nothing.

    `first`: the answer to `asked`, when it is there already.
    """
    loop, messages = ToolLoop(), list(asked.body["messages"])
    for _ in range(MOST_STEPS):
        answer = first or (yield Ask(asked.path, {**asked.body, "messages": messages}))
        first = None
        loop.answers.append(answer)
        if not answer.tool_calls and loop.called:
            loop.wrong = _judge_end(subject, answer)
            return loop
        loop.wrong = judge_calls(subject, answer, tools, later=bool(loop.called))
        if loop.wrong:
            return loop
        messages.append(answer.turn())
        for call in answer.tool_calls:
            loop.called.add(call.name)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": results[call.name]})
    loop.wrong = failed(f"it calls tools for {MOST_STEPS} steps and never answers", loop.last)
    return loop


def _judge_end(subject: Subject, answer: Answer) -> Verdict | None:
    """What is wrong with an answer to results that calls nothing more."""
    if answer.error:
        return failed("the server answered with an error when it was given a tool's result", answer)
    if mark := leaked(answer):
        return failed(f"{mark!r} stands in the text", answer, defect=loop_defect(subject, answer))
    if answer.finish_reason == "length":
        return cut(answer)
    if not answer.content.strip():
        return failed("the answer to a tool's result is empty", answer, defect=loop_defect(subject, answer))
    return None


WEATHER = tool(
    "get_weather",
    "The weather in a city now.",
    {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
    ["city"],
)
CLOCK = tool("get_local_time", "The time of day in a city now.", {"city": {"type": "string"}})
TIMER = tool("set_timer", "Start a countdown.", {"minutes": {"type": "integer"}, "label": {"type": "string"}})
MAIL = tool("send_mail", "Send an e-mail.", {"to": {"type": "string"}, "text": {"type": "string"}})
SAVE = tool("save_file", "Write a text file.", {"path": {"type": "string"}, "content": {"type": "string"}})
ORDER = tool("look_up_order", "Where an order is.", {"order": {"type": "string"}})
STOCK = tool("count_stock", "How many pieces of a product are in stock.", {"product": {"type": "string"}})
PRICE = tool("get_price", "What one piece of a product costs.", {"product": {"type": "string"}})
CUSTOMER = tool("find_customer", "The number of a customer by name.", {"name": {"type": "string"}})
BALANCE = tool("get_balance", "What a customer owes, by number.", {"customer": {"type": "integer"}})

PAGE = """<!DOCTYPE html>
<html>
<head><title>Probe</title></head>
<body>
<h1>Hello</h1>
<p class="note">One <b>bold</b> word.</p>
<ul><li>first</li><li>second</li></ul>
</body>
</html>"""

SEED = "write-up on Gemma 4 31B, April 2026"


def _arguments(answer: Answer, name: str) -> list[dict[str, Any]]:
    """The arguments of each call of a tool."""
    return [read_arguments(call)[0] for call in answer.tool_calls if call.name == name]


def _names(value: Any, word: str) -> bool:
    """Whether an argument holds a word, however it is written."""
    return word in "".join(one for one in normalize("NFKD", str(value).lower()) if not combining(one))


def auto_accepted(subject: Subject) -> Talk:
    """A client that sends tools and leaves the choice to the model is not turned away."""
    answer = yield chat(subject, "Say hello.", tools=[WEATHER], max_tokens=32)
    if not answer.error:  # a router's fallback gives itself away: another model answers where no tools are given
        if answer.model in ("", subject.model):
            return PASSED
        plain = yield chat(subject, "Say hello.", max_tokens=16)
        if plain.error or plain.model in ("", answer.model):
            return PASSED
        why = f"asked with tools, {answer.model} answers; without them, {plain.model} does"
        return failed(why, answer, defect="failover")
    if not REFUSALS.search(answer.error):
        return failed('a request with tools and tool_choice "auto" ends in an error', answer)
    if "does not support tools" in answer.error.lower():
        return skipped("the model takes no tools; a router sends such requests to another one", answer)
    if subject.tools is False:
        return skipped("the recipe asks for no tools", answer, remedy=flags_to_add(subject))
    why = f'tool_choice "auto" is refused with HTTP {answer.status}: a router with a fallback sends it to another model'
    return failed(why, answer, remedy=flags_to_add(subject))


def single_call(subject: Subject, *, stream: bool) -> Talk:
    """One call of the only tool."""
    answer = yield chat(subject, "What is the weather in Paris now? Call the tool.", tools=[WEATHER], stream=stream)
    if wrong := judge_calls(subject, answer, [WEATHER]):
        return wrong
    if len(answer.tool_calls) > 1:
        return failed(f"{len(answer.tool_calls)} calls where one was asked for", answer)
    [given] = _arguments(answer, "get_weather")
    return PASSED if _names(given["city"], "paris") else failed("asked for Paris, the city is another one", answer)


def parallel_calls(subject: Subject) -> Talk:
    """Two tools in one answer; a model that calls one after the other is not at fault."""
    text = "Call both tools now, in one step: the weather in Oslo, and the local time in Tokyo."
    tools = [WEATHER, CLOCK]
    asked = chat(subject, text, tools=tools)
    answer = yield asked
    if wrong := judge_calls(subject, answer, tools):
        return wrong
    weather, clock = _arguments(answer, "get_weather"), _arguments(answer, "get_local_time")
    if (weather and not _names(weather[0]["city"], "oslo")) or (clock and not _names(clock[0]["city"], "tokyo")):
        return failed("asked for Oslo's weather and Tokyo's time, a call has another city", answer)
    if weather and clock:
        return PASSED
    results = {"get_weather": '{"sky": "clear"}', "get_local_time": '{"time": "08:15"}'}
    loop = yield from call_until_answered(subject, asked, tools, results, first=answer)
    if loop.wrong:
        return loop.wrong
    if loop.called >= results.keys():
        return skipped("it calls one tool after the other, not both at once", answer)
    return failed("one of two calls that were asked for was not made", answer)


def agent(subject: Subject, *, stream: bool) -> Talk:
    """A tool's result comes back as an answer."""
    text = "Where is order K-2281, and in which locker does it lie? Look it up."
    found = '{"order": "K-2281", "status": "arrived", "locker": 4719}'
    asked = chat(subject, text, tools=[ORDER], stream=stream)
    loop = yield from call_until_answered(subject, asked, [ORDER], {"look_up_order": found})
    return loop.wrong or _reports(loop.last, ["4719"])


def html(subject: Subject) -> Talk:
    """Markup in streamed arguments comes once."""
    text = f"Save exactly this page as page.html with the tool, every character as it is:\n\n{PAGE}"
    answer = yield chat(subject, text, tools=[SAVE], stream=True)
    if wrong := judge_calls(subject, answer, [SAVE]):
        return wrong
    content = _arguments(answer, "save_file")[0]["content"]
    if is_doubled(content):
        return failed("markup in the arguments came twice", answer, defect="doubled")
    wanted, given = _tags(PAGE), _tags(content)
    if wanted == given:
        return PASSED
    lost = [one for one in wanted if given.count(one) < wanted.count(one)]
    added = [one for one in given if given.count(one) > wanted.count(one)]
    parts = (f"missing {' '.join(lost[:4])}" if lost else "", f"too many {' '.join(added[:4])}" if added else "")
    difference = next(filter(None, parts), "another order")
    return failed(f"the markup in the arguments is not the page's: {difference}", answer)


def _tags(text: str) -> list[str]:
    """Tags as they stand in a text; which quotes they have, and capitals, make no difference."""
    return [" ".join(one.lower().replace("'", '"').split()) for one in re.findall(r"<[^<>]+>", text)]


def choice_of_three(subject: Subject) -> Talk:
    """The right tool among three, with a number that is a number."""
    tools = [MAIL, TIMER, WEATHER]
    answer = yield chat(subject, "Set a timer for 12 minutes with the label tea.", tools=tools)
    if wrong := judge_calls(subject, answer, tools):
        return wrong
    timers = _arguments(answer, "set_timer")
    if not timers or len(answer.tool_calls) > 1:
        return failed("one call of set_timer was to be made, others were", answer)
    right = timers[0]["minutes"] == 12 and _names(timers[0]["label"], "tea")
    return PASSED if right else failed("asked for 12 minutes and the label tea, the arguments are others", answer)


def full_loop(subject: Subject) -> Talk:
    """Two tools, their results, the answer; streamed."""
    text = "How many blue mugs are in stock, and what does one cost? Use the tools, then state both numbers."
    results = {"count_stock": '{"pieces": 137}', "get_price": '{"price": 8.45, "currency": "EUR"}'}
    tools = [STOCK, PRICE]
    loop = yield from call_until_answered(subject, chat(subject, text, tools=tools, stream=True), tools, results)
    return loop.wrong or _called_all(loop, results) or _reports(loop.last, ["137", "8.45"])


def steps(subject: Subject) -> Talk:
    """The second call needs the first one's result; not streamed. Ending early is a known limitation of vLLM."""
    text = "What does the customer Mira Solberg owe? Find her number first, then her balance. Tell me the amount."
    results = {"find_customer": '{"customer": 58213}', "get_balance": '{"balance": 246.8, "currency": "EUR"}'}
    tools = [CUSTOMER, BALANCE]
    loop = yield from call_until_answered(subject, chat(subject, text, tools=tools), tools, results)
    wrong = loop.wrong or _called_all(loop, results, loop_defect(subject, loop.last))
    if wrong and wrong.defect.startswith(DEFECTS["loop_ends"]["name"]):
        return replace(wrong, outcome="not applicable", why=f"known limitation of vLLM: {wrong.why}")
    if wrong:
        return wrong
    given = [one for answer in loop.answers for one in _arguments(answer, "get_balance")]
    if given[0]["customer"] != 58213:
        return failed("the second call does not have the number that the first one gave", loop.last)
    return _reports(loop.last, ["246.8"])


def _called_all(loop: ToolLoop, results: Mapping[str, str], defect: str = "") -> Verdict | None:
    missing = ", ".join(name for name in results if name not in loop.called)
    return failed(f"it answers without having called {missing}", loop.last, defect=defect) if missing else None


def _reports(answer: Answer, numbers: Sequence[str]) -> Verdict:
    """Whether an answer tells what the tools gave, in whatever words; 8,45 and 4,719 are numbers, too."""
    said = "".join(answer.content.split())
    forms = (said, said.replace(",", "."), said.replace(",", ""))
    missing = [number for number in numbers if not any(number in form for form in forms)]
    why = f"the answer does not contain the tool's result ({', '.join(missing)})"
    return failed(why, answer) if missing else PASSED


_case = partial(Case, group="tools", source=SEED)
MTP = "write-up on MTP, May 2026"

CASES = (
    _case("tools-auto", 'tool_choice "auto" accepted', auto_accepted, source=MTP, quick=True, judges_text=False),
    _case("tools-single", "one call", partial(single_call, stream=False), quick=True),
    _case("tools-single-streamed", "one call, streamed", partial(single_call, stream=True), quick=True),
    _case("tools-parallel", "two calls at once", parallel_calls),
    _case("tools-agent", "call, result, answer", partial(agent, stream=False)),
    _case("tools-agent-streamed", "call, result, answer, streamed", partial(agent, stream=True)),
    _case("tools-html", "HTML in streamed arguments", html, source=f"{SEED}; vLLM PR 38909"),
    _case("tools-choice", "the right one of three", choice_of_three),
    _case("tools-loop", "two tools, results, answer, streamed", full_loop),
    _case("tools-steps", "a call made from another's result", steps, source=f"{SEED}; vLLM issue 39043"),
)
