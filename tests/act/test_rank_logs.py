"""What is read of the ranks' logs while everybody waits: what came since the last look, not all of it again."""

from __future__ import annotations

import json
from itertools import groupby

import pytest
from fake_docker import FakeDocker
from far_program import run_over
from machine import Desk
from typed import UP, Typed

from cluster.cli.logs import split
from cluster.spark import ranks
from cluster.spark.ranks import RankState

MIB = 1 << 20


def read_bytes(desk: Desk, name: str) -> list[tuple[float, int]]:
    """Time and bytes of each `docker logs` of a machine, as they come."""
    docker, read = desk[name].docker, list[tuple[float, int]]()
    answer = docker.do_logs

    def do_logs(words: list[str], stdin: bytes) -> str:
        said = answer(words, stdin)
        read.append((desk.now, len(said)))
        return said

    docker.do_logs = do_logs
    return read


def test_a_wait_reads_each_line_about_once(cluster: Typed, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine prints 1 MiB while it loads, and then nothing for half a minute."""
    monkeypatch.setattr("rank_life.READY_S", 30.0)

    def say() -> None:
        [life] = desk["spark1"].lives()
        if life.engine_since is not None:
            life.container.log += [(desk.now + count * 1e-6, f"DEBUG {count} " + "x" * 250) for count in range(4000)]
            desk.on_sleep.remove(say)

    desk.on_sleep.append(say)
    read = read_bytes(desk, "spark1")
    cluster.must(*UP)
    polls = [sum(count for _, count in rows) for _, rows in groupby(read, key=lambda row: row[0])]
    assert len(polls) > 25
    assert max(polls) > MIB
    assert sum(polls) < 4 * MIB, "30 MiB when each look reads all of it"


@pytest.fixture
def docker(cluster: Typed, desk: Desk) -> FakeDocker:
    """Docker of the one machine that serves."""
    assert cluster("up", "toy", "--solo", "-n", "spark1").code == 0
    return desk["spark1"].docker


def look(docker: FakeDocker, known: dict[str, RankState]) -> RankState:
    [name] = [one.name for one in docker.containers.values()]
    question = ranks.question([name], known=known)
    told = ranks.parse(run_over(docker, "ranks", json.loads(question.argv[-1])))
    assert isinstance(told, dict), told
    known[name] = told[name].after(known.get(name))
    return known[name]


def test_looks_one_after_another_tell_what_one_look_tells(docker: FakeDocker) -> None:
    [container] = docker.containers.values()
    whole, container.log = list(container.log), []
    known: dict[str, RankState] = {}
    for size in range(len(whole) + 1):
        container.log = whole[:size]
        looks = look(docker, known), look(docker, {})
        now, afresh = ((one.stages, one.phases, one.tail, one.until) for one in looks)
        assert now == afresh
    assert known[container.name].phases == ("loaded",)


def test_many_lines_between_two_looks(docker: FakeDocker) -> None:
    """More than are read from the end of the log: none of the stages is lost."""
    [container] = docker.containers.values()
    known: dict[str, RankState] = {}
    look(docker, known)
    at = container.log[-1][0]
    container.log.append((at + 1, '{"cluster": "rank", "stage": "late", "t": 1}'))
    container.log += [(at + 2, f"line {number}") for number in range(5000)]
    assert look(docker, known).stage == "late"
    assert known[container.name].tail[-1] == "line 4999"


def test_a_container_that_was_started_again_is_read_from_its_start(docker: FakeDocker, desk: Desk) -> None:
    [container] = docker.containers.values()
    known: dict[str, RankState] = {}
    assert look(docker, known).phases
    desk.pass_time(5)
    docker.answer(("stop", "-t", "1", container.name))
    docker.answer(("start", container.name))
    container.log = [row for row in container.log if row[0] < desk.now]
    again = look(docker, known)
    assert (again.phases, again.stages) == ((), ())


def test_a_rank_that_has_ended_is_read_whole(docker: FakeDocker, desk: Desk) -> None:
    known: dict[str, RankState] = {}
    look(docker, known)
    desk.kill_rank("spark1")
    assert look(docker, known).whole


def test_a_line_printed_before_docker_noted_the_start_is_read(docker: FakeDocker, desk: Desk) -> None:
    """As of a program that ends at once: its log has the cause."""
    [container] = docker.containers.values()
    container.started = desk.now + 20
    container.log = [(container.started - 0.005, "exec no-such-program failed")]
    assert look(docker, {}).tail == ("exec no-such-program failed",)


# Lines of vLLM 0.24 with Ray 2.56 on two H200, as docker kept them of the head: Ray relays and colors them
RELAYED = """\
(EngineCore pid=739) \x1b[36m(RayWorkerProc pid=2595)\x1b[0m spark1:9:9 [0] NCCL INFO NET/Socket : Using [0]enp1s0f1np1
(EngineCore pid=739) \x1b[36m(RayWorkerProc pid=2595)\x1b[0m spark1:9:9 [0] NCCL INFO Using network Socket
(EngineCore pid=739) \x1b[36m(RayWorkerProc pid=2595)\x1b[0m spark1:9:9 [0] NCCL INFO Using network Socket
(EngineCore pid=739) INFO 11-28 13:25:11 [backends.py:1167] Dynamo bytecode transform time: 9.82 s
Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):   0%|          | 0/5 [00:00<?, ?it/s]
Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  60%|######    | 3/5 [00:01<00:00,  2.71it/s]"""


def test_lines_relayed_by_ray(docker: FakeDocker) -> None:
    [container] = docker.containers.values()
    at = container.log[-1][0]
    container.log += [(at + 1, line) for line in RELAYED.splitlines()]
    state = look(docker, {})
    assert [line for line in state.net if "Socket" in line] == [
        "NCCL INFO NET/Socket : Using [0]enp1s0f1np1",
        "NCCL INFO Using network Socket",
    ]
    assert state.phases == ("loaded", "compiling", "capturing")
    assert state.progress == "60%"
    assert not any("\x1b" in line for line in state.tail)


def test_phase_of_a_worker_is_read_before_ray_relays_it(cluster: Typed, desk: Desk) -> None:
    """A worker's line reached the head's log 61 s late; Ray's own file on the worker has it at once."""
    cluster.must(*UP)
    [life] = desk["spark2"].lives()
    life.worker_log = [
        "(RayWorkerProc pid=9) INFO 11-28 13:25:13 [gpu_model_runner.py:5150] Model loading took 18.5 GiB"
    ]
    for workers, phases in ((False, ()), (True, ("loaded",))):
        question = ranks.question([life.container.name], workers=workers)
        found = ranks.parse(run_over(desk["spark2"].docker, "ranks", json.loads(question.argv[-1])))
        assert isinstance(found, dict)
        assert found[life.container.name].phases == phases


LATE = """\
2026-11-29T07:24:08.1Z (EngineCore pid=863) INFO 11-29 07:24:08 [core.py:1] first
2026-11-29T07:24:09.052Z (EngineCore pid=863) \x1b[36m(RayWorkerProc pid=17)\x1b[0m INFO 11-29 07:23:07 [m.py:5] a
2026-11-29T07:24:09.052Z (EngineCore pid=863) \x1b[36m(RayWorkerProc pid=17)\x1b[0m INFO 11-29 03:23:07 [m.py:5] b"""


def test_lines_that_ray_relays_late_stand_where_they_were_printed() -> None:
    """As on an H200: 62 s late. A time that is hours off is of another zone, and does not count."""
    lines = [split("spark1", "toy", line) for line in LATE.splitlines()]
    assert [line.printed[11:19] for line in lines] == ["07:24:08", "07:23:07", "07:24:09"]
    assert not any("\x1b" in line.line for line in lines)
