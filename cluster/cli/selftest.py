"""`cluster bench --selftest`: the benchmark's client against a server of known timing, both on this machine."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import orjson

from cluster.bench.loader import ProcessLoader, Target, load_command
from cluster.bench.selftest import CONCURRENCY, HEADERS, SelfTest, run_selftest, timing_rows
from cluster.bench.tables import Table
from cluster.errors import ClusterError, ExitCode
from cluster.hosts.local import LocalHost
from cluster.screen import Screen

SERVER = (sys.executable, "-m", "cluster.bench.known_server")


def run(args: argparse.Namespace, screen: Screen) -> ExitCode:
    """Measure the client and print its errors; 1 when a number is wrong, whatever the machine is busy with."""
    rounds = args.runs if isinstance(args.runs, int) and args.runs > 0 else 3
    with known_client() as loader, screen.waiting("the server of known timing") as line:
        test = run_selftest(loader, args.concurrency or CONCURRENCY, rounds, line.update)
    load = os.getloadavg()[0]
    say(test, load, screen)
    screen.document(asdict(test) | {"right": test.is_right, "load_average": load, "cores": os.cpu_count()})
    return ExitCode.DONE if test.is_right else ExitCode.FAILED


@contextmanager
def known_client() -> Iterator[ProcessLoader]:
    """The load client of `cluster bench`, speaking to a known server; both end with the block."""
    host = LocalHost("this machine")
    server = host.start(SERVER)
    try:
        first = next(server.lines(), "")
        try:
            port = int(orjson.loads(first)["port"])
        except (ValueError, KeyError, TypeError):
            raise ClusterError(f"the server of known timing did not start: {first}") from None
        loader = ProcessLoader(host.start(*load_command(Target(f"http://127.0.0.1:{port}"))))
        try:
            yield loader
        finally:
            loader.close()
    finally:
        server.close()
        host.close()


def say(test: SelfTest, load: float, screen: Screen) -> None:
    """The table, what is wrong, which goals are missed."""
    table = Table("the client's own errors, against what the server did", HEADERS, tuple(timing_rows(test)))
    screen.table(table.title, [f">{header}" for header in table.headers], table.rows)
    screen.line(f"  server: TTFT 67 ms, 50 tokens/s a request, on this machine too; load {load:.1f}")
    wrong = [told for told in test.ways if told.wrong]
    screen.line(f"  {len(test.ways) - len(wrong)} of {len(test.ways)} ways of streaming are read right")
    for told in wrong:
        screen.warn(f"WRONG: {told.way}: {told.wrong}")
    for timing in test.timings:
        for miss in timing.misses:
            screen.warn(f"goal missed: {miss}")
