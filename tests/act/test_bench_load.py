"""The load client (`far/load.py`) over real sockets: what it records when all is well, and when it is not."""

import asyncio
import json
import random
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from bench_live import Child, known_server, load_client
from loops import each

from cluster.argv.far import source
from cluster.bench.loader import Ask, Batch, ProcessLoader, Progress, load_command
from cluster.bench.read import read_http, read_stream
from cluster.errors import ClusterError, ConnectionLostError

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with known_server("--ttft-ms", "30", "--rate", "200") as address:
        yield address


def ask(model: str, tokens: int = 16) -> Ask:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"model": model, "prompt": [1, 2, 3], "max_tokens": tokens, "stream": True, "stream_options": options}
    return Ask("/v1/completions", body)


def one(name: str = "/x", **given: Any) -> Batch:
    return Batch("r", (Ask(name),), warm=None, **given)


Answer = Callable[[socket.socket, bytes], None]


@contextmanager
def odd_server(answer: Answer) -> Iterator[str]:
    """A server that handles each connection with `answer(connection, first request)` in its own thread."""
    listener = socket.create_server(("127.0.0.1", 0))

    def handle(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            answer(connection, connection.recv(65536))

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=handle, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def sends(*parts: bytes) -> Answer:
    """Sends these parts and keeps the connection open until the client closes it."""

    def answer(connection: socket.socket, request: bytes) -> None:
        for part in parts:
            connection.sendall(part)
            time.sleep(0.02)
        connection.recv(1)

    return answer


def test_batch_of_streams(url: str) -> None:
    with load_client(url) as load:
        record = load.send(Batch("r", tuple(ask("plain") for _ in range(4)), concurrency=4))
        more = load.send(Batch("s", (Ask("/v1/models"), Ask("/nothing")), warm=None))
    traces = [read_stream(one) for one in record.records]
    assert [trace.error for trace in traces] == [""] * 4
    assert [sum(n for _, n in trace.tokens) for trace in traces] == [16] * 4
    begins = [trace.t0_s for trace in traces]
    assert all(trace.first_token_s - trace.t0_s > 0.029 for trace in traces if trace.first_token_s)
    assert record.client["wall_s"] > 0.1
    assert 0 < record.client["cpu_s"] < record.client["wall_s"]
    assert record.client["t0_spread_ms"] == pytest.approx(1e3 * (max(begins) - min(begins)), abs=0.1)
    assert [read_http(one).status for one in more.records] == [200, 404]


def test_more_requests_than_connections_wait_for_one(url: str) -> None:
    with load_client(url) as load:
        record = load.send(Batch("r", tuple(ask("plain") for _ in range(5)), concurrency=2))
    begins, ends = (sorted(times) for times in zip(*((one.t0_s, one.end_s) for one in record.records), strict=True))
    assert begins[1] < ends[0], "two at the same time"
    assert all(begin >= end for begin, end in zip(begins[2:], ends, strict=False)), "the others when one has ended"
    assert all(not read_stream(one).error for one in record.records)


@pytest.mark.parametrize("model", ["plain", "half", "until-close", "error-event", "no-usage"])
def test_connection_serves_more_after_any_answer(url: str, model: str) -> None:
    with load_client(url) as load:
        record = load.send(Batch("r", (ask(model), ask("plain"), ask(model), ask("plain"))))
    assert [read_stream(one).error for one in record.records][1::2] == ["", ""]


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with load_client(f"http://127.0.0.1:{taken.getsockname()[1]}") as load:
            records = load.send(Batch("r", (ask("plain"), ask("plain")), concurrency=2)).records
            records += load.send(Batch("s", (ask("plain"),))).records
    assert [one.how for one in records] == ["refused"] * 3
    assert "no connection" in read_stream(records[0]).error


def test_time_out_ends_the_request_and_not_the_batch(url: str) -> None:
    with load_client(url) as load:
        slow, plain = load.send(Batch("r", (ask("slow", 400), ask("plain")), concurrency=2, timeout_s=1.0)).records
    assert slow.how == "timeout"
    assert slow.end_s - slow.t0_s == pytest.approx(1.0, abs=0.5)
    assert read_stream(slow).error == "time-out: no complete answer in 1 s"
    assert read_stream(plain).error == ""


def test_reset_in_the_middle() -> None:
    def answer(connection: socket.socket, request: bytes) -> None:
        connection.sendall(CHUNKED + b"8\r\ndata: {}\r\n")
        time.sleep(0.05)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    with odd_server(answer) as address, load_client(address) as load:
        [record] = load.send(one()).records
    assert record.how == "reset"
    assert "connection reset after" in read_stream(record).error


@pytest.mark.parametrize(
    "parts",
    [
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r", b"\n5\r\nhello\r\n0", b"\r\n", b"\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", b"lo"),
        (CHUNKED + b"5\r\nhello\r\n0\r\n\r\n",),
        (b"H", b"TTP/1.1 200 OK\r\nContent-Length:", b"  5 \r\nConnection: close\r\n\r\n", b"h", b"ello"),
    ],
)
def test_end_is_found_in_any_portions(parts: tuple[bytes, ...]) -> None:
    """The connection stays open: only the framing shows the end."""
    with odd_server(sends(*parts)) as address, load_client(address) as load:
        [record] = load.send(one(timeout_s=5)).records
    assert record.how == "done"
    assert (read_http(record).body, read_http(record).complete) == (b"hello", True)


def framing() -> Any:
    """`Framing` of the load client, by itself."""
    namespace: dict[str, Any] = {"__name__": "load"}
    exec(source("load"), namespace)
    return namespace["Framing"]()


def chunked(chance: random.Random) -> bytes:
    """A chunked answer that ends in odd ways, with chunks that look like its end."""
    sizes = ["%x", "%X", "%04x", "%x;name=value", "%x "]
    pieces = [chance.choice([b"a", b"\r\n0\r\n\r\n", b"0\r\n\r\n", b"data: {}\n\n", b"x" * 300]) for _ in range(5)]
    chunks = [(chance.choice(sizes) % len(one)).encode() + b"\r\n" + one + b"\r\n" for one in pieces]
    end = chance.choice([b"0\r\n\r\n", b"000\r\n\r\n", b"0;x\r\n\r\n", b"0\r\nTrailer: 1\r\nOther: 2\r\n\r\n"])
    return CHUNKED + b"".join(chunks) + end


@each("seed", range(200))
def test_end_of_a_chunked_answer_is_its_last_byte(seed: int) -> None:
    chance = random.Random(seed)
    data, most = chunked(chance), chance.choice([1, 2, 7, 1000])
    frame, at, ended = framing(), 0, False
    while at < len(data):
        assert not ended, data[at - 20 : at]
        step = chance.randint(1, most)
        ended, at = frame.ends(data[at : at + step]), at + step
    assert ended


def test_what_is_no_http_ends_at_once() -> None:
    with odd_server(sends(CHUNKED + b"hello\r\n")) as address, load_client(address) as load:
        [record] = load.send(one()).records
    assert record.how == "garbled"
    assert "the answer is not HTTP" in read_stream(record).error


def test_server_that_keeps_no_connection() -> None:
    def answer(connection: socket.socket, request: bytes) -> None:
        connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    with odd_server(answer) as address, load_client(address) as load:
        record = load.send(Batch("r", (Ask("/a"), Ask("/b"), Ask("/c"))))
    assert [one.how for one in record.records] == ["done"] * 3


def keeps_alive(opened: list[bytes], timeout_s: float | None = None) -> Answer:
    """Serves one request after the other; the first one of each connection is added to `opened`."""

    def answer(connection: socket.socket, request: bytes) -> None:
        opened.append(request)
        connection.settimeout(timeout_s)
        while request:
            connection.sendall(OK)
            request = connection.recv(65536)

    return answer


def test_idle_connections_closed_by_the_server_cost_no_request() -> None:
    served: list[bytes] = []
    with odd_server(keeps_alive(served, 0.15)) as address, load_client(address) as load:
        for name in "abc":
            assert [one.how for one in load.send(Batch(name, (Ask("/a"), Ask("/a")), 2)).records] == ["done"] * 2
            time.sleep(0.3)
    assert len(served) == 6


def test_connections_outlive_a_batch_that_needs_fewer() -> None:
    """Between two batches of a row the server's counters are read over one of them."""
    opened: list[bytes] = []
    with odd_server(keeps_alive(opened)) as address, load_client(address) as load:
        for count in (3, 1, 3):
            record = load.send(Batch("r", (Ask("/a"),) * count, count))
            assert [one.how for one in record.records] == ["done"] * count
    assert len(opened) == 3


def echo(connection: socket.socket, request: bytes) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(request), request))


