"""What the server counted of itself while rows were measured, as a table. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cluster.bench.report import MISSING, Table
from cluster.bench.result import Result
from cluster.bench.rows import suffix

TIMES = {"ttft_ms": "ttft (ms)", "itl_ms": "itl (ms)", "prefill_ms": "prefill (ms)", "queue_ms": "queue (ms)"}


def server_table(result: Result) -> Table | None:
    """The server's own times and counts beside ours; columns that no row tells are left out. None without any."""
    told = [(row.shape, cells(row.server)) for row in result.rows if row.server]
    if not told:
        return None
    names = list(dict.fromkeys(name for _, found in told for name in found))
    lines = []
    for shape, found in told:
        test = " ".join(shape.names) + suffix(shape.depth, shape.concurrency, result.most_concurrency)
        lines.append((test, *(found.get(name, MISSING) for name in names)))
    notes = ("means of its own counters over all runs of a row; ttft and itl are to be near ours",)
    return Table("what the server counted", ("test", *names), tuple(lines), notes)


def cells(server: Mapping[str, Any]) -> dict[str, str]:
    """The columns of one row; `accepted` is of the drafted tokens, in brackets by position in the draft."""
    found = {name: f"{server[key]:.2f}" for key, name in TIMES.items() if key in server}
    found["requests"] = str(server.get("requests", MISSING))
    if "preemptions" in server:
        found["preempted"] = str(server["preemptions"])
    if "prefix_cache_hit_rate" in server:
        found["cache hits"] = f"{server['prefix_cache_hit_rate']:.0%}"
    if "acceptance_rate" in server:
        each = ", ".join(f"{part:.0%}" for part in server.get("acceptance_per_position", ()))
        found["accepted"] = f"{server['acceptance_rate']:.0%}" + (f" ({each})" if each else "")
    if "acceptance_length" in server:
        found["tokens a step"] = f"{server['acceptance_length']:.2f}"
    return found
