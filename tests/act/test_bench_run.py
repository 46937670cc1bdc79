"""`run_bench` against the server of known timing, over real sockets."""

import dataclasses
import re
from collections.abc import Iterator

import pytest
from bench_live import Watching, known_server, load_client

from cluster.bench.loader import ProcessLoader, Round, RoundRecord
from cluster.bench.result import Result
from cluster.bench.rows import Row
from cluster.bench.run import run_bench
from cluster.bench.wanted import BenchWanted
from cluster.errors import ClusterError, ConnectionLostError, UsageError
from cluster.hosts.connect import LocalHost

RATE = 200.0
BUSY = 0.25  # what a machine with other work may cost; a wrong count of tokens is off by a third or more


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with known_server("--ttft-ms", "40", "--rate", str(RATE)) as address:
        yield address


@pytest.fixture(scope="module")
def load(url: str) -> Iterator[ProcessLoader]:
    with load_client(url) as client:
        yield client


def wanted(model: str, **given: object) -> BenchWanted:
    values: dict = {"pp": (256,), "tg": (32,), "depth": (0,), "runs": 2, "base_url": "http://known"}
    return BenchWanted(model=model, **values | given)


def only(measured: Result) -> Row:
    [row] = measured.rows
    return row


RIGHT = "plain role four drafted silent silent-last reasoning reasoning-content tools usage-last comments"
ODD = "crlf cr utf8 worst until-close"


@pytest.mark.parametrize("model", (RIGHT + " " + ODD).split())
def test_every_way_to_stream_gives_the_same_numbers(load: ProcessLoader, model: str) -> None:
    row = only(run_bench(load, wanted(model)))
    assert row.failed == 0
    assert row.notes == ()
    assert row.tg_throughput is not None
    disturbed_least = min(row.tg_throughput.values, key=lambda rate: abs(rate - RATE))
    assert disturbed_least == pytest.approx(RATE, rel=BUSY)
    assert row.e2e_ttft is not None
    assert 39 < min(row.e2e_ttft.values) < 200
    assert row.est_ppt is not None
    assert min(row.est_ppt.values) > 30
    assert row.pp_throughput is not None
    assert row.pp_throughput.values == pytest.approx([256e3 / ms for ms in row.est_ppt.values])


class Watched:
    """Hosts that count how often they were looked at."""

    begun = ended = 0

    def begin(self) -> None:
        assert self.begun == self.ended
        self.begun += 1

    def end(self) -> dict:
        self.ended += 1
        return {"looks": self.ended}


def test_rows_and_runs(load: ProcessLoader) -> None:
    seen: list[Row] = []
    steps: list[str] = []
    measured = run_bench(
        load,
        wanted("plain", tg=(8, 16), depth=(0, 300), concurrency=(1, 2)),
        on_row=seen.append,
        machine=Watched(),
        on_step=steps.append,
    )
    assert [row.shape.name for row in measured.rows] == [
        *("pp256 tg8", "pp256 tg8 (c2)", "pp256 tg16", "pp256 tg16 (c2)"),
        *("pp256 tg8 @ d300", "pp256 tg8 @ d300 (c2)", "pp256 tg16 @ d300", "pp256 tg16 @ d300 (c2)"),
    ]
    assert [row.runs for row in seen] == [1] * 8 + [2] * 8, "runs are interleaved over the rows"
    assert seen[8:] == list(measured.rows)
    first = measured.rows[0]
    assert first.machine == ({"run": 0, "looks": 1}, {"run": 1, "looks": 9}), "eight rows, then the first again"
    assert {"cpu_s", "lag_max_ms", "t0_spread_ms"} <= set(first.client[0])
    assert steps[0] == "tokenise"
    assert measured.request["prompt"] == "[256 tokens]"
    assert re.fullmatch("[0-9a-f]{32,128}", measured.request["cache_salt"]), "vLLM takes no slashes"
    assert measured.manifest.client_where
    assert 0 < measured.latency_ms < 200


