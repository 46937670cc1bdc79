"""How wrong the bench client is: our client and llama-benchy's against one server of known timing, side by side.

    .venv/bin/pip install -e '.[peers]'
    .venv/bin/python scripts/bench/client.py [--concurrency 1 4 16 32 128] [--runs 3]

Prints for each client, as medians over runs, the errors against what the server did, as its log has it: of the time to
first token (ms), of the generation rate (%) and of the 99th percentile of the gaps between tokens (ms); and its CPU
time in µs a token, reading included; then llama-benchy's errors as multiples of ours. Goals that ours misses are named.
Exits 1 when ours counted a token too many or too few. The server (`tests/known_server.py`) runs beside them on the same
machine. llama-benchy (of the extra `peers`) is left out when it is not installed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson

from cluster.bench.endpoint import fetch
from cluster.bench.loader import Ask, Batch, Loader, ProcessLoader, load_command
from cluster.bench.measure import decode_rate, token_gaps_ms
from cluster.bench.read import RequestTrace, read_stream
from cluster.errors import ClusterError
from cluster.hosts.connect import LocalHost

SERVER = Path(__file__).resolve().parents[2] / "tests" / "known_server.py"
TTFT_GOAL_MS = {1: 1.0, 4: 1.0, 16: 5.0}
RATE_GOAL_PCT = 0.1
CPU_GOAL_US = 20.0
TOKENS, PROMPT_TOKENS = 100, 512

Log = Mapping[str, Any]
"""One request as the server saw it: `received` and `sent`, [[time, tokens], …], in seconds of the machine's clock."""


@dataclass(frozen=True)
class Errors:
    """One client's errors in one round, means over its requests; `ttft_ms` has the way there and back in it."""

    ttft_ms: float
    rate_pct: float
    itl_p99_ms: float
    cpu_us: float
    wrong_tokens: float = 0


def misses(one: Errors, concurrency: int) -> list[str]:
    found = []
    goal = TTFT_GOAL_MS.get(concurrency)
    if goal is not None and abs(one.ttft_ms) > goal:
        found.append(f"TTFT error {one.ttft_ms:+.2f} ms at c{concurrency} (goal {goal:g} ms)")
    if goal is not None and abs(one.rate_pct) > RATE_GOAL_PCT:
        found.append(f"rate error {one.rate_pct:+.3f} % at c{concurrency} (goal {RATE_GOAL_PCT:g} %)")
    if concurrency >= 128 and one.cpu_us > CPU_GOAL_US:
        found.append(f"{one.cpu_us:.1f} µs of CPU a token at c{concurrency} (goal {CPU_GOAL_US:g})")
    return found


