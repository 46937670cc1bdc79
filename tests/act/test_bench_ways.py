"""Every way of streaming is read right over real sockets, and each kind of wrong reading would be found."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from bench_live import known_server, load_client
from known_server import WAYS, Way

from cluster.bench.loader import Loader, ProcessLoader, Record, Round, RoundRecord
from cluster.bench.measure import decode_rate
from cluster.bench.read import RequestTrace, read_stream
from cluster.errors import ClusterError

spec = importlib.util.spec_from_file_location("client", Path(__file__).parents[2] / "scripts/bench/client.py")
assert spec
assert spec.loader
client = importlib.util.module_from_spec(spec)
sys.modules["client"] = client  # a dataclass looks its own module up
spec.loader.exec_module(client)

TOKENS = 16
EARLY_MS = 1.0
"""No first token comes before it was sent, however busy the machine is: an early role event would be 65 ms before."""


@pytest.fixture(scope="module")
def load() -> Iterator[ProcessLoader]:
    with known_server() as url, load_client(url) as loader:
        yield loader


class Bent:
    """A client that gets something wrong: `bend` changes what it recorded of each stream."""

    where = "here"

    def __init__(self, load: ProcessLoader, bend: Callable[[Record], Record]) -> None:
        self.load, self.bend = load, bend

    def send(self, wanted: Round) -> RoundRecord:
        record = self.load.send(wanted)
        streams = wanted.asks[0].path == "/v1/completions"
        return dataclasses.replace(record, records=tuple(map(self.bend, record.records))) if streams else record


def late(one: Record) -> Record:
    """Every time stamp 50 ms too late."""
    return dataclasses.replace(one, chunks=tuple((t + 0.05, data) for t, data in one.chunks))


def slow(one: Record) -> Record:
    """A clock that runs one in a hundred too fast."""
    return dataclasses.replace(one, t0_s=one.t0_s * 1.01, chunks=tuple((t * 1.01, data) for t, data in one.chunks))


def wrong_ways(loader: Loader) -> dict[str, str]:
    """What is wrong by way of streaming, all asked at the same time; nothing that a busy machine can cause."""
    names = [name for name, way in WAYS.items() if way.fail_every <= 1]
    asks = tuple(client.ask(name, f"way/{name}", TOKENS) for name in names)
    record = loader.send(Round("ways", asks, len(asks)))
    log = client.read_log(loader)
    told = {
        name: what_is_wrong(WAYS[name], read_stream(one), log.get(f"way/{name}"))
        for name, one in zip(names, record.records, strict=True)
    }
    return {name: wrong for name, wrong in told.items() if wrong}


def what_is_wrong(way: Way, trace: RequestTrace, entry: Mapping[str, Any] | None) -> str:
    """What the client says that is not so; empty when there is nothing."""
    if way.fail_every or way.cut_after or way.error_event or "stream_options" in way.refuses:
        return "" if trace.error else "a request that failed counts as served"
    if trace.error or entry is None or trace.first_token_s is None:
        return f"a request that was served counts as failed: {trace.error}"
    true, seen = [tokens for _, tokens in entry["sent"]], [tokens for _, tokens in trace.tokens]
    if way.usage == "none":
        rate, _ = decode_rate(trace)
        return "" if rate is None and len(seen) == len(true) else "a rate without a count of tokens"
    if abs(sum(seen) - sum(true)) > 0.01:
        return f"{sum(seen):g} tokens instead of {sum(true)}"
    if seen != true:
        return f"events of {seen} tokens instead of {true}"
    late_ms = client.ttft_error_ms(trace, entry)
    return "" if late_ms > -EARLY_MS else f"the first token is {late_ms:+.0f} ms off"


def test_our_client_reads_every_way_right(load: ProcessLoader) -> None:
    assert wrong_ways(load) == {}


@pytest.mark.parametrize("name", [name for name, way in WAYS.items() if way.fail_every > 1])
def test_a_share_of_refusals_is_counted(load: ProcessLoader, name: str) -> None:
    asks = tuple(client.ask(name, f"share/{index}", TOKENS) for index in range(2 * WAYS[name].fail_every))
    errors = [read_stream(one).error for one in load.send(Round("share", asks, len(asks))).records]
    failed = [error for error in errors if error]
    assert len(failed) == 2
    assert all(error.startswith("HTTP 400: ") for error in failed)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_our_client_counts_every_token(load: ProcessLoader, concurrency: int) -> None:
    errors = client.time_round(load, concurrency, f"right{concurrency}")
    assert errors.ttft_ms > 0, "nothing comes before it was sent; how late it comes depends on the machine"
    assert errors.cpu_us > 0
    assert errors.wrong_tokens == 0


def test_late_client_is_found(load: ProcessLoader) -> None:
    assert client.time_round(Bent(load, late), 2, "late").ttft_ms > 50
    assert wrong_ways(Bent(load, late)) == {}, "late is not wrong: it is a number of its own"


def test_token_before_it_was_sent_is_found(load: ProcessLoader) -> None:
    early = Bent(load, lambda one: dataclasses.replace(one, chunks=tuple((t / 9, d) for t, d in one.chunks)))
    wrong = wrong_ways(early)
    assert "ms off" in wrong["plain"]
    assert "ms off" in wrong["role"]


def test_clock_that_runs_fast_is_found(load: ProcessLoader) -> None:
    assert client.time_round(Bent(load, slow), 2, "slow").rate_pct == pytest.approx(-1, abs=0.7)


def test_lost_tokens_are_found(load: ProcessLoader) -> None:
    lost = wrong_ways(Bent(load, lambda one: dataclasses.replace(one, chunks=one.chunks[:4], how="done")))
    assert {"plain", "four", "silent", "tools", "reasoning-content"} <= set(lost)


@pytest.mark.parametrize(
    ("old", "new", "way", "said"),
    [
        (b'completion_tokens": 16', b'completion_tokens": 17', "usage-last", "17 tokens instead of 16"),
        (b'"error": {', b'"notes": {', "error-event", "a request that failed counts as served"),
    ],
)
def test_wrong_reading_is_found(load: ProcessLoader, old: bytes, new: bytes, way: str, said: str) -> None:
    def bend(one: Record) -> Record:
        return dataclasses.replace(one, chunks=tuple((t, data.replace(old, new)) for t, data in one.chunks))

    assert wrong_ways(Bent(load, bend))[way] == said


def test_goals_are_those_of_each_concurrency() -> None:
    good = client.Errors(0.9, 0.05, 0.1, 60.0)
    assert client.misses(good, 4) == []
    assert len(client.misses(dataclasses.replace(good, ttft_ms=1.1, rate_pct=-0.2), 4)) == 2
    assert client.misses(dataclasses.replace(good, ttft_ms=4.9), 16) == []
    assert client.misses(dataclasses.replace(good, ttft_ms=20.0, cpu_us=19.0), 128) == []
    assert "µs of CPU" in client.misses(dataclasses.replace(good, cpu_us=21.0), 128)[0]


def test_server_that_is_not_the_known_one() -> None:
    with load_client("http://127.0.0.1:9") as loader, pytest.raises(ClusterError, match="not the known one"):
        wrong_ways(loader)
