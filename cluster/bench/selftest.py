"""How wrong the client is: its own numbers against those of a server that writes down when it sent what.

Two parts: timing, the errors at each concurrency; and truth, every way of streaming that `known_ways` has, where a
count of tokens, a failure or a first token must not come out wrong however the server words it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from cluster.bench.endpoint import fetch
from cluster.bench.known_ways import WAYS, Way
from cluster.bench.loader import Ask, Loader, Round
from cluster.bench.measure import decode_rate, token_gaps_ms
from cluster.bench.read import RequestTrace, read_stream
from cluster.bench.statistics import quantile
from cluster.errors import ClusterError

CONCURRENCY = (1, 4, 16, 32, 128)
TTFT_GOAL_MS = {1: 1.0, 4: 1.0, 16: 5.0}
RATE_GOAL_PCT = 0.1
CPU_GOAL_US = 20.0
TOKENS, PROMPT_TOKENS = 100, 512
WAY_TOKENS = 16
EARLY_MS = 1.0
"""No first token comes before it was sent, however busy the machine is: an early role event would be 65 ms before."""

Log = Mapping[str, Any]
"""One request as the server saw it: `received` and `sent`, [[time, tokens], …], in seconds of the machine's clock."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The client's errors at one concurrency: medians over rounds; times in ms, the rate in percent of the truth.

    `ttft_ms`: mean over requests of (client's − server's) time to first token, with the way there and back in it.
    `cpu_us`: CPU time of sending, receiving and reading, for each token.
    """

    concurrency: int
    ttft_ms: float
    ttft_worst_ms: float
    rate_pct: float
    itl_p99_ms: float
    cpu_us: float
    lag_ms: float
    wrong_tokens: int

    @property
    def misses(self) -> tuple[str, ...]:
        """Goals that are not met."""
        found = []
        goal = TTFT_GOAL_MS.get(self.concurrency)
        if goal is not None and abs(self.ttft_ms) > goal:
            found.append(f"TTFT error {self.ttft_ms:+.2f} ms at c{self.concurrency} (goal {goal:g} ms)")
        if goal is not None and abs(self.rate_pct) > RATE_GOAL_PCT:
            found.append(f"rate error {self.rate_pct:+.3f} % at c{self.concurrency} (goal {RATE_GOAL_PCT:g} %)")
        if self.concurrency >= 128 and self.cpu_us > CPU_GOAL_US:
            found.append(f"{self.cpu_us:.1f} µs of CPU a token at c{self.concurrency} (goal {CPU_GOAL_US:g})")
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Told:
    """What came out for one way of streaming; `wrong` is empty when all of it is right."""

    way: str
    wrong: str


@dataclass(frozen=True, slots=True)
class SelfTest:
    """The client's errors."""

    timings: tuple[Timing, ...]
    ways: tuple[Told, ...]

    @property
    def is_right(self) -> bool:
        """Whether no number was wrong; late ones are not wrong."""
        return not any(told.wrong for told in self.ways) and not any(timing.wrong_tokens for timing in self.timings)


def run_selftest(
    loader: Loader, concurrency: Sequence[int], rounds: int, on_step: Callable[[str], None] = lambda text: None
) -> SelfTest:
    """Measure the client; `loader` speaks to a known server. Raises ClusterError when that is not one."""
    on_step("ways of streaming")
    ways = check_ways(loader)
    timings = []
    for count in concurrency:
        on_step(f"{count} at the same time")
        timings.append(time_rounds(loader, count, rounds))
    return SelfTest(tuple(timings), ways)