def ask(way: str, user: str, tokens: int) -> Ask:
    """A request whose answer the server's log has under `user`."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"model": way, "prompt": list(range(PROMPT_TOKENS)), "max_tokens": tokens, "user": user, "stream": True}
    return Ask("/v1/completions", body | {"stream_options": options})


def read_log(loader: Loader) -> dict[str, Log]:
    """What the server did, by `user`."""
    [answer] = fetch(loader, Ask("/log"))
    if answer.status != 200:
        what = f"the server is not the known one: /log gave HTTP {answer.status} {answer.problem}"
        raise ClusterError(what, code="server-unknown")
    return {str(entry["user"]): entry for entry in orjson.loads(answer.body)}


def time_batch(loader: Loader, concurrency: int, name: str) -> Errors:
    """Our client's errors in one round; a short one first opens the connections."""
    warm = tuple(ask("plain", f"{name}/warm/{index}", 4) for index in range(concurrency))
    loader.send(Batch("warm-up", warm, concurrency))
    asks = tuple(ask("plain", f"{name}/{index}", TOKENS) for index in range(concurrency))
    record = loader.send(Batch(name, asks, concurrency))
    began = time.process_time()
    traces = [read_stream(one) for one in record.records]
    cpu_s = record.client["cpu_s"] + time.process_time() - began
    log = read_log(loader)
    pairs = [(trace, log[f"{name}/{index}"]) for index, trace in enumerate(traces)]
    counts = [sum(n for _, n in trace.tokens) for trace in traces]
    return Errors(
        statistics.fmean(ttft_error_ms(trace, entry) for trace, entry in pairs),
        statistics.fmean(rate_error_pct(trace, entry) for trace, entry in pairs),
        p99(gap for trace in traces for gap in token_gaps_ms(trace.tokens))
        - p99(gap for _, entry in pairs for gap in token_gaps_ms(entry["sent"])),
        1e6 * cpu_s / max(1.0, sum(counts)),
        sum(round(abs(count - TOKENS)) for count in counts),
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


def p99(gaps: Iterable[float]) -> float:
    return statistics.quantiles(gaps, n=100, method="inclusive")[-1]


Client = Callable[[str, int], Errors]


@contextmanager
def known_server() -> Iterator[str]:
    """The address of a fresh server."""
    server = subprocess.Popen([sys.executable, str(SERVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdout
    assert server.stdin
    try:
        yield f"http://127.0.0.1:{json.loads(server.stdout.readline())['port']}"
    finally:
        server.stdin.close()
        server.wait(5)


def ours(url: str, concurrency: int) -> Errors:
    host = LocalHost("here")
    load = ProcessLoader(host.start(*load_command([url])))
    try:
        return time_batch(load, concurrency, f"{time.monotonic_ns()}")
    finally:
        load.close()
        host.close()


def llama_benchy(url: str, concurrency: int) -> Errors:
    """One round of llama-benchy's own request function, as its runner calls it."""
    import aiohttp
    from llama_benchy.client import LLMClient, RequestResult

    client = LLMClient(f"{url}/v1", "EMPTY", "chat")
    prompt = "word " * PROMPT_TOKENS

    async def round_of(session: aiohttp.ClientSession, count: int) -> list[RequestResult]:
        ask = client.run_generation
        return await asyncio.gather(*(ask(session, "", prompt, count, False) for _ in range(concurrency)))

    async def run() -> tuple[list[RequestResult], float]:
        connector = aiohttp.TCPConnector(limit=concurrency + 5, force_close=False, keepalive_timeout=600)
        async with aiohttp.ClientSession(connector=connector, trust_env=True) as session:
            await round_of(session, 4)
            began = time.process_time()
            return await round_of(session, TOKENS), time.process_time() - began

    results, cpu_s = asyncio.run(run())
    with urllib.request.urlopen(f"{url}/log") as answer:
        log = json.load(answer)[-concurrency:]
    true_ttft = statistics.fmean(entry["sent"][0][0] - entry["received"] for entry in log)
    true_rate = statistics.fmean((len(one["sent"]) - 1) / (one["sent"][-1][0] - one["sent"][0][0]) for one in log)
    stamps = [one.token_timestamps for one in results]
    rate = statistics.fmean(sum(t > times[0] for t in times) / (times[-1] - times[0]) for times in stamps)
    ttft = statistics.fmean(one.first_token_ts - one.start_ts for one in results if one.first_token_ts)
    gaps = p99(1e3 * (b - a) for times in stamps for a, b in pairwise(times))
    true_gaps = p99(gap for entry in log for gap in token_gaps_ms(entry["sent"]))
    tokens = sum(one.total_tokens for one in results)
    return Errors(1e3 * (ttft - true_ttft), 100 * (rate / true_rate - 1), gaps - true_gaps, 1e6 * cpu_s / tokens)


def in_own_process(client: Client, url: str, concurrency: int) -> Errors:
    """Run a client where nothing else has warmed up or filled the heap."""
    with ProcessPoolExecutor(1) as pool:
        return pool.submit(client, url, concurrency).result()


def median(rounds: list[Errors]) -> Errors:
    """Each number's median over rounds, and all wrong tokens."""
    columns = list(zip(*map(astuple, rounds), strict=True))
    return Errors(*map(statistics.median, columns[:-1]), sum(columns[-1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16, 32, 128])
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    clients: dict[str, Client] = {"cluster": ours}
    try:
        import llama_benchy as _  # noqa: F401
    except ImportError:
        print("llama-benchy is not installed (extra `peers`): ours alone", file=sys.stderr)
    else:
        clients["llama-benchy"] = llama_benchy
    print(
        f"{'client':14} {'c':>4} {'TTFT error ms':>14} {'tg error %':>12} {'ITL p99 error ms':>17} {'CPU µs/token':>14}"
    )
    wrong: list[str] = []
    with known_server() as url:
        for concurrency in given.concurrency:
            found = {
                name: median([in_own_process(client, url, concurrency) for _ in range(given.runs)])
                for name, client in clients.items()
            }
            for name, one in found.items():
                row = f"{one.ttft_ms:>+14.2f} {one.rate_pct:>+12.3f} {one.itl_p99_ms:>+17.2f} {one.cpu_us:>14.1f}"
                print(f"{name:14} {concurrency:>4} {row}", flush=True)
            us, *others = found.values()
            for they in others:
                times, work = f"{they.ttft_ms / us.ttft_ms:.1f}×", f"{they.cpu_us / us.cpu_us:.1f}×"
                print(f"{'their ÷ our':14} {concurrency:>4} {times:>14} {'':>12} {'':>17} {work:>14}")
            for miss in misses(us, concurrency):
                print(f"goal missed: {miss}", file=sys.stderr)
            if us.wrong_tokens:
                wrong.append(f"WRONG: {us.wrong_tokens:g} tokens too many or too few at c{concurrency}")
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
