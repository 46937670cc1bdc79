"""What a case of `cluster probe` is made of: the server under test, requests, replies, verdicts. Pure.

A case is a generator: it yields a request and is sent the reply. One that ends passes; `fail`, `skip` and `expect`
end it earlier.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import orjson
import yaml

from cluster.argv.vllm import AUTO, read_length, serve_flags, weights_of
from cluster.bench.loader import Ask, RequestRecord
from cluster.bench.read import error_text, read_http

if TYPE_CHECKING:
    from cluster.bench.endpoint import Served

OPTIONAL_FIELDS = ("stream_options", "seed", "temperature", "chat_template_kwargs", "reasoning_effort")
MAX_TOKENS = 2048  # of a reply that may think first; a 31B on one Spark generates about 7 tokens a second

Message = dict[str, Any]  # or a part of one
Tool = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ProbedServer:
    """The server as a case sees it: the model's name in its API, its context limit, what its recipe promises.

    `limit`: tokens that /v1/models reports, None without; `configured`: max-model-len of the recipe, None without one.
    `tools`, `reasoning`, `vision`: whether the recipe has them, None without a recipe: then a case finds out.
    `engine`: what the server calls itself (vllm, llamacpp, ollama), empty when unknown. `dummy`: of random
    weights.
    """

    model: str
    limit: int | None = None
    configured: int | None = None
    tools: bool | None = None
    reasoning: bool | None = None
    vision: bool | None = None
    engine: str = ""
    dummy: bool = False


def probed_server(served: Served, recipe: Mapping[str, Any] | None, words: Sequence[str] = ()) -> ProbedServer:
    """`recipe` as in a deployment's spec; `words`: what was given to vLLM behind it."""
    if recipe is None:
        return ProbedServer(served.model, served.max_tokens, engine=served.owner)
    flags = serve_flags(recipe["vllm"], words)
    try:
        length = read_length(flags.get("max-model-len"))
    except ValueError:
        length = AUTO
    limit, architecture = flags.get("limit-mm-per-prompt"), recipe.get("architecture", "")
    no_images = flags.get("language-model-only") or (isinstance(limit, Mapping) and limit.get("image") == 0)
    vision = True if re.fullmatch("Gemma4.*ForConditionalGeneration", architecture) else None
    return ProbedServer(
        served.model,
        served.max_tokens,
        configured=None if length == AUTO else length,
        tools=bool(flags.get("enable-auto-tool-choice")),
        reasoning=bool(flags.get("reasoning-parser")),
        vision=False if no_images or architecture.endswith("ForCausalLM") else vision,  # ForCausalLM: text only
        engine=served.owner,
        dummy=weights_of(recipe["weights"], flags) == "dummy",
    )