class Losing:
    """A load client whose connection is lost at some rounds (by name), once for each time the name is given."""

    where = "here"

    def __init__(self, load: ProcessLoader, *lost: str) -> None:
        self.load, self.lost = load, list(lost)
        self.sent: list[Round] = []

    def send(self, wanted: Round) -> RoundRecord:
        self.sent.append(wanted)
        if wanted.id in self.lost:
            self.lost.remove(wanted.id)
            raise ConnectionLostError("the load client ended", code="load-client-lost")
        return self.load.send(wanted)


def test_a_run_that_lost_its_load_client_is_measured_again_and_marked(load: ProcessLoader) -> None:
    losing, machine = Losing(load, "pp256 tg32 run1"), Watched()
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


def test_totals_under_concurrency(load: ProcessLoader) -> None:
    row = only(run_bench(load, wanted("plain", tg=(440,), concurrency=(4,), runs=1)))
    assert row.tg_throughput is not None
    assert row.tg_throughput.mean == pytest.approx(4 * RATE, rel=BUSY)
    assert row.peak_throughput is not None
    assert row.peak_throughput.mean == pytest.approx(4 * RATE, rel=BUSY)


def test_a_quarter_refused(load: ProcessLoader) -> None:
    row = only(run_bench(load, wanted("refusing", concurrency=(4,), runs=3)))
    assert (row.failed, row.requests) == (3, 12)
    assert row.failures == ("3 × HTTP 400: no room for this request",)
    assert row.tg_req_throughput is not None
    assert row.tg_req_throughput.mean == pytest.approx(RATE, rel=BUSY)
    assert row.tg_throughput is None


@pytest.mark.parametrize(
    ("model", "words"),
    [("broken", "HTTP 400: no room for this request"), ("half", "closed the connection after"), ("", "offers")],
)
def test_none_served_is_the_servers_words(load: ProcessLoader, model: str, words: str) -> None:
    with pytest.raises(ClusterError, match=words):
        run_bench(load, wanted(model))


def test_early_stop_is_noted(load: ProcessLoader) -> None:
    assert "outputs of 16 tokens instead of 32 (finish_reason stop)" in only(run_bench(load, wanted("stops"))).notes


def test_cache_hit_in_a_cold_row_is_noted(load: ProcessLoader) -> None:
    row = only(run_bench(load, wanted("cached", pp=(2048,))))
    assert row.notes[0] == "2 of 2 cold requests met a prefix cache (up to 1024 tokens)"
    assert row.pp_throughput is not None
    assert row.pp_throughput.mean < 1024 / 0.038


def test_no_usage_gives_times_and_no_rates(load: ProcessLoader) -> None:
    row = only(run_bench(load, wanted("no-usage")))
    assert row.tg_throughput is None
    assert row.e2e_ttft is not None
    assert row.why is not None
    assert row.why["tg_throughput"] == "the server does not count its tokens"


def test_refused_fields_are_dropped_one_by_one_and_named(load: ProcessLoader) -> None:
    measured = run_bench(load, wanted("strict"))
    assert measured.manifest.refused_fields == ("min_tokens", "cache_salt", "continuous_usage_stats", "include_usage")
    assert only(measured).failed == 0
    assert "min_tokens" not in measured.request


def test_context_limit_is_checked_before_anything_is_sent(load: ProcessLoader) -> None:
    counting = Watching(load)
    with pytest.raises(UsageError, match=r"1024 tokens of context; too long: pp512 tg32 @ d600") as caught:
        run_bench(counting, wanted("small", pp=(512,), depth=(0, 600)))
    assert len(counting.asks) == 1
    assert caught.value.remedy.startswith("--depth 480 at most")


def test_unknown_model_names_the_nearest(load: ProcessLoader) -> None:
    with pytest.raises(UsageError, match="does not serve 'plian'") as caught:
        run_bench(load, wanted("plian"))
    assert caught.value.remedy == "--model plain"


@pytest.mark.parametrize("given", [{"pp": ()}, {"pp": (0,)}, {"depth": (-1,)}, {"runs": 0}, {"concurrency": (0,)}])
def test_numbers_that_make_no_row(load: ProcessLoader, given: dict) -> None:
    with pytest.raises(UsageError) as caught:
        run_bench(load, wanted("plain", **given))
    assert caught.value.code == "number-too-small"


