"""How wrong the bench client is: our client and llama-benchy's against a server of known timing, side by side.

    .venv/bin/python scripts/bench/client.py [--concurrency 1 4 16 32 128] [--tokens 100] [--runs 3]

Prints for each client the error of its time to first token (ms, against the server's nominal time), the error of its
generation rate (%, against the server's), and its CPU time in µs a token, reading included. The server runs beside
it on the same machine, so on a busy machine a part of every error is the server's. llama-benchy (development
dependency) is left out when it is not installed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from cluster.bench.loader import ProcessLoader, Target, load_command
from cluster.bench.measure import measure_request
from cluster.bench.read import read_stream
from cluster.bench.records import Ask, Round
from cluster.hosts.local import LocalHost

TTFT_MS, RATE, PROMPT_TOKENS = 67.0, 50.0, 512


@dataclass(frozen=True)
class Seen:
    """What one client saw of one round: TTFT (ms) and rate (tokens/s) of each request, CPU seconds, tokens."""

    ttft_ms: list[float]
    rate: list[float]
    cpu_s: float
    tokens: int


Client = Callable[[str, int, int], Seen]


@contextmanager
def known_server() -> Iterator[str]:
    """The address of a fresh server."""
    words = [sys.executable, "-m", "cluster.bench.known_server", "--ttft-ms", str(TTFT_MS), "--rate", str(RATE)]
    server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdout
    assert server.stdin
    try:
        yield f"http://127.0.0.1:{json.loads(server.stdout.readline())['port']}"
    finally:
        server.stdin.close()
        server.wait(5)


def ours(url: str, concurrency: int, tokens: int) -> Seen:
    """One round of our client; the reading's CPU time is counted too."""
    host = LocalHost("here")
    load = ProcessLoader(host.start(*load_command(Target(url))))
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"model": "chat", "prompt": list(range(PROMPT_TOKENS)), "max_tokens": tokens, "stream_options": options}
    try:
        load.send(Round("warm-up", (Ask("/v1/completions", body | {"max_tokens": 4}),) * concurrency, concurrency))
        record = load.send(Round("round", (Ask("/v1/completions", body),) * concurrency, concurrency))
    finally:
        load.close()
        host.close()
    began = time.process_time()
    seen = [measure_request(read_stream(one), 0.0, PROMPT_TOKENS) for one in record.records]
    cpu_s = record.client.cpu_s + time.process_time() - began
    rates = [one.tg_t_s for one in seen if one.tg_t_s is not None]
    return Seen([one.e2e_ttft_ms for one in seen], rates, cpu_s, round(sum(one.output_tokens for one in seen)))


def llama_benchy(url: str, concurrency: int, tokens: int) -> Seen:
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
            return await round_of(session, tokens), time.process_time() - began

    results, cpu_s = asyncio.run(run())
    rates = []
    for one in results:
        stamps = one.token_timestamps
        rates.append(sum(t > stamps[0] for t in stamps) / (stamps[-1] - stamps[0]))
    ttfts = [1e3 * (one.first_token_ts - one.start_ts) for one in results if one.first_token_ts]
    return Seen(ttfts, rates, cpu_s, sum(one.total_tokens for one in results))


def in_own_process(client: Client, url: str, concurrency: int, tokens: int) -> Seen:
    """Run a client where nothing else has warmed up or filled the heap."""
    with ProcessPoolExecutor(1) as pool:
        return pool.submit(client, url, concurrency, tokens).result()


def line(name: str, concurrency: int, rounds: list[Seen]) -> str:
    """One line of the table: medians over rounds."""
    ttft = statistics.median(statistics.fmean(one.ttft_ms) - TTFT_MS for one in rounds)
    rate = statistics.median(100 * (statistics.fmean(one.rate) / RATE - 1) for one in rounds)
    cpu = statistics.median(1e6 * one.cpu_s / one.tokens for one in rounds)
    return f"{name:14} {concurrency:>4} {ttft:>+14.2f} {rate:>+12.3f} {cpu:>14.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    clients: dict[str, Client] = {"cluster": ours}
    try:
        import llama_benchy as _  # noqa: F401
    except ImportError:
        print("llama-benchy is not installed: ours alone", file=sys.stderr)
    else:
        clients["llama-benchy"] = llama_benchy
    print(f"true: TTFT {TTFT_MS:g} ms, {RATE:g} tokens/s a request; medians of {given.runs} rounds")
    print(f"{'client':14} {'c':>4} {'TTFT error ms':>14} {'tg error %':>12} {'CPU µs/token':>14}")
    with known_server() as url:
        for concurrency in given.concurrency:
            for name, client in clients.items():
                rounds = [in_own_process(client, url, concurrency, given.tokens) for _ in range(given.runs)]
                print(line(name, concurrency, rounds), flush=True)


if __name__ == "__main__":
    main()
