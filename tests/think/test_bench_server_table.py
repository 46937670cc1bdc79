"""What the server counted of itself, beside our numbers."""

import dataclasses

from bench_results import result

from cluster.bench.tables import server_table


def test_columns_are_those_that_are_told() -> None:
    first, second, *others = result().rows
    speculating = {
        "requests": 3,
        "ttft_ms": 79.8,
        "itl_ms": 4.0,
        "preemptions": 0,
        "acceptance_rate": 0.5,
        "acceptance_length": 2.5,
        "acceptance_per_position": [0.75, 0.5, 0.25],
    }
    rows = (dataclasses.replace(first, server=speculating), dataclasses.replace(second, server={"requests": 3}))
    table = server_table(dataclasses.replace(result(), rows=(*rows, *others)))
    assert table is not None
    assert table.headers == ("test", "ttft (ms)", "itl (ms)", "requests", "preempted", "accepted", "tokens a step")
    assert table.rows == (
        ("pp2048 tg32", "79.80", "4.00", "3", "0", "50% (75%, 50%, 25%)", "2.50"),
        ("pp2048 tg128", "n/a", "n/a", "3", "n/a", "n/a", "n/a"),
    )


def test_server_that_counts_nothing_has_no_table() -> None:
    rows = tuple(dataclasses.replace(row, server=None) for row in result().rows)
    assert server_table(dataclasses.replace(result(), rows=rows)) is None