def test_no_server() -> None:
    with load_client("http://127.0.0.1:9") as client, pytest.raises(ClusterError, match="no server answers"):
        run_bench(client, wanted("plain"))


def prompts(load: ProcessLoader, model: str = "plain", **given: object) -> list:
    """What is sent to measure one run of two tokens."""
    watching = Watching(load)
    run_bench(watching, wanted(model, tg=(2,), runs=1, **given))
    assert all(("cache_salt" in body) == (model == "plain") for body in watching.bodies)
    return [body["prompt"] for body in watching.bodies]


def test_prompts_are_those_of_the_seed_and_of_the_corpus(load: ProcessLoader) -> None:
    first = prompts(load, seed=1)
    assert first == prompts(load, seed=1)
    assert first != prompts(load, seed=2)
    assert {len(prompt) for prompt in first} == {256}
    assert not set(prompts(load, corpus="code")[0][17:]) <= set(first[0][17:])


def test_prompts_begin_anew_where_the_server_heeds_no_salt(load: ProcessLoader) -> None:
    assert not set(prompts(load, "plain-text")) & set(prompts(load, "plain-text"))


def test_through_a_host(url: str) -> None:
    from cluster.bench.loader import Target, load_command

    host = LocalHost("here")
    client = ProcessLoader(host.start(*load_command(Target(url))))
    try:
        assert only(run_bench(client, wanted("plain"))).failed == 0
    finally:
        client.close()
        host.close()


def test_row_holds_what_the_server_counted(load: ProcessLoader) -> None:
    row = only(run_bench(load, wanted("drafted", concurrency=(2,))))
    assert row.server is not None
    assert (row.server["requests"], row.server["generation_tokens"]) == (4, 4 * 32)
    assert (row.server["foreign_requests"], row.server["foreign_tokens"]) == (0, 0)
    assert row.server["acceptance_per_position"] == [0.75, 0.5, 0.25]
    assert row.notes == ()


def test_foreign_traffic_and_preemptions_are_noted(load: ProcessLoader) -> None:
    assert only(run_bench(load, wanted("busy"))).notes == (
        "foreign traffic: 4 requests (200 tokens) of others meanwhile",
        "2 preemptions: the KV cache did not hold all requests",
    )


class Mute(Watching):
    """A server that counts nothing of itself."""

    def send(self, round: Round) -> RoundRecord:
        self.asks += round.asks
        if round.asks[0].path == "/metrics":
            round = dataclasses.replace(round, asks=(dataclasses.replace(round.asks[0], path="/nothing"),))
        return self.loader.send(round)


def test_server_without_counters_is_asked_once_and_nothing_is_said(load: ProcessLoader) -> None:
    mute = Mute(load)
    row = only(run_bench(mute, wanted("plain")))
    assert [ask.path for ask in mute.asks].count("/metrics") == 1
    assert (row.server, row.notes) == (None, ())


def test_last_thing_measured_is_the_first_row_again(load: ProcessLoader) -> None:
    measured = run_bench(load, wanted("plain", depth=(0, 300)))
    assert measured.sentinel is not None
    assert (measured.sentinel.test, measured.sentinel.extra) == ("pp256 tg32", True)
    assert all(row.runs == 2 for row in measured.rows), "the repetition is no run of its row"


def test_one_row_is_its_own_sentinel(load: ProcessLoader) -> None:
    measured = run_bench(load, wanted("plain"))
    assert measured.sentinel is not None
    assert not measured.sentinel.extra
    assert run_bench(load, wanted("plain", runs=1)).sentinel is None


