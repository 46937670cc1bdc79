"""Does the server keep to its API: names, limits, the order of a stream, the reasons for which an answer ends."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from cluster.bench.loader import Ask
from cluster.probe.ask import PASSED, REMEDIES, Case, Subject, Talk, Verdict, chat, failed, objects_of, skipped

NOBODY = "no-such-model-of-cluster-probe"
"""A name that no server has."""
HELLO = "Say hello in one short sentence."
HELLO_TOKENS = 64
COUNT = "Write the numbers from one to one hundred in English words, separated by commas."
COUNT_TOKENS = 8
STOP = "seven"
STOPPING_TOKENS = 200
BUSY = (408, 429)
"""Statuses that refuse whatever is asked."""

FAILOVER = "write-up on MTP, May 2026: a router sent every request to another model for an hour"
TEXTS = {"content", "reasoning", "tool"}


def served_name(subject: Subject) -> Talk:
    """The model that was asked for is the one that answers."""
    listed = yield Ask("/v1/models")
    if listed.error:
        return failed("/v1/models ends in an error", listed)
    answer = yield chat(subject, HELLO, thinking=False, max_tokens=COUNT_TOKENS)
    if answer.error:
        return failed("the request ends in an error", answer)
    # vLLM answers under the first of its names, and lists the model behind each as its `root`
    roots = {str(one.get("id")): str(one.get("root") or "") for one in objects_of(listed.document.get("data"))}
    asked, given = subject.model, answer.model
    names = (asked, f"{asked}:latest")
    if roots.keys().isdisjoint(names) and subject.engine != "llamacpp":
        return failed(f"/v1/models has {', '.join(roots) or 'nothing'}, not {asked}", answer, remedy=REMEDIES["router"])
    if not given:
        return skipped("the answer does not name its model", answer)
    if given in names or (roots.get(asked) and roots.get(asked) == roots.get(given)):
        return PASSED
    return failed(f"asked of {asked}, answered by {given}", answer, remedy=REMEDIES["router"])


def unknown_name(subject: Subject) -> Talk:
    """A name that nobody serves is refused, and not served by another model."""
    answer = yield chat(replace(subject, model=NOBODY), HELLO, thinking=False, max_tokens=COUNT_TOKENS)
    if answer.document.get("error") or (answer.status in range(400, 500) and answer.status not in BUSY):
        return PASSED
    if answer.error:
        return failed("a name that nobody serves is not refused, the request ends in an error", answer)
    if subject.engine == "llamacpp" or answer.model == NOBODY:
        return skipped("it gives its one model under any name", answer)
    why = f"a model that does not exist was asked for, {answer.model or 'another'} answered"
    return failed(why, answer, remedy=REMEDIES["router"])


def context_limit(subject: Subject) -> Talk:
    """The limit is the recipe's, and a request beyond it is refused, not cut."""
    reported, promised = subject.limit, subject.configured
    if reported and promised and reported != promised:
        return failed(f"the recipe requires a context of {promised:,} tokens, the server reports {reported:,}")
    limit = reported or promised
    if not limit:
        return skipped("the server does not report its context limit")
    ask = chat(subject, HELLO, thinking=False, stop=["a", "e", "o", " "])
    answer = yield Ask(ask.path, ask.body | {"max_tokens": limit + 1})
    if answer.status is not None and 400 <= answer.status < 500:
        return PASSED
    if answer.error:
        return failed(f"a request for {limit + 1:,} tokens is not refused, it ends in an error", answer)
    asked = f"a request for {limit + 1:,} tokens is accepted"
    why = f"{asked}, though {limit:,} is the limit: it is cut without an error message"
    return failed(why, answer) if subject.engine == "vllm" or promised else skipped(why, answer)


