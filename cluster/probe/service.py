"""Does the server keep to its API: names, limits, the order of a stream, the reasons for which a reply ends."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from cluster.bench.loader import Ask
from cluster.probe.ask import REMEDIES, Case, CaseOver, ProbedServer, Talk, Verdict, chat, expect, fail, skip

NOBODY = "no-such-model-of-cluster-probe"
"""The rules `served-name-wrong` and `probe-asks-unknown-name` know it."""
HELLO = "Say hello in one short sentence."
HELLO_TOKENS = 64
COUNT = "Write the numbers from one to one hundred in English words, separated by commas."
COUNT_TOKENS = 8
STOP = "seven"
BUSY = (408, 429)  # statuses that refuse whatever is asked
FAILED = "the request ends in an error"
TEXTS = {"content", "reasoning", "tool"}


def served_name(server: ProbedServer) -> Talk:
    """The model that was asked for is in `/v1/models`, and is the one that answers."""
    listed = yield Ask("/v1/models")
    expect(not listed.error, "/v1/models ends in an error", listed)
    reply = yield chat(server, HELLO, thinking=False, max_tokens=COUNT_TOKENS)
    expect(not reply.error, FAILED, reply)
    # vLLM answers under the first of its names, and lists the model behind each as its `root`
    roots = {str(one.get("id")): one.get("root") for one in listed.document.get("data") or ()}
    asked, given = server.model, reply.model
    names = (asked, f"{asked}:latest")
    is_listed = not roots.keys().isdisjoint(names) or server.engine == "llamacpp"
    why = f"/v1/models has {', '.join(roots) or 'nothing'}, not {asked}"
    expect(is_listed, why, reply, remedy=REMEDIES["router"])
    if not given:
        skip("the answer does not name its model", reply)
    is_same = given in names or (roots.get(asked) and roots.get(asked) == roots.get(given))
    expect(is_same, f"asked of {asked}, answered by {given}", reply, remedy=REMEDIES["router"])


def unknown_name(server: ProbedServer) -> Talk:
    """A name that nobody serves is refused, not served by another model."""
    reply = yield chat(replace(server, model=NOBODY), HELLO, thinking=False, max_tokens=COUNT_TOKENS)
    if reply.document.get("error") or (reply.status in range(400, 500) and reply.status not in BUSY):
        return
    expect(not reply.error, "a name that nobody serves is not refused, the request ends in an error", reply)
    if server.engine == "llamacpp" or reply.model == NOBODY:
        skip("it gives its one model under any name", reply)
    why = f"a model that does not exist was asked for, {reply.model or 'another'} answered"
    fail(why, reply, remedy=REMEDIES["router"])


def context_limit(server: ProbedServer) -> Talk:
    """The limit is the recipe's, and a request beyond it is refused, not cut."""
    reported, promised = server.limit, server.configured
    if reported and promised and reported != promised:
        fail(f"the recipe requires a context of {promised:,} tokens, the server reports {reported:,}")
    limit = reported or promised
    if not limit:
        skip("the server does not report its context limit")
    ask = chat(server, HELLO, thinking=False, stop=["a", "e", "o", " "])
    reply = yield Ask(ask.path, ask.body | {"max_tokens": limit + 1})
    if reply.status in range(400, 500):
        return
    asked = f"a request for {limit + 1:,} tokens is"
    expect(not reply.error, f"{asked} not refused, it ends in an error", reply)
    why = f"{asked} accepted, though {limit:,} is the limit: it is cut without an error message"
    (fail if server.engine == "vllm" or promised else skip)(why, reply)


