"""Every way of streaming is read over real sockets as without, and `scripts/bench/client.py` finds wrong clocks."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bench_live import known_server, load_client
from bench_tools import trace
from known_server import WAYS

from cluster.bench.loader import Batch, BatchRecord, ProcessLoader, RequestRecord
from cluster.bench.read import read_stream
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


def test_every_way_is_read_as_without_a_socket(load: ProcessLoader) -> None:
    names = [name for name, way in WAYS.items() if not way.fail_every and not way.refuses]
    asks = tuple(client.ask(name, f"way/{name}", TOKENS) for name in names)
    records = load.send(Batch("ways", asks, len(asks))).records
    log = client.read_log(load)
    for name, record in zip(names, records, strict=True):
        seen, right = read_stream(record), trace(name, TOKENS)
        assert (bool(seen.error), seen.counted) == (bool(right.error), right.counted), name
        assert seen.error or [n for _, n in seen.tokens] == [n for _, n in right.tokens], name
        assert seen.error or client.ttft_error_ms(seen, log[f"way/{name}"]) > -EARLY_MS, name


@pytest.mark.parametrize("concurrency", [1, 4])
def test_our_client_counts_every_token(load: ProcessLoader, concurrency: int) -> None:
    errors = client.time_batch(load, concurrency, f"right{concurrency}")
    assert errors.ttft_ms > 0, "nothing comes before it was sent; how late it comes depends on the machine"
    assert errors.cpu_us > 0
    assert errors.wrong_tokens == 0


class Bent:
    """A client whose clock is wrong: `bend` changes the times that it recorded of each stream."""

    where = "here"

    def __init__(self, load: ProcessLoader, bend: Callable[[float], float]) -> None:
        self.load, self.bend = load, bend

    def send(self, wanted: Batch) -> BatchRecord:
        record = self.load.send(wanted)
        return dataclasses.replace(record, records=tuple(map(self.change, record.records)))

    def change(self, one: RequestRecord) -> RequestRecord:
        return dataclasses.replace(one, chunks=tuple((self.bend(t), data) for t, data in one.chunks))


def test_wrong_clocks_are_found(load: ProcessLoader) -> None:
    assert client.time_batch(Bent(load, lambda t: t + 0.05), 2, "late").ttft_ms > 50
    assert client.time_batch(Bent(load, lambda t: t / 9), 2, "early").ttft_ms < 0
    assert client.time_batch(Bent(load, lambda t: t * 1.01), 2, "fast").rate_pct == pytest.approx(-1, abs=0.7)


def test_goals_are_those_of_each_concurrency() -> None:
    good = client.Errors(0.9, 0.05, 0.1, 60.0)
    assert client.misses(good, 4) == []
    assert len(client.misses(dataclasses.replace(good, ttft_ms=1.1, rate_pct=-0.2), 4)) == 2
    assert client.misses(dataclasses.replace(good, ttft_ms=4.9), 16) == []
    assert "µs of CPU" in client.misses(dataclasses.replace(good, cpu_us=21.0), 128)[0]


def test_server_that_is_not_the_known_one() -> None:
    with load_client("http://127.0.0.1:9") as loader, pytest.raises(ClusterError, match="not the known one"):
        client.read_log(loader)
