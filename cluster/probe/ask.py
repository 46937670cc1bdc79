"""What a case of `cluster probe` is made of: the server under test, requests, recorded answers, verdicts. Pure.

A case is a generator: it yields a request, is sent the answer, and returns a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import orjson
import yaml

from cluster.argv.vllm import AUTO, read_length, serve_flags, weights_of
from cluster.bench.loader import Ask, Record
from cluster.bench.read import EventSplitter, HttpAnswer, error_text, read_http
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
    try:
        length = read_length(flags.get("max-model-len"))
    except ValueError:
        length = AUTO
    return Subject(
        served.model,
        served.max_tokens,
        configured=None if length == AUTO else length,
        tools=_on(flags, "enable-auto-tool-choice"),
        reasoning=_on(flags, "reasoning-parser"),
        vision=_sees(recipe.get("architecture", ""), flags),
        engine=served.owner,
        dummy=weights_of(recipe["weights"], flags) == "dummy",
    )


def _on(flags: Mapping[str, Any], name: str) -> bool:
    return flags.get(name) not in (None, False, "")


def _sees(architecture: str, flags: Mapping[str, Any]) -> bool | None:
    """Whether it takes pictures: by its class's name (`…ForCausalLM` has text only), unless they are turned off."""
    limit = flags.get("limit-mm-per-prompt")
    if _on(flags, "language-model-only") or (isinstance(limit, Mapping) and limit.get("image") == 0):
        return False
    if architecture.endswith("ForCausalLM"):
        return False
    return True if architecture.startswith("Gemma4") and architecture.endswith("ForConditionalGeneration") else None


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
    return Ask(CHAT, body | _thinking(subject, thinking) | more)


def _thinking(subject: Subject, thinking: bool | None) -> dict[str, Any]:
    """How an engine is told to think or not: vLLM and llama.cpp by template, Ollama by effort."""
    if thinking is None:
        return {}
    if subject.engine == "ollama":
        return {"reasoning_effort": "medium" if thinking else "none"}
    return {"chat_template_kwargs": {"enable_thinking": thinking}}


def without(ask: Ask, name: str) -> Ask:
    """The same request without one field of its body, where it has one."""
    if ask.body is None:
        return ask
    return Ask(ask.path, {key: value for key, value in ask.body.items() if key != name}, ask.method)


def user(content: Any) -> Message:
    """A message of the user: text, or a list of parts (text, image_url)."""
    return {"role": "user", "content": content}


def system(text: str) -> Message:
    """The instruction before everything."""
    return {"role": "system", "content": text}


def result(call: ToolCall, content: str) -> Message:
    """What a tool gave back."""
    return {"role": "tool", "tool_call_id": call.id, "content": content}


def tool(name: str, about: str, parameters: dict[str, dict[str, Any]], required: Sequence[str] | None = None) -> Tool:
    """A tool as OpenAI's API has it; `parameters` by name, as JSON schema. All are required unless some are named."""
    schema = {
        "type": "object",
        "properties": parameters,
        "required": list(parameters if required is None else required),
    }
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
    """Marks in the text that a parser should have taken away, as they stand there; empty when there are none."""
    return server.leaked(answer.content) or server.thinks_aloud(answer.content)


REASONING = ("reasoning", "reasoning_content")


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


@dataclass(slots=True)
class _Parts:
    """What has been read of a stream so far."""

    text: dict[str, list[str]] = field(default_factory=lambda: {"content": [], "reasoning": []})
    calls: dict[int, dict[str, str]] = field(default_factory=dict)
    objects: set[int] = field(default_factory=set)
    events: list[str] = field(default_factory=list)
    finish_reason: str = ""
    model: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    error: str = ""


def read_answer(record: Record) -> Answer:
    """Read one answer; whether it was streamed is seen from its type. Nothing raises: what went wrong is `error`."""
    answer = read_http(record)
    seconds = record.end_s - record.t0_s
    if answer.status is None or answer.status >= 300:
        why = f"HTTP {answer.status}: {error_text(answer.body)}" if answer.status else answer.problem
        return Answer(answer.status, why, seconds=seconds)
    if "text/event-stream" in answer.headers.get("content-type", ""):
        return _of_stream(answer, seconds)
    return _of_document(answer, seconds)


