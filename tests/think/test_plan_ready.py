"""Verdicts: is a deployment on its way, ready or lost, is Ray whole, and do the logs say what a recipe expects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cluster.config.recipe import ExpectLog
from cluster.spark.fact import Missing
from cluster.spark.ranks import (
    Failed,
    Found,
    RankState,
    RayNode,
    Ready,
    Waiting,
    is_whole,
    judge_nodes,
    judge_ranks,
    patterns_of,
    unmet,
)


def rank(*stages: str | dict[str, Any], state: str = "running", exit_code: int = 0, **more: Any) -> RankState:
    told = tuple({"stage": one} if isinstance(one, str) else one for one in stages)
    values: dict[str, Any] = {"oom": False, "phases": (), "tail": (), "net": ()}
    return RankState("x", state, exit_code, stages=told, **values | more)


def ended(why: str, code: int) -> RankState:
    return rank("started", {"stage": "ended", "why": why, "exit": code}, state="exited", exit_code=code)


@pytest.mark.parametrize(
    ("head", "worker", "expected"),
    [
        (Missing("busy"), Missing("busy"), Waiting("containers")),
        (rank(), rank(), Waiting("2 ranks to join (rank 0: starting)")),
        (rank("started"), rank("started"), Waiting("2 ranks to join (rank 0: started)")),
        (rank("started", "ray_started"), rank(), Waiting("2 ranks to join (rank 0: ray_started)")),
        (
            rank("started", "ray_started"),
            rank("started", "ray_started", "ray_restarted", "ray_started"),
            Waiting("2 ranks to join (rank 0: ray_started; Ray was restarted on spark2)"),
        ),
        (
            rank("started", "ray_started", "ray_restarted"),
            rank(),
            Waiting("2 ranks to join (rank 0: ray_restarted; Ray was restarted on spark1)"),
        ),
        (rank("started", "joined"), rank(), Waiting("rank 0: joined", "ray_up")),
        (rank("joined", "engine_started"), rank(), Waiting("the engine: loading the model", "ray_up")),
        (
            rank("joined", "engine_started"),
            rank(phases=("loaded",)),
            Waiting("the engine: weights loaded, getting ready", "loaded"),
        ),
        (
            rank("joined", "engine_started", progress="40%"),
            rank(),
            Waiting("the engine: loading the model, 40%", "ray_up"),
        ),
        (
            rank("joined", "engine_started", phases=("loaded", "compiling")),
            rank(phases=("loaded",)),
            Waiting("the engine: compiling the model (torch.compile)", "loaded"),
        ),
        (
            rank("joined", "engine_started", phases=("loaded", "capturing"), progress="47%"),
            rank(phases=("loaded", "compiling")),
            Waiting("the engine: capturing CUDA graphs, 47%", "loaded"),
        ),
        (Missing("busy"), rank("started"), Waiting("2 ranks to join (rank 0: unknown)")),
        (rank(state="created"), rank(), Waiting("2 ranks to join (rank 0: starting)")),
    ],
)
def test_on_its_way(head: Any, worker: Any, expected: Waiting) -> None:
    assert judge_ranks({"spark1": head, "spark2": worker}, healthy=False) == expected


def test_ready() -> None:
    assert judge_ranks({"spark1": rank("engine_started"), "spark2": rank()}, healthy=True) == Ready()
    assert judge_ranks({"spark1": rank("engine_started"), "spark2": Missing("busy")}, healthy=True) == Ready()


def test_a_rank_that_has_ended_is_not_on_its_way() -> None:
    """Its container still runs for some seconds, ending its programs."""
    ended = {"stage": "ended", "why": "engine ended by SIGKILL", "exit": 137}
    lost = {"stage": "ended", "why": "rank 1 ended", "exit": 76}
    head = replace(rank("engine_started"), stages=({"stage": "started"}, lost))
    worker = replace(rank("engine_started"), stages=({"stage": "started"}, ended))
    assert judge_ranks({"spark1": head, "spark2": worker}, healthy=False) == Failed("spark2", "engine ended by SIGKILL")
    before = replace(rank(), stages=(ended,))  # the last line of the run before a restart
    assert isinstance(judge_ranks({"spark1": before, "spark2": rank()}, healthy=False), Waiting)
    alone = judge_ranks({"spark1": head, "spark2": rank("engine_started")}, healthy=False)
    assert alone == Failed("spark1", "rank 1 ended", by_peer=True)


def test_a_rank_that_is_gone_is_a_failure_though_the_server_answers() -> None:
    """The mp backend's /health stays 200 for a while after a worker's death."""
    assert judge_ranks({"spark1": rank("engine_started"), "spark2": None}, healthy=True) == Failed(
        "spark2", "its container is gone"
    )
    dead = rank(state="exited", exit_code=137, tail=("a", "b"))
    assert judge_ranks({"spark1": rank(), "spark2": dead}, healthy=True) == Failed(
        "spark2", "container exited, exit 137", ("a", "b")
    )
    killed = rank(state="exited", exit_code=137, oom=True)
    assert judge_ranks({"spark1": killed}, healthy=False) == Failed("spark1", "killed for memory")


CAUSE = ended("engine exited with 1: OutOfMemoryError", 1)
NOT_JOINED = ended("peers did not join: rank 1 (10.0.0.2): engine exited with 1", 75)
CORD = ended("rank 0 (10.0.0.1): engine exited with 1: OutOfMemoryError", 76)
KILLED = rank(state="exited", exit_code=137)
GUARDED = ended("memory guard: 2.9 GiB available, 3.0 GiB required while loading", 77)


@pytest.mark.parametrize(
    ("head", "worker", "host", "by_peer"),
    [
        (CAUSE, CORD, "spark1", False),
        (CORD, CAUSE, "spark2", False),
        (CAUSE, rank(), "spark1", False),
        (NOT_JOINED, CAUSE, "spark2", False),
        (NOT_JOINED, CORD, "spark1", False),
        (NOT_JOINED, rank(), "spark1", True),
        (CORD, KILLED, "spark2", False),
        (KILLED, CORD, "spark1", False),
        (CORD, None, "spark2", False),
        (CORD, CORD, "spark1", False),
        (CORD, rank(), "spark1", True),
        (CAUSE, GUARDED, "spark2", False),
        (GUARDED, CORD, "spark1", False),
    ],
)
def test_the_one_that_failed_by_itself_is_named(head: Any, worker: Any, host: str, by_peer: bool) -> None:
    verdict = judge_ranks({"spark1": head, "spark2": worker}, healthy=False)
    assert isinstance(verdict, Failed)
    assert verdict.host == host
    assert verdict.by_peer == by_peer


def test_words_of_an_earlier_start_do_not_count() -> None:
    """docker start appends to the same log: `ended` before the last `started` is history."""
    again = rank("started", {"stage": "ended", "why": "asked to end"}, "started", "joined")
    assert judge_ranks({"spark1": again}, healthy=False) == Waiting("rank 0: joined", "ray_up")
    crashed = rank("started", {"stage": "ended", "why": "asked to end"}, "started", state="exited", exit_code=1)
    assert judge_ranks({"spark1": crashed}, healthy=False) == Failed("spark1", "container exited, exit 1")


def node(address: str, alive: bool = True, gpus: float = 1.0) -> RayNode:
    return RayNode(address, alive, gpus)


@pytest.mark.parametrize(
    ("nodes", "wrong"),
    [
        ([node("a"), node("b")], []),
        ([node("b"), node("a"), node("c", alive=False)], []),
        ([node("a")], ["b is not an alive node"]),
        ([node("a"), node("b", alive=False)], ["b is not an alive node"]),
        ([node("a"), node("b"), node("c")], ["c is a node that we did not start"]),
        ([node("a"), node("b", gpus=0.0)], ["b has 0 GPUs"]),
        ([node("a", gpus=2.0), node("b")], ["a has 2 GPUs"]),
        ([], ["a is not an alive node", "b is not an alive node"]),
    ],
)
def test_nodes_of_ray(nodes: list[RayNode], wrong: list[str]) -> None:
    assert judge_nodes(nodes, ["a", "b"]) == wrong


EXPECTED = ExpectLog(require=["Using 'MARLIN' NvFp4 MoE backend"], forbid=["'CUTLASS_FP4'"])
MARLIN, CUTLASS = Found("Using 'MARLIN' NvFp4 MoE backend", ""), "Using 'CUTLASS_FP4' NvFp4 MoE backend"
NOTHING = Found(None, "")


@pytest.mark.parametrize(
    ("logs", "wrong"),
    [
        # with Ray the head's log holds all there is, with mp each rank has its own
        ([(MARLIN, NOTHING), (NOTHING, NOTHING)], []),
        ([(NOTHING, NOTHING), (MARLIN, NOTHING)], []),
        (
            [(NOTHING, NOTHING), (Found(None, CUTLASS), Found(CUTLASS, ""))],
            [
                f"no log has `Using 'MARLIN' NvFp4 MoE backend`, but: {CUTLASS}",
                f"the log of spark2 has `'CUTLASS_FP4'`: {CUTLASS}",
            ],
        ),
        ([(NOTHING, NOTHING)], ["no log has `Using 'MARLIN' NvFp4 MoE backend`, nor a line like it"]),
    ],
)
def test_what_a_recipe_expects_of_the_logs(logs: list[tuple[Found, Found]], wrong: list[str]) -> None:
    """In the order of the patterns: those required, then those forbidden."""
    assert patterns_of(EXPECTED) == ("Using 'MARLIN' NvFp4 MoE backend", "'CUTLASS_FP4'")
    assert patterns_of(ExpectLog()) == ()
    assert list(unmet(EXPECTED, {f"spark{at}": rank(found=rows) for at, rows in enumerate(logs, 1)})) == wrong


def test_a_log_that_lost_its_beginning_is_not_judged() -> None:
    assert is_whole(rank("started", "joined"))
    assert not is_whole(rank())
