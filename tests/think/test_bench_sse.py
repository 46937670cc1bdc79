"""Server-sent events, in any portions."""

from loops import each

from cluster.bench.read import EventSplitter

STREAMS = {
    "lf": (b'data: {"a":1}\n\ndata: two\n\n', [b'{"a":1}', b"two"]),
    "crlf": (b"data: one\r\n\r\ndata: two\r\n\r\n", [b"one", b"two"]),
    "crlf in one event": (b"data: one\r\n: comment\r\ndata: two\r\n\r\n", [b"one\ntwo"]),
    "cr": (b"data: one\r\rdata: two\r\r", [b"one", b"two"]),
    "mixed": (b"data: one\r\n\ndata: two\n\r\ndata: three\r\r\n", [b"one", b"two", b"three"]),
    "comments": (b": ping\n\n:\n\ndata: one\n: inside\n\n: ping\n\n", [b"one"]),
    "several data lines": (b"data: one\ndata: more\ndata\ndata:  two\n\n", [b"one\nmore\n\n two"]),
    "other fields": (b"event: message\nid: 7\nretry: 10\ndata:one\n\nevent: nothing\n\n", [b"one"]),
    "no space": (b"data:one\n\n", [b"one"]),
    "many blank lines": (b"\n\n\ndata: one\n\n\n\n\ndata: two\n\n", [b"one", b"two"]),
    "byte order mark": (b"\xef\xbb\xbfdata: one\n\n", [b"one"]),
    "split character": ("data: naïveté 日本\n\n".encode(), ["naïveté 日本".encode()]),
    "empty data": (b"data:\n\n", [b""]),
}


@each("name", STREAMS)
@each("size", [1, 2, 3, 5, 7, 1000])
def test_events_do_not_depend_on_the_portions(name: str, size: int) -> None:
    stream, events = STREAMS[name]
    splitter = EventSplitter()
    found = [event for at in range(0, len(stream), size) for event in splitter.feed(stream[at : at + size])]
    assert found == events
    assert splitter.finish() == []


def test_event_is_given_with_the_bytes_that_complete_it() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: one\n") == []
    assert splitter.feed(b"\n") == [b"one"]
    assert splitter.feed(b"data: two\r\n\r") == [b"two"]
    assert splitter.feed(b"\ndata: three\r\n\r\n") == [b"three"]


def test_last_event_without_its_blank_line_is_not_lost() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: one\n\ndata: [DONE]") == [b"one"]
    assert splitter.finish() == [b"[DONE]"]
