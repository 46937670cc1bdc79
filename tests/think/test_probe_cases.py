"""The cases of `cluster probe`: servers that are right in their own ways pass, each way to be wrong is found.

What was recorded of servers is judged in `tests/act/test_probe_defects.py`; here is what was not recorded.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from loops import each

from cluster.bench.loader import Ask
from cluster.probe.ask import CaseOver, CaseResult, ProbedServer, Reply, ToolCall, Verdict
from cluster.probe.cases import CASES, Probed
from cluster.probe.problems import PROBLEMS
from cluster.probe.service import HELLO, NOBODY
from cluster.probe.text import LINE
from cluster.probe.tools import PAGE
from cluster.probe.vision import FIRST, SECOND, describes, shown

Server = Callable[[Ask], Reply]
GEMMA = ProbedServer("gemma", limit=65536, configured=65536, tools=True, reasoning=True, vision=True, engine="vllm")
FOREIGN = ProbedServer("gemma")
BY_ID = {case.id: case for case in CASES}
IN_ORDER = ("role", "content", "finish", "usage", "done")


def hold(case: str, server: Server | Reply, subject: ProbedServer = GEMMA, asked: list[Any] | None = None) -> Verdict:
    """The verdict of a case, the server answering each request; the bodies of the requests are added to `asked`."""
    talk = BY_ID[case].talk(subject)
    try:
        ask = next(talk)
        while True:
            if asked is not None:
                asked.append(ask.body)
            ask = talk.send(server if isinstance(server, Reply) else server(ask))
    except StopIteration:
        verdict = Verdict()
    except CaseOver as over:
        verdict = over.verdict
    assert verdict.outcome == "pass" or verdict.why
    return verdict


def says(content: str = "", **more: Any) -> Reply:
    """A whole answer with a text."""
    given = {"finish_reason": "stop", "model": "gemma", "prompt_tokens": 30, "completion_tokens": 20, "seconds": 1.5}
    return Reply(200, content=content, document={"choices": []}, **(given | more))


def streams(content: str = "", *, events: tuple[str, ...] = IN_ORDER, **more: Any) -> Reply:
    """A streamed one."""
    return replace(says(content, **more), document={}, events=events)


def refuses(words: str, status: int | None = 400) -> Reply:
    """An error."""
    return Reply(status, f"HTTP {status}: {words}" if status else words)


LLAMA = replace(FOREIGN, engine="llamacpp")
OLLAMA = replace(FOREIGN, engine="ollama")
THOUGHT = ("role", "reasoning", "content", "finish", "usage", "done")


@dataclass(frozen=True)
class Row:
    """A case, a server (or its one answer), and what is said of it; `defect`, `remedy`, `why`: words of them."""

    case: str
    server: Server | Reply
    outcome: str = "fail"
    subject: ProbedServer = GEMMA
    defect: str = ""
    remedy: str = ""
    why: str = ""

    def __str__(self) -> str:
        return f"{self.case}, {self.outcome}"


PASS, NONE = "pass", "not applicable"
BOOM, LOST = refuses("boom", 500), refuses("connection reset", None)

# text

SKY = (
    "The sky is blue because sunlight, which holds all colours, meets the molecules of the air. They scatter short "
    "waves much more than long ones, so blue light reaches our eyes from every direction, while red goes straight on."
)
SALAD = "Green lamps ordered seven quiet questions while nobody painted the tired river of spoons and dates."
RUSSIAN = f"Небо голубое, потому что солнечный свет рассеивается в воздухе. {SKY[:60]}"
NO_TEXT = (
    says("", reasoning="Paris is the capital."),
    says("<think>France?</think>Paris."),
    says("Ein Schдum, Fehl شer und Stoшung"),
)
TEXT = [
    *(Row("text-fact", answer) for answer in NO_TEXT),
    Row("text-fact", says("The capital of France is **Paris**."), PASS),
    Row("text-fact", says("PARIS"), PASS),
    Row("text-fact", says("It's Paris, of course! 🙂"), PASS),
    Row("text-fact", says("The capital of France is London.")),
    Row("text-fact", says("!" * 60), remedy="--moe-backend marlin"),
    Row("text-fact", says("Paris. It lies on the Seine, and it is old.", finish_reason="length")),
    Row("text-fact", says("", reasoning="The user asks for the capital.", finish_reason="length"), NONE),
    Row("text-essay", says(SKY), PASS),
    Row("text-essay", says("The air scatters blue light."), PASS),
    Row("text-essay", says("The air scatters blue, blue blue.")),
    Row("text-essay", says(SALAD)),
    Row("text-essay", says(RUSSIAN)),
    Row("text-echo", streams(f"`{LINE}`\n"), PASS),
    Row("text-echo", streams(LINE.replace("日", "�"))),
]

# the API

DUMMY = replace(GEMMA, dummy=True)
CUT = says("one, two, three", finish_reason="length", completion_tokens=8)
COUNTED = says("One, two, three, four, five, six, ")


def models(*names: str, root: str = "/model") -> Reply:
    return Reply(200, document={"object": "list", "data": [{"id": name, "root": root} for name in names]})


def named(listed: Reply, given: Reply | str) -> Server:
    answer = says("Hello!", model=given) if isinstance(given, str) else given
    return lambda ask: listed if ask.path == "/v1/models" else answer


def limited(ask: Ask) -> Reply:
    """vLLM: a request that cannot fit is refused."""
    return refuses("max_tokens is too large") if ask.body["max_tokens"] > 65536 else says("OK")


def both(streamed: Reply | str, whole: Reply | str) -> Server:
    first = streams(streamed) if isinstance(streamed, str) else streamed
    second = says(whole) if isinstance(whole, str) else whole
    return lambda ask: first if ask.body["stream"] else second


API = [
    Row("served-name", named(models("gemma"), "gemma"), PASS),
    Row("served-name", named(models("first", "gemma"), "first"), PASS),
    Row("served-name", named(models("gemma:latest", root=""), "gemma"), PASS),
    Row("served-name", named(models("file.gguf"), "gemma"), PASS, LLAMA),
    Row("served-name", named(models("qwen"), "gemma")),
    Row("served-name", named(models("gemma"), ""), NONE),
    Row("served-name", named(models("gemma"), BOOM)),
    Row("served-unknown", refuses("The model does not exist.", 404), PASS),
    Row("served-unknown", Reply(200, "no such model", document={"error": {"message": "no such model"}}), PASS),
    Row("served-unknown", lambda ask: says("Hello!", model=ask.body["model"]), NONE),
    Row("served-unknown", says("Hi"), NONE, LLAMA),
    *(Row("served-unknown", refuses("it broke", status)) for status in (None, 429, 502)),
    Row("context-limit", limited, PASS),
    Row("context-limit", limited, PASS, replace(GEMMA, limit=None)),
    Row("context-limit", limited, PASS, replace(GEMMA, configured=None)),
    Row("context-limit", limited, NONE, FOREIGN),
    Row("context-limit", says("OK"), NONE, replace(OLLAMA, limit=4096)),
    Row("context-limit", says("OK"), "fail", replace(FOREIGN, engine="vllm", limit=4096)),
    Row("context-limit", BOOM),
    Row("stream-order", streams("", events=("role", "finish", "usage", "done"))),
    Row("stream-order", streams("", events=("role", "finish", "usage", "done")), NONE, DUMMY),
    Row("stream-order", streams("", events=("role", "finish", "usage")), "fail", DUMMY),
    Row("stream-order", streams("Hello!", events=("content", "role", "finish", "usage", "done")), PASS),
    Row("stream-same", both("Hello there!", "Good day!"), PASS),
    Row("stream-same", both(streams("Hello", completion_tokens=2), "Hello there!"), PASS),
    Row("stream-same", both("", " "), NONE),
    Row("stop-length", replace(CUT, content="one, " * 40, completion_tokens=None)),
    Row("stop-length", replace(CUT, finish_reason="stop"), NONE, DUMMY),
    Row("stop-string", replace(COUNTED, content="", reasoning=COUNTED.content), PASS),
    Row("stop-string", says("")),
]

# reasoning

THOUGHTS = "Let p be the price of a pen. Then 2p + 3(p + 7) = 41, so 5p = 20 and p = 4."
PRICE = "A pen costs 4 euros."
NO_THINKING = refuses('"gemma3:27b" does not support thinking')


def thinks(content: str = PRICE, reasoning: str = THOUGHTS, finish_reason: str = "stop") -> Server:
    """An answer with a channel, streamed where that is asked for."""
    events = THOUGHT if content else tuple(one for one in THOUGHT if one != "content")
    answer = says(content, reasoning=reasoning, finish_reason=finish_reason)
    return lambda ask: replace(answer, document={}, events=events) if ask.body["stream"] else answer


REASONING = [
    Row("reasoning-channel", thinks(), PASS),
    Row("reasoning-channel", thinks(), PASS, FOREIGN),
    Row("reasoning-channel", thinks(reasoning="A pen costs 4"), PASS),
    Row("reasoning-channel", thinks(f"{THOUGHTS}</think>{PRICE}", "First I see.")),
    Row("reasoning-channel", thinks(reasoning=f"{THOUGHTS}<channel|>")),
    Row("reasoning-channel", thinks(f"{PRICE}<turn|>")),
    Row("reasoning-channel", thinks(reasoning="!" * 90)),
    Row("reasoning-channel", thinks("")),
    Row("reasoning-channel", thinks("", finish_reason="length"), NONE),
    Row("reasoning-channel", thinks(reasoning=""), NONE, FOREIGN),
    Row("reasoning-channel", thinks(), NONE, replace(GEMMA, reasoning=False)),
    Row("reasoning-channel", NO_THINKING, NONE, FOREIGN),
    Row("reasoning-channel", refuses("reasoning_effort is not supported", 422), NONE, FOREIGN),
    Row("reasoning-channel", NO_THINKING),
    Row("reasoning-channel", says(f"thought\n{THOUGHTS}\n{PRICE}"), defect="38855", remedy="vLLM 0.20"),
    Row("reasoning-channel-streamed", thinks(), PASS),
    Row("reasoning-channel-streamed", streams(PRICE, reasoning=THOUGHTS, events=("content", "reasoning", "content"))),
]

# tools

AUTO = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
TAGS = "<|tool_call>call:get_balance{customer:58213}<tool_call|>"
AS_TEXT = says('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>')
TOOLS: dict[str, dict[str, Any]] = {
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
OSLO, TOKYO = {"city": "Oslo", "unit": "celsius"}, {"city": "Tōkyō"}


def calls(ask: Ask, **given: Any) -> Reply:
    """An answer in the form that was asked for, with these calls: arguments by name, as values or as text."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}
    made = tuple(ToolCall(f"call_{number}", name, text) for number, (name, text) in enumerate(texts.items()))
    more: dict[str, Any] = {"tool_calls": made, "finish_reason": "tool_calls"}
    events = ("role", "tool", "finish", "usage", "done")
    return streams(events=events, **more) if ask.body["stream"] else says(**more)


