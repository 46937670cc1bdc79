"""A sweep's table: the best with its interval, ties as ties, failures as lines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from report_tools import entry, row, stats

from cluster.bench.compare import Entry, bests, find_best, mean_interval, sweep_tables
from cluster.bench.series import Point, Series, combinations, label_of, parse_series, parse_vary
from cluster.errors import ClusterError, UsageError

KEY = "speculative_config.num_speculative_tokens"


def step(tokens: int, *rates: float, acceptance: float | None = None, **given: Any) -> Entry:
    server = None if acceptance is None else {"draft_tokens": 1000, "accepted_tokens": round(1000 * acceptance)}
    spec = {"tp": 1, "recipe": {"vllm": {"speculative-config": {"num_speculative_tokens": tokens}}}}
    label = f"num_speculative_tokens={tokens}"
    rows = given.pop("rows", None) or (row(rates, server=server),)
    return entry(1, rates, label=label, values={KEY: str(tokens)}, rows=rows, spec=spec, **given)


def series(*entries: Entry, failed: tuple[Point, ...] = ()) -> Series:
    points = tuple(one.point for one in entries if one.point)
    return Series("sweep", "gemma", {}, (KEY,), "2026-11-28 00:00:00Z", (*points, *failed))


SEED = (
    step(2, 67.4, 67.5, 67.6, acceptance=0.87),
    step(3, 71.1, 71.2, 71.3, acceptance=0.84),
    step(4, 79.9, 80.0, 80.1, acceptance=0.76),
    step(5, 76.8, 76.9, 77.0, acceptance=0.66),
    step(6, 72.1, 72.2, 72.3, acceptance=0.56),
)


def test_the_shape_of_the_write_up() -> None:
    [table] = sweep_tables(series(*SEED), SEED)
    assert table.headers == (
        "num_speculative_tokens",
        "tg128 (t/s)",
        "acceptance",
        "ready (s)",
        "spark1 GPU (GiB)",
    )
    assert table.rows[0] == ("2", "67.50 ± 0.10", "87%", "100", "101.0")
    assert table.rows[2][1] == "80.00 ± 0.10 *"
    assert table.notes[0] == (
        "tg128: best with num_speculative_tokens=4: 80.00 t/s (95 %: 79.75–80.25), "
        "1.04× of num_speculative_tokens=5 (1.04–1.04)"
    )


def test_what_chance_can_explain_is_a_tie() -> None:
    entries = (step(4, 79.0, 80.0, 81.0), step(5, 78.5, 79.5, 80.5), step(6, 60.0, 60.1, 60.2))
    [table] = sweep_tables(series(*entries), entries)
    assert [line[1][-1] for line in table.rows] == ["=", "=", "0"]
    assert "a tie of num_speculative_tokens=4 and num_speculative_tokens=5" in table.notes[0]
    assert "best with" not in table.notes[0]


def test_single_runs_have_a_winner_and_no_certainty() -> None:
    best = find_best("tg128", {"a": stats(80.0), "b": stats(79.9)})
    assert best is not None
    assert (best.label, best.interval, best.ties) == ("a", None, ())
    assert "one run, so ties are unknown" in str(best)


def test_equal_without_any_spread_is_a_tie() -> None:
    best = find_best("tg128", {"a": stats(80.0, 80.0), "b": stats(80.0, 80.0), "c": stats(79.0, 79.0)})
    assert best is not None
    assert best.ties == ("b",)


def test_interval_of_a_mean() -> None:
    assert mean_interval(stats(11.0, 12.0, 13.0)) == pytest.approx((12 - 4.303 / 3**0.5, 12 + 4.303 / 3**0.5))
    assert mean_interval(stats(1.0, 2.0, 3.0)) == pytest.approx((0.0, 2 + 4.303 / 3**0.5)), "no rate is negative"
    assert mean_interval(stats(1.0)) is None


def test_a_failure_is_a_line_with_its_reason() -> None:
    point = Point("num_speculative_tokens=8", {KEY: "8"}, stage="up", failed="engine exited with 1")
    [table] = sweep_tables(series(*SEED, failed=(point,)), SEED)
    assert table.headers[-1] == "failed"
    assert table.rows[-1] == ("8", "", "", "", "", "up: engine exited with 1")
    assert {line[-1] for line in table.rows[:-1]} == {""}


def test_a_step_under_other_conditions_is_not_ranked() -> None:
    stranger = step(9, 99.0, 99.1, 99.2, seed=7)
    winners, lines = bests((*SEED, stranger), (KEY,))
    assert [one.label for one in winners] == ["num_speculative_tokens=4"]
    assert lines == ["num_speculative_tokens=9 is not compared: seed: 1 → 7"]


def test_many_tests_go_into_several_tables() -> None:
    rows = tuple(row((10.0, 11.0), depth, tg) for depth in (0, 4096, 8192) for tg in (32, 128))
    entries = tuple(step(tokens, rows=rows) for tokens in (2, 3))
    tables = sweep_tables(series(*entries), entries)
    assert [len(table.headers) for table in tables] == [7, 3]
    assert all(len(line) == len(table.headers) for table in tables for line in table.rows)


def test_vary_reads_yaml_values_as_written() -> None:
    [one, two] = parse_vary(["vllm.a=1,'x, y',{b: [1, 2]},null", "backend=ray,mp"])
    assert one.values == ("1", "'x, y'", "{b: [1, 2]}", "null")
    assert [label_of(values) for values in combinations((one, two))][:3] == [
        "a=1 backend=ray",
        "a=1 backend=mp",
        "a='x, y' backend=ray",
    ]


@pytest.mark.parametrize("word", ["vllm.a", "=1", "a=", "a=[", "a=1,1", "backend=x", "tp=two", "pp=0"])
def test_vary_that_cannot_be_read(word: str) -> None:
    with pytest.raises(UsageError):
        parse_vary([word])


def test_a_series_is_read_back() -> None:
    import orjson

    told = series(*SEED)
    assert parse_series(orjson.loads(orjson.dumps(told.document() | {"later": 1}))) == replace(told)
    with pytest.raises(ClusterError, match="reads up to 1"):
        parse_series(told.document() | {"series": 2})
    with pytest.raises(ClusterError, match="no series number"):
        parse_series({"schema": 1})
