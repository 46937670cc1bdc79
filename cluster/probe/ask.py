"""What a case of `cluster probe` is made of: the server under test, requests, recorded answers, verdicts. Pure.

A case is a generator: it yields a request, is sent the answer, and returns a verdict.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import orjson
import yaml

from cluster.argv.vllm import AUTO, read_length, serve_flags, weights_of
from cluster.bench.loader import Ask, Record
from cluster.bench.read import EventSplitter, error_text, read_http
from cluster.spark import server

if TYPE_CHECKING:
    from cluster.bench.endpoint import Served

CHAT = "/v1/chat/completions"
OPTIONAL_FIELDS = ("stream_options", "seed", "temperature", "chat_template_kwargs", "reasoning_effort")
MAX_TOKENS = 2048
"""Of an answer that may think first. A 31B on one Spark says about 7 tokens a second."""

Message = dict[str, Any]
Tool = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Subject:
    """The server as a case sees it: the model's name in its API, its context limit, what its recipe promises.

    `limit`: tokens that /v1/models tells, None when it tells none; `configured`: max-model-len of the recipe, None
    without one. `tools`, `reasoning`, `vision`: whether the recipe says that it has them, None without a recipe: then
    a case finds out. `engine`: what the server calls itself (vllm, llamacpp, ollama), empty when unknown.
    `dummy`: its weights are random, so that what it says means nothing.
    """

    model: str
    limit: int | None = None
    configured: int | None = None
    tools: bool | None = None
    reasoning: bool | None = None
    vision: bool | None = None
    engine: str = ""
    dummy: bool = False


def subject_of(served: Served, recipe: Mapping[str, Any] | None, words: Sequence[str] = ()) -> Subject:
    """The server as the cases see it. `recipe` as in a deployment's spec; `words`: what was given to vLLM behind it."""
    if recipe is None:
        return Subject(served.model, served.max_tokens, engine=served.owner)
    flags = serve_flags(recipe["vllm"], words)

    def is_on(name: str) -> bool:
        return flags.get(name) not in (None, False, "")

    try:
        length = read_length(flags.get("max-model-len"))
    except ValueError:
        length = AUTO
    limit, architecture = flags.get("limit-mm-per-prompt"), recipe.get("architecture", "")
    no_images = is_on("language-model-only") or (isinstance(limit, Mapping) and limit.get("image") == 0)
    vision = True if re.fullmatch("Gemma4.*ForConditionalGeneration", architecture) else None
    if no_images or architecture.endswith("ForCausalLM"):  # a class of text only
        vision = False
    return Subject(
        served.model,
        served.max_tokens,
        configured=None if length == AUTO else length,
        tools=is_on("enable-auto-tool-choice"),
        reasoning=is_on("reasoning-parser"),
        vision=vision,
        engine=served.owner,
        dummy=weights_of(recipe["weights"], flags) == "dummy",
    )


def chat(
    subject: Subject,
    messages: str | Sequence[Message],
    *,
    tools: Sequence[Tool] = (),
    tool_choice: str = "auto",
    stream: bool = False,
    max_tokens: int = MAX_TOKENS,
    thinking: bool | None = None,
    **more: Any,
) -> Ask:
    """A chat completion; a text alone is the user's only message.

    `thinking`: asked for or forbidden where the server knows how; None leaves it to the server, as most clients do.
    `more` goes into the body as it is.
    """
    said = [user(messages)] if isinstance(messages, str) else list(messages)
    limit = subject.limit or subject.configured
    body: dict[str, Any] = {"model": subject.model, "messages": said}
    body["max_tokens"] = min(max_tokens, limit // 2) if limit else max_tokens
    body |= {"temperature": 0, "seed": 1, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    if tools:
        body |= {"tools": list(tools), "tool_choice": tool_choice}
    if thinking is not None and subject.engine == "ollama":
        body["reasoning_effort"] = "medium" if thinking else "none"
    elif thinking is not None:  # vLLM and llama.cpp, by template
        body["chat_template_kwargs"] = {"enable_thinking": thinking}
    return Ask(CHAT, body | more)


def without(ask: Ask, name: str) -> Ask:
    """The same request without one field of its body, where it has one."""
    if ask.body is None:
        return ask
    return Ask(ask.path, {key: value for key, value in ask.body.items() if key != name}, ask.method)


def user(content: Any) -> Message:
    """`content`: text, or a list of parts (text, image_url)."""
    return {"role": "user", "content": content}


def tool(name: str, about: str, parameters: dict[str, dict[str, Any]], required: Sequence[str] | None = None) -> Tool:
    """A tool as OpenAI's API has it; `parameters` by name, as JSON schema. All are required unless some are named."""
    names = list(parameters if required is None else required)
    schema = {"type": "object", "properties": parameters, "required": names}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}


def read_arguments(call: ToolCall) -> tuple[dict[str, Any], str]:
    """A call's arguments and what is wrong with their form: empty when they are a JSON object."""
    try:
        found = orjson.loads(call.arguments)
    except ValueError:
        return {}, f"the arguments of {call.name} are not JSON"
    if not isinstance(found, dict):
        return {}, f"the arguments of {call.name} are JSON, but no object"
    return found, ""


def leaked(answer: Answer) -> str:
    """Marks in the text that a parser should have taken away; empty when there are none."""
    return server.leaked(answer.content) or server.thinks_aloud(answer.content)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool as the server gave it; `arguments` is its text, not yet read as JSON.

    `is_text`: whether it came as text, as the API has it; otherwise the text is ours.
    """

    id: str
    name: str
    arguments: str
    is_text: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. `status` is None when there was none; `error` holds the server's own words, empty when it is whole.

    `events`: what the parts of a stream held, in order ("role", "reasoning", "content", "tool", "finish", "usage",
    "done"; equal neighbours are one); empty for an answer that was not streamed. `document`: the JSON of one that was
    not. `seconds`: from the first byte sent to the end. `left_out`: fields that the server would not have, so
    that they were not in the request.
    """

    status: int | None
    error: str = ""
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = ""
    model: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    seconds: float = 0.0
    events: tuple[str, ...] = ()
    document: dict[str, Any] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    def turn(self) -> dict[str, Any]:
        """The assistant's message of the next request."""
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in self.tool_calls
        ]
        return {"role": "assistant", "content": self.content or None} | ({"tool_calls": calls} if calls else {})

    def said(self, limit: int = 240) -> str:
        """The server's own words, short: its error, its calls, its text."""
        calls = "; ".join(f"{call.name}({call.arguments})" for call in self.tool_calls)
        return (self.error or " · ".join(filter(None, (calls, self.content, self.reasoning))))[:limit]