def _of_document(answer: HttpAnswer, seconds: float) -> Answer:
    """An answer in one piece; one without choices (/v1/models) has its `document` only."""
    try:
        document = orjson.loads(answer.body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        said = answer.problem or f"the answer is not a JSON object: {error_text(answer.body, 120)}"
        return Answer(answer.status, said, seconds=seconds)
    if document.get("error") or document.get("object") == "error":
        return Answer(answer.status, error_text(answer.body), seconds=seconds, document=document)
    parts = _Parts()
    _take(parts, document)
    return _finish(parts, answer, seconds, document)


def _of_stream(answer: HttpAnswer, seconds: float) -> Answer:
    """An answer in server-sent events."""
    splitter, parts = EventSplitter(), _Parts()
    for data in [one for _, piece in answer.pieces for one in splitter.feed(piece)] + splitter.finish():
        if data.strip() == b"[DONE]":
            parts.events.append("done")
            continue
        try:
            document = orjson.loads(data)
        except ValueError:
            if not answer.problem:  # else it is the one within which the stream broke off
                parts.error = parts.error or f"an event is not JSON: {data[:120]!r}"
            continue
        if isinstance(document, dict) and (document.get("error") or document.get("object") == "error"):
            parts.error = parts.error or error_text(data)
        elif isinstance(document, dict):
            _take(parts, document)
    return _finish(parts, answer, seconds, {})


def _finish(parts: _Parts, answer: HttpAnswer, seconds: float, document: dict[str, Any]) -> Answer:
    calls = tuple(
        ToolCall(one["id"], one["name"], one["arguments"], index not in parts.objects)
        for index, one in sorted(parts.calls.items())
    )
    return Answer(
        status=answer.status,
        error=parts.error or answer.problem,
        content="".join(parts.text["content"]),
        reasoning="".join(parts.text["reasoning"]),
        tool_calls=calls,
        finish_reason=parts.finish_reason,
        model=parts.model,
        prompt_tokens=_count(parts.usage.get("prompt_tokens")),
        completion_tokens=_count(parts.usage.get("completion_tokens")),
        seconds=seconds,
        events=tuple(kind for kind, _ in groupby(parts.events)) if not document else (),
        document=document,
    )


def _take(parts: _Parts, document: dict[str, Any]) -> None:
    """One document: an event of a stream, or a whole answer."""
    parts.model = parts.model or str(document.get("model") or "")
    for choice in objects_of(document.get("choices")):
        _take_choice(parts, choice)
    if isinstance(document.get("usage"), dict):
        parts.usage = document["usage"]
        if not document.get("choices"):
            parts.events.append("usage")


def _take_choice(parts: _Parts, choice: dict[str, Any]) -> None:
    said = _dict(choice.get("delta")) or _dict(choice.get("message")) or {"content": choice.get("text")}
    texts = {"reasoning": next(filter(None, map(said.get, REASONING)), ""), "content": said.get("content")}
    if said.get("role") and "role" not in parts.events:
        parts.events.append("role")
    for kind, text in texts.items():
        if isinstance(text, str) and text:
            parts.text[kind].append(text)
            parts.events.append(kind)
    calls = said.get("tool_calls")
    for number, call in enumerate(calls if isinstance(calls, list) else ()):
        _take_call(parts, _dict(call), number)
    if said.get("role") and not any(texts.values()) and not calls:
        parts.events.append("role")
    if choice.get("finish_reason"):
        parts.finish_reason = str(choice["finish_reason"])
        parts.events.append("finish")


def _take_call(parts: _Parts, call: dict[str, Any], number: int) -> None:
    """A call, or the next portion of one."""
    index, function = call.get("index", number), _dict(call.get("function"))
    index = index if isinstance(index, int) else number
    kept = parts.calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
    kept["id"] = kept["id"] or str(call.get("id") or "")
    kept["name"] += str(function.get("name") or "")
    arguments = function.get("arguments") or ""
    if not isinstance(arguments, str):
        parts.objects.add(index)
        arguments = orjson.dumps(arguments).decode()
    kept["arguments"] += arguments
    parts.events.append("tool")


def _dict(value: Any) -> dict[str, Any]:
    """A JSON object; anything else that a server may send in its place is an empty one."""
    return value if isinstance(value, dict) else {}


def objects_of(value: Any) -> list[dict[str, Any]]:
    """The objects of a JSON array; anything else has none."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _count(value: Any) -> int | None:
    """A number of tokens, where it is one."""
    return value if isinstance(value, int) else None


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


@dataclass(frozen=True, slots=True)
class Defect:
    """A known fault of a server: who reported it, what it looks like, what to do."""

    name: str
    what: str
    remedy: str


@cache
def table(name: str) -> Any:
    """One table of known.yaml: `remedies`, `defects` or `problems`."""
    return yaml.load(Path(__file__).with_name("known.yaml").read_bytes(), yaml.CSafeLoader)[name]


REMEDIES: dict[str, str] = table("remedies")
DEFECTS = {
    key: Defect(**row | {"remedy": REMEDIES.get(row["remedy"], row["remedy"])}) for key, row in table("defects").items()
}


Talk = Generator[Ask, Answer, Verdict]


@dataclass(frozen=True, slots=True)
class Case:
    """One case. `id`: words with hyphens, unique. `source`: who met the fault that it looks for.

    `quick`: also asked at the end of `up`. `long`: asked with --full only. `judges_text`: it needs a model that says
    something sensible, so it is not asked of random weights.
    """

    id: str
    title: str
    group: str
    talk: Callable[[Subject], Talk]
    source: str
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
        scored = {"score": self.verdict.score, "tokens": self.verdict.tokens} if self.verdict.score else {}
        return {
            "id": self.case.id,
            "title": self.case.title,
            "group": self.case.group,
            "outcome": self.verdict.outcome,
            "why": self.verdict.why,
            "said": self.verdict.said,
            "defect": self.verdict.defect,
            "remedy": self.verdict.remedy,
            "seconds": round(self.seconds, 3),
            "requests": self.requests,
            **scored,
        }


PASSED = Verdict("pass")


def failed(why: str, answer: Answer | None = None, *, defect: Defect | None = None, remedy: str = "") -> Verdict:
    """The server did what it should not. A known defect brings its own remedy."""
    known = f"{defect.name}: {defect.what}" if defect else ""
    return Verdict("fail", why, answer.said() if answer else "", known, remedy or (defect.remedy if defect else ""))


def skipped(why: str, answer: Answer | None = None, *, defect: Defect | None = None, remedy: str = "") -> Verdict:
    """The server does not have what the case is about, and need not; or it is limited in a known way."""
    return replace(failed(why, answer, defect=defect, remedy=remedy), outcome="not applicable")


MARKS = {"pass": "✓", "fail": "✗", "not applicable": "–"}
STYLES = {"pass": None, "fail": "red", "not applicable": "dim"}


def lines(result: CaseResult) -> list[tuple[str, str | None]]:
    """A case in lines: what it asked and what came of it; below, why, the server's words, what is known, what to do."""
    verdict = result.verdict
    head = f"  {MARKS[verdict.outcome]} {result.case.id}: {result.case.title}"
    tokens = f", {verdict.tokens:,} tokens" if verdict.tokens else ""
    head += f" ({result.seconds:.1f} s{tokens})" if result.requests else ""
    head += f": {verdict.why}" if verdict.why else ""
    rows = {"server": " ".join(verdict.said.split()), "known": verdict.defect, "hint": verdict.remedy}
    below = [f"{label}: {text}" for label, text in rows.items() if text]
    if verdict.outcome == "pass":
        return [(head, STYLES["pass"])]
    return [(head, None if verdict.score else STYLES[verdict.outcome]), *((f"      {text}", None) for text in below)]
