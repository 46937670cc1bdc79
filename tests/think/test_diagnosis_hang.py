"""A hang, a compile, a long prefill, a power cap, falling memory, lost links: what is not known is never a hang."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from watch_tools import CAPPED, GIB, HOSTS, LINKS, RESTS, SPINS, Story, gpu, host, pulse, with_host, with_hosts

from cluster.diagnosis.hang import MOST, Snapshot, is_memory_error, steady_fall, why_no_restart
from cluster.spark.deployments import LockState
from cluster.spark.ranks import Failed

Look = Callable[[float], Snapshot]
FROZEN = 6000.0


def frozen(t: float) -> Snapshot:
    """Requests run, no token comes, both GPUs spin."""
    return with_hosts(pulse(t, tokens=FROZEN, running=2), gpu=SPINS)


def resting(t: float) -> Snapshot:
    """The same with GPUs and processes at rest."""
    return with_hosts(pulse(t, tokens=FROZEN, running=2), gpu=RESTS, cpu_s=700.0)


@pytest.mark.parametrize("interval", [2.0, 10.0, 15.0])
@pytest.mark.parametrize("look", [frozen, resting, lambda t: with_host(frozen(t), "spark2", gpu=RESTS, cpu_s=7.0)])
def test_wedge_is_called_within_a_minute(interval: float, look: Look) -> None:
    story = Story(interval).go(600).go(60, look)
    assert story.told() == [("fault", "wedge", "")]
    [(when, finding)] = story.said
    assert 25 <= when - 600 <= 45
    assert re.fullmatch(
        r"no token came for \d\d s \(2 running, 0 waiting\), and no host is at work: it hangs", finding.what
    )
    assert finding.evidence.startswith("generation_tokens_total 6000, /health 200; spark1 ")
    assert finding.runbook == "it-hangs#wedged"
    assert why_no_restart(finding, story.history) == ""
    story.go(60)
    assert story.over == [(600 + 60 + 3 * interval, "wedge")], "tokens come again"


QUIET: dict[str, Look] = {
    "idle server": lambda t: with_hosts(pulse(t, tokens=FROZEN, running=0), gpu=RESTS, cpu_s=7.0),
    "idle server whose ranks spin": lambda t: with_hosts(pulse(t, tokens=FROZEN, running=0), gpu=SPINS),
    "tokens come slowly": lambda t: with_hosts(pulse(t, tokens=t // 20), gpu=SPINS),
    "bursts": lambda t: pulse(t, tokens=t // 60 * 500, running=t // 30 % 2),
    "only a prefill's cache grows": lambda t: with_hosts(
        pulse(t, tokens=FROZEN).__class__(t, pulse(t).hosts, True, pulse(t, tokens=t).load), gpu=SPINS
    ),
    "no counters": lambda t: with_hosts(Snapshot(t, pulse(t).hosts, True, None), gpu=SPINS),
    "server began anew": lambda t: pulse(t, tokens=t % 100),
}


NOT_JUDGED: dict[str, Look] = {
    "long prefill": lambda t: pulse(t, tokens=FROZEN),
    "compile on the GPUs": lambda t: with_hosts(pulse(t, tokens=0), gpu=gpu(40, 38.0)),
    "compile on the CPUs": lambda t: with_hosts(pulse(t, tokens=0), gpu=RESTS, cpu_s=3 * t),
    "one compiles, its peer waits": lambda t: with_host(
        with_hosts(pulse(t, tokens=0), gpu=SPINS), "spark2", gpu=RESTS, cpu_s=t
    ),
    "power not told": lambda t: with_host(frozen(t), "spark2", gpu=gpu(95, None)),
    "GPU not told": lambda t: with_host(frozen(t), "spark2", gpu=None),
    "clock not told, so perhaps capped": lambda t: with_hosts(frozen(t), gpu=gpu(95, 20.0, None)),
    "at rest, and no CPU time told": lambda t: with_hosts(resting(t), cpu_s=None),
}


@pytest.mark.parametrize("look", NOT_JUDGED.values(), ids=NOT_JUDGED)
def test_five_minutes_of_work_or_of_not_knowing_are_no_wedge(look: Look) -> None:
    story = Story().go(600).go(310, look)
    assert story.told() == [("note", "wedge", "")]
    assert story.said[0][1].what.endswith("not judged yet")
    assert story.go(100).over, "it went on"


def test_patience_ends() -> None:
    story = Story().go(600).go(2800, NOT_JUDGED["long prefill"])
    assert story.told() == [("note", "wedge", ""), ("fault", "wedge", "")]
    assert story.said[1][0] >= 600 + 2700


def test_unknown_host_in_a_wedge_delays_the_call_and_does_not_end_it() -> None:
    def away(t: float) -> Snapshot:
        return with_host(frozen(t), "spark2", gpu=None, cpu_s=None, why="timed out")

    story = Story().go(600).go(120, away)
    assert ("fault", "wedge", "") not in story.told()
    story.go(60, frozen)
    assert story.told()[-1] == ("fault", "wedge", "")
    story.go(60, away)
    assert "wedge" not in [check for _, check in story.over]


def test_power_cap_is_no_wedge() -> None:
    """Same utilisation and power; the clock tells them apart."""
    story = Story().go(600).go(120, lambda t: with_hosts(frozen(t), gpu=CAPPED))
    assert [one for one in story.told() if one[0] == "fault"] == [
        ("fault", "clocks", "spark1"),
        ("fault", "clocks", "spark2"),
    ]
    for _, finding in story.faults():
        assert why_no_restart(finding, story.history) == "a restart is no cure for this (clocks)"
    assert "611 MHz" in next(story.faults())[1].evidence


def test_a_rank_that_ended() -> None:
    lost = Failed("spark2", "container exited, exit 1", ("a", "RuntimeError: NCCL error", ""))
    story = Story().go(60).go(10, lambda t: pulse(t, lost=lost, healthy=False))
    assert story.told() == [("fault", "rank", "spark2")]
    assert story.said[0][1].evidence == "last line: RuntimeError: NCCL error"
    assert why_no_restart(story.said[0][1], story.history) == ""
    story.go(300, lambda t: pulse(t, lost=lost, healthy=False))
    assert len(story.said) == 1, "once"


def test_a_rank_that_lost_its_peer_waits_one_look_for_the_cause() -> None:
    second = Failed("spark1", "rank 1 is gone, killed or rebooted", by_peer=True)
    first = Failed("spark2", "killed for memory")
    story = Story().go(60).go(10, lambda t: pulse(t, lost=second)).go(10, lambda t: pulse(t, lost=first))
    assert story.told() == [("fault", "rank", "spark2")]


@pytest.mark.parametrize(
    ("why", "tail", "available", "memory"),
    [
        (
            "engine exited with 1: x",
            ("Free memory on device cuda:0 (36.75/121.63 GiB) on startup is less",),
            None,
            True,
        ),
        ("engine exited with 1: torch.OutOfMemoryError: CUDA out of memory", (), 100 * GIB, True),
        ("killed for memory", (), 100 * GIB, True),
        ("container exited, exit 137", (), None, True),
        ("container exited, exit 137", (), 3 * GIB, True),
        ("container exited, exit 137", (), 30 * GIB, False),
        ("engine ended by SIGKILL: x", (), 30 * GIB, False),
        ("engine exited with 1: NCCL error", ("Cuda failure 'out of memory'",), 30 * GIB, True),
        ("engine exited with 1: NCCL error", (), None, False),
    ],
)
def test_memory_errors(why: str, tail: tuple[str, ...], available: int | None, memory: bool) -> None:
    assert is_memory_error(Failed("spark1", why, tail), available) is memory


@pytest.mark.parametrize(
    ("why", "changes", "reason"),
    [
        ("killed for memory", {"available": 30 * GIB}, "it ended for memory: restarts would make it worse"),
        ("asked to end (SIGTERM)", {"available": 30 * GIB}, "it was asked to end"),
        ("engine exited with 1: x", {"available": GIB}, "memory is nearly out: a restart would make it worse"),
        ("engine exited with 1: x", {"available": 30 * GIB}, ""),
        ("rank 1 was silent", {"links": dict.fromkeys(LINKS, False)}, "the link of spark2 has to be up first"),
        ("rank 1 was silent", {"links": {**dict.fromkeys(LINKS, False), next(iter(LINKS)): True}}, ""),
    ],
)
def test_what_a_restart_does_not_cure(why: str, changes: dict[str, Any], reason: str) -> None:
    lost = Failed("spark1", why)
    story = Story().go(60).go(10, lambda t: with_host(pulse(t, lost=lost), "spark2", **changes))
    assert why_no_restart(story.said[0][1], story.history) == reason


def test_what_is_remembered_is_bounded() -> None:
    story = Story(0.5).go(2000)
    assert len(story.history.snapshots) == MOST
    slow = Story(10).go(5000)
    assert len(slow.history.snapshots) == 91


TURN = 600.0


def memory(shape: Callable[[float], float]) -> Callable[[float], Snapshot]:
    """Looks with so many GiB available on spark2, by the seconds since TURN."""
    return lambda t: with_host(pulse(t), "spark2", available=int(shape(t - TURN) * GIB))


def test_memory_that_falls_is_told_with_the_time_that_is_left() -> None:
    noise = random.Random(1)
    story = Story().go(TURN).go(900, memory(lambda s: 22 - s / 60 + noise.uniform(-0.05, 0.05)))
    assert story.told() == [("warning", "memory-falling", "spark2")]
    assert story.said[0][0] <= TURN + 600
    [one] = story.open_findings.values()
    assert re.fullmatch(r"memory falls by (0\.9|1\.0)\d GiB a minute and will run out in 5 min", one.finding.what)
    assert one.finding.runbook == "memory-is-full"


NO_TREND: dict[str, Callable[[float], float]] = {
    "even": lambda s: 20,
    "one dip": lambda s: 6 if 300 <= s < 330 else 20,
    "one step": lambda s: 8 if s >= 300 else 20,
    "two steps": lambda s: 20 - 3 * (s >= 200) - 3 * (s >= 700),
    "saw": lambda s: 20 - s % 120 / 60,
    "rising": lambda s: 10 + s / 120,
    "so slowly that it lasts for days": lambda s: 20 - s / 3600 * 0.2,
    "near the floor and even": lambda s: 2.5,
}


@pytest.mark.parametrize("shape", NO_TREND.values(), ids=NO_TREND)
def test_what_is_no_trend(shape: Callable[[float], float]) -> None:
    assert Story().go(TURN, memory(lambda s: shape(-TURN))).go(1500, memory(shape)).told() == []


def test_loading_is_no_decline() -> None:
    def loads(t: float) -> Snapshot:
        return with_hosts(pulse(t, healthy=False, load=None), available=int((115 - t / 6) * GIB))

    assert Story().go(540, loads).go(240, lambda t: with_hosts(pulse(t), available=25 * GIB)).told() == []


def test_unread_memory_says_nothing() -> None:
    assert Story().go(1800, lambda t: with_hosts(pulse(t), available=None)).told() == []
    assert steady_fall([]) == 0.0


def test_a_link_that_flaps_is_said_once() -> None:
    down = dict.fromkeys(LINKS, False)

    def flaps(t: float) -> Snapshot:
        return with_host(pulse(t), "spark2", links=down if t // 10 % 3 else LINKS)

    story = Story().go(60).go(300, flaps)
    assert story.told() == [("fault", "link", "spark2")]
    assert story.over == []


def over_tcp(t: float) -> Snapshot:
    """Tokens come, the HCAs stand still, the netdevs carry."""
    return replace(pulse(t), hosts={name: host(t, rdma_bytes=7, tcp_bytes=int(t * 1e6)) for name in HOSTS})


NO_FALLBACK: dict[str, Look] = {
    "no tokens": lambda t: replace(over_tcp(t), load=pulse(0, running=0).load),
    "counters of one host cannot be read": lambda t: with_host(over_tcp(t), "spark2", rdma_bytes=None),
    "one HCA carries": lambda t: with_host(over_tcp(t), "spark2", rdma_bytes=int(t * 1e7)),
    "nothing goes over TCP either": lambda t: with_hosts(over_tcp(t), tcp_bytes=5),
}


@pytest.mark.parametrize("look", NO_FALLBACK.values(), ids=NO_FALLBACK)
def test_what_is_no_fall_back(look: Look) -> None:
    assert "socket-fallback" not in [check for _, check, _ in Story().go(600).go(600, look).told()]


FIRST, SECOND = LINKS
DOWN = dict.fromkeys(LINKS, False)
GONE, ANSWERLESS = Failed("spark2", "its container is gone"), {"healthy": False, "load": None}
STARTS, MEASURES = (LockState(True, "ada", why=f"{why} x") for why in ("up", "bench"))
SLOWED = gpu(96, 41.0, 650, "hardware thermal slowdown")
TOLD: dict[str, tuple[float, float, Look, list[tuple[str, str, str]]]] = {
    **{name: (0, 1800, look, []) for name, look in QUIET.items()},
    "requests only wait": (
        600,
        60,
        lambda t: with_hosts(pulse(t, tokens=FROZEN, running=0, waiting=3), gpu=SPINS),
        [("fault", "wedge", "")],
    ),
    "a rank lost a peer that says nothing": (
        60,
        20,
        lambda t: pulse(t, lost=Failed("spark1", "rank 1 is gone", by_peer=True)),
        [("fault", "rank", "spark1")],
    ),
    "gone while it starts": (60, 300, lambda t: pulse(t, lost=GONE, healthy=False, lock=STARTS), []),
    "gone while it measures": (
        60,
        10,
        lambda t: pulse(t, lost=GONE, healthy=False, lock=MEASURES),
        [("fault", "rank", "spark2")],
    ),
    "no answer for 20 s": (60, 20, lambda t: pulse(t, **ANSWERLESS), []),
    "no answer for 50 s": (60, 50, lambda t: pulse(t, **ANSWERLESS), [("fault", "server", "spark1")]),
    "loads for five minutes": (0, 300, lambda t: pulse(t, **ANSWERLESS), []),
    "loads for ever": (0, 2800, lambda t: pulse(t, **ANSWERLESS), [("fault", "server", "spark1")]),
    "memory nearly out": (TURN, 60, memory(lambda s: 1.4), [("fault", "memory-low", "spark2")]),
    "memory nearly out at one look": (TURN, 10, memory(lambda s: 1.4), []),
    "capped at one look": (TURN, 10, lambda t: with_host(pulse(t), "spark1", gpu=CAPPED), []),
    "capped": (TURN, 60, lambda t: with_host(pulse(t), "spark1", gpu=CAPPED), [("fault", "clocks", "spark1")]),
    "hot": (TURN, 60, lambda t: with_host(pulse(t), "spark1", gpu=SLOWED), [("warning", "clocks", "spark1")]),
    "links down": (60, 60, lambda t: with_host(pulse(t), "spark2", links=DOWN), [("fault", "link", "spark2")]),
    "links down at one look": (60, 10, lambda t: with_host(pulse(t), "spark2", links=DOWN), []),
    "one twin down": (
        60,
        60,
        lambda t: with_host(pulse(t), "spark2", links={FIRST: True, SECOND: False}),
        [("warning", "link", "spark2")],
    ),
    "sockets": (600, 600, over_tcp, [("warning", "socket-fallback", "")]),
    "sockets from the beginning, so they were wanted": (0, 1200, over_tcp, []),
}


@pytest.mark.parametrize(("well", "seconds", "look", "told"), TOLD.values(), ids=TOLD)
def test_told(well: float, seconds: float, look: Look, told: list[tuple[str, str, str]]) -> None:
    """All is well, then it looks like this, then all is well again; what was told is over."""
    story = Story().go(well).go(seconds, look)
    assert story.told() == told
    assert story.over == []
    assert not any(why_no_restart(one, story.history) for _, one in story.faults() if one.check in ("rank", "server"))
    story.go(60)
    assert story.told() == told
    assert {check for _, check in story.over} == {check for _, check, _ in told}


def test_what_stood_on_a_host_that_falls_silent_stays() -> None:
    capped = Story().go(TURN).go(60, lambda t: with_host(pulse(t), "spark2", gpu=CAPPED))
    capped.go(120, lambda t: with_host(pulse(t), "spark2", gpu=None, available=None, links={}, why="no route to host"))
    assert capped.told() == [("fault", "clocks", "spark2")]
    assert capped.over == []
    capped.go(60)
    assert [check for _, check in capped.over] == ["clocks"]
