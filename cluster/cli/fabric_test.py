"""`--fabric-test`: seconds of traffic over each link between neighbouring hosts, both ways, judged by the numbers."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from cluster.argv.fabric import VERSION, ib_write_bw, listening
from cluster.argv.far import started
from cluster.argv.ports import PORTS
from cluster.argv.question import Question
from cluster.cli.status import server_of
from cluster.errors import UnreachableError
from cluster.hosts.fleet import Fleet, in_parallel
from cluster.hosts.protocol import Host, Process
from cluster.screen import Screen
from cluster.spark import fabric_test, links
from cluster.spark import server as spark_server
from cluster.spark.deployments import Deployment
from cluster.spark.fabric import Fabric
from cluster.spark.fabric_test import (
    FABRIC_SPEED,
    STREAMS,
    Bandwidth,
    Flood,
    Obstacle,
    Speed,
    Way,
    judge_speeds,
    rounds,
    untested,
)
from cluster.spark.fact import WHY_LENGTH, Missing, known, plain, refuse
from cluster.spark.finding import Finding
from cluster.spark.links import Links
from cluster.spark.look import Seen

SECONDS = 2
"""Of traffic, a way; connecting and ending take about one more."""
DEADLINE_S = 12
"""After so many seconds each end of a test gives up, on its host."""
TRIES, PAUSE_S = 3, 0.5
"""How often ib_write_bw is started when its other end does not listen yet."""


@dataclass(frozen=True, slots=True)
class Tested:
    """What was found, and the numbers behind it; none when nothing could be tested."""

    findings: list[Finding]
    speeds: list[Speed] = field(default_factory=list)


def test_fabric(
    fabric: Fabric, found: Sequence[Deployment], seens: Mapping[str, Seen], fleet: Fleet, screen: Screen
) -> Tested:
    """Test link by link unless requests run over them, show what each gave, and judge it. Raises InterruptedByUser on
    Ctrl-C; then both ends are ended."""
    seen, tools = ask_ends(fabric, fleet)
    todo = rounds(fabric, seen, tools)
    if not todo:
        why = "the hosts share no fabric subnet" if len(fabric.hosts) > 1 else "one host has no peer"
        return not_judged(fabric, why)
    if users := in_use(found, seens, fleet):
        return not_judged(fabric, users)
    screen.note(f"fabric test: {len(todo)} measurements of {SECONDS} s, about {(SECONDS + 1) * len(todo)} s in all")
    speeds: list[Speed] = []
    rows = []
    with screen.waiting("the fabric") as line:
        for count, ways in enumerate(todo, 1):
            line.update(f"{count}/{len(todo)}: {' and '.join(way.text for way in ways)}")
            measured = run_round(ways, fleet)
            rows.append(row_of(measured))
            speeds += measured
    rows += [
        [f"{host} {link.netdev}", "", link.hca, "", f"not tested: {link.state}, no peer over it"]
        for host, link in untested(fabric, seen)
    ]
    screen.table("fabric", ["from", "to", "HCAs", ">Gb/s", "measured by"], rows)
    if users := in_use(found, seens, fleet):
        return not_judged(fabric, f"meanwhile {users}", speeds)
    return Tested([*judge_speeds(speeds)], speeds)


def not_judged(fabric: Fabric, why: str, speeds: Sequence[Speed] = ()) -> Tested:
    """Nothing can be said of the links: they could not be tested, or something else went over them."""
    remedy = "test again when no requests run" if "requests" in why else ""
    finding = FABRIC_SPEED.found("unknown", [*fabric.hosts][-1], "the links cannot be judged", why, remedy)
    return Tested([finding], list(speeds))


def ask_ends(fabric: Fabric, fleet: Fleet) -> tuple[dict[str, Links | Missing], dict[str, Missing | None]]:
    """By host the links as they are at this moment (GIDs move), and why there is no ib_write_bw."""
    seen: dict[str, Links | Missing] = {}
    tools: dict[str, Missing | None] = {}
    for host, outcome in fleet.ask({host: [links.question(gids=True), VERSION] for host in fabric.hosts}).items():
        if outcome.value is None:
            seen[host] = tools[host] = Missing(str(outcome.error), "timeout")
        else:
            seen[host], tools[host] = links.parse(outcome.value[0]), refuse(outcome.value[1], "ib_write_bw")
    return seen, tools


def in_use(found: Sequence[Deployment], seens: Mapping[str, Seen], fleet: Fleet) -> str:
    """What is being answered over the fabric now: the test would disturb it, and it the test. Empty when nothing is."""
    heads = {one.head: one for one in found if one.running and len(one.hosts) > 1 and one.head in seens}
    asked = {
        host: [spark_server.question(server_of(deployment, seens[host]), ask=False, timeout_s=5)]
        for host, deployment in heads.items()
    }
    busy = []
    for host, outcome in fleet.ask(asked).items():
        server = known(spark_server.parse(outcome.value[0])) if outcome.value else None
        if server and server.load and server.load.running:
            busy.append(f"{heads[host].id} has requests: {server.load.queue}")
    return "; ".join(busy)


def run_round(ways: Sequence[Way], fleet: Fleet) -> list[Speed]:
    """All ways of a round at the same time, each on threads of its own, so that Ctrl-C ends it."""
    jobs = {
        way.text: partial(measure, way, fleet, PORTS.perftest_first + number, together=len(ways) > 1)
        for number, way in enumerate(ways)
    }
    return [outcome.get() for outcome in in_parallel(jobs, len(jobs), fleet.cancel).values()]


def measure(way: Way, fleet: Fleet, port: int, *, together: bool) -> Speed:
    """By RDMA where that can be, else by TCP; a host that is lost meanwhile is a reason, not an error."""
    obstacles = way.obstacles
    try:
        if way.has_rdma and not obstacles:
            found = by_rdma(way, fleet, port)
            if isinstance(found, Bandwidth):
                return Speed(way, found, together=together)
            obstacles = (found,)
        return Speed(way, by_tcp(way, fleet), obstacles, together)
    except UnreachableError as error:
        return Speed(way, Missing(error.what, "timeout"), obstacles, together)


def by_rdma(way: Way, fleet: Fleet, port: int) -> Bandwidth | Obstacle:
    """ib_write_bw at both ends, each with its own HCA and GID index; else the end that failed, in its words."""
    here, there = (
        ib_write_bw(end.hca, end.gid_index or 0, port=port, seconds=SECONDS) for end in (way.sender, way.receiver)
    )
    with running(fleet[way.receiver.host], listening(there, DEADLINE_S)) as server:
        if said := until_it_waits(server):
            return way.receiver.host, Missing(said)
        call, sender = Question((*here, way.receiver.address), timeout_s=DEADLINE_S), fleet[way.sender.host]
        found = fabric_test.parse_bandwidth(sender.ask([call])[0])
        for _ in range(TRIES - 1):
            if isinstance(found, Bandwidth) or "Couldn't connect" not in found.why:
                break
            fleet.time.sleep(PAUSE_S)  # the other end says that it waits a moment before it listens
            found = fabric_test.parse_bandwidth(sender.ask([call])[0])
        return found if isinstance(found, Bandwidth) else (sender.name, found)


def until_it_waits(server: Process) -> str:
    """What ib_write_bw said when it ended instead of waiting for its other end; empty when it waits."""
    said: deque[str] = deque(maxlen=4)
    for line in server.lines():
        if "Waiting for client" in line:
            return ""
        said.append(plain(line[:WHY_LENGTH]).strip(" *"))
    return " ".join(filter(None, said))[:WHY_LENGTH] or "ib_write_bw ended without an error message"


def by_tcp(way: Way, fleet: Fleet) -> Flood | Missing:
    """far/flood at both ends, bound to the addresses of the link."""
    token = f"{secrets.token_hex(16)}\n".encode()  # travels on stdin
    both: dict[str, object] = {"address": way.receiver.address, "streams": STREAMS, "deadline_s": DEADLINE_S}
    words, program = started("flood", {"role": "receive", **both})
    with running(fleet[way.receiver.host], words, program + token) as receiver:
        port = fabric_test.parse_port(next(receiver.lines(), ""))
        if isinstance(port, Missing):
            return Missing(f"{way.receiver.host}: {port.why}")
        place = {"own": way.sender.address, "port": port, "seconds": SECONDS}
        words, program = started("flood", {"role": "send", **place, **both})
        with running(fleet[way.sender.host], words, program + token) as sender:
            return fabric_test.parse_flood(next(sender.lines(), ""))


@contextmanager
def running(host: Host, words: Sequence[str], stdin: bytes = b"") -> Iterator[Process]:
    """A program that is ended with the block, at once."""
    process = host.start(words, stdin)
    try:
        yield process
    finally:
        process.close(0)


def row_of(speeds: Sequence[Speed]) -> list[str]:
    """What a round gave: one way, or all links of a pair together."""
    sender, receiver = speeds[0].way.sender, speeds[0].way.receiver
    hcas = " → ".join(dict.fromkeys(end.hca for end in (sender, receiver) if end.hca))
    ends = [sender.text, receiver.text, hcas]
    if len(speeds) > 1:
        ends = [sender.host, receiver.host, f"{len(speeds)} links at once"]
    numbers = [speed.gbps for speed in speeds if speed.gbps is not None]
    total = f"{sum(numbers):.1f}" if len(numbers) == len(speeds) else "?"
    return [*ends, total, " and ".join(dict.fromkeys(map(how, speeds)))]


def how(speed: Speed) -> str:
    if isinstance(speed.result, Missing):
        return speed.result.why
    if isinstance(speed.result, Bandwidth):
        return "RDMA (ib_write_bw)"
    return f"TCP, {STREAMS} streams" + (", a CPU core may have been the limit" if speed.cpu_bound else "")
