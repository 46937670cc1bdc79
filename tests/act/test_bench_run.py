"""`run_bench` against the server of known timing, without sockets: no second passes."""

import dataclasses
import re

import pytest
from bench_live import Watching, known_server, load_client
from measured_desk import LoadClient, server

from cluster.bench.loader import Batch, BatchRecord, ProcessLoader
from cluster.bench.result import Result
from cluster.bench.rows import Row
from cluster.bench.run import run_bench
from cluster.bench.wanted import BenchWanted
from cluster.errors import ClusterError, ConnectionLostError

RATE = 200.0
CLOSE = 0.011  # by how much an answer may be faster or slower
CONTEXT = {"pp": (64,), "tg": (4,), "depth": (0, 320), "depth_mode": "prefix-caching"}


@pytest.fixture
def load() -> ProcessLoader:
    return ProcessLoader(LoadClient([server(RATE, 0.04)], {}))


def wanted(model: str, **given: object) -> BenchWanted:
    values: dict = {"pp": (256,), "tg": (32,), "depth": (0,), "runs": 2}
    return BenchWanted(("http://known",), model, **values | given)


def only(measured: Result) -> Row:
    [row] = measured.rows
    return row


@pytest.mark.parametrize("model", ["plain", "usage-last", "worst"])
def test_ways_to_stream_give_the_same_numbers(load: ProcessLoader, model: str) -> None:
    row = only(run_bench(load, wanted(model)))
    assert (row.failed, row.notes) == (0, ())
    assert row.tg_throughput.values == pytest.approx([RATE] * 2, rel=CLOSE)
    assert row.e2e_ttft.values == pytest.approx([41] * 2, rel=CLOSE)
    assert row.est_ppt.values == pytest.approx([40] * 2, rel=CLOSE)
    assert row.pp_throughput.values == pytest.approx([256e3 / ms for ms in row.est_ppt.values])


def test_the_same_over_real_sockets() -> None:
    """A machine with other work may cost a quarter; a wrong count of tokens is off by a third or more."""
    with known_server("--ttft-ms", "40", "--rate", str(RATE)) as url, load_client(url) as client:
        row = only(run_bench(client, wanted("worst")))
    assert (row.failed, row.notes) == (0, ())
    disturbed_least = min(row.tg_throughput.values, key=lambda rate: abs(rate - RATE))
    assert disturbed_least == pytest.approx(RATE, rel=0.25)
    assert 39 < min(row.e2e_ttft.values) < 200
    assert {"cpu_s", "lag_max_ms", "t0_spread_ms"} <= set(row.client[0])


class Sampled:
    """Hosts that count how often they were sampled."""

    begun = ended = 0

    def begin(self) -> None:
        assert self.begun == self.ended
        self.begun += 1

    def end(self) -> dict:
        self.ended += 1
        return {"samples": self.ended}


def test_rows_and_runs(load: ProcessLoader) -> None:
    seen: list[Row] = []
    steps: list[str] = []
    shapes = wanted("plain", tg=(8, 16), depth=(0, 300), concurrency=(1, 2))
    measured = run_bench(load, shapes, seen.append, Sampled(), steps.append)
    assert [row.shape.name for row in measured.rows] == [
        *("pp256 tg8", "pp256 tg8 (c2)", "pp256 tg16", "pp256 tg16 (c2)"),
        *("pp256 tg8 @ d300", "pp256 tg8 @ d300 (c2)", "pp256 tg16 @ d300", "pp256 tg16 @ d300 (c2)"),
    ]
    assert [row.runs for row in seen] == [1] * 8 + [2] * 8, "runs are interleaved over the rows"
    assert seen[8:] == list(measured.rows)
    first = measured.rows[0]
    assert first.machine == ({"run": 0, "samples": 1}, {"run": 1, "samples": 9}), "eight rows, then the first again"
    assert first.client == ({"lag_max_ms": 0.0}, {"lag_max_ms": 0.0})
    assert steps[0] == "tokenise"
    assert measured.request["prompt"] == "[256 tokens]"
    assert re.fullmatch("[0-9a-f]{32,128}", measured.request["cache_salt"]), "vLLM takes no slashes"
    assert measured.manifest.client_where
    assert 0 < measured.latency_ms < 200
    assert (measured.sentinel.test, measured.sentinel.extra) == ("pp256 tg16", True), "the last thing measured"


class Losing:
    """A load client whose connection is lost at some batches (by name), once for each time the name is given."""

    where = "here"

    def __init__(self, load: ProcessLoader, *lost: str) -> None:
        self.load, self.lost = load, list(lost)
        self.sent: list[Batch] = []

    def send(self, wanted: Batch) -> BatchRecord:
        self.sent.append(wanted)
        if wanted.id in self.lost:
            self.lost.remove(wanted.id)
            raise ConnectionLostError("the load client ended", code="load-client-lost")
        return self.load.send(wanted)