def chat(
    server: ProbedServer,
    content: str | Sequence[Message],
    *,
    tools: Sequence[Tool] = (),
    thinking: bool | None = None,
    **fields: Any,
) -> Ask:
    """A chat completion of one message of the user: text, or parts (text, image_url); `fields` go into the body.

    `thinking`: asked for or forbidden where the server knows how; None leaves it to the server, as most clients do.
    """
    body: dict[str, Any] = {"model": server.model, "messages": [{"role": "user", "content": content}]}
    body |= {"max_tokens": MAX_TOKENS, "temperature": 0, "seed": 1, "stream": False} | fields
    if limit := server.limit or server.configured:
        body["max_tokens"] = min(body["max_tokens"], limit // 2)
    if body["stream"]:
        body["stream_options"] = {"include_usage": True}
    if tools:
        body |= {"tools": list(tools), "tool_choice": "auto"}
    if thinking is not None and server.engine == "ollama":
        body["reasoning_effort"] = "medium" if thinking else "none"
    elif thinking is not None:  # vLLM and llama.cpp, by template
        body["chat_template_kwargs"] = {"enable_thinking": thinking}
    return Ask("/v1/chat/completions", body)


def without(ask: Ask, name: str) -> Ask:
    return Ask(ask.path, ask.body and {key: value for key, value in ask.body.items() if key != name})


@dataclass(slots=True)
class ToolCall:
    """One call of a tool as the server gave it; `arguments`: JSON as text, or whatever stood in its place."""

    id: str = ""
    name: str = ""
    arguments: Any = ""


@dataclass(slots=True)
class Reply:
    """One reply. `status` is None when there was none; `error` holds the server's own words, empty when it is complete.

    `events`: what the parts of a stream held, in order ("role", "reasoning", "content", "tool", "finish", "usage",
    "done"; the types of Anthropic's form; equal neighbors are one); empty for a reply that was not streamed.
    `event_lines`: what its `event:` lines name. `document`: the JSON of one that was not streamed, also of an error, or
    the message of Anthropic's `message_start`. `seconds`: from the first byte sent to the end. `left_out`: fields left
    out of the request, as the server refuses them.
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
    event_lines: frozenset[str] = frozenset()
    document: dict[str, Any] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    def turn(self) -> Message:
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in self.tool_calls
        ]
        return {"role": "assistant", "content": self.content or None} | ({"tool_calls": calls} if calls else {})

    def said(self, limit: int = 240) -> str:
        """The server's own words, short: its error, its calls, its text."""
        calls = "; ".join(f"{call.name}({call.arguments})" for call in self.tool_calls)
        return (self.error or " · ".join(filter(None, (calls, self.content, self.reasoning))))[:limit]


def read_reply(record: RequestRecord) -> Reply:
    """Read one reply, streamed or not by its type; what went wrong on the way is `error`.

    Raises TypeError and AttributeError for JSON in which a value of the API is of another type.
    """
    answer = read_http(record)
    reply = Reply(answer.status, seconds=record.end_s - record.t0_s)
    calls: dict[int, ToolCall] = {}
    events: list[str] = []
    if answer.status is None or answer.status >= 300:
        reply.error = f"HTTP {answer.status}: {error_text(answer.body)}" if answer.status else answer.problem
        with suppress(ValueError):
            document = orjson.loads(answer.body)
            reply.document = document if isinstance(document, dict) else {}
    elif "text/event-stream" in answer.headers.get("content-type", ""):
        for _, data in answer.events():
            try:
                _take(reply, calls, events, orjson.loads(data))
            except ValueError:
                if data.strip() == b"[DONE]":
                    events.append("done")
                elif not answer.problem:  # else the last event may be half of one
                    reply.error = reply.error or f"an event is not JSON: {data[:120]!r}"
        reply.events = tuple(kind for kind, _ in groupby(events))
        reply.event_lines = frozenset(re.findall(r"(?m)^event: ?(\w+)", answer.body.decode("utf-8", "replace")))
    else:
        try:
            document = orjson.loads(answer.body)
            _take(reply, calls, events, document)
            reply.document = document
        except ValueError:
            reply.error = answer.problem or f"the answer is not a JSON object: {error_text(answer.body, 120)}"
    reply.error = reply.error or answer.problem
    reply.tool_calls = tuple(call for _, call in sorted(calls.items()))
    return reply


def _take(reply: Reply, calls: dict[int, ToolCall], events: list[str], document: Any) -> None:
    """Add to a reply what one event of its stream holds, or its only document."""
    if not isinstance(document, dict):
        raise ValueError("not an object")
    if document.get("error") or document.get("object") == "error":
        reply.error = reply.error or error_text(orjson.dumps(document))
        return
    if "choices" not in document and isinstance(document.get("type"), str):
        _take_message(reply, events, document)
        return
    reply.model = reply.model or document.get("model") or ""
    for choice in document.get("choices") or ():
        said = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
        reasoning, content = said.get("reasoning") or said.get("reasoning_content") or "", said.get("content") or ""
        given = said.get("tool_calls") or ()
        reply.reasoning += reasoning
        reply.content += content
        held = {
            "role": said.get("role") and ("role" not in events or not (reasoning or content or given)),
            "reasoning": reasoning,
            "content": content,
            "tool": given,
            "finish": choice.get("finish_reason"),
        }
        events += [kind for kind, is_held in held.items() if is_held]
        reply.finish_reason = choice.get("finish_reason") or reply.finish_reason
        for number, part in enumerate(given):
            call, function = calls.setdefault(part.get("index", number), ToolCall()), part.get("function") or {}
            call.id = call.id or part.get("id") or ""
            call.name += function.get("name") or ""
            arguments = function.get("arguments") or ""
            call.arguments = call.arguments + arguments if isinstance(arguments, str) else arguments
    if usage := document.get("usage"):
        reply.prompt_tokens, reply.completion_tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")
        events += [] if document.get("choices") else ["usage"]


def _take_message(reply: Reply, events: list[str], document: dict[str, Any]) -> None:
    """The same of Anthropic's form: a message, or an event of its stream, whose type is what it holds."""
    kind, delta = document["type"], document.get("delta") or {}
    message = document.get("message") or (document if kind == "message" else {})
    if kind != "message":
        events.append(kind)
    if kind == "message_start":
        reply.document = message
    reply.model = reply.model or message.get("model") or ""
    for part in (*(message.get("content") or ()), document.get("content_block") or {}, delta):
        reply.content += part.get("text") or ""
        reply.reasoning += part.get("thinking") or ""
    reply.finish_reason = delta.get("stop_reason") or message.get("stop_reason") or reply.finish_reason
    usage = document.get("usage") or message.get("usage") or {}
    cached = (usage.get("cache_read_input_tokens") or 0) + (usage.get("cache_creation_input_tokens") or 0)
    if usage.get("input_tokens") is not None:  # what came from a cache is not among them
        reply.prompt_tokens = usage["input_tokens"] + cached or reply.prompt_tokens
    reply.completion_tokens = usage.get("output_tokens", reply.completion_tokens)


Outcome = Literal["pass", "fail", "not applicable"]
Score = Literal["", "right", "wrong", "cut off"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a case. `why`: our words, `said`: the server's; `defect`: the known fault it looks like.

    `remedy`: what to do, where that is known. `score`: what the answer to a problem is worth: a wrong one is the
    model's and no fault of the server, one cut off at its limit is neither; `tokens`: what it cost, thoughts included.
    """

    outcome: Outcome = "pass"
    why: str = ""
    said: str = ""
    defect: str = ""
    remedy: str = ""
    score: Score = ""
    tokens: int | None = None


class CaseOver(Exception):
    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.why)
        self.verdict = verdict


@cache
def table(name: str) -> Any:
    return yaml.load(Path(__file__).with_name("known.yaml").read_bytes(), yaml.CSafeLoader)[name]


REMEDIES: dict[str, str] = table("remedies")
DEFECTS: dict[str, dict[str, str]] = table("defects")  # by name: who reported it, what it looks like, remedy


def fail(
    why: str, reply: Reply | None = None, *, defect: str = "", remedy: str = "", outcome: Outcome = "fail"
) -> NoReturn:
    """The server did what it should not. A known defect, a key of DEFECTS, brings its own remedy."""
    known = DEFECTS[defect] if defect else {"remedy": ""}
    name = f"{known['name']}: {known['what']}" if defect else ""
    raise CaseOver(Verdict(outcome, why, reply.said() if reply else "", name, remedy or known["remedy"]))


def skip(why: str, reply: Reply | None = None, *, remedy: str = "") -> NoReturn:
    """The server does not have what the case is about, and need not; or it is limited in a known way."""
    fail(why, reply, remedy=remedy, outcome="not applicable")


def expect(is_right: object, why: str, reply: Reply | None = None, *, defect: str = "", remedy: str = "") -> None:
    if not is_right:
        fail(why, reply, defect=defect, remedy=remedy)


Talk = Generator[Ask, Reply, None]


@dataclass(frozen=True, slots=True)
class Case:
    """One case. `id`: words with hyphens, unique.

    `quick`: also asked at the end of `up`. `long`: asked with --full only. `judges_text`: it needs a model that writes
    something sensible, so it is not asked of random weights.
    """

    id: str
    title: str
    talk: Callable[[ProbedServer], Talk]
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
        row = {name: getattr(self.case, name) for name in ("id", "title", "group")}
        row |= {name: getattr(self.verdict, name) for name in ("outcome", "why", "said", "defect", "remedy")}
        scored = {"score": self.verdict.score, "tokens": self.verdict.tokens} if self.verdict.score else {}
        return row | {"seconds": round(self.seconds, 3), "requests": self.requests} | scored

    def lines(self) -> list[tuple[str, str | None]]:
        """What it asked and what came of it, with a style; below, the server's words, what is known, what to do."""
        verdict = self.verdict
        mark, style = {"pass": ("✓", None), "fail": ("✗", "red"), "not applicable": ("–", "dim")}[verdict.outcome]
        tokens = f", {verdict.tokens:,} tokens" if verdict.tokens else ""
        head = f"  {mark} {self.case.id}: {self.case.title}"
        head += f" ({self.seconds:.1f} s{tokens})" if self.requests else ""
        head += f": {verdict.why}" if verdict.why else ""
        rows = {"server": " ".join(verdict.said.split()), "known": verdict.defect, "hint": verdict.remedy}
        below = [(f"      {label}: {text}", None) for label, text in rows.items() if text and verdict.outcome != "pass"]
        return [(head, None if verdict.score else style), *below]