def test_auto_stops_when_the_rates_are_known(load: ProcessLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.bench.wanted.PRECISE", 1e9)
    assert only(run_bench(load, wanted("plain", tg=(4,), runs="auto"))).runs == 3
    monkeypatch.setattr("cluster.bench.wanted.PRECISE", 0.0)
    row = only(run_bench(load, wanted("plain", tg=(4,), runs="auto")))
    assert row.runs == 10
    assert row.notes[-1].startswith("after 10 runs the 95 % interval is still ± ")


def test_auto_goes_on_with_the_rows_that_need_it(load: ProcessLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.bench.wanted.imprecise", lambda row: 0.1 if row.prompt_size == 300 else None)
    measured = run_bench(load, wanted("plain", pp=(256, 300), tg=(2,), runs="auto"))
    assert [row.runs for row in measured.rows] == [3, 10]


def test_natural_stop_is_asked_for_and_described(load: ProcessLoader) -> None:
    measured = run_bench(load, wanted("stops", natural_stop=True))
    assert "ignore_eos" not in measured.request
    assert only(measured).notes[0].startswith("outputs ended by themselves after 16 to 16 tokens; 0 of 2")


CONTEXT = {"pp": (64,), "tg": (4,), "depth": (0, 320), "depth_mode": "prefix-caching"}


@pytest.mark.parametrize("model", ["caching", "caching-untold"])
def test_context_is_loaded_and_the_hit_is_verified(load: ProcessLoader, model: str) -> None:
    measured = run_bench(load, wanted(model, **CONTEXT))
    cold, context, cached = measured.rows
    assert [row.shape.name for row in measured.rows] == ["pp64 tg4", "ctx_pp ctx_tg @ d320", "pp64 tg4 @ d320"]
    assert (context.is_context_prefill_phase, cached.is_context_prefill_phase) == (True, False)
    assert (cold.cache, context.cache, cached.cache) == (None, None, {"hit": 2})
    assert cold.notes == context.notes == cached.notes == ()
    assert cached.server is not None
    assert cached.server["prefix_hits"] == pytest.approx(2 * 304, abs=40)
    assert cached.e2e_ttft is not None
    assert context.e2e_ttft is not None
    assert min(cached.e2e_ttft.values) < 0.6 * min(context.e2e_ttft.values), "five sixths of 40 ms are saved"


@pytest.mark.parametrize(
    ("model", "outcome"), [("plain", "miss"), ("claiming", "miss"), ("caching-untold", "hit"), ("caching", "hit")]
)
def test_server_without_the_context_in_its_cache(load: ProcessLoader, model: str, outcome: str) -> None:
    given = {**CONTEXT, "depth": (320,), "concurrency": (2,)}
    cached = run_bench(load, wanted(model, **given)).rows[-1]
    assert cached.cache == {outcome: 4}
    assert (cached.ttfr is None) == (outcome != "hit")


def test_hits_that_nobody_tells_or_that_may_be_anybodys_are_not_verified(load: ProcessLoader) -> None:
    cached = run_bench(Mute(load), wanted("caching-untold", **CONTEXT)).rows[-1]
    assert (cached.cache, cached.ttfr) == ({"unknown": 2}, None)
    assert run_bench(load, wanted("busy", **CONTEXT)).rows[-1].cache == {"unknown": 2}


def test_auto_repeats_context_and_prompt_together(load: ProcessLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.bench.wanted.imprecise", lambda row: 0.1 if row.phase == "cached" else None)
    given = {**CONTEXT, "depth": (320,), "runs": "auto"}
    context, cached = run_bench(load, wanted("caching", **given)).rows
    assert (context.runs, cached.runs, cached.cache) == (10, 10, {"hit": 10})


def test_chat_has_the_length_asked_for_with_its_template(load: ProcessLoader) -> None:
    watching = Watching(load)
    row = only(run_bench(watching, wanted("chat", chat=True)))
    assert (row.notes, row.failed) == ((), 0)
    assert {ask.path for ask in watching.asks if ask.path.endswith("completions")} == {"/v1/chat/completions"}
    assert len(watching.bodies[-1]["messages"][0]["content"].split()) == 256 - 4
    assert "prompt" not in watching.bodies[-1]


def test_queue_and_prefill_are_the_servers_where_it_tells_them(load: ProcessLoader) -> None:
    row = only(run_bench(load, wanted("metrics-told")))
    assert row.est_ppt_from == "server (metrics.time_to_first_token_ms)"
    assert row.queue is not None
    assert row.queue.values == (12.0, 12.0)
    assert row.est_ppt is not None
    assert row.est_ppt.mean == pytest.approx(40)


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
    assert row.tg_throughput is not None
