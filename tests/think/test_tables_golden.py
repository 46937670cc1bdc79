"""Every table as it was: the five write-ups at their sizes, suites, a sweep, a scaling, hosts, the server.

`tests/samples/tables.md` holds them; `python tests/think/test_tables_golden.py` writes it again.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from report_tools import KEY, ONE, TWO, entry, row, stats, sweep_series, sweep_step, up

from cluster.bench.page import page_of
from cluster.bench.result import Result
from cluster.bench.scaling import Entry
from cluster.bench.series import Point, Series
from cluster.bench.tables import (
    Table,
    bench_table,
    latency_table,
    machine_table,
    memory_table,
    server_table,
    suite_tables,
    to_csv,
    to_markdown,
)
from cluster.config.recipe import Reference, ReferenceRow, load_recipe

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/samples/tables.md"
WRITE_UPS = (
    "gemma-4-31b-fp8",
    "gemma-4-31b-nvfp4",
    "gemma-4-26b-a4b-nvfp4",
    "gemma-4-26b-a4b-fp8",
    "gemma-4-26b-a4b-fp8-mtp",
)
TEST = re.compile(r"(?P<kind>pp|tg)(?P<size>\d+)(?: @ d(?P<depth>\d+))?(?: \(c(?P<clients>\d+)\))?")


def published(references: Sequence[Reference]) -> Iterator[tuple[int, int, int, ReferenceRow]]:
    """Size of the output, depth, clients of every published rate of token generation."""
    for reference in references:
        for one in reference.rows:
            found = TEST.fullmatch(one.test)
            if found and found["kind"] == "tg" and one.t_s:
                yield int(found["size"]), int(found["depth"] or 0), int(found["clients"] or 1), one


def of_write_up(name: str) -> list[Entry]:
    """A measurement of each size that gives what was published, twice each; a second one where one was published."""
    recipe = load_recipe(str(ROOT / f"recipes/{name}.yaml")).recipe
    references = tuple(recipe.reference)
    known = list(published(references))
    shapes = sorted({(tg, depth, clients) for tg, depth, clients, _ in known})
    entries = []
    for tp in sorted({one.tp for *_, one in known} | {1, 2}):
        rows = []
        for tg, depth, clients in shapes:
            rates = [one.t_s for *at, one in known if tuple(at) == (tg, depth, clients) and one.tp == tp]
            rate = rates[0] or 10.0 if rates else 10.0 * tp
            rows.append(row((rate * 0.98, rate * 1.02), depth, tg, hosts=tp, concurrency=clients))
        own = entry(tp, (), rows=tuple(rows), recipe=name, model=recipe.model)
        entries.append(dataclasses.replace(own, references=references))
    return entries


def tables(entries: Sequence[Entry], *series: Series) -> Sequence[Table]:
    return page_of(entries, series, "").tables


def of_sweep() -> Sequence[Table]:
    """Five values, of which one failed; more tests than one table has room for."""
    entries = []
    for tokens, rate in ((2, 67.5), (4, 80.0), (5, 79.5), (6, 72.2)):
        server = {"draft_tokens": 1000, "accepted_tokens": 900 - 40 * tokens}
        shapes = [(depth, tg) for depth in (0, 4096, 16384) for tg in (32, 128)]
        rows = [row((rate - 1, rate, rate + 1), depth, tg, server=server) for depth, tg in shapes]
        entries.append(sweep_step(tokens, rows=rows))
    dead = Point("num_speculative_tokens=8", {KEY: "8"}, stage="up", failed="engine exited with 1")
    return tables(entries, sweep_series(*entries, failed=[dead]))


def measured(*rows: Any, **given: Any) -> Result:
    return dataclasses.replace(entry(1, (), rows=rows, **given).result, rows=rows)


def of_suites() -> Iterator[Table]:
    """The tables that suites add to their rows."""
    clients = [row((20.0 * count, 21.0 * count), concurrency=count) for count in (1, 2, 8)]
    yield from suite_tables("concurrency", [measured(*clients)])
    context = row((10.0, 11.0), 8192, 16, is_context_prefill_phase=True, phase="context")
    yield from suite_tables("prefix-cache", [measured(context, row((80.0, 82.0), 8192, 16, phase="cached"))])
    missed = row((80.0, 82.0), 8192, 16, phase="cached", e2e_ttft=None, why={"e2e_ttft": "no hit"})
    yield from suite_tables("prefix-cache", [measured(context, missed)])
    chats = (row((50.0, 51.0), output_tokens=stats(90.0, 91.0)), row((48.0, 49.0), output_tokens=stats(20.0, 21.0)))
    using = dataclasses.replace(chats[1], tool_calls=1)
    yield from suite_tables("tool-calls", [measured(chats[0]), measured(using)])
    yield from suite_tables("sequential", [measured(row((50.0, 40.0), tg=800, output_tokens=stats(800.0, 790.0)))])


def of_one() -> Iterator[Table]:
    """One measurement with everything that a table may show, and one with next to nothing."""
    marks = {"p50": 67.0, "p90": 70.125, "p99": None}
    server = {"requests": 3, "ttft_ms": 79.8, "itl_ms": 4.0, "queue_ms": 0.5, "preemptions": 0}
    server |= {"prefix_cache_hit_rate": 0.5, "acceptance_rate": 0.5, "acceptance_length": 2.5}
    server |= {"acceptance_per_position": [0.75, 0.5, 0.25]}
    states = {f"spark{n}": {"role": "head", "power_w": 60.0 + n, "temperature_c": 70, "throttle": []} for n in (1, 2)}
    states["spark2"] |= {"throttle": ["power cap"], "gpu_memory_mib": 4096}
    links = {"spark1": [{"link": "enp1s0f0np0", "sent_bytes": 2_000_000_000, "received_bytes": 1_000_000_000}]}
    samples = ({"run": 0, "most": states, "links": links, "lost": ["spark2"]},)
    full = row((6.4, 6.6), concurrency=4, percentiles={"e2e_ttft_ms": marks, "itl_ms": marks}, server=server)
    full = dataclasses.replace(full, failed=1, queued=2, failures=("timed out",), notes=("short answers",))
    full = dataclasses.replace(full, peak_throughput=stats(9.0), machine=samples)
    bare = row(
        (50.0,), 4096, tg_throughput=None, why={"tg_throughput": "one token"}, machine=(), server={"requests": 1}
    )
    one = measured(full, bare)
    one = dataclasses.replace(one, sentinel="drift 1 %", manifest=dataclasses.replace(one.manifest, client_where="x"))
    found = (bench_table(one), latency_table(one), server_table(one), memory_table(one), machine_table(one))
    yield from (table for table in found if table)
    yield Table("csv", (), (), tuple(to_csv(one).splitlines()))
    silent = measured(bare)
    yield from (table for table in (memory_table(silent), machine_table(silent)) if table)


def parts() -> Iterator[tuple[str, Sequence[Table]]]:
    for name in WRITE_UPS:
        yield name, tables(of_write_up(name))
    yield "sweep", of_sweep()
    pair = [entry(1, ONE), entry(2, TWO)]
    lost = Point("TP=4", {"tp": 4}, ("spark1",), stage="bench", failed="the load client was lost", up=up(1))
    yield "scaling", tables(pair, sweep_series(*pair, kind="scaling", key="tp", failed=[lost]))
    unlike = [pair[0], entry(2, (11.0,), seed=5)]
    yield (
        "scaling under other conditions, one run",
        tables(unlike, sweep_series(*unlike, kind="scaling", key="tp")),
    )
    yield "suites", list(of_suites())
    yield "one measurement", list(of_one())


def text() -> str:
    """All tables, each with its title."""
    found = []
    for name, of_part in parts():
        found.append(f"# {name}")
        for table in of_part:
            found += [f"## {table.title}", to_markdown(table)]
    return "\n\n".join(found) + "\n"


def test_tables_are_as_they_were() -> None:
    now, then = text().splitlines(), GOLDEN.read_text("utf-8").splitlines()
    assert now == then


if __name__ == "__main__":
    GOLDEN.write_text(text(), "utf-8")