def done(ask: Ask) -> list[str]:
    """Tools whose results are in the conversation."""
    turns = [one for one in ask.body["messages"] if one["role"] == "assistant"]
    return [call["function"]["name"] for turn in turns for call in turn["tool_calls"]]


def talks(text: str) -> Server:
    return lambda ask: streams(text) if ask.body["stream"] else says(text)


def right(case: str, end: Server | Reply | None = None) -> Server:
    """A server and model without fault, that call one tool after the other; `end`: what is said then."""

    def server(ask: Ask) -> Reply:
        offered = [one["function"]["name"] for one in ask.body["tools"]]
        left = [name for name in offered if name not in done(ask)]
        if case == "tools-auto":
            return says("Hello.")
        if case == "tools-parallel" and end is None:
            return calls(ask, get_weather=OSLO, get_local_time=TOKYO)
        if left and not (case == "tools-steps" and end and done(ask)):
            name = "set_timer" if case == "tools-choice" else left[0]
            cities = {"get_weather": OSLO, "get_local_time": TOKYO} if case == "tools-parallel" else {}
            return calls(ask, **{name: (TOOLS | cities)[name]})
        last = end or talks(FINAL[case])
        return last if isinstance(last, Reply) else last(ask)

    return server


def changed(case: str, change: Callable[[Reply], Reply]) -> Server:
    """The same, its answers that call tools changed."""
    good = right(case)

    def server(ask: Ask) -> Reply:
        answer = good(ask)
        return change(answer) if answer.tool_calls else answer

    return server