def echoed(address: str, **target: str) -> bytes:
    with load_client(address, **target) as load:
        return read_http(load.send(one("/v1/models")).records[0]).body


def test_key_comes_from_a_file_and_is_no_word(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("planted-secret\n")
    key.chmod(0o600)
    with odd_server(echo) as address:
        assert b"Authorization: Bearer planted-secret\r\n" in echoed(address, api_key_file=str(key))
        assert b"Authorization" not in echoed(address)
    argv, stdin = load_command(["http://x"], str(key))
    assert "planted-secret" not in " ".join(argv) + stdin.decode()


@pytest.mark.parametrize(
    ("mode", "text", "words"),
    [
        (0o644, "k", "chmod 600"),
        (0o600, "a\nb", "cannot carry"),
        (0o600, "ä", "cannot carry"),
        (None, "", "No such file"),
    ],
)
def test_key_that_cannot_be_used(tmp_path: Path, mode: int | None, text: str, words: str) -> None:
    key = tmp_path / "key"
    if mode is not None:
        key.write_text(text)
        key.chmod(mode)
    with pytest.raises(ClusterError, match=words), load_client("http://127.0.0.1:1", api_key_file=str(key)):
        pass


@pytest.mark.parametrize("address", ["127.0.0.1:8000", "ftp://x", "http://", "http://x:port"])
def test_bad_address_is_an_error(address: str) -> None:
    with pytest.raises(ClusterError, match="cannot start"), load_client(address):
        pass


def test_address_with_and_without_v1() -> None:
    with odd_server(echo) as address:
        for tail in ("", "/", "/v1", "/v1/"):
            assert b"GET /v1/models HTTP/1.1\r\n" in echoed(address + tail)
        assert b"GET /inner/v1/models HTTP/1.1\r\n" in echoed(f"{address}/inner/v1")


def test_end_of_stdin_stops_a_batch_at_once() -> None:
    gone = threading.Event()

    def answer(connection: socket.socket, request: bytes) -> None:
        connection.sendall(CHUNKED)
        connection.recv(1)  # returns when the client has gone
        gone.set()

    with odd_server(answer) as address:
        child = Child(*load_command([address]))
        assert json.loads(next(child.lines()))["ready"]
        child.write(one().line())
        time.sleep(0.2)
        assert child.close(3) == 0
        assert gone.wait(3)


def test_after_a_lost_client_the_next_batch_is_sent_by_a_new_one(url: str) -> None:
    """Its host may be unreachable for a while; the error has the lost one's last words."""
    starts: list[str] = []

    def start() -> Child:
        starts.append("start")
        if len(starts) == 1:
            raise ConnectionLostError("spark1 did not answer within 5 s", code="host-unreachable", where="spark1")
        return Child(*load_command([url]))

    dies = Child(["sh", "-c", "echo '{\"ready\": true}'; read line; echo 'Killed: out of memory'; exit 137"], b"")
    load = ProcessLoader(dies, start=start)
    with pytest.raises(ConnectionLostError, match="out of memory"):
        load.send(Batch("r", (ask("plain"),)))
    [record] = load.send(Batch("r", (ask("plain"),))).records
    assert (record.how, starts) == ("done", ["start", "start"])
    load.close()


def test_large_batch_passes(url: str) -> None:
    body = {"model": "plain", "prompt": list(range(100_000, 140_000)), "max_tokens": 600, "stream": True}
    with load_client(url) as load:
        record = load.send(Batch("r", (Ask("/v1/completions", body),) * 4, concurrency=4))
    assert [read_stream(one).prompt_tokens for one in record.records] == [40_000] * 4


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificate")
def test_https(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(words, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await writer.drain()

    async def listen(ready: threading.Event, ports: list[int]) -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
        ports.append(server.sockets[0].getsockname()[1])
        ready.set()
        await asyncio.sleep(3600)

    ready, ports = threading.Event(), list[int]()
    threading.Thread(target=lambda: asyncio.run(listen(ready, ports)), daemon=True).start()
    assert ready.wait(5)
    with load_client(f"https://127.0.0.1:{ports[0]}", {"SSL_CERT_FILE": str(certificate)}) as load:
        assert read_http(load.send(one()).records[0]).body == b"{}"
    with load_client(f"https://127.0.0.1:{ports[0]}") as load:
        [record] = load.send(one()).records
    assert record.how == "refused"
    assert "certificate" in record.error


def test_progress_is_reported_while_a_batch_runs(url: str) -> None:
    reported: list[Progress] = []
    with load_client(url) as load:
        load.on_progress = reported.append
        load.send(Batch("short", (ask("plain", 4),)))
        assert reported == []
        load.send(Batch("long", (ask("plain", 300), ask("plain", 4)), concurrency=2))
    assert reported[0].done == 1
    assert 50 < reported[0].chunks < 320
    assert reported[0].seconds == pytest.approx(1.0)
