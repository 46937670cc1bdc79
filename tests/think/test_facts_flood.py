"""What the two ends of far/flood say, and what else may come in their place."""

from __future__ import annotations

from cluster.spark.fabric_test import Flood, parse_flood, parse_port
from cluster.spark.fact import Missing


def test_a_flood() -> None:
    flood = parse_flood('{"bytes": 25000000000, "seconds": 2.0, "cpu": 0.41}')
    assert flood == Flood(25000000000, 2.0, 0.41)
    assert flood.gbps == 100.0
    assert parse_flood('{"bytes": 1, "seconds": 2, "cpu": null}') == Flood(1, 2.0, None)


def test_a_port() -> None:
    assert parse_port('{"port": 40123}') == 40123


def test_errors_and_other_words_are_reasons() -> None:
    assert parse_flood('{"error": "No route to host"}') == Missing("No route to host")
    assert parse_port('{"error": "Cannot assign requested address"}') == Missing("Cannot assign requested address")
    assert parse_flood("bash: python3: \x1b[31mnot found") == Missing("bash: python3: not found")
    assert parse_flood("") == parse_port("") == Missing("it ended without a result")
    assert parse_flood('{"port": 5}') == Missing("no byte count reported")
    assert parse_flood('{"bytes": 5, "seconds": 0}') == Missing("no byte count reported")
    assert parse_port('{"bytes": 5, "seconds": 1.0}') == Missing("no port reported")
    assert isinstance(parse_flood('{"bytes": "many", "seconds": 1}'), Missing)
    assert isinstance(parse_flood("[1, 2]"), Missing)