def test_a_run_that_lost_its_load_client_is_measured_again_and_marked(load: ProcessLoader) -> None:
    losing, machine = Losing(load, "pp256 tg32 run1"), Sampled()
    row = only(run_bench(losing, wanted("plain", runs=3), machine=machine))
    assert (row.runs, row.requests, row.failed, row.repeated) == (3, 3, 0, (1,))
    assert machine.begun == machine.ended == 4
    assert [one["run"] for one in row.machine] == [0, 1, 2]
    assert row.notes == ("run 2 was measured again: the connection to the load client was lost",)
    prompts = [str(one.asks[0].body) for one in losing.sent if "run1" in one.id]
    assert len(set(prompts)) == 2, "the first may lie in a prefix cache"


def test_a_cached_run_is_measured_again_on_a_context_of_its_own(load: ProcessLoader) -> None:
    losing = Losing(load, "pp64 tg4 @ d320 run0")
    cold, context, cached = run_bench(losing, wanted("caching", **CONTEXT)).rows
    assert (context.repeated, cached.repeated, cached.cache) == ((), (0,), {"hit": 2})
    assert (context.runs, cached.runs, cold.runs) == (2, 2, 2)


def test_a_run_that_lost_its_load_client_twice_is_an_error_and_the_rows_before_it_are_kept(load: ProcessLoader) -> None:
    kept: list[Row] = []
    losing = Losing(load, "pp256 tg32 run1", "pp256 tg32 run1 repeated")
    with pytest.raises(ConnectionLostError):
        run_bench(losing, wanted("plain", runs=3), on_row=kept.append)
    assert [(row.runs, row.repeated) for row in kept] == [(1, ())]


def test_a_quarter_refused(load: ProcessLoader) -> None:
    row = only(run_bench(load, wanted("refusing", concurrency=(4,), runs=3)))
    assert (row.failed, row.requests) == (3, 12)
    assert row.failures == ("3 × HTTP 400: no room for this request",)
    assert row.tg_req_throughput.mean == pytest.approx(RATE, rel=CLOSE)
    assert row.tg_throughput is None


@pytest.mark.parametrize(
    ("model", "given", "code", "remedy"),
    [
        ("broken", {}, "no-request-served", ""),
        ("half", {}, "no-request-served", ""),
        ("", {}, "model-not-chosen", "name one with --model"),
        ("plian", {}, "model-not-served", "--model plain"),
        *(("plain", one, "number-too-small", "") for one in ({"pp": ()}, {"pp": (0,)}, {"depth": (-1,)}, {"runs": 0})),
    ],
)
def test_what_cannot_be_measured(load: ProcessLoader, model: str, given: dict, code: str, remedy: str) -> None:
    with pytest.raises(ClusterError) as caught:
        run_bench(load, wanted(model, **given))
    assert (caught.value.code, caught.value.remedy) == (code, remedy)


def test_no_server() -> None:
    with load_client("http://127.0.0.1:9") as client, pytest.raises(ClusterError) as caught:
        run_bench(client, wanted("plain"))
    assert caught.value.code == "server-unreachable"


def test_context_limit_is_checked_before_anything_is_sent(load: ProcessLoader) -> None:
    counting = Watching(load)
    with pytest.raises(ClusterError, match=r"1024 tokens of context; too long: pp512 tg32 @ d600") as caught:
        run_bench(counting, wanted("small", pp=(512,), depth=(0, 600)))
    assert len(counting.asks) == 1
    assert caught.value.remedy.startswith("--depth 480 at most")


def test_refused_fields_are_dropped_one_by_one_and_named(load: ProcessLoader) -> None:
    measured = run_bench(load, wanted("strict"))
    assert measured.manifest.refused_fields == ("min_tokens", "cache_salt", "continuous_usage_stats", "include_usage")
    assert only(measured).failed == 0
    assert measured.request
    assert "min_tokens" not in measured.request


def test_row_holds_what_the_server_counted(load: ProcessLoader) -> None:
    row = only(run_bench(load, wanted("drafted", concurrency=(2,))))
    assert (row.server["requests"], row.server["generation_tokens"]) == (4, 4 * 32)
    assert (row.server["foreign_requests"], row.server["foreign_tokens"]) == (0, 0)
    assert row.server["acceptance_per_position"] == [0.75, 0.5, 0.25]
    assert row.notes == ()
    assert only(run_bench(load, wanted("busy"))).notes == (
        "foreign traffic: 4 requests (200 tokens) of others meanwhile",
        "2 preemptions: the KV cache did not hold all requests",
    )


class Mute(Watching):
    """A server that counts nothing."""

    def send(self, wanted: Batch) -> BatchRecord:
        self.asks += wanted.asks
        if wanted.asks[0].path == "/metrics":
            wanted = dataclasses.replace(wanted, asks=(dataclasses.replace(wanted.asks[0], path="/nothing"),))
        return self.loader.send(wanted)


def test_server_without_counters_is_asked_once(load: ProcessLoader) -> None:
    mute = Mute(load)
    row = only(run_bench(mute, wanted("plain")))
    assert [ask.path for ask in mute.asks].count("/metrics") == 1
    assert (row.server, row.notes) == (None, ())


