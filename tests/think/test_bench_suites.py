"""Suites: the shapes that people published, and what their rows say together."""

import dataclasses
from typing import Any

import pytest
import yaml
from bench_results import manifest, row
from bench_tools import trace

from cluster.bench.endpoint import Served
from cluster.bench.measure import measure_batch
from cluster.bench.result import Result
from cluster.bench.rows import Row, Shape, summarise
from cluster.bench.statistics import stat
from cluster.bench.tables import suite_tables
from cluster.bench.wanted import FILE, BenchWanted, fitting, parts_of
from cluster.cli.options import suite_abouts as abouts

PLAIN = BenchWanted("http://x")


def wanted(suite: str, part: int = 0) -> BenchWanted:
    return list(parts_of(suite, PLAIN).values())[part]


def names(suite: str, part: int = 0) -> list[str]:
    return [shape.name for shape in wanted(suite, part).shapes()]


def test_shapes_are_those_that_were_published() -> None:
    assert names("single-stream") == ["pp128 tg100", "pp128 tg500", "pp128 tg2000"]
    assert [shape.concurrency for shape in wanted("concurrency").shapes()] == [1, 2, 4, 8, 16]
    assert names("prefix-cache") == ["ctx_pp ctx_tg @ d8192", "pp32 tg16 @ d8192"]
    assert names("long-context") == ["pp8192 tg16", "pp32768 tg16", "pp100000 tg16"]
    assert (names("sequential"), wanted("sequential").runs) == (["pp128 tg800"], 5)
    assert names("sequential", 1) == ["pp128 tg500 (c3)"]
    assert len(names("matrix")) == 3 * 2 * 3
    assert names("matrix")[:4] == ["pp128 tg32", "pp128 tg32 (c2)", "pp128 tg32 (c4)", "pp128 tg128"]


def test_tools_are_the_only_difference_of_the_two_chats() -> None:
    without, using = (wanted("tool-calls", part) for part in (0, 1))
    assert without.extra == {}
    assert using.extra["tools"][0]["function"]["name"] == "get_weather"
    assert dataclasses.replace(using, extra={}) == without
    assert (without.chat, without.natural_stop, without.question) == (True, True, wanted("tool-calls").question)


@pytest.mark.parametrize(
    ("limit", "pp"), [(131072, (8192, 32768, 100_000)), (65536, (8192, 32768)), (8000, (8192,)), (None, None)]
)
def test_suite_measures_what_the_context_holds(limit: int | None, pp: tuple | None) -> None:
    whole = wanted("long-context")
    assert fitting(whole, Served("m", limit)).pp == (pp or whole.pp)
    plain = dataclasses.replace(whole, suite="")
    assert fitting(plain, Served("m", 100)) == plain


def result(*rows: Row) -> Result:
    return Result(manifest(), rows)


def with_ttft(one: Row, *values: float) -> Row:
    return dataclasses.replace(one, e2e_ttft=stat(values))


def test_clients_together_against_one() -> None:
    rows = [row(Shape(128, 256, 0, count)) for count in (1, 8)]
    [table] = suite_tables("concurrency", [result(*rows)])
    cells = [dict(zip(table.headers, line, strict=True)) for line in table.rows]
    assert [cell["all together (t/s)"] for cell in cells] == ["50.00 ± 0.00", "400.00 ± 0.00"]
    assert cells[1]["× one client"].startswith("8.00×")
    assert cells[1]["× alone"].startswith("1.00×")


def cached_rows(*tokens: int) -> tuple[Row, Row]:
    shape = Shape(32, 16, 8192)
    context = summarise(dataclasses.replace(shape, phase="context"), [measure_batch([trace("plain", 16)], 0, 8192)])
    traces = [dataclasses.replace(trace("plain", 16), cached_tokens=count) for count in tokens]
    batches = [measure_batch([one], 0, 8224) for one in traces]
    return context, summarise(dataclasses.replace(shape, phase="cached"), batches)


def test_speed_up_of_a_prefix_has_an_interval() -> None:
    context, cached = cached_rows(8192, 8192, 8192)
    rows = with_ttft(context, 590, 600, 610), with_ttft(cached, 72, 73, 74)
    [table] = suite_tables("prefix-cache", [result(*rows)])
    assert table.rows[0][:3] == ("8192", "600.00 ± 10.00", "73.00 ± 1.00")
    assert table.rows[0][3].startswith("8.22× (7.")
    assert table.notes == ()


def test_no_speed_up_without_a_verified_hit() -> None:
    [table] = suite_tables("prefix-cache", [result(*cached_rows(0, 0, 0))])
    assert table.rows[0][2:] == ("n/a", "n/a")
    assert "no verified cache hit" in table.notes[0]


def test_tool_beside_the_same_chat_without() -> None:
    without, using = (with_ttft(row(Shape(64, 128, 0)), *ttft) for ttft in ((50, 51, 52), (100, 102, 104)))
    using = dataclasses.replace(using, tool_calls=2)
    [table] = suite_tables("tool-calls", [result(without), result(using)])
    assert table.rows[0] == ("e2e_ttft (ms)", "51.00 ± 1.00", "102.00 ± 2.00", "+100.0%")
    assert table.rows[1][3] == "+0.0% (not significant)"
    assert table.rows[3][2] == "2 of 3"
    assert suite_tables("tool-calls", [result(without)]) == []


def test_outputs_one_after_the_other_are_timed_from_the_request() -> None:
    [table] = suite_tables("sequential", [result(row(Shape(128, 800, 0), (50.0, 40.0)))])
    # 67 ms, then 799 tokens at 50 t/s: 16.047 s; 83.75 ms and 40 t/s: 20.059 s
    assert table.rows == (("1", "800", "16.05", "49.9", "50.0"), ("2", "800", "20.06", "39.9", "40.0"))


def test_outputs_that_lack_a_number_shift_no_other() -> None:
    three = row(Shape(128, 800, 0), (50.0, 40.0, 30.0))
    assert three.tg_throughput
    without_the_second = dataclasses.replace(three, tg_throughput=stat((50.0, 30.0)))
    [table] = suite_tables("sequential", [result(without_the_second)])
    assert (table.rows, len(table.notes)) == ((), 1)


@pytest.mark.parametrize("suite", sorted({"single-stream", "long-context", "matrix"}))
def test_other_suites_are_their_rows(suite: str) -> None:
    assert suite_tables(suite, [result(row(Shape(128, 100, 0)))]) == []


def test_the_file_holds_suites_and_nothing_else() -> None:
    suites = yaml.safe_load(FILE.read_text("utf-8"))
    assert abouts() == {name: suite["about"] for name, suite in suites.items()}
    for name, suite in suites.items():
        assert suite.keys() == {"about", "parts"}
        parts = parts_of(name, PLAIN)
        assert len(parts) == len(suite["parts"]), "each has a title of its own"
        for part in parts.values():
            for key, value in dataclasses.asdict(part).items():
                if key != "max_num_seqs":
                    assert type(value) is type(getattr(PLAIN, key)), f"{name}: {key}"
            assert part.depth_mode in ("cold", "prefix-caching")
            assert part.shapes()


def test_help_lists_every_suite_without_loading_the_benchmark() -> None:
    import subprocess
    import sys

    check = (
        "import sys; from cluster.cli.options import suite_abouts as abouts; assert len(abouts()) == 7; "
        "print([m for m in sys.modules if m in ('orjson', 'httptools', 'rich', 'yaml')])"
    )
    said: Any = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[]"
