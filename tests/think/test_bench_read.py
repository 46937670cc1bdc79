"""Bytes and times → what the server sent: the wrong answers of peers, with the right value."""

import json
from itertools import accumulate

import pytest
from bench_tools import HEAD, RATE, TTFT_S, WAYS, Way, record, trace
from loops import each

from cluster.bench.loader import RequestRecord
from cluster.bench.read import HttpAnswer, read_stream

ONE_BY_ONE = "plain comments crlf utf8 silent until-close role reasoning reasoning-content tools"
IN_ALL = "silent-last usage-last reasoning-last"


@pytest.mark.parametrize(
    ("way", "tokens", "counted", "each"),
    [
        *((way, 32, "per event", [1] * 32) for way in ONE_BY_ONE.split()),
        *((way, 32, "one an event", [1] * 32) for way in IN_ALL.split()),
        ("four", 32, "per event", [4] * 8),
        ("drafted", 9, "per event", [1, 4, 4]),
        ("worst", 17, "per event", [1, 4, 4, 4, 4]),
        ("stops", 32, "per event", [1] * 16),
        ("four-last", 32, "spread", [4] * 8),
        ("no-usage", 32, "not", [0] * 32),
    ],
)
def test_tokens_are_counted_as_well_as_the_server_reports_them(way: str, tokens: int, counted: str, each: list) -> None:
    """An early role event is a response and no token."""
    seen = trace(way, tokens=tokens)
    assert (seen.error, seen.counted, [n for _, n in seen.tokens]) == ("", counted, each)
    made = list(accumulate(n or 1 for n in each))
    assert [t for t, _ in seen.tokens] == pytest.approx([TTFT_S + (n - made[0]) / RATE for n in made])
    assert seen.first_response_s == pytest.approx(0.002 if WAYS[way].early_role else TTFT_S)
    assert seen.finish_reason == ("stop" if way == "stops" else "length")
    assert seen.prompt_tokens == (None if way == "no-usage" else 512)


@pytest.mark.parametrize("shape", ["text", "content", "reasoning", "reasoning_content", "tools"])
def test_first_token_is_seen_in_whatever_holds_it(shape: str) -> None:
    seen = trace(Way(shape=shape, early_role=True, usage="none"))
    assert len(seen.tokens) == 32
    assert seen.first_token_s == pytest.approx(TTFT_S)


def test_token_counted_only_by_the_final_usage_belongs_to_the_last_event() -> None:
    events = [
        (0.1, {"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}}),
        (0.2, {"choices": [{"text": "", "finish_reason": "stop"}], "usage": {"completion_tokens": 1}}),
        (0.3, {"choices": [], "usage": {"completion_tokens": 2}}),
    ]
    assert read_stream(answer(events)).tokens == ((0.1, 1), (0.2, 1))


def test_error_that_is_null_is_none() -> None:
    last = {"choices": [{"text": "b", "finish_reason": "length"}], "error": None, "usage": {"completion_tokens": 2}}
    seen = read_stream(answer([(0.1, {"choices": [{"text": "a"}], "error": None}), (0.2, last)]))
    assert (seen.error, len(seen.tokens)) == ("", 2)


def test_counts_that_contradict_each_other_are_an_error() -> None:
    events = [(0.1 * at, {"choices": [{"text": "a"}], "usage": {"completion_tokens": 2 * at}}) for at in (1, 2, 3)]
    seen = read_stream(answer([*events, (0.4, {"choices": [], "usage": {"completion_tokens": 3}}), (0.4, "[DONE]")]))
    assert seen.error == "the server counted 6 tokens while it sent them and 3 at the end"


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("half", "closed the connection after"),
        ("half-unframed", "stopped in the middle"),
        ("error-event", "the engine is dead"),
    ],
)
def test_broken_streams_are_errors(way: str, words: str) -> None:
    assert words in trace(way).error


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error": {"message": "no room", "code": 400}}', "HTTP 400: no room"),
        (b'{"object": "error", "message": "too long"}', "HTTP 400: too long"),
        (b'{"detail": [{"loc": ["body", "min_tokens"]}]}', "min_tokens"),
        (b"<html>Bad Gateway</html>", "HTTP 400: <html>Bad Gateway</html>"),
        (b"", "HTTP 400"),
    ],
)
def test_refusals_keep_the_servers_words(body: bytes, words: str) -> None:
    head = b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert words in read_stream(RequestRecord(0, 0.1, "done", "", ((0.1, head + body),))).error


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ("refused", "Connection refused", "no connection: Connection refused"),
        ("timeout", "no complete answer in 5 s", "time-out: no complete answer in 5 s"),
        ("reset", "", "connection reset after 0 bytes"),
        ("closed", "", "closed the connection after 0 bytes"),
    ],
)
def test_no_answer_at_all(how: str, error: str, words: str) -> None:
    seen = read_stream(RequestRecord(0, 1, how, error, ()))
    assert words in seen.error
    assert seen.status is None


PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not HTTP"),
        (PLAIN, "the answer holds no token; it is application/json"),
        (HEAD, "not complete"),
    ],
)
def test_what_is_no_stream_is_an_error(data: bytes, words: str) -> None:
    assert words in read_stream(RequestRecord(0, 1, "done", "", ((0.5, data),))).error


@pytest.mark.parametrize("document", ["[1]", "null", '{"choices": [null]}', '{"choices": 3}', '{"choices": [{}]}', "{"])
def test_odd_events_do_not_raise(document: str) -> None:
    assert read_stream(answer([(0.1, document)])).error


def test_head_and_first_event_in_one_portion() -> None:
    whole = record("plain")
    (_, head), (t, first), *rest = whole.chunks
    together = RequestRecord(0, whole.end_s, "done", "", ((t, head + first), *rest))
    assert read_stream(together).tokens == read_stream(whole).tokens


def answer(events: list) -> RequestRecord:
    """A recorded stream of these (time, JSON value or text)."""
    chunks = [(0.01, HEAD)]
    for t, event in events:
        text = event if isinstance(event, str) else json.dumps(event)
        data = f"data: {text}\n\n".encode()
        chunks.append((t, b"%x\r\n%s\r\n" % (len(data), data)))
    return RequestRecord(0, 1, "done", "", (*chunks, (1, b"0\r\n\r\n")))


def test_servers_own_times_are_read() -> None:
    vllm, llamacpp, plain = (trace(way) for way in ("metrics-told", "prefill-told", "plain"))
    assert (vllm.server_prefill_s, vllm.server_prefill_from) == (0.040, "metrics.time_to_first_token_ms")
    assert vllm.server_queue_s == 0.012
    assert (llamacpp.server_prefill_s, llamacpp.server_prefill_from) == (pytest.approx(0.040), "timings.prompt_ms")
    assert (llamacpp.cached_tokens, trace("cached").cached_tokens) == (12, 1024)
    assert (plain.server_prefill_s, plain.server_queue_s) == (None, None)


@pytest.mark.parametrize("extra", [{"metrics": None}, {"metrics": []}, {"metrics": {"time_to_first_token_ms": None}}])
def test_times_that_are_not_reported_are_not_made_up(extra: dict) -> None:
    found = trace(Way(extra=extra))
    assert (found.server_prefill_s, found.error) == (None, "")


STREAMS = {
    "lf": (b'data: {"a":1}\n\ndata: two\n\n', [b'{"a":1}', b"two"]),
    "crlf": (b"data: one\r\n\r\ndata: two\r\n\r\n", [b"one", b"two"]),
    "comments": (b": ping\n\n:\n\ndata: one\n: inside\n\n: ping\n\n", [b"one"]),
    "other fields": (b"event: message\nid: 7\nretry: 10\ndata:one\n\nevent: nothing\n\n", [b"one"]),
    "many blank lines": (b"\n\n\ndata: one\n\n\n\n\ndata: two\n\n", [b"one", b"two"]),
    "split character": ("data: naïveté 日本\n\n".encode(), ["naïveté 日本".encode()]),
    "empty data": (b"data:\n\n", [b""]),
}


@each("name", STREAMS)
@each("size", [1, 2, 3, 5, 7, 1000])
def test_events_do_not_depend_on_the_portions(name: str, size: int) -> None:
    stream, events = STREAMS[name]
    answer = HttpAnswer(pieces=[(at, stream[at : at + size]) for at in range(0, len(stream), size)])
    assert [data for _, data in answer.events()] == events


def test_event_is_given_with_the_bytes_that_complete_it_and_the_last_one_anyway() -> None:
    answer = HttpAnswer(pieces=[(1, b"data: one"), (2, b"\n\n"), (3, b"data: [DONE]")])
    assert list(answer.events()) == [(2, b"one"), (3, b"[DONE]")]