def given(case: str, text: str) -> Server:
    """The same with other arguments."""
    return changed(case, other(arguments=text))


def page(content: str) -> Server:
    return given("tools-html", json.dumps({"path": "page.html", "content": content}))


def other(**more: Any) -> Callable[[Reply], Reply]:
    """An answer whose first call has something else."""
    return lambda one: replace(one, tool_calls=(replace(one.tool_calls[0], **more), *one.tool_calls[1:]))


def second_number(ask: Ask) -> Reply:
    answer = right("tools-steps")(ask)
    return other(arguments='{"customer": 58231}')(answer) if len(done(ask)) == 1 else answer


STOPPED = says(tool_calls=(ToolCall("a", "get_balance", '{"customer": 58213}'),), finish_reason="stop")
TOOL_ROWS = [
    *(Row(case, right(case), PASS, of) for case in BY_ID if case.startswith("tools-") for of in (GEMMA, FOREIGN)),
    Row("tools-single", refuses(AUTO), NONE, FOREIGN),
    Row("tools-auto", refuses(AUTO), "fail", FOREIGN, remedy="--enable-auto-tool-choice --tool-call-parser NAME"),
    Row("tools-auto", refuses(AUTO), NONE, replace(GEMMA, model="gemma-4", tools=False), remedy="parser=gemma4"),
    Row("tools-auto", refuses("registry.ollama.ai/library/gemma:2b does not support tools"), NONE, FOREIGN),
    Row("tools-auto", refuses("tools param requires --jinja flag", 500), "fail", LLAMA, remedy="--jinja"),
    Row("tools-auto", refuses("CUDA error", 500)),
    Row("tools-single", changed("tools-single", lambda one: replace(one, content="<think>Paris…"))),
    Row("tools-single", changed("tools-single", lambda one: replace(one, tool_calls=one.tool_calls * 2))),
    Row("tools-single", changed("tools-single", other(name="weather"))),
    Row("tools-single", given("tools-single", ""), why="are not JSON"),
    *(Row("tools-single", given("tools-single", bad)) for bad in ('["Paris"]', '{"city": "London"}', '{"city": 75}')),
    Row("tools-single", AS_TEXT, "fail", FOREIGN, remedy="--tool-call-parser"),
    Row("tools-single", AS_TEXT, remedy="has a parser, but not for what this model writes"),
    Row("tools-single", says(reasoning="Let me see. " * 9, finish_reason="length", completion_tokens=2048), NONE),
    Row("tools-single", given("tools-single", '{"city": "<|\\Paris<|\\"|"}')),
    Row("tools-single", given("tools-single", '{"city": "<|\\"|>Paris"}')),
    Row("tools-html", page(PAGE.replace("\n", "")), PASS),
    Row("tools-html", page(PAGE.replace("DOCTYPE", "doctype").replace('"', "'")), PASS),
    Row("tools-html", page(PAGE.replace("<b>bold</b> word", "<b>bolder</b> words")), PASS),
    Row("tools-html", page(PAGE.replace("<h1>", "<h1><h1>"))),
    # ending a loop early is named and not failed where vLLM does not stream
    *(
        Row("tools-steps", right("tools-steps", end), NONE, defect="39043", remedy="stream in agent loops")
        for end in (says(TAGS), says(""), says("Her number is 58213."), STOPPED)
    ),
    Row("tools-steps", right("tools-steps", says("Her number is 58213.")), "fail", LLAMA),
    Row("tools-steps", right("tools-steps", BOOM)),
    Row("tools-steps", second_number),
    Row("tools-agent", right("tools-agent", says(TAGS)), defect="39043"),
    Row("tools-agent", right("tools-agent", says(" ")), defect="39043"),
    *(Row("tools-agent", right("tools-agent", says(said)), PASS) for said in ("In locker 4,719.", "locker **4 719**")),
    Row("tools-agent", right("tools-agent", talks("Gladly: it is 12."))),
    Row("tools-loop", lambda ask: talks("137, 8.45")(ask) if done(ask) else calls(ask, count_stock={"product": "x"})),
    Row("tools-parallel", right("tools-parallel", says("Clear in Oslo, 08:15 in Tokyo.")), NONE),
    Row("tools-parallel", lambda ask: says("Clear.") if done(ask) else calls(ask, get_weather=OSLO)),
    Row("tools-parallel", lambda ask: calls(ask, get_weather=TOKYO, get_local_time=OSLO)),
    Row("tools-choice", given("tools-choice", '{"minutes": 12.0, "label": "Tea"}'), PASS),
]

