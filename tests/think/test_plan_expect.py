"""What a recipe expects of the ranks' logs, judged from what was found in them."""

from __future__ import annotations

from dataclasses import replace

from cluster.config.recipe import ExpectLog
from cluster.spark.ranks import Found, RankState, is_whole, patterns_of, unmet

EXPECTED = ExpectLog(require=["Using 'MARLIN' NvFp4 MoE backend"], forbid=["'CUTLASS_FP4'"])
STATE = RankState("x", "running", 0, False, ({"stage": "started"}, {"stage": "joined"}), True, (), ())
MARLIN, CUTLASS = Found("Using 'MARLIN' NvFp4 MoE backend", ""), "Using 'CUTLASS_FP4' NvFp4 MoE backend"
NOT_THERE = Found(None, "")


def found(*rows: Found) -> RankState:
    return replace(STATE, found=rows)


def test_the_order_of_patterns() -> None:
    assert patterns_of(EXPECTED) == ("Using 'MARLIN' NvFp4 MoE backend", "'CUTLASS_FP4'")
    assert patterns_of(ExpectLog()) == ()


def test_a_line_required_counts_wherever_it_is() -> None:
    """With Ray the head's log holds all there is, with mp each rank has its own."""
    assert not list(unmet(EXPECTED, {"spark1": found(MARLIN, NOT_THERE), "spark2": found(NOT_THERE, NOT_THERE)}))
    assert not list(unmet(EXPECTED, {"spark1": found(NOT_THERE, NOT_THERE), "spark2": found(MARLIN, NOT_THERE)}))


def test_what_is_found_instead_is_said() -> None:
    states = {"spark1": found(NOT_THERE, NOT_THERE), "spark2": found(Found(None, CUTLASS), Found(CUTLASS, ""))}
    assert list(unmet(EXPECTED, states)) == [
        f"no log has `Using 'MARLIN' NvFp4 MoE backend`, but: {CUTLASS}",
        f"the log of spark2 has `'CUTLASS_FP4'`: {CUTLASS}",
    ]
    [nothing] = unmet(EXPECTED, {"spark1": found(NOT_THERE, NOT_THERE)})
    assert nothing == "no log has `Using 'MARLIN' NvFp4 MoE backend`, nor a line like it"


def test_a_log_that_lost_its_beginning_is_not_judged() -> None:
    assert is_whole(STATE)
    assert not is_whole(replace(STATE, stages=()))