def ask(way: str, user: str, tokens: int) -> Ask:
    """A request whose answer the server's log has under `user`."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"model": way, "prompt": list(range(PROMPT_TOKENS)), "max_tokens": tokens, "user": user, "stream": True}
    return Ask("/v1/completions", body | {"stream_options": options})


def read_log(loader: Loader) -> dict[str, Log]:
    """What the server did, by `user`."""
    [(status, body, problem)] = fetch(loader, Ask("/log"))
    if status != 200:
        raise ClusterError(f"the server is not the known one: /log gave HTTP {status} {problem}")
    return {str(entry["user"]): entry for entry in orjson.loads(body)}


def time_rounds(loader: Loader, concurrency: int, rounds: int) -> Timing:
    """The errors at one concurrency; a short round first opens the connections."""
    warm = tuple(ask("plain", f"warm/{index}", 4) for index in range(concurrency))
    loader.send(Round("warm-up", warm, concurrency))
    found = [time_round(loader, concurrency, f"{concurrency}/{number}") for number in range(rounds)]

    def middle(pick: Callable[[Timing], float]) -> float:
        return statistics.median(pick(one) for one in found)

    return Timing(
        concurrency,
        middle(lambda one: one.ttft_ms),
        middle(lambda one: one.ttft_worst_ms),
        middle(lambda one: one.rate_pct),
        middle(lambda one: one.itl_p99_ms),
        middle(lambda one: one.cpu_us),
        max(one.lag_ms for one in found),
        sum(one.wrong_tokens for one in found),
    )


def time_round(loader: Loader, concurrency: int, name: str) -> Timing:
    """One round."""
    asks = tuple(ask("plain", f"{name}/{index}", TOKENS) for index in range(concurrency))
    record = loader.send(Round(name, asks, concurrency))
    began = time.process_time()
    traces = [read_stream(one) for one in record.records]
    cpu_s = record.client.cpu_s + time.process_time() - began
    log = read_log(loader)
    pairs = [(trace, log[f"{name}/{index}"]) for index, trace in enumerate(traces)]
    ttft = [ttft_error_ms(trace, entry) for trace, entry in pairs]
    seen = sum(n for trace in traces for _, n in trace.tokens)
    return Timing(
        concurrency,
        statistics.fmean(ttft),
        max(ttft, key=abs),
        statistics.fmean(rate_error_pct(trace, entry) for trace, entry in pairs),
        late_p99(gap for trace in traces for gap in token_gaps_ms(trace.tokens))
        - late_p99(gap for _, entry in pairs for gap in token_gaps_ms(entry["sent"])),
        1e6 * cpu_s / max(1.0, seen),
        record.client.lag_max_ms,
        sum(round(abs(sum(n for _, n in trace.tokens) - TOKENS)) for trace in traces),
    )


def ttft_error_ms(trace: RequestTrace, entry: Log) -> float:
    """The client's time to first token − the server's; infinite when the client saw none."""
    if trace.first_token_s is None:
        return float("inf")
    return 1e3 * (trace.first_token_s - trace.t0_s - float(entry["sent"][0][0] - entry["received"]))


def rate_error_pct(trace: RequestTrace, entry: Log) -> float:
    """The client's rate against the server's, in percent."""
    sent = entry["sent"]
    true = sum(tokens for _, tokens in sent[1:]) / (sent[-1][0] - sent[0][0])
    rate, _ = decode_rate(trace)
    return float("inf") if rate is None else 100 * (rate / true - 1)


def late_p99(gaps: Iterable[float]) -> float:
    """The 99th percentile of gaps between tokens."""
    return quantile(sorted(gaps), 0.99)


def check_ways(loader: Loader) -> tuple[Told, ...]:
    """What is wrong with each way of streaming, all asked at the same time; nothing that a busy machine can cause."""
    names = [name for name, way in WAYS.items() if way.fail_every <= 1]
    asks = tuple(ask(name, f"way/{name}", WAY_TOKENS) for name in names)
    record = loader.send(Round("ways", asks, len(asks)))
    log = read_log(loader)
    traces = [read_stream(one) for one in record.records]
    told = [
        Told(name, what_is_wrong(WAYS[name], trace, log.get(f"way/{name}")))
        for name, trace in zip(names, traces, strict=True)
    ]
    return (*told, *(check_share(loader, name, way) for name, way in WAYS.items() if way.fail_every > 1))


def check_share(loader: Loader, name: str, way: Way) -> Told:
    """A server that refuses every n-th request: that many fail, and they say why."""
    asks = tuple(ask(name, f"share/{index}", WAY_TOKENS) for index in range(2 * way.fail_every))
    errors = [read_stream(one).error for one in loader.send(Round("share", asks, len(asks))).records]
    failed = [error for error in errors if error]
    right = len(failed) == 2 and all(error.startswith("HTTP 400: ") for error in failed)
    return Told(name, "" if right else f"{len(failed)} of {len(errors)} requests failed instead of 2: {failed[:1]}")


def what_is_wrong(way: Way, trace: RequestTrace, entry: Log | None) -> str:
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
    late_ms = ttft_error_ms(trace, entry)
    return "" if late_ms > -EARLY_MS else f"the first token is {late_ms:+.0f} ms off"


def timing_rows(test: SelfTest) -> list[tuple[str, ...]]:
    """The table's lines."""
    return [
        (
            *(f"{one.concurrency}", f"{one.ttft_ms:+.2f}", f"{one.ttft_worst_ms:+.2f}", f"{one.rate_pct:+.3f}"),
            *(f"{one.itl_p99_ms:+.2f}", f"{one.cpu_us:.1f}", f"{one.lag_ms:.1f}", f"{one.wrong_tokens}"),
        )
        for one in test.timings
    ]


HEADERS = (
    *("concurrency", "TTFT error (ms)", "worst (ms)", "tg error (%)", "ITL p99 error (ms)"),
    *("CPU (µs/token)", "lag (ms)", "wrong tokens"),
)