# pictures

GOOD, SECOND_GOOD = "red square\ngreen circle", "blue triangle\nyellow square"
BLIND = replace(GEMMA, vision=False)


def picture(ask: Ask) -> bool:
    return not isinstance(ask.body["messages"][0]["content"], str)


def seeing(first: str, second: str, *, tokens: int | None = 256, without: int | None = 40) -> Server:
    """A server that says this to the two pictures, which cost so many tokens beside the words."""

    def server(ask: Ask) -> Reply:
        content = ask.body["messages"][0]["content"]
        said = first if content == shown(FIRST) else second if content == shown(SECOND) else "I see nothing."
        return says(said, prompt_tokens=without if not picture(ask) or tokens is None else 40 + tokens)

    return server


REFUSALS = [
    refuses("google/gemma-3-1b-it is not a multimodal model"),
    refuses("image input is not supported - hint: you may need to provide the mmproj", 500),
    refuses("this model is missing data required for image input", 500),
    refuses("json: cannot unmarshal array into Go struct field ChatCompletionRequest.messages of type string"),
]
VISION = [
    Row("vision-shapes", seeing(SECOND_GOOD, SECOND_GOOD, tokens=None, without=None)),
    Row("vision-shapes", refuses("invalid request", 400)),
    Row("vision-shapes", says("!" * 80)),
    Row("vision-shapes", seeing(GOOD, GOOD, tokens=0), "fail", FOREIGN),
    Row("vision-tokens", seeing(GOOD, "I do not know.", tokens=0), "fail", BLIND),
    Row("vision-tokens", seeing(GOOD, GOOD, tokens=None, without=None), NONE),
    Row("vision-tokens", lambda ask: says("red square") if picture(ask) else BOOM),
    *(Row("vision-tokens", words, NONE, subject) for words in REFUSALS for subject in (FOREIGN, BLIND)),
    *(Row("vision-tokens", words, remedy="--language-model-only") for words in REFUSALS),
    Row("vision-shapes", refuses("cannot identify image file <_io.BytesIO object>"), "fail", FOREIGN),
    Row("vision-shapes", LOST, "fail", BLIND),
]