def read_answer(record: Record) -> Answer:
    """Read one answer; whether it was streamed is seen from its type. Nothing raises: what went wrong is `error`."""
    answer, seconds = read_http(record), record.end_s - record.t0_s
    if answer.status is None or answer.status >= 300:
        why = f"HTTP {answer.status}: {error_text(answer.body)}" if answer.status else answer.problem
        return Answer(answer.status, why, seconds=seconds)
    reader = _Reader()
    document: Any = {}
    if "text/event-stream" in answer.headers.get("content-type", ""):
        splitter = EventSplitter()
        for data in [one for _, piece in answer.pieces for one in splitter.feed(piece)] + splitter.finish():
            reader.take_event(data, cut_off=bool(answer.problem))
    else:
        try:
            document = orjson.loads(answer.body)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            said = answer.problem or f"the answer is not a JSON object: {error_text(answer.body, 120)}"
            return Answer(answer.status, said, seconds=seconds)
        if _is_error(document):
            return Answer(answer.status, error_text(answer.body), seconds=seconds, document=document)
        reader.take(document)
    return Answer(
        status=answer.status,
        error=reader.error or answer.problem,
        content="".join(reader.text["content"]),
        reasoning="".join(reader.text["reasoning"]),
        tool_calls=tuple(ToolCall(**call) for _, call in sorted(reader.calls.items())),
        finish_reason=reader.finish_reason,
        model=reader.model,
        prompt_tokens=reader.usage.get("prompt_tokens"),
        completion_tokens=reader.usage.get("completion_tokens"),
        seconds=seconds,
        events=() if document else tuple(kind for kind, _ in groupby(reader.events)),
        document=document,
    )


@dataclass(slots=True)
class _Reader:
    """What has been read of an answer so far."""

    text: dict[str, list[str]] = field(default_factory=lambda: {"content": [], "reasoning": []})
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    finish_reason: str = ""
    model: str = ""
    usage: dict[str, int] = field(default_factory=dict)
    error: str = ""

    def take_event(self, data: bytes, *, cut_off: bool) -> None:
        """One event of a stream. `cut_off`: the stream broke off, so that its last event may be half of one."""
        try:
            document = _dict(orjson.loads(data))
        except ValueError:
            if data.strip() == b"[DONE]":
                self.events.append("done")
            elif not cut_off:
                self.error = self.error or f"an event is not JSON: {data[:120]!r}"
            return
        if _is_error(document):
            self.error = self.error or error_text(data)
        else:
            self.take(document)

    def take(self, document: dict[str, Any]) -> None:
        """The document of an event, or a whole answer."""
        self.model = self.model or str(document.get("model") or "")
        for choice in objects_of(document.get("choices")):
            self._take_choice(choice)
        if isinstance(document.get("usage"), dict):
            self.usage = {name: count for name, count in document["usage"].items() if isinstance(count, int)}
            if not document.get("choices"):
                self.events.append("usage")

    def _take_choice(self, choice: dict[str, Any]) -> None:
        said = _dict(choice.get("delta")) or _dict(choice.get("message")) or {"content": choice.get("text")}
        reasoning = said.get("reasoning") or said.get("reasoning_content") or ""
        texts = {"reasoning": reasoning, "content": said.get("content")}
        if said.get("role") and "role" not in self.events:
            self.events.append("role")
        for kind, text in texts.items():
            if isinstance(text, str) and text:
                self.text[kind].append(text)
                self.events.append(kind)
        calls = said.get("tool_calls")
        for number, call in enumerate(calls if isinstance(calls, list) else ()):
            self._take_call(_dict(call), number)
        if said.get("role") and not any(texts.values()) and not calls:
            self.events.append("role")
        if choice.get("finish_reason"):
            self.finish_reason = str(choice["finish_reason"])
            self.events.append("finish")

    def _take_call(self, call: dict[str, Any], number: int) -> None:
        """A call, or the next portion of one."""
        index, function = call.get("index", number), _dict(call.get("function"))
        empty = {"id": "", "name": "", "arguments": "", "is_text": True}
        kept = self.calls.setdefault(index if isinstance(index, int) else number, empty)
        kept["id"] = kept["id"] or str(call.get("id") or "")
        kept["name"] += str(function.get("name") or "")
        arguments = function.get("arguments") or ""
        if not isinstance(arguments, str):
            arguments, kept["is_text"] = orjson.dumps(arguments).decode(), False
        kept["arguments"] += arguments
        self.events.append("tool")


