"""Suites: the shapes that people published, and what their rows say together."""

import dataclasses

import pytest
import yaml
from bench_results import manifest, row

from cluster.bench.endpoint import Served
from cluster.bench.result import Result
from cluster.bench.rows import Shape
from cluster.bench.statistics import stat
from cluster.bench.tables import suite_tables
from cluster.bench.wanted import FILE, BenchWanted, fitting, parts_of
from cluster.cli.bench import max_num_seqs
from cluster.cli.options import suite_abouts as abouts
from cluster.errors import UsageError

PLAIN = BenchWanted(("http://x",))


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


@pytest.mark.parametrize("limit", [131072, 65536, None])
def test_suite_measures_what_the_context_holds(limit: int | None) -> None:
    part = wanted("long-context")
    fits = tuple(pp for pp in part.pp if limit is None or pp < limit)
    assert fitting(part, Served("m", limit)).pp == fits


@pytest.mark.parametrize("suite", ["long-context", ""])
def test_what_does_not_fit_at_all_is_an_error(suite: str) -> None:
    with pytest.raises(UsageError) as caught:
        fitting(dataclasses.replace(wanted("long-context"), suite=suite), Served("m", 8000))
    assert caught.value.code == "context-too-long"


def test_outputs_that_lack_a_number_shift_no_other() -> None:
    three = row(Shape(128, 800, 0), (50.0, 40.0, 30.0))
    assert three.tg_throughput
    without_the_second = dataclasses.replace(three, tg_throughput=stat((50.0, 30.0)))
    [table] = suite_tables("sequential", [Result(manifest(), (without_the_second,))])
    assert (table.rows, len(table.notes)) == ((), 1)


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


@pytest.mark.parametrize(
    ("spec", "most"),
    [
        ({}, None),
        ({"recipe": {"vllm": {}}}, None),
        ({"recipe": {"vllm": {"max-num-seqs": 4}}}, 4),
        ({"recipe": {"vllm": {"max-num-seqs": 4}}, "words": ["--max-num-seqs", "16"]}, 16),
    ],
)
def test_what_the_server_computes_at_the_same_time_is_the_recipes_or_the_words(spec: dict, most: int | None) -> None:
    assert max_num_seqs(spec) == most