@each("row", [*TEXT, *API, *REASONING, *TOOL_ROWS, *VISION], ids=str)
def test_each_server_is_judged_rightly(row: Row) -> None:
    verdict = hold(row.case, row.server, row.subject)
    assert verdict.outcome == row.outcome, verdict
    assert bool(verdict.defect) == bool(row.defect), verdict
    assert row.defect in verdict.defect, verdict
    assert row.remedy in verdict.remedy, verdict
    assert row.why in verdict.why, verdict


# what is asked


def test_thinking_is_asked_for_as_the_engine_wants_it_and_forbidden_where_it_costs_time() -> None:
    asked: list[Any] = []
    for case in ("text-fact", "text-essay", "text-echo"):
        hold(case, BOOM, asked=asked)
    assert [body["chat_template_kwargs"] for body in asked] == [{"enable_thinking": False}] * 3
    assert [body["stream"] for body in asked] == [False, False, True]
    asked.clear()
    hold("reasoning-channel", thinks(), GEMMA, asked)
    hold("reasoning-channel", thinks(), OLLAMA, asked)
    assert asked[0]["chat_template_kwargs"] == {"enable_thinking": True}
    assert asked[1]["reasoning_effort"] == "medium"
    assert "temperature" not in asked[0], "greedy thinking loops; the model's own settings hold"


