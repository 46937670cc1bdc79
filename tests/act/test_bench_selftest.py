"""`cluster bench --selftest`: right numbers are called right, and each kind of wrong one is found."""

import argparse
import dataclasses
import json
from collections.abc import Callable, Iterator

import pytest
from bench_live import known_server, load_client

from cluster.bench.known_ways import WAYS
from cluster.bench.loader import ProcessLoader, Record, Round, RoundRecord
from cluster.bench.selftest import Timing, check_ways, run_selftest, time_round
from cluster.cli import selftest as action
from cluster.errors import ClusterError, ExitCode
from cluster.screen import Screen


@pytest.fixture(scope="module")
def load() -> Iterator[ProcessLoader]:
    with known_server() as url, load_client(url) as client:
        yield client


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


def wrong_ways(load: ProcessLoader, bend: Callable[[Record], Record]) -> dict[str, str]:
    return {told.way: told.wrong for told in check_ways(Bent(load, bend)) if told.wrong}


def test_our_client_reads_every_way_right(load: ProcessLoader) -> None:
    test = run_selftest(load, (1, 4), 1)
    assert [told for told in test.ways if told.wrong] == []
    assert {told.way for told in test.ways} == set(WAYS)
    assert test.is_right
    for timing in test.timings:
        assert timing.ttft_ms > 0, "nothing comes before it was sent; how late it comes depends on the machine"
        assert timing.ttft_worst_ms >= timing.ttft_ms
        assert timing.cpu_us > 0
        assert timing.wrong_tokens == 0


def test_late_client_is_found(load: ProcessLoader) -> None:
    assert time_round(Bent(load, late), 2, "late").ttft_ms > 50
    assert wrong_ways(load, late) == {}, "late is not wrong: it is a number of its own"


def test_token_before_it_was_sent_is_found(load: ProcessLoader) -> None:
    wrong = wrong_ways(load, lambda one: dataclasses.replace(one, chunks=tuple((t / 9, d) for t, d in one.chunks)))
    assert "ms off" in wrong["plain"]
    assert "ms off" in wrong["role"]


def test_clock_that_runs_fast_is_found(load: ProcessLoader) -> None:
    assert time_round(Bent(load, slow), 2, "slow").rate_pct == pytest.approx(-1, abs=0.7)


def test_lost_tokens_are_found(load: ProcessLoader) -> None:
    lost = wrong_ways(load, lambda one: dataclasses.replace(one, chunks=one.chunks[:4], how="done"))
    assert {"plain", "four", "silent", "tools", "reasoning-content"} <= set(lost)


def test_wrong_count_is_found(load: ProcessLoader) -> None:
    def generous(one: Record) -> Record:
        more = ((t, data.replace(b'completion_tokens": 16', b'completion_tokens": 17')) for t, data in one.chunks)
        return dataclasses.replace(one, chunks=tuple(more))

    wrong = wrong_ways(load, generous)
    assert wrong["plain"] == wrong["usage-last"] == "17 tokens instead of 16"


def test_failure_taken_for_an_answer_is_found(load: ProcessLoader) -> None:
    def cheerful(one: Record) -> Record:
        whole = b"".join(data for _, data in one.chunks)
        return (
            one
            if b"the engine is dead" not in whole
            else dataclasses.replace(
                one, chunks=tuple((t, data.replace(b'"error"', b'"notes"')) for t, data in one.chunks)
            )
        )

    assert wrong_ways(load, cheerful)["error-event"] == "a request that failed counts as served"


def test_goals_are_those_of_each_concurrency() -> None:
    good = Timing(4, 0.9, 2.0, 0.05, 0.1, 60.0, 1.0, 0)
    assert good.misses == ()
    assert len(dataclasses.replace(good, ttft_ms=1.1, rate_pct=-0.2).misses) == 2
    assert dataclasses.replace(good, concurrency=16, ttft_ms=4.9).misses == ()
    assert dataclasses.replace(good, concurrency=128, ttft_ms=20.0, cpu_us=19.0).misses == ()
    assert "µs of CPU" in dataclasses.replace(good, concurrency=128, cpu_us=21.0).misses[0]


def test_server_that_is_not_the_known_one() -> None:
    with load_client("http://127.0.0.1:9") as client, pytest.raises(ClusterError, match="not the known one"):
        check_ways(client)


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    code = action.run(argparse.Namespace(concurrency=[1], runs=1), Screen(json_mode=True))
    told = json.loads(capsys.readouterr().out)
    assert code is ExitCode.DONE
    assert told["right"] is True
    assert told["timings"][0]["concurrency"] == 1


def test_wrong_number_fails_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.bench.selftest.EARLY_MS", -1e6)
    args = argparse.Namespace(concurrency=[1], runs=1)
    assert action.run(args, Screen()) is ExitCode.FAILED
    assert "WRONG: plain: the first token is" in capsys.readouterr().err