def _is_error(document: dict[str, Any]) -> bool:
    return bool(document.get("error")) or document.get("object") == "error"


def _dict(value: Any) -> dict[str, Any]:
    """A JSON object; anything else that a server may send in its place is an empty one."""
    return value if isinstance(value, dict) else {}


def objects_of(value: Any) -> list[dict[str, Any]]:
    """The objects of a JSON array; anything else has none."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


Outcome = Literal["pass", "fail", "not applicable"]
Score = Literal["", "right", "wrong", "cut off"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a case. `why` is ours, `said` the server's own words; `defect`: the known fault it looks like.

    `remedy`: what to do, where that is known. `score`: what the answer to a problem is worth: a wrong one is the
    model's and no fault of the server, one cut off at its limit is neither; `tokens`: what it cost, thoughts included.
    """

    outcome: Outcome
    why: str = ""
    said: str = ""
    defect: str = ""
    remedy: str = ""
    score: Score = ""
    tokens: int | None = None


@cache
def table(name: str) -> Any:
    """One table of known.yaml: `remedies`, `defects` or `problems`."""
    return yaml.load(Path(__file__).with_name("known.yaml").read_bytes(), yaml.CSafeLoader)[name]


REMEDIES: dict[str, str] = table("remedies")
DEFECTS: dict[str, dict[str, str]] = table("defects")
"""Known faults of servers: who reported each (`name`), `what` it looks like, `remedy`."""

Talk = Generator[Ask, Answer, Verdict]


@dataclass(frozen=True, slots=True)
class Case:
    """One case. `id`: words with hyphens, unique. `source`: who met the fault that it looks for.

    `quick`: also asked at the end of `up`. `long`: asked with --full only. `judges_text`: it needs a model that says
    something sensible, so it is not asked of random weights.
    """

    id: str
    title: str
    talk: Callable[[Subject], Talk]
    source: str
    group: str
    quick: bool = False
    long: bool = False
    judges_text: bool = True


@dataclass(frozen=True, slots=True)
class CaseResult:
    """A case and its verdict."""

    case: Case
    verdict: Verdict
    seconds: float
    requests: int = 0

    def document(self) -> dict[str, Any]:
        """For --json."""
        row = {name: getattr(self.case, name) for name in ("id", "title", "group")}
        row |= {name: getattr(self.verdict, name) for name in ("outcome", "why", "said", "defect", "remedy")}
        scored = {"score": self.verdict.score, "tokens": self.verdict.tokens} if self.verdict.score else {}
        return row | {"seconds": round(self.seconds, 3), "requests": self.requests} | scored


PASSED = Verdict("pass")


def failed(
    why: str, answer: Answer | None = None, *, defect: str = "", remedy: str = "", outcome: Outcome = "fail"
) -> Verdict:
    """The server did what it should not. A known defect, a key of DEFECTS, brings its own remedy."""
    known = DEFECTS[defect] if defect else {"remedy": ""}
    name = f"{known['name']}: {known['what']}" if defect else ""
    return Verdict(outcome, why, answer.said() if answer else "", name, remedy or known["remedy"])


def skipped(why: str, answer: Answer | None = None, *, remedy: str = "") -> Verdict:
    """The server does not have what the case is about, and need not; or it is limited in a known way."""
    return failed(why, answer, remedy=remedy, outcome="not applicable")


STYLES = {"pass": ("✓", None), "fail": ("✗", "red"), "not applicable": ("–", "dim")}


def lines(result: CaseResult) -> list[tuple[str, str | None]]:
    """A case in lines: what it asked and what came of it; below, why, the server's words, what is known, what to do."""
    verdict = result.verdict
    mark, style = STYLES[verdict.outcome]
    tokens = f", {verdict.tokens:,} tokens" if verdict.tokens else ""
    head = f"  {mark} {result.case.id}: {result.case.title}"
    head += f" ({result.seconds:.1f} s{tokens})" if result.requests else ""
    head += f": {verdict.why}" if verdict.why else ""
    rows = {"server": " ".join(verdict.said.split()), "known": verdict.defect, "hint": verdict.remedy}
    below = [(f"      {label}: {text}", None) for label, text in rows.items() if text and verdict.outcome != "pass"]
    return [(head, None if verdict.score else style), *below]