def test_names_stops_and_a_small_context_are_asked_for() -> None:
    asked: list[Any] = []
    hold("served-unknown", refuses("", 404), asked=asked)
    hold("stop-string", COUNTED, asked=asked)
    hold("stream-order", streams(HELLO), replace(GEMMA, limit=100, configured=100), asked)
    assert [asked[0]["model"], asked[1]["stop"], asked[2]["max_tokens"]] == [NOBODY, ["seven"], 50]


def test_results_go_back_under_their_ids() -> None:
    asked: list[Any] = []
    hold("tools-agent", right("tools-agent"), asked=asked)
    messages = asked[-1]["messages"]
    assert [one["role"] for one in messages] == ["user", "assistant", "tool"]
    assert messages[1]["tool_calls"][0]["id"] == messages[2]["tool_call_id"] == "call_0"


# words about pictures

DESCRIBED = [
    GOOD,
    "- **Red** square\n- **Green** circle",
    "There is a red square on the left and a green circle on the right.",
    "The image shows a square and a circle, coloured red and green respectively.",
    "A green disc and a crimson box on a white background",
    "Two shapes: red and green. The first is a square, the second is round.",
    "From left to right there are a square and a circle. The circle is green; the square is red.",
]
NOT_DESCRIBED = [
    "",
    "green circle",
    "A green square and a red circle.",
    "red triangle\ngreen circle",
    "a red house with a green tree",
    "a square and a circle",
    "a red square, a green circle and a triangle",
    "red square, green circle, blue triangle, yellow square",
]


@each("text, is_right", [*((text, True) for text in DESCRIBED), *((text, False) for text in NOT_DESCRIBED)])
def test_any_wording_is_right(text: str, is_right: bool) -> None:
    assert describes(text, FIRST) == is_right
    assert not describes(text, SECOND), "the two cannot be guessed by one answer"


# the reasoning check

