"""How wrong the bench client is: our client and llama-benchy's against one server of known timing, side by side.

    .venv/bin/pip install -e '.[peers]'
    .venv/bin/python scripts/bench/client.py [--concurrency 1 4 16 32 128] [--runs 3]

Prints for each client the error of its time to first token (ms) and of its generation rate (%) against what the server
did, as its log has it, and its CPU time in µs a token, reading included; then llama-benchy's errors as multiples of
ours. Ours are those of `cluster bench --selftest`. The server runs beside them on the same machine. llama-benchy (of
the extra `peers`) is left out when it is not installed.
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
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from cluster.bench.loader import ProcessLoader, Target, load_command
from cluster.bench.selftest import PROMPT_TOKENS, TOKENS, time_rounds
from cluster.hosts.local import LocalHost


@dataclass(frozen=True)
class Seen:
    """One client's errors in one round: time to first token (ms), rate (%), and its CPU time (µs a token)."""

    ttft_ms: float
    rate_pct: float
    cpu_us: float


Client = Callable[[str, int], Seen]


@contextmanager
def known_server() -> Iterator[str]:
    """The address of a fresh server."""
    words = [sys.executable, "-m", "cluster.bench.known_server"]
    server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdout
    assert server.stdin
    try:
        yield f"http://127.0.0.1:{json.loads(server.stdout.readline())['port']}"
    finally:
        server.stdin.close()
        server.wait(5)


def ours(url: str, concurrency: int) -> Seen:
    """One round of our client."""
    host = LocalHost("here")
    load = ProcessLoader(host.start(*load_command(Target(url))))
    try:
        timing = time_rounds(load, concurrency, 1)
    finally:
        load.close()
        host.close()
    return Seen(timing.ttft_ms, timing.rate_pct, timing.cpu_us)


def llama_benchy(url: str, concurrency: int) -> Seen:
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
    tokens = sum(one.total_tokens for one in results)
    return Seen(1e3 * (ttft - true_ttft), 100 * (rate / true_rate - 1), 1e6 * cpu_s / tokens)


def in_own_process(client: Client, url: str, concurrency: int) -> Seen:
    """Run a client where nothing else has warmed up or filled the heap."""
    with ProcessPoolExecutor(1) as pool:
        return pool.submit(client, url, concurrency).result()


def median(rounds: list[Seen]) -> Seen:
    """Each number's median over rounds."""
    rows = [(one.ttft_ms, one.rate_pct, one.cpu_us) for one in rounds]
    return Seen(*(statistics.median(column) for column in zip(*rows, strict=True)))


def main() -> None:
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
    print(f"{'client':14} {'c':>4} {'TTFT error ms':>14} {'tg error %':>12} {'CPU µs/token':>14}")
    with known_server() as url:
        for concurrency in given.concurrency:
            found = {
                name: median([in_own_process(client, url, concurrency) for _ in range(given.runs)])
                for name, client in clients.items()
            }
            for name, one in found.items():
                row = f"{one.ttft_ms:>+14.2f} {one.rate_pct:>+12.3f} {one.cpu_us:>14.1f}"
                print(f"{name:14} {concurrency:>4} {row}", flush=True)
            if len(found) == 2:
                us, they = found.values()
                times, work = f"{they.ttft_ms / us.ttft_ms:.1f}×", f"{they.cpu_us / us.cpu_us:.1f}×"
                print(f"{'their ÷ our':14} {concurrency:>4} {times:>14} {'':>12} {work:>14}")


if __name__ == "__main__":
    main()