def test_one_row_is_its_own_sentinel(load: ProcessLoader) -> None:
    measured = run_bench(load, wanted("plain"))
    assert not measured.sentinel.extra
    assert run_bench(load, wanted("plain", runs=1)).sentinel is None


def test_auto_stops_when_the_rates_are_known(load: ProcessLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.bench.wanted.PRECISE", 1e9)
    assert only(run_bench(load, wanted("plain", tg=(4,), runs="auto"))).runs == 3
    monkeypatch.setattr("cluster.bench.wanted.PRECISE", 0.0)
    row = only(run_bench(load, wanted("plain", tg=(4,), runs="auto")))
    assert row.runs == 10
    assert row.notes[-1].startswith("after 10 runs the 95 % interval is still ± ")


def test_auto_repeats_the_rows_that_need_it(load: ProcessLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    """A context and its prompt together."""
    monkeypatch.setattr("cluster.bench.wanted.imprecise", lambda row: 0.1 if row.phase == "cached" else None)
    cold, context, cached = run_bench(load, wanted("caching", **CONTEXT, runs="auto")).rows
    assert (cold.runs, context.runs, cached.runs, cached.cache) == (3, 10, 10, {"hit": 10})


def test_natural_stop_is_asked_for_and_described(load: ProcessLoader) -> None:
    measured = run_bench(load, wanted("stops", natural_stop=True))
    assert measured.request
    assert "ignore_eos" not in measured.request
    assert only(measured).notes[0].startswith("outputs ended by themselves after 16 to 16 tokens; 0 of 2")


@pytest.mark.parametrize("model", ["caching", "caching-untold"])
def test_context_is_loaded_and_the_hit_is_verified(load: ProcessLoader, model: str) -> None:
    measured = run_bench(load, wanted(model, **CONTEXT))
    cold, context, cached = measured.rows
    assert [row.shape.name for row in measured.rows] == ["pp64 tg4", "ctx_pp ctx_tg @ d320", "pp64 tg4 @ d320"]
    assert (context.is_context_prefill_phase, cached.is_context_prefill_phase) == (True, False)
    assert (cold.cache, context.cache, cached.cache) == (None, None, {"hit": 2})
    assert cold.notes == context.notes == cached.notes == ()
    assert cached.server["prefix_hits"] == pytest.approx(2 * 304, abs=40)
    assert min(cached.e2e_ttft.values) < 0.6 * min(context.e2e_ttft.values), "five sixths of 40 ms are saved"


@pytest.mark.parametrize(("model", "outcome"), [("plain", "miss"), ("claiming", "miss"), ("caching-untold", "hit")])
def test_server_without_the_context_in_its_cache(load: ProcessLoader, model: str, outcome: str) -> None:
    given = {**CONTEXT, "depth": (320,), "concurrency": (2,)}
    cached = run_bench(load, wanted(model, **given)).rows[-1]
    assert cached.cache == {outcome: 4}
    assert (cached.ttfr is None) == (outcome != "hit")


def test_hits_that_nobody_reports_or_that_may_be_anybodys_are_not_verified(load: ProcessLoader) -> None:
    cached = run_bench(Mute(load), wanted("caching-untold", **CONTEXT)).rows[-1]
    assert (cached.cache, cached.ttfr) == ({"unknown": 2}, None)
    assert run_bench(load, wanted("busy", **CONTEXT)).rows[-1].cache == {"unknown": 2}


def test_chat_has_the_length_asked_for_with_its_template(load: ProcessLoader) -> None:
    watching = Watching(load)
    row = only(run_bench(watching, wanted("chat", chat=True)))
    assert (row.notes, row.failed) == ((), 0)
    assert {ask.path for ask in watching.asks if ask.path.endswith("completions")} == {"/v1/chat/completions"}
    assert len(watching.bodies[-1]["messages"][0]["content"].split()) == 256 - 4
    assert "prompt" not in watching.bodies[-1]


def test_question_ends_the_text_of_a_chat_and_counts_beyond_it(load: ProcessLoader) -> None:
    watching = Watching(load)
    row = only(run_bench(watching, wanted("chat", chat=True, question="Why is that?", extra={"top_k": 5}, runs=1)))
    assert watching.bodies[-1]["messages"][0]["content"].endswith("\n\nWhy is that?")
    assert watching.bodies[-1]["top_k"] == 5
    assert row.notes == ("the server counted 263 prompt tokens, 256 were wanted",)


@pytest.mark.parametrize("chat", [False, True])
def test_server_without_tokenizer_is_sent_text_and_counts_it(load: ProcessLoader, chat: bool) -> None:
    watching = Watching(load)
    measured = run_bench(watching, wanted("plain-text", pp=(400,), chat=chat))
    row, sent = only(measured), watching.bodies
    assert (row.failed, measured.manifest.refused_fields) == (0, ())
    assert measured.manifest.corpus.endswith(" as words")
    texts = {body["messages"][0]["content"] if chat else body["prompt"] for body in sent}
    assert all(isinstance(text, str) for text in texts)
    assert len(texts) == len(sent), "each prompt is another one"
    assert row.notes == (), "a word is a token to this server, so the length is exact"
    assert row.tg_throughput