PROBLEM = {one.id: one for one in PROBLEMS}
RIGHT = {
    "price": [
        "Answer: 120",
        "**Answer:** 120 euros",
        "Answer: €120.00.",
        "Answer: $\\boxed{120}$",
        "so it is \\boxed{120}",
        "Answer: 118.80 / 0.99 = 120",
        "120",
        "answer is: 120 EUR",
    ],
    "islanders": ["Answer: R, S", "Answer: R and S", "**Answer: R & S**", "Answer:\nR S"],
    "divisors": ["Answer: 70", "Answer: **70** numbers", "I first thought\nAnswer: 80\nbut no.\nAnswer: 70"],
    "ticket": [
        "Answer: 2024-05-23",
        "Answer: 23 May 2024",
        "Answer: May 23, 2024",
        "Answer: Thursday, 23rd of May 2024",
        "Answer: 23.05.2024",
        "Answer: `2024-05-23`",
    ],
    "marbles": [
        "Answer: 55/84",
        "Answer: $\\frac{55}{84}$",
        "Answer: \\dfrac{55}{84} ≈ 0.65",
        "Answer: 110/168 = 55/84",
    ],
    "letters": ["Answer: mosednuh", 'Answer: "MOSEDNUH"', "Answer: m-o-s-e-d-n-u-h", "Answer: m o s e d n u h."],
    "runners": [
        "Answer: Cleo, Dan, Ben, Eva, Ana",
        "Answer: Cleo > Dan > Ben > Eva > Ana",
        "Answer: 1. Cleo 2. Dan 3. Ben 4. Eva 5. Ana",
    ],
}
WRONG = {
    "price": ["Answer: 119", "Answer: 120 or 121", "Answer:", "", "Answer: 12.0", "Answer: about twelve"],
    "islanders": ["Answer: R", "Answer: P, R, S", "Answer: S and Q"],
    "divisors": ["Answer: 70\nWait.\nAnswer: 80", "Answer: 7", "Answer: 700"],
    "ticket": ["Answer: 2024-05-24", "Answer: 2024-05-22", "Answer: May", "Answer: 23 May"],
    "marbles": ["Answer: 0.6548", "Answer: 55/85", "Answer: 55/0", "Answer: 29/84"],
    "letters": ["Answer: hundesom", "Answer: mosednu", "Answer: mosednuh mosednuh"],
    "runners": ["Answer: Cleo, Dan, Ana, Eva, Ben", "Answer: Cleo, Dan, Ben, Eva", "Answer: Dan, Cleo, Ben, Eva, Ana"],
}


@each("name, said", [(name, said) for name, all_said in RIGHT.items() for said in all_said])
def test_right_answers_however_written(name: str, said: str) -> None:
    assert [one.id for one in PROBLEMS if one.solved_by(f"First this, then that, 17 times.\n\n{said}")] == [name]


@each("name, said", [(name, said) for name, all_said in WRONG.items() for said in all_said])
def test_wrong_answers(name: str, said: str) -> None:
    assert not PROBLEM[name].solved_by(said)


TOO_LONG = says("", reasoning="Let me see", finish_reason="length")
BROKEN = refuses("time-out", None)


@each(
    "answer, outcome, score, tokens",
    [
        (says("Answer: 120", completion_tokens=640), "pass", "right", 640),
        (says("Answer: 120", finish_reason="length"), "pass", "right", 20),
        (says("Answer: 100", completion_tokens=640), "fail", "wrong", 640),
        (says(""), "fail", "wrong", 20),
        (TOO_LONG, "fail", "cut off", 20),
        (BROKEN, "fail", "", None),
    ],
)
def test_what_becomes_of_an_answer(answer: Reply, outcome: str, score: str, tokens: int | None) -> None:
    verdict = hold("problem-price", answer)
    assert (verdict.outcome, verdict.score, verdict.tokens) == (outcome, score, tokens)


def test_the_score() -> None:
    server = {
        "problem-price": says("Answer: 120", completion_tokens=100),
        "problem-ticket": says("Answer: 7"),
        "problem-letters": says("", finish_reason="length", completion_tokens=3500),
        "problem-runners": BROKEN,
    }
    told = [CaseResult(BY_ID[name], hold(name, answer), 2.0) for name, answer in server.items()]
    probed = Probed(GEMMA, told)
    assert probed.score() == {"right": 1, "wrong": 1, "cut_off": 1, "of": 3, "seconds_each": 2.0, "tokens_each": 1207}
    assert [one.case.id for one in probed.failed] == ["problem-runners"], "wrong answers are the model's"
    assert Probed(GEMMA).score() is None
    document = probed.document()
    assert (document["passed"], document["failed"], document["cases"][1]["score"]) == (0, 1, "wrong")


def test_a_model_that_cannot_think_is_asked_without() -> None:
    asked: list[Any] = []
    no = refuses("m does not support thinking")
    last = lambda ask: no if "chat_template_kwargs" in ask.body else says("Answer: 120")  # noqa: E731
    assert hold("problem-price", last, FOREIGN, asked).outcome == "pass"
    assert asked[0]["chat_template_kwargs"] == {"enable_thinking": True}
    assert "temperature" not in asked[0]