def stream_order(subject: Subject) -> Talk:
    """Role, text, the reason of the end, usage, [DONE]: each once, in this order."""
    answer = yield chat(subject, HELLO, thinking=False, stream=True, max_tokens=HELLO_TOKENS)
    if answer.error:
        return failed("the stream ends in an error", answer)
    if not answer.events:
        return failed("a stream was asked for, the answer came in one piece", answer)
    events = [event for event in answer.events if event != "role"]
    finish = events.index("finish") if "finish" in events else len(events)
    texts = [at for at, event in enumerate(events) if event in TEXTS]
    first = next((at for at, event in enumerate(answer.events) if event in TEXTS), 0)
    role = answer.events.index("role") if "role" in answer.events else 0
    rules = {
        "no text came": not texts,
        "the role comes within the text": role > first and not TEXTS.isdisjoint(answer.events[role:]),
        "no reason for the end came": finish == len(events),
        "two reasons for the end came": events.count("finish") > 1,
        "text comes after the reason for the end": bool(texts) and texts[-1] > finish,
        "usage comes before the reason for the end": "usage" in events and events.index("usage") < finish,
        "no usage came, though it was asked for": answer.completion_tokens is None
        and "stream_options" not in answer.left_out,
        "no [DONE] came": "done" not in events,
        "something comes after [DONE]": "done" in events and events.index("done") < len(events) - 1,
    }
    wrong = next((rule for rule, is_broken in rules.items() if is_broken), "")
    return failed(f"{wrong}: {' · '.join(answer.events)}", answer) if wrong else PASSED


def stream_same(subject: Subject) -> Talk:
    """A stream loses nothing. Other words are no fault: batches round otherwise, and greedy choices then differ."""
    streamed = yield chat(subject, HELLO, thinking=False, stream=True, max_tokens=HELLO_TOKENS)
    whole = yield chat(subject, HELLO, thinking=False, max_tokens=HELLO_TOKENS)
    if streamed.error or whole.error:
        return failed("the request ends in an error", streamed if streamed.error else whole)
    one, other = (answer.content + answer.reasoning for answer in (streamed, whole))
    one, other = one.strip(), other.strip()
    if not one and not other:
        return skipped("both answers are empty", streamed)
    if one == other:
        return PASSED
    same_length = streamed.completion_tokens == whole.completion_tokens
    if one and streamed.finish_reason == whole.finish_reason and same_length:
        if other.startswith(one):
            return failed(f"the stream lost its end: {other[len(one) :]!r}", streamed)
        if other.endswith(one):
            return failed(f"the stream lost its beginning: {other[: -len(one)]!r}", streamed)
    return Verdict("pass", "streamed and not, the words differ, which greedy sampling in batches may do")


def max_tokens(subject: Subject) -> Talk:
    """An answer ends at max_tokens, and says so."""
    answer = yield chat(subject, COUNT, thinking=False, max_tokens=COUNT_TOKENS)
    if answer.error:
        return failed("the request ends in an error", answer)
    if answer.completion_tokens is not None and answer.completion_tokens > COUNT_TOKENS:
        return failed(f"{COUNT_TOKENS} tokens were asked for, {answer.completion_tokens} came", answer)
    if len(answer.content.split()) > 2 * COUNT_TOKENS:
        return failed(f"{COUNT_TOKENS} tokens were asked for, {len(answer.content.split())} words came", answer)
    if answer.finish_reason == "length":
        return PASSED
    if subject.dummy:
        return skipped("the weights are random, and the text came to an end by chance", answer)
    return failed(f'cut off at {COUNT_TOKENS} tokens, the reason is {answer.finish_reason!r}, not "length"', answer)


def stop_string(subject: Subject) -> Talk:
    """An answer ends before a stop string, and says so."""
    answer = yield chat(subject, COUNT, thinking=False, max_tokens=STOPPING_TOKENS, stop=[STOP])
    if answer.error:
        return failed("the request ends in an error", answer)
    said = answer.content or answer.reasoning
    if STOP in said.lower():
        return failed(f"told to stop at {STOP!r}, it says it", answer)
    if answer.finish_reason != "stop":
        return failed(f'ended at a stop string, the reason is {answer.finish_reason!r}, not "stop"', answer)
    return PASSED if "six" in said.lower() else failed(f"told to stop at {STOP!r}, it ends before", answer)


LIMIT = "ollama/ollama#7484: prompts truncated without an error message"
API = "OpenAI's API"
_case = partial(Case, group="server", judges_text=False)

CASES = (
    _case("served-name", "the model asked for answers", served_name, FAILOVER, quick=True),
    _case("served-unknown", "a name that nobody serves is refused", unknown_name, FAILOVER),
    _case("context-limit", "the context limit, and a request beyond it", context_limit, LIMIT, quick=True),
    _case("stream-order", "the order of a stream's events", stream_order, API, quick=True),
    _case("stream-same", "streamed and not: nothing is lost", stream_same, API),
    _case("stop-length", 'max_tokens, and the reason "length"', max_tokens, API),
    _case("stop-string", 'a stop string, and the reason "stop"', stop_string, API, judges_text=True),
)
