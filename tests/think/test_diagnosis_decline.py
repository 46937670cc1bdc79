"""Memory that falls, clocks, links, sockets: trends are told, dips and steps are not."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from watch_tools import CAPPED, GIB, HOSTS, LINKS, Story, gpu, host, pulse, with_host, with_hosts

from cluster.diagnosis.hang import Snapshot, steady_fall

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


def test_memory_that_is_nearly_out() -> None:
    story = Story().go(TURN).go(60, memory(lambda s: 1.4))
    assert story.told() == [("fault", "memory-low", "spark2")]
    assert Story().go(TURN).go(10, memory(lambda s: 1.4)).go(60).told() == [], "one look"


def test_unread_memory_says_nothing() -> None:
    assert Story().go(1800, lambda t: with_hosts(pulse(t), available=None)).told() == []
    assert steady_fall([]) == 0.0


def test_clocks() -> None:
    once = Story().go(TURN).go(10, lambda t: with_host(pulse(t), "spark1", gpu=CAPPED)).go(60)
    assert once.told() == []
    story = Story().go(TURN).go(60, lambda t: with_host(pulse(t), "spark1", gpu=CAPPED))
    assert story.told() == [("fault", "clocks", "spark1")]
    slowed = gpu(96, 41.0, 650, "hardware thermal slowdown")
    story = Story().go(TURN).go(60, lambda t: with_host(pulse(t), "spark1", gpu=slowed))
    assert story.told() == [("warning", "clocks", "spark1")]
    assert "hardware thermal slowdown" in story.said[0][1].evidence


def test_links() -> None:
    first, second = LINKS
    story = Story().go(60).go(60, lambda t: with_host(pulse(t), "spark2", links={first: False, second: False}))
    assert story.told() == [("fault", "link", "spark2")]
    story.go(60)
    assert story.over == [(150.0, "link")]
    twin = Story().go(60).go(60, lambda t: with_host(pulse(t), "spark2", links={first: True, second: False}))
    assert twin.told() == [("warning", "link", "spark2")]
    assert twin.said[0][1].evidence == second


def test_a_link_that_flaps_is_said_once() -> None:
    down = dict.fromkeys(LINKS, False)

    def flaps(t: float) -> Snapshot:
        return with_host(pulse(t), "spark2", links=down if t // 10 % 3 else LINKS)

    story = Story().go(60).go(300, flaps)
    assert story.told() == [("fault", "link", "spark2")]
    assert story.over == []
    assert Story().go(60).go(10, lambda t: with_host(pulse(t), "spark2", links=down)).go(60).told() == []


def over_tcp(t: float) -> Snapshot:
    """Tokens come, the HCAs stand still, the netdevs carry."""
    return replace(pulse(t), hosts={name: host(t, rdma_bytes=7, tcp_bytes=int(t * 1e6)) for name in HOSTS})


def test_fall_back_to_sockets() -> None:
    story = Story().go(600).go(600, lambda t: replace(over_tcp(t), t=t))
    assert story.told() == [("warning", "socket-fallback", "")]
    assert story.over == []


NO_FALLBACK: dict[str, Callable[[float], Snapshot]] = {
    "no tokens": lambda t: replace(over_tcp(t), load=pulse(0, running=0).load),
    "counters of one host cannot be read": lambda t: with_host(over_tcp(t), "spark2", rdma_bytes=None),
    "one HCA carries": lambda t: with_host(over_tcp(t), "spark2", rdma_bytes=int(t * 1e7)),
    "nothing goes over TCP either": lambda t: with_hosts(over_tcp(t), tcp_bytes=5),
}


@pytest.mark.parametrize("look", NO_FALLBACK.values(), ids=NO_FALLBACK)
def test_what_is_no_fall_back(look: Callable[[float], Snapshot]) -> None:
    assert "socket-fallback" not in [check for _, check, _ in Story().go(600).go(600, look).told()]


def test_sockets_from_the_beginning_were_wanted() -> None:
    assert Story().go(1200, over_tcp).told() == []


def test_what_stood_on_a_host_that_falls_silent_stays() -> None:
    capped = Story().go(TURN).go(60, lambda t: with_host(pulse(t), "spark2", gpu=CAPPED))
    capped.go(120, lambda t: with_host(pulse(t), "spark2", gpu=None, available=None, links={}, why="no route to host"))
    assert capped.told() == [("fault", "clocks", "spark2")]
    assert capped.over == []
    capped.go(60)
    assert [check for _, check in capped.over] == ["clocks"]