def stream_order(server: ProbedServer) -> Talk:
    """Role, text, the reason of the end, usage, `[DONE]`: each once, in this order."""
    reply = yield chat(server, HELLO, thinking=False, stream=True, max_tokens=HELLO_TOKENS)
    expect(not reply.error, "the stream ends in an error", reply)
    expect(reply.events, "a stream was asked for, the answer came in one piece", reply)
    events = [event for event in reply.events if event != "role"]
    finish = events.index("finish") if "finish" in events else len(events)
    texts = [at for at, event in enumerate(events) if event in TEXTS]
    first = next((at for at, event in enumerate(reply.events) if event in TEXTS), 0)
    role = reply.events.index("role") if "role" in reply.events else 0
    rules = {
        "no text came": not texts and not server.dummy,  # random weights may say nothing but special tokens
        "the role comes within the text": role > first and not TEXTS.isdisjoint(reply.events[role:]),
        "no reason for the end came": finish == len(events),
        "two reasons for the end came": events.count("finish") > 1,
        "text comes after the reason for the end": bool(texts) and texts[-1] > finish,
        "usage comes before the reason for the end": "usage" in events and events.index("usage") < finish,
        "no usage came, though it was asked for": reply.completion_tokens is None
        and "stream_options" not in reply.left_out,
        "no [DONE] came": "done" not in events,
        "something comes after [DONE]": "done" in events and events.index("done") < len(events) - 1,
    }
    for rule, is_broken in rules.items():
        expect(not is_broken, f"{rule}: {' · '.join(reply.events)}", reply)
    if not texts:
        skip("no text came, of random weights", reply)


def stream_same(server: ProbedServer) -> Talk:
    """A stream loses nothing. Other words are no fault: batches round otherwise, and greedy choices then differ."""
    streamed = yield chat(server, HELLO, thinking=False, stream=True, max_tokens=HELLO_TOKENS)
    complete = yield chat(server, HELLO, thinking=False, max_tokens=HELLO_TOKENS)
    for reply in (streamed, complete):
        expect(not reply.error, FAILED, reply)
    one, other = ((reply.content + reply.reasoning).strip() for reply in (streamed, complete))
    if not one and not other:
        skip("both answers are empty", streamed)
    if one == other:
        return
    same_length = streamed.completion_tokens == complete.completion_tokens
    if one and streamed.finish_reason == complete.finish_reason and same_length:
        expect(not other.startswith(one), f"the stream lost its end: {other[len(one) :]!r}", streamed)
        expect(not other.endswith(one), f"the stream lost its beginning: {other[: -len(one)]!r}", streamed)
    raise CaseOver(Verdict("pass", "streamed and not, the words differ, which greedy sampling in batches may do"))


def max_tokens(server: ProbedServer) -> Talk:
    """An answer longer than `max_tokens` ends there and says `length`."""
    reply = yield chat(server, COUNT, thinking=False, max_tokens=COUNT_TOKENS)
    expect(not reply.error, FAILED, reply)
    tokens, words = reply.completion_tokens or 0, len(reply.content.split())
    expect(tokens <= COUNT_TOKENS, f"{COUNT_TOKENS} tokens were asked for, {tokens} came", reply)
    expect(words <= 2 * COUNT_TOKENS, f"{COUNT_TOKENS} tokens were asked for, {words} words came", reply)
    if reply.finish_reason != "length" and server.dummy:
        skip("the weights are random, and the text came to an end by chance", reply)
    why = f'cut off at {COUNT_TOKENS} tokens, the reason is {reply.finish_reason!r}, not "length"'
    expect(reply.finish_reason == "length", why, reply)


def stop_string(server: ProbedServer) -> Talk:
    """An answer with a stop string in it ends before it and says `stop`."""
    reply = yield chat(server, COUNT, thinking=False, max_tokens=200, stop=[STOP])
    expect(not reply.error, FAILED, reply)
    said = (reply.content or reply.reasoning).lower()
    expect(STOP not in said, f"told to stop at {STOP!r}, it says it", reply)
    why = f'ended at a stop string, the reason is {reply.finish_reason!r}, not "stop"'
    expect(reply.finish_reason == "stop", why, reply)
    expect("six" in said, f"told to stop at {STOP!r}, it ends before", reply)


# of names: write-up on MTP, May 2026, where a router sent every request to another model for an hour
_case = partial(Case, group="server", judges_text=False)

CASES = (
    _case("served-name", "the model asked for answers", served_name, quick=True),
    _case("served-unknown", "a name that nobody serves is refused", unknown_name),
    _case("context-limit", "the context limit, and a request beyond it", context_limit, quick=True),  # ollama#7484
    _case("stream-order", "the order of a stream's events", stream_order, quick=True),
    _case("stream-same", "streamed and not: nothing is lost", stream_same),
    _case("stop-length", 'max_tokens, and the reason "length"', max_tokens),
    _case("stop-string", 'a stop string, and the reason "stop"', stop_string, judges_text=True),
)
