"""Does the server answer in Anthropic's form, as Claude Code asks it: `/v1/messages` and `count_tokens`.

The form is documented at docs.anthropic.com (Messages, Streaming, Count tokens, Errors). vLLM has both from 0.24 on,
llama-server and Ollama in their newer versions; where they are not there nothing is wrong.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from cluster.bench.loader import Ask
from cluster.probe.ask import Case, ProbedServer, Reply, Talk, expect, fail, skip
from cluster.probe.service import BUSY, FAILED, HELLO, HELLO_TOKENS, NOBODY

PATH = "/v1/messages"
ABSENT = (404, 405, 501)
ENDS = ("end_turn", "max_tokens", "stop_sequence", "tool_use")
BLOCK = ("content_block_start", "content_block_delta", "content_block_stop")
LONGER = f"{HELLO} Then wish the reader a good morning, a good evening and a pleasant walk through the park."


def message(server: ProbedServer, **fields: Any) -> Ask:
    """One message of the user in Anthropic's form; `fields` go into the body."""
    body = {"model": server.model, "messages": [{"role": "user", "content": HELLO}], "max_tokens": HELLO_TOKENS}
    return Ask(PATH, body | {"temperature": 0, "stream": False} | fields)


def check_there(reply: Reply, path: str = PATH) -> None:
    """The server has the path, and answers at it."""
    if reply.status in ABSENT:
        skip(f"the server has no {path}", reply)
    expect(not reply.error, FAILED, reply)


def check_ended(server: ProbedServer, reply: Reply) -> None:
    """The reason of the end, and usage, of a complete answer."""
    expect(reply.finish_reason in ENDS, f"stop_reason is {reply.finish_reason!r}, not one of {', '.join(ENDS)}", reply)
    expect(reply.prompt_tokens, "usage has no input_tokens", reply)
    tokens = reply.completion_tokens
    expect(tokens, "usage has no output_tokens", reply)
    expect(tokens is None or tokens <= HELLO_TOKENS, f"{HELLO_TOKENS} tokens were asked for, {tokens} came", reply)
    if not (reply.content or reply.reasoning).strip():
        (skip if server.dummy else fail)("the answer is empty", reply)


def answer(server: ProbedServer) -> Talk:
    """A message of the assistant with text, the reason of the end and usage; no such path is no fault."""
    reply = yield message(server)
    check_there(reply)
    for name, wanted in (("type", "message"), ("role", "assistant")):
        found = reply.document.get(name)
        expect(found == wanted, f"{name} is {found!r}, not {wanted!r}", reply)
    check_ended(server, reply)


def streamed(server: ProbedServer) -> Talk:
    """`message_start`, each block's start, deltas and stop, `message_delta`, `message_stop`: named, in this order."""
    reply = yield message(server, stream=True)
    check_there(reply)
    expect(reply.events, "a stream was asked for, the answer came in one piece", reply)
    events = [event for event in reply.events if event not in ("ping", "done")]
    blocks = events[1:-2]
    # deltas of a block may be missing: its text is empty
    pairs = [event for event in blocks if event != "content_block_delta"]
    deltas = [at for at, event in enumerate(blocks) if event == "content_block_delta"]
    rules = {
        "message_start is not the first": events[:1] != ["message_start"],
        "message_delta and message_stop are not the last": events[-2:] != ["message_delta", "message_stop"],
        "blocks do not start and stop in turn": pairs != [BLOCK[0], BLOCK[2]] * (len(pairs) // 2),
        "a delta is in no block": any(at == 0 or blocks[at - 1] != BLOCK[0] for at in deltas),
    }
    for rule, is_broken in rules.items():
        expect(not is_broken, f"{rule}: {' · '.join(reply.events)}", reply)
    unnamed = [event for event in dict.fromkeys(events) if event not in reply.event_lines]
    expect(not unnamed, f"no `event:` line names {', '.join(unnamed)}, so clients leave it out", reply)
    has_role = (reply.document.get("type"), reply.document.get("role")) == ("message", "assistant")
    expect(has_role, "message_start lacks the message's type or role, which clients require", reply)
    check_ended(server, reply)


def count(server: ProbedServer) -> Talk:
    """Tokens are counted without an answer: about as many as the answer then reports, and more for a longer text."""
    path, counts, reply = f"{PATH}/count_tokens", list[int](), Reply(None)
    for content in (HELLO, LONGER):
        reply = yield Ask(path, {"model": server.model, "messages": [{"role": "user", "content": content}]})
        check_there(reply, path)
        tokens = reply.document.get("input_tokens")
        counts.append(tokens if isinstance(tokens, int) else 0)
        expect(counts[-1], f"input_tokens is {tokens!r}", reply)
    first, second = counts
    expect(second > first, f"{first} tokens were counted for a text, {second} for one three times as long", reply)
    reply = yield message(server)
    check_there(reply)
    used = reply.prompt_tokens or 0
    is_near = abs(first - used) <= max(16, used // 10)
    expect(is_near, f"{first} tokens were counted, and {used} reported with the answer", reply)


def unknown_name(server: ProbedServer) -> Talk:
    """A name that nobody serves is refused in Anthropic's form: type `error`, and in it a type and a message."""
    reply = yield message(server)
    check_there(reply)
    reply = yield message(replace(server, model=NOBODY))
    if reply.status not in range(400, 500) or reply.status in BUSY:
        expect(not reply.error, "a name that nobody serves is not refused, the request ends in an error", reply)
        skip("it gives its one model under any name", reply)
    error = reply.document.get("error")
    is_form = reply.document.get("type") == "error" and isinstance(error, dict) and error.get("type")
    why = 'the error is not in Anthropic\'s form: {"type": "error", "error": {"type": …, "message": …}}'
    expect(is_form and isinstance(error, dict) and error.get("message"), why, reply)


_case = partial(Case, group="messages", judges_text=False)

CASES = (
    _case("messages-answer", "/v1/messages: an answer with usage", answer),
    _case("messages-streamed", "/v1/messages: the order of a stream's events", streamed),
    _case("messages-count", "/v1/messages/count_tokens", count),
    _case("messages-unknown", "/v1/messages: the form of an error", unknown_name),
)
