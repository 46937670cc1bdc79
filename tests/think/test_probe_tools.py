"""The cases on tool calls: servers that are right in their own ways, and every known way to be wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import orjson
import pytest
from probe_talk import FOREIGN, GEMMA, hold, refuses, says, streams

from cluster.bench.loader import Ask, Record
from cluster.probe.ask import Answer, Subject, ToolCall, Verdict, read_answer
from cluster.probe.tools import CASES, PAGE, TIMER, is_doubled, mismatch, parser_for

AUTO = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
TAGS = "<|tool_call>call:get_balance{customer:58213}<tool_call|>"
TOOLS = {
    "get_weather": {"city": "Paris"},
    "set_timer": {"minutes": 12, "label": "tea"},
    "look_up_order": {"order": "K-2281"},
    "save_file": {"path": "page.html", "content": PAGE},
    "count_stock": {"product": "blue mug"},
    "get_price": {"product": "blue mug"},
    "find_customer": {"name": "Mira Solberg"},
    "get_balance": {"customer": 58213},
}
FINAL = {
    "tools-agent": "It has arrived; you find it in locker 4719.",
    "tools-agent-streamed": "Locker 4719. It arrived.",
    "tools-loop": "There are 137 of them, at 8,45 € each.",
    "tools-steps": "She owes €246.80.",
}


def calls(ask: Ask, *given: tuple[str, Any], **more: Any) -> Answer:
    """An answer in the form that was asked for, with these calls: name and arguments, as values or as text."""
    made = tuple(
        ToolCall(f"call_{number}", name, text if isinstance(text, str) else json.dumps(text))
        for number, (name, text) in enumerate(given)
    )
    answer = streams if ask.body["stream"] else says
    events = {"events": ("role", "tool", "finish", "usage", "done")} if ask.body["stream"] else {}
    return answer(**{"tool_calls": made, "finish_reason": "tool_calls"} | events | more)


def offered(ask: Ask) -> list[str]:
    return [one["function"]["name"] for one in ask.body["tools"]]


def done(ask: Ask) -> list[str]:
    """Tools whose results are in the conversation."""
    turns = [one for one in ask.body["messages"] if one["role"] == "assistant"]
    return [call["function"]["name"] for turn in turns for call in turn["tool_calls"]]


def talks(ask: Ask, text: str) -> Answer:
    return streams(text) if ask.body["stream"] else says(text)


def right(case: str) -> Callable[[Ask], Answer]:
    """A server and model without fault, that call one tool after the other."""

    def server(ask: Ask) -> Answer:
        if case == "tools-auto":
            return says("Hello.")
        if case == "tools-parallel":
            return calls(
                ask, ("get_weather", {"city": "Oslo", "unit": "celsius"}), ("get_local_time", {"city": "Tōkyō"})
            )
        wanted = "set_timer" if case == "tools-choice" else ""
        left = [name for name in offered(ask) if name not in done(ask)]
        if not left or (len(ask.body["tools"]) == 1 and done(ask)):
            return talks(ask, FINAL[case])
        name = wanted or left[0]
        return calls(ask, (name, TOOLS[name]))

    return server


def with_calls(case: str, change: Callable[[Answer], Answer]) -> Callable[[Ask], Answer]:
    """The same, its answers that call tools changed."""
    good = right(case)

    def server(ask: Ask) -> Answer:
        answer = good(ask)
        return change(answer) if answer.tool_calls else answer

    return server


def args(text: str, number: int = 0) -> Callable[[Answer], Answer]:
    """Other arguments of a call."""

    def change(answer: Answer) -> Answer:
        made = list(answer.tool_calls)
        made[number] = replace(made[number], arguments=text)
        return replace(answer, tool_calls=tuple(made))

    return change


@pytest.mark.parametrize("case", [case.id for case in CASES])
@pytest.mark.parametrize("subject", [GEMMA, FOREIGN], ids=["ours", "foreign"])
def test_a_right_server_passes(case: str, subject: Subject) -> None:
    verdict = hold(case, right(case), subject)
    assert verdict == Verdict("pass")


# the forms of servers, as they were sent


def sse(*events: Any) -> bytes:
    body = b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events) + b"data: [DONE]\n\n"
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def delta(finish: str | None = None, **given: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"index": 0, "delta": given, "finish_reason": finish}]}


def portion(text: str, **more: Any) -> dict[str, Any]:
    return delta(tool_calls=[{"index": 0, "function": {"arguments": text} | more.pop("function", {}), **more}])


VLLM = [
    delta(role="assistant", content=""),
    portion("", id="chatcmpl-tool-4f", type="function", function={"name": "get_weather"}),
    portion('{"city": '),
    portion('"Par'),
    portion('is"'),
    portion("}"),
    delta("tool_calls", content=""),
    {"model": "m", "choices": [], "usage": {"completion_tokens": 18}},
]
LLAMA_CPP = [
    delta(role="assistant", content=None),
    delta(reasoning_content="The user wants the weather."),
    portion("{", id="Vx1", type="function", function={"name": "get_weather"}),
    portion('"city":"Paris"'),
    portion("}"),
    delta("tool_calls"),
]
OLLAMA = [
    delta(
        role="assistant",
        content="",
        tool_calls=[
            {
                "id": "call_9r",
                "index": 0,
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city":"Paris","unit":"celsius"}'},
            }
        ],
    ),
    delta("tool_calls", role="assistant", content=""),
]
QWEN = [
    delta(role="assistant", content=""),
    delta(reasoning="Weather…"),
    delta(content="\n\n"),
    portion('{"city": "Paris, France"}', id="a", function={"name": "get_weather"}),
    delta("tool_calls"),
]


@pytest.mark.parametrize("events", [VLLM, LLAMA_CPP, OLLAMA, QWEN], ids=["vllm", "llama.cpp", "ollama", "qwen"])
def test_streams_as_engines_send_them(events: Sequence[Any]) -> None:
    raw = read_answer(Record(0.0, 2.0, "done", "", ((1.0, sse(*events)),)))
    assert hold("tools-single-streamed", lambda ask: raw, FOREIGN) == Verdict("pass")


def test_arguments_that_are_no_text() -> None:
    """A router hands the object on as it is; clients that follow the API cannot read that."""
    events = [
        delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}])
    ]
    raw = read_answer(Record(0.0, 2.0, "done", "", ((1.0, sse(*events, delta("tool_calls"))),)))
    verdict = hold("tools-single-streamed", lambda ask: raw, FOREIGN)
    assert verdict.why == "the arguments of get_weather are an object, where the API has a text"
    assert verdict.said == 'get_weather({"city":"Paris"})'


def test_calls_under_one_index() -> None:
    """Two calls with the same index are one with a name that nobody has."""
    answer = lambda ask: calls(ask, ("get_weatherget_local_time", '{"city":"Oslo"}{"city":"Tokyo"}'))  # noqa: E731
    assert "two calls come as one, 'get_weatherget_local_time'" in hold("tools-parallel", answer).why
    events = [portion('{"city":"Paris"}', id="a", function={"name": "get_weather"}) for _ in range(2)]
    raw = read_answer(Record(0.0, 2.0, "done", "", ((1.0, sse(*events, delta("tool_calls"))),)))
    assert "get_weatherget_weather" in hold("tools-single-streamed", lambda ask: raw, FOREIGN).why


# tool_choice "auto"


def test_auto_refused() -> None:
    verdict = hold("tools-auto", lambda ask: refuses(AUTO), FOREIGN)
    assert verdict.outcome == "fail"
    assert "HTTP 400" in verdict.why
    assert AUTO in verdict.said
    assert verdict.remedy == "start vLLM with --enable-auto-tool-choice --tool-call-parser NAME"
    gemma = replace(FOREIGN, model="google/gemma-4-31B-it")
    assert "--tool-call-parser gemma4" in hold("tools-auto", lambda ask: refuses(AUTO), gemma).remedy


def test_auto_refused_by_a_recipe_that_asks_for_no_tools() -> None:
    subject = replace(GEMMA, model="gemma-4", tools=False)
    verdict = hold("tools-auto", lambda ask: refuses(AUTO), subject)
    assert verdict.outcome == "not applicable"
    assert verdict.remedy == "cluster up … --set vllm.enable-auto-tool-choice=true --set vllm.tool-call-parser=gemma4"


def test_auto_refused_for_other_reasons() -> None:
    ollama = refuses("registry.ollama.ai/library/gemma:2b does not support tools")
    assert hold("tools-auto", lambda ask: ollama, FOREIGN).outcome == "not applicable"
    jinja = hold(
        "tools-auto", lambda ask: refuses("tools param requires --jinja flag", 500), replace(FOREIGN, engine="llamacpp")
    )
    assert (jinja.outcome, "--jinja" in jinja.remedy) == ("fail", True)
    assert hold("tools-auto", lambda ask: refuses("CUDA error", 500), GEMMA).why.endswith("ends in an error")


@pytest.mark.parametrize("case", [case.id for case in CASES[1:]])
def test_where_tools_are_refused_the_other_cases_say_so_once(case: str) -> None:
    verdict = hold(case, lambda ask: refuses(AUTO), FOREIGN)
    assert (verdict.outcome, verdict.why) == ("not applicable", "the server takes no tools, see tools-auto")


# the form of calls


def test_no_call() -> None:
    assert hold("tools-single", lambda ask: says("It is sunny.")).why == "no tool was called"
    raw = says('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>')
    unknown = hold("tools-single", lambda ask: raw, FOREIGN)
    assert "stands in the text ('<tool_call>')" in unknown.why
    assert "--tool-call-parser" in unknown.remedy
    promised = hold("tools-single", lambda ask: raw, GEMMA)
    assert "has a parser, but not for what this model writes" in promised.remedy
    assert promised.defect == "", "vLLM issue 39043 is about what comes after a tool's result"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda one: replace(one, finish_reason="stop"), "finish_reason is 'stop' beside tool calls"),
        (lambda one: replace(one, finish_reason=""), "finish_reason is missing"),
        (lambda one: replace(one, content="<|tool_call>"), "besides the call, '<|tool_call>' stands in the text"),
        (lambda one: replace(one, content="<think>Paris…"), "besides the call, '<think>' stands in the text"),
        (lambda one: replace(one, tool_calls=(replace(one.tool_calls[0], id=""),)), "has no id"),
        (lambda one: replace(one, tool_calls=one.tool_calls * 2), "two calls have the id 'call_0'"),
        (lambda one: replace(one, tool_calls=(*one.tool_calls, replace(one.tool_calls[0], id="b"))), "2 calls where"),
        (lambda one: replace(one, tool_calls=(replace(one.tool_calls[0], name="weather"),)), "it calls 'weather'"),
        (args("{}"), "the argument 'city' is missing"),
        (args('["Paris"]'), "are JSON, but no object"),
        (args('{"city": 75}'), "the argument 'city' is 75, not of type string"),
        (args('{"city": "Paris", "unit": "kelvin"}'), "allowed is celsius, fahrenheit"),
        (args('{"city": "London"}'), "asked for Paris"),
        (lambda one: replace(one, error="connection reset"), "the server answered with an error"),
    ],
)
@pytest.mark.parametrize("case", ["tools-single", "tools-single-streamed"])
def test_a_call_in_bad_form(case: str, change: Callable[[Answer], Answer], why: str) -> None:
    verdict = hold(case, with_calls(case, change))
    assert verdict.outcome == "fail"
    assert why in verdict.why
    assert verdict.said


def test_an_answer_without_end() -> None:
    thinking = says(reasoning="Let me see. " * 9, finish_reason="length", completion_tokens=2048)
    verdict = hold("tools-single", lambda ask: thinking)
    assert (verdict.outcome, verdict.why) == ("not applicable", "still thinking after 2048 tokens: not judged")
    endless = says("Paris Paris Paris", finish_reason="length", completion_tokens=2048)
    assert hold("tools-single", lambda ask: endless).why == "it did not come to an end within 2048 tokens"


# the known defects


def test_streamed_arguments_that_are_no_json() -> None:
    """vLLM issue 38946."""
    broken = args('{"city": "<|\\Paris<|\\"|"}')
    verdict = hold("tools-single-streamed", with_calls("tools-single-streamed", broken))
    assert verdict.defect.startswith("vLLM issue 38946")
    assert "vLLM 0.20" in verdict.remedy
    whole = hold("tools-single", with_calls("tools-single", broken))
    assert (whole.outcome, whole.defect) == ("fail", ""), "what is not streamed is another fault"


def test_marks_within_valid_json() -> None:
    verdict = hold("tools-single-streamed", with_calls("tools-single-streamed", args('{"city": "<|\\"|>Paris"}')))
    assert "own marks" in verdict.why
    assert verdict.defect.startswith("vLLM issue 38946")
    assert hold("tools-single", with_calls("tools-single", args('{"city": "<|\\"|>Paris"}'))).defect == ""


@pytest.mark.parametrize(
    "content",
    [PAGE.replace("<", "<<"), PAGE.replace("<html>", "<<htmlhtml>"), PAGE.replace("<body>", "<bodybody>")],
    ids=["brackets", "as reported", "names"],
)
def test_html_twice(content: str) -> None:
    """vLLM PR 38909."""
    twice = args(json.dumps({"path": "page.html", "content": content}))
    verdict = hold("tools-html", with_calls("tools-html", twice))
    assert verdict.why == "markup in the arguments came twice"
    assert verdict.defect.startswith("vLLM issue 38910 (PR 38909)")
    broken = hold("tools-html", with_calls("tools-html", args('{"path": "page.html", "content": "<<htmlhtml')))
    assert broken.defect.startswith("vLLM issue 38910"), "also when the JSON is broken by it"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (PAGE.replace("\n", ""), ""),
        (PAGE + "\n", ""),
        (PAGE.replace("DOCTYPE", "doctype").replace('"', "'"), ""),
        (PAGE.replace("<b>bold</b> word", "<b>bolder</b> words"), ""),
        (PAGE.replace("</html>", ""), "missing </html>"),
        (PAGE.replace("<h1>", "<h1><h1>"), "too many <h1>"),
        (PAGE[:40], "missing"),
        ("", "missing"),
    ],
)
def test_html_otherwise(content: str, why: str) -> None:
    given = args(json.dumps({"path": "page.html", "content": content}))
    verdict = hold("tools-html", with_calls("tools-html", given))
    assert verdict.outcome == ("fail" if why else "pass")
    assert why in verdict.why


def test_a_loop_that_ends_early_is_named_not_failed() -> None:
    """vLLM issue 39043: not streamed, the second step is a text with the marks of a call, or nothing at all."""
    for end in (says(TAGS), says(""), says("Her number is 58213."), calls_with_stop()):
        verdict = hold("tools-steps", lambda ask, end=end: end if done(ask) else right("tools-steps")(ask))
        assert verdict.outcome == "not applicable", end
        assert verdict.why.startswith("known limitation of vLLM: ")
        assert verdict.defect.startswith("vLLM issue 39043")
        assert "stream in agent loops" in verdict.remedy


def calls_with_stop() -> Answer:
    return says(tool_calls=(ToolCall("a", "get_balance", '{"customer": 58213}'),), finish_reason="stop")


def test_a_loop_that_ends_early_elsewhere_is_a_failure() -> None:
    def early(ask: Ask) -> Answer:
        return says("Her number is 58213.") if done(ask) else right("tools-steps")(ask)

    llama = hold("tools-steps", early, replace(FOREIGN, engine="llamacpp"))
    assert (llama.outcome, llama.defect) == ("fail", "")
    first = hold("tools-steps", lambda ask: says(TAGS))
    assert first.outcome == "fail", "marks in the first answer are no loop that ends early"
    assert (
        hold("tools-steps", lambda ask: refuses("boom", 500) if done(ask) else right("tools-steps")(ask)).outcome
        == "fail"
    )


def test_a_second_call_with_another_number() -> None:
    def server(ask: Ask) -> Answer:
        answer = right("tools-steps")(ask)
        return args('{"customer": 58231}')(answer) if len(done(ask)) == 1 else answer

    assert "does not have the number" in hold("tools-steps", server).why


def test_tags_after_a_result_are_a_failure_where_one_step_was_asked_for() -> None:
    def server(ask: Ask) -> Answer:
        return says(TAGS) if done(ask) else right("tools-agent")(ask)

    verdict = hold("tools-agent", server)
    assert verdict.outcome == "fail"
    assert verdict.defect.startswith("vLLM issue 39043")


def test_a_first_step_that_says_stop_beside_its_call_is_the_same_limitation() -> None:
    stops = with_calls("tools-steps", lambda one: replace(one, finish_reason="stop"))
    verdict = hold("tools-steps", stops)
    assert (verdict.outcome, verdict.why.startswith("known limitation of vLLM: ")) == ("not applicable", True)
    marked = with_calls("tools-steps", lambda one: replace(one, content="<tool_call|>"))
    assert hold("tools-steps", marked).outcome == "fail", "its marks in a first answer are something else"


def test_arguments_twice() -> None:
    twice = with_calls("tools-single-streamed", args('{"city":"Paris"}{"city":"Paris"}'))
    verdict = hold("tools-single-streamed", twice)
    assert (verdict.why, verdict.defect) == ("the arguments of get_weather come twice", "")


# what is done with results


def last(case: str, end: Callable[[Ask], Answer]) -> Verdict:
    """A case whose server does this once it has called all tools."""

    def server(ask: Ask) -> Answer:
        answer = right(case)(ask)
        return answer if answer.tool_calls else end(ask)

    return hold(case, server)


@pytest.mark.parametrize("case", list(FINAL))
def test_an_answer_that_is_not_the_tools(case: str) -> None:
    assert "does not contain the tool's result" in last(case, lambda ask: talks(ask, "Gladly: it is 12.")).why
    assert last(case, lambda ask: talks(ask, " ")).why.startswith(("the answer to a tool's result is empty", "known"))
    assert "error" in last(case, lambda ask: refuses("unexpected role 'tool'", 400)).why


@pytest.mark.parametrize("said", ["In locker 4,719.", "Locker 4 719", "locker **4719**"])
def test_numbers_as_people_write_them(said: str) -> None:
    assert last("tools-agent", lambda ask: says(said)).outcome == "pass"


def test_a_loop_without_end() -> None:
    verdict = hold("tools-agent", lambda ask: calls(ask, ("look_up_order", {"order": "K-2281"})))
    assert verdict.why == "it calls tools for 6 steps and never answers"


def test_one_of_two_tools_is_left_out() -> None:
    def server(ask: Ask) -> Answer:
        return talks(ask, "137, and 8.45 I think") if done(ask) else calls(ask, ("count_stock", {"product": "mug"}))

    assert hold("tools-loop", server).why == "it answers without having called get_price"


def test_results_go_back_under_their_ids() -> None:
    seen: list[Any] = []

    def server(ask: Ask) -> Answer:
        seen.append(ask.body["messages"])
        return right("tools-agent")(ask)

    hold("tools-agent", server)
    assert [one["role"] for one in seen[-1]] == ["user", "assistant", "tool"]
    assert seen[-1][1]["tool_calls"][0]["id"] == seen[-1][2]["tool_call_id"] == "call_0"


def test_parallel_calls_one_after_the_other() -> None:
    def server(ask: Ask) -> Answer:
        left = [name for name in ("get_weather", "get_local_time") if name not in done(ask)]
        cities = {"get_weather": "Oslo", "get_local_time": "Tokyo"}
        return calls(ask, (left[0], {"city": cities[left[0]]})) if left else says("Clear in Oslo, 08:15 in Tokyo.")

    assert hold("tools-parallel", server).why == "it calls one tool after the other, not both at once"
    lost = hold("tools-parallel", lambda ask: says("Clear.") if done(ask) else server(ask))
    assert (lost.outcome, lost.why) == ("fail", "one of two calls that were asked for was not made")
    swapped = lambda ask: calls(ask, ("get_weather", {"city": "Tokyo"}), ("get_local_time", {"city": "Oslo"}))  # noqa: E731
    assert "another city" in hold("tools-parallel", swapped).why


def test_the_wrong_one_of_three() -> None:
    weather = lambda ask: calls(ask, ("get_weather", {"city": "Paris"}))  # noqa: E731
    assert hold("tools-choice", weather).why == "one call of set_timer was to be made, others were"
    text = with_calls("tools-choice", args('{"minutes": "12", "label": "tea"}'))
    assert "not of type integer" in hold("tools-choice", text).why
    assert hold("tools-choice", with_calls("tools-choice", args('{"minutes": 12.0, "label": "Tea"}'))).outcome == "pass"
    other = with_calls("tools-choice", args('{"minutes": 21, "label": "tea"}'))
    assert "the arguments are others" in hold("tools-choice", other).why


# parts


def test_schema() -> None:
    schema = TIMER["function"]["parameters"]
    assert mismatch(schema, {"minutes": 5, "label": "x", "more": 1}) == "", "a schema allows more unless it forbids it"
    assert "true" not in mismatch(schema, {"minutes": True, "label": "x"})
    assert mismatch(schema, {"minutes": True, "label": "x"})


def test_doubled() -> None:
    assert is_doubled("<<html>")
    assert is_doubled("<divdiv class>")
    assert not is_doubled(PAGE)
    assert not is_doubled("<tt>1 < 2</tt>")


@pytest.mark.parametrize(
    ("model", "parser"),
    [
        ("google/gemma-4-31B-it", "gemma4"),
        ("gemma4-fp8-mtp", "gemma4"),
        ("Qwen/Qwen3.5-35B-A3B-FP8", "qwen3_coder"),
        ("Qwen/Qwen2.5-7B-Instruct", "hermes"),
        ("openai/gpt-oss-120b", "openai"),
        ("mine", "NAME"),
    ],
)
def test_parser(model: str, parser: str) -> None:
    assert parser_for(model) == parser
