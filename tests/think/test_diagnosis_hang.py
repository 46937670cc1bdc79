"""A hang, a compile, a long prefill, a power cap, falling memory, lost links: what is not known is never a hang."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from cluster.diagnosis.hang import (
    History,
    HostSnapshot,
    Key,
    OpenFinding,
    Snapshot,
    follow,
    is_memory_error,
    why_no_restart,
)
from cluster.spark.deployments import LockState
from cluster.spark.finding import Finding
from cluster.spark.gpu import Gpu
from cluster.spark.ranks import Failed
from cluster.spark.server import Load

GIB = 1 << 30
LINKS = {"rocep1s0f0 (enp1s0f0np0)": True, "roceP2p1s0f0 (enP2p1s0f0np0)": True}
State = Callable[[float], Snapshot]


def gpu(busy: int | None = 96, power: float | None = 45.0, clock: int | None = 2411, *reasons: str) -> Gpu:
    """A GPU at work."""
    return Gpu("NVIDIA GB10", "580", None, None, power, clock, 55, busy, reasons)


SPINS, RESTS, CAPPED = gpu(95, 20.3, 2405), gpu(0, 11.0, 2411), gpu(96, 16.4, 611)
SLOWED = gpu(96, 41.0, 650, "hardware thermal slowdown")


def pulse(
    t: float, *, tokens: float | None = None, running: float = 1.0, waiting: float = 0.0, **changes: Any
) -> Snapshot:
    """A pair that generates ten tokens a second; beside each GPU a CPU core spins."""
    load = Load(running, waiting, 10 * t if tokens is None else tokens, 2048.0, 0.1)
    hosts = dict.fromkeys(("spark1", "spark2"), HostSnapshot(gpu(), t, 20 * GIB, LINKS))
    return replace(Snapshot(t, hosts, True, load), **changes)


def with_hosts(one: Snapshot, *names: str, **changes: Any) -> Snapshot:
    """The same with these hosts changed, or all."""
    hosts = {name: replace(host, **changes) for name, host in one.hosts.items() if name in (names or one.hosts)}
    return replace(one, hosts={**one.hosts, **hosts})


@dataclass
class Story:
    """Snapshots every `interval` seconds, and what was reported at which of them."""

    interval: float = 10.0
    t: float = 0.0
    history: History = field(default_factory=History)
    open_findings: Mapping[Key, OpenFinding] = field(default_factory=dict)
    raised: list[tuple[float, Finding]] = field(default_factory=list)
    over: list[tuple[float, str]] = field(default_factory=list)

    def go(self, seconds: float, state: State = pulse) -> Story:
        until = self.t + seconds
        while self.t < until:
            self.t += self.interval
            self.history = self.history.after(state(self.t))
            self.open_findings, raised, over = follow(self.open_findings, self.history)
            self.raised += [(self.t, finding) for finding in raised]
            self.over += [(self.t, ended.finding.check) for ended in over]
        return self

    def told(self) -> list[tuple[str, str, str]]:
        """Level, check and host of all that was raised, in order."""
        return [(one.level, one.check, one.host) for _, one in self.raised]


FROZEN, TURN = 6000.0, 600.0


def frozen(t: float) -> Snapshot:
    """Requests run, no token comes, both GPUs spin."""
    return with_hosts(pulse(t, tokens=FROZEN, running=2), gpu=SPINS)


def resting(t: float) -> Snapshot:
    """The same with GPUs and processes at rest."""
    return with_hosts(pulse(t, tokens=FROZEN, running=2), gpu=RESTS, cpu_s=700.0)


@pytest.mark.parametrize("interval", [2.0, 10.0, 15.0])
@pytest.mark.parametrize("state", [frozen, resting, lambda t: with_hosts(frozen(t), "spark2", gpu=RESTS, cpu_s=7.0)])
def test_wedge_is_called_within_a_minute(interval: float, state: State) -> None:
    story = Story(interval).go(600).go(60, state)
    assert story.told() == [("fault", "wedge", "")]
    [(when, finding)] = story.raised
    assert 25 <= when - 600 <= 45
    assert re.fullmatch(
        r"no token came for \d\d s \(2 running, 0 waiting\), and no host is at work: it hangs", finding.what
    )
    assert finding.evidence.startswith("generation_tokens_total 6000, /health 200; spark1 ")
    assert finding.runbook == "it-hangs#wedged"
    assert why_no_restart(finding, story.history) == ""
    story.go(60)
    assert story.over == [(600 + 60 + 3 * interval, "wedge")], "tokens come again"


NOT_JUDGED: dict[str, State] = {
    "long prefill": lambda t: pulse(t, tokens=FROZEN),
    "compile on the GPUs": lambda t: with_hosts(pulse(t, tokens=0), gpu=gpu(40, 38.0)),
    "compile on the CPUs": lambda t: with_hosts(pulse(t, tokens=0), gpu=RESTS, cpu_s=3 * t),
    "one compiles, its peer waits": lambda t: with_hosts(
        with_hosts(pulse(t, tokens=0), gpu=SPINS), "spark2", gpu=RESTS, cpu_s=t
    ),
    "power unknown": lambda t: with_hosts(frozen(t), "spark2", gpu=gpu(95, None)),
    "GPU unknown": lambda t: with_hosts(frozen(t), "spark2", gpu=None),
    "clock unknown, so perhaps capped": lambda t: with_hosts(frozen(t), gpu=gpu(95, 20.0, None)),
    "at rest, CPU time unknown": lambda t: with_hosts(resting(t), cpu_s=None),
}


@pytest.mark.parametrize("state", NOT_JUDGED.values(), ids=NOT_JUDGED)
def test_five_minutes_of_work_or_of_not_knowing_are_no_wedge(state: State) -> None:
    story = Story().go(600).go(310, state)
    assert story.told() == [("note", "wedge", "")]
    assert story.raised[0][1].what.endswith("not judged yet")
    assert story.go(100).over, "it went on"


def test_patience_ends() -> None:
    story = Story().go(600).go(2800, NOT_JUDGED["long prefill"])
    assert story.told() == [("note", "wedge", ""), ("fault", "wedge", "")]
    assert story.raised[1][0] >= 600 + 2700


def test_unknown_host_in_a_wedge_delays_the_call_and_does_not_end_it() -> None:
    def away(t: float) -> Snapshot:
        return with_hosts(frozen(t), "spark2", gpu=None, cpu_s=None, why="timed out")

    story = Story().go(600).go(120, away)
    assert ("fault", "wedge", "") not in story.told()
    story.go(60, frozen)
    assert story.told()[-1] == ("fault", "wedge", "")
    story.go(60, away)
    assert "wedge" not in [check for _, check in story.over]


def test_power_cap_is_no_wedge() -> None:
    """Same utilization and power; the clock tells them apart."""
    story = Story().go(600).go(120, lambda t: with_hosts(frozen(t), gpu=CAPPED))
    faults = [one for _, one in story.raised if one.level == "fault"]
    assert [(one.check, one.host) for one in faults] == [("clocks", "spark1"), ("clocks", "spark2")]
    assert {why_no_restart(one, story.history) for one in faults} == {"a restart is no cure for this (clocks)"}
    assert "611 MHz" in faults[0].evidence


def test_a_rank_that_ended() -> None:
    lost = Failed("spark2", "container exited, exit 1", ("a", "RuntimeError: NCCL error", ""))
    story = Story().go(60).go(300, lambda t: pulse(t, lost=lost, healthy=False))
    assert story.told() == [("fault", "rank", "spark2")], "once"
    assert story.raised[0][1].evidence == "last line: RuntimeError: NCCL error"
    assert why_no_restart(story.raised[0][1], story.history) == ""


def test_a_rank_that_lost_its_peer_waits_for_the_cause() -> None:
    second = Failed("spark1", "rank 1 is gone, killed or rebooted", by_peer=True)
    first = Failed("spark2", "killed for memory")
    story = Story().go(60).go(10, lambda t: pulse(t, lost=second)).go(10, lambda t: pulse(t, lost=first))
    assert story.told() == [("fault", "rank", "spark2")]


@pytest.mark.parametrize(
    ("why", "tail", "available", "memory"),
    [
        ("engine exited with 1: x", "Free memory on device cuda:0 (36.75/121.63 GiB) on startup is less", None, True),
        ("engine exited with 1: torch.OutOfMemoryError: CUDA out of memory", "", 100 * GIB, True),
        ("killed for memory", "", 100 * GIB, True),
        ("container exited, exit 137", "", None, True),
        ("container exited, exit 137", "", 3 * GIB, True),
        ("container exited, exit 137", "", 30 * GIB, False),
        ("engine ended by SIGKILL: x", "", 30 * GIB, False),
        ("engine exited with 1: NCCL error", "Cuda failure 'out of memory'", 30 * GIB, True),
        ("engine exited with 1: NCCL error", "", None, False),
        ("memory guard: 0.9 GiB available, 1.0 GiB required while serving, for 10 s; held: x", "", 30 * GIB, True),
    ],
)
def test_memory_errors(why: str, tail: str, available: int | None, memory: bool) -> None:
    assert is_memory_error(Failed("spark1", why, (tail,)), available) is memory


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
    story = Story().go(60).go(10, lambda t: with_hosts(pulse(t, lost=lost), "spark2", **changes))
    assert why_no_restart(story.raised[0][1], story.history) == reason


def test_what_is_remembered_is_bounded() -> None:
    assert len(Story(10).go(5000).history.snapshots) == 91


def memory(shape: Callable[[float], float]) -> State:
    """So many GiB available on spark2, by the seconds since TURN."""
    return lambda t: with_hosts(pulse(t), "spark2", available=int(shape(t - TURN) * GIB))


def test_memory_that_falls_is_reported_with_the_time_that_is_left() -> None:
    noise = random.Random(1)
    story = Story().go(TURN).go(900, memory(lambda s: 22 - s / 60 + noise.uniform(-0.05, 0.05)))
    assert story.told() == [("warning", "memory-falling", "spark2")]
    assert story.raised[0][0] <= TURN + 600
    [one] = story.open_findings.values()
    assert re.fullmatch(r"memory falls by (0\.9|1\.0)\d GiB a minute and will run out in 5 min", one.finding.what)


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


def test_a_link_that_flaps_is_reported_once() -> None:
    story = Story().go(60).go(300, lambda t: with_hosts(pulse(t), "spark2", links=DOWN if t // 10 % 3 else LINKS))
    assert story.told() == [("fault", "link", "spark2")]
    assert story.over == []


FIRST, SECOND = LINKS
DOWN = dict.fromkeys(LINKS, False)
GONE, NO_ANSWER = Failed("spark2", "its container is gone"), {"healthy": False, "load": None}
ALONE = Failed("spark1", "rank 1 is gone", by_peer=True)
STARTS, MEASURES = (LockState(True, "ada", why=f"{why} x") for why in ("up", "bench"))
WEDGE, RANK, SERVER = ("fault", "wedge", ""), ("fault", "rank", "spark2"), ("fault", "server", "spark1")
TOLD: dict[str, tuple[float, float, State, list[tuple[str, str, str]]]] = {
    "idle server": (0, 1800, lambda t: with_hosts(pulse(t, tokens=9, running=0), gpu=RESTS, cpu_s=7.0), []),
    "idle server whose ranks spin": (0, 1800, lambda t: with_hosts(pulse(t, tokens=9, running=0), gpu=SPINS), []),
    "tokens come slowly": (0, 1800, lambda t: with_hosts(pulse(t, tokens=t // 20), gpu=SPINS), []),
    "bursts": (0, 1800, lambda t: pulse(t, tokens=t // 60 * 500, running=t // 30 % 2), []),
    "only a prefill's cache grows": (
        0,
        1800,
        lambda t: with_hosts(pulse(t, load=Load(1.0, 0.0, FROZEN, 2048.0, t / 1e4)), gpu=SPINS),
        [],
    ),
    "no counters": (0, 1800, lambda t: with_hosts(pulse(t, load=None), gpu=SPINS), []),
    "server started again": (0, 1800, lambda t: pulse(t, tokens=t % 100), []),
    "requests only wait": (
        600,
        60,
        lambda t: with_hosts(pulse(t, tokens=FROZEN, running=0, waiting=3), gpu=SPINS),
        [WEDGE],
    ),
    "a rank lost a silent peer": (60, 20, lambda t: pulse(t, lost=ALONE), [("fault", "rank", "spark1")]),
    "gone while it starts": (60, 300, lambda t: pulse(t, lost=GONE, healthy=False, lock=STARTS), []),
    "gone while it measures": (60, 10, lambda t: pulse(t, lost=GONE, healthy=False, lock=MEASURES), [RANK]),
    "no answer for 20 s": (60, 20, lambda t: pulse(t, **NO_ANSWER), []),
    "no answer for 50 s": (60, 50, lambda t: pulse(t, **NO_ANSWER), [SERVER]),
    "loads for five minutes": (0, 300, lambda t: pulse(t, **NO_ANSWER), []),
    "loads for ever": (0, 2800, lambda t: pulse(t, **NO_ANSWER), [SERVER]),
    "memory nearly out": (TURN, 60, memory(lambda s: 1.4), [("fault", "memory-low", "spark2")]),
    "memory nearly out once": (TURN, 10, memory(lambda s: 1.4), []),
    "memory unknown": (0, 1800, lambda t: with_hosts(pulse(t), available=None), []),
    "capped once": (TURN, 10, lambda t: with_hosts(pulse(t), "spark1", gpu=CAPPED), []),
    "capped": (TURN, 60, lambda t: with_hosts(pulse(t), "spark1", gpu=CAPPED), [("fault", "clocks", "spark1")]),
    "hot": (TURN, 60, lambda t: with_hosts(pulse(t), "spark1", gpu=SLOWED), [("warning", "clocks", "spark1")]),
    "links down": (60, 60, lambda t: with_hosts(pulse(t), "spark2", links=DOWN), [("fault", "link", "spark2")]),
    "links down once": (60, 10, lambda t: with_hosts(pulse(t), "spark2", links=DOWN), []),
    "one twin down": (
        60,
        60,
        lambda t: with_hosts(pulse(t), "spark2", links={FIRST: True, SECOND: False}),
        [("warning", "link", "spark2")],
    ),
}


@pytest.mark.parametrize(("well", "seconds", "state", "told"), TOLD.values(), ids=TOLD)
def test_told(well: float, seconds: float, state: State, told: list[tuple[str, str, str]]) -> None:
    """All is well, then this is the state, then all is well again; what was raised is over."""
    story = Story().go(well).go(seconds, state)
    assert story.told() == told
    assert story.over == []
    curable = [one for _, one in story.raised if one.check in ("rank", "server")]
    assert not any(why_no_restart(one, story.history) for one in curable)
    story.go(60)
    assert story.told() == told
    assert {check for _, check in story.over} == {check for _, check, _ in told}


def test_what_is_open_on_a_host_that_falls_silent_stays() -> None:
    capped = Story().go(TURN).go(60, lambda t: with_hosts(pulse(t), "spark2", gpu=CAPPED))
    capped.go(120, lambda t: with_hosts(pulse(t), "spark2", gpu=None, available=None, links={}, why="no route to host"))
    assert capped.told() == [("fault", "clocks", "spark2")]
    assert capped.over == []
    capped.go(60)
    assert [check for _, check in capped.over] == ["clocks"]
