"""The server's hosts while a row is measured: memory, power, clocks and traffic, sampled by `far/watch`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson

from cluster.argv.far import WORDS, framed, source
from cluster.argv.question import Answer
from cluster.errors import ConnectionLostError, UnreachableError
from cluster.hosts.fleet import Fleet
from cluster.hosts.protocol import Process
from cluster.spark import gpu, memory
from cluster.spark import links as spark_links
from cluster.spark.clock_limit import SETTING
from cluster.spark.deployments import Deployment
from cluster.spark.fact import known
from cluster.spark.gpu import CAPPED_MHZ

PERIOD_S = 2.0
MIB = 1 << 20
LEAST = ("memory_available_mib", "sm_clock_mhz")
MOST = ("gpu_memory_mib", "power_w", "temperature_c", "utilization_pct", "sm_clock_mhz")
SERIES = ("memory_available_mib", "gpu_memory_mib", "sm_clock_mhz", "power_w", "temperature_c", "utilization_pct")
BUSY_PCT = 50
UNEQUAL_CLOCK, UNEQUAL_MEMORY = 0.10, 0.20
LOST = (UnreachableError, ValueError, KeyError, TypeError)
"""What a host that cannot be reached, a connection that ends, or a line of something else raises."""


@dataclass(frozen=True, slots=True)
class PeerLinks:
    """How one host is connected to its peers: HCAs for RDMA, the netdev for TCP; both empty when it is alone."""

    role: str
    hcas: tuple[str, ...] = ()
    netdev: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of a host. `traffic`: bytes sent and received by link, `hca NAME` or `netdev NAME`."""

    t: float
    state: dict[str, Any]
    traffic: dict[str, tuple[int, int]]


def role(host: str, deployment: Deployment) -> str:
    return "head" if host == deployment.head else "worker"


def links_of(host: str, deployment: Deployment) -> PeerLinks:
    """How a host reaches its peers, as the deployment was started; one alone has none."""
    end = deployment.seen["hosts"].get(host, {}) if len(deployment.hosts) > 1 else {}
    return PeerLinks(role(host, deployment), tuple(end.get("hcas", ())), end.get("netdev") or "")


def watch_command(period_s: float = PERIOD_S) -> tuple[tuple[str, ...], bytes]:
    """Words and first stdin of the watching program, for `Host.start`."""
    questions = {"look": {"sections": ["memory"]}, "gpu": orjson.loads(gpu.question().argv[-1]), "links": {}}
    programs = [{"source": source(name).decode(), "given": given} for name, given in questions.items()]
    return WORDS, framed(source("watch")) + orjson.dumps({"programs": programs, "period_s": period_s}) + b"\n"


def read_sample(line: str, peers: PeerLinks) -> Sample:
    """One line of the watching program, without what is not known; traffic over the links to the peers only.

    Raises ValueError, KeyError or TypeError when it is none.
    """
    document = orjson.loads(line)
    looked, asked, linked = (Answer(0, text.encode()) for text in document["said"])
    ram, cards, processes = known(memory.parse(looked)), known(gpu.parse(asked)), known(gpu.parse_processes(asked))
    state: dict[str, Any] = {}
    if ram and ram.available is not None:
        state["memory_available_mib"] = ram.available // MIB
    if processes is not None and all(one.used_mib is not None for one in processes):
        state["gpu_memory_mib"] = sum(one.used_mib or 0 for one in processes)
    if cards:
        keys = ("sm_clock_mhz", "power_w", "temperature_c", "utilization_pct")
        state |= {key: getattr(cards[0], key) for key in keys} | {"throttle": list(cards[0].throttle or ())}
    moved: list[tuple[str, int | None, int | None]] = []
    if links := known(spark_links.parse(linked)):
        moved += [(f"hca {one.hca}", one.xmit_bytes, one.rcv_bytes) for one in links.links if one.hca in peers.hcas]
        netdevs = [one for one in links.netdevs if one.name == peers.netdev]
        moved += [(f"netdev {one.name}", one.tx_bytes, one.rx_bytes) for one in netdevs]
    return Sample(
        document["t"],
        {key: value for key, value in state.items() if value is not None},
        {name: (sent, received) for name, sent, received in moved if sent is not None and received is not None},
    )


def describe(samples: Mapping[str, Sequence[Sample]], peers: Mapping[str, PeerLinks]) -> dict[str, Any]:
    """One run as the row keeps it, by moment and host.

    `before`, `after`: the first and last sample. `least`, `most`: the extremes of all samples, with every reason for
    throttling. `links`: bytes sent and received meanwhile. `series`: the samples themselves, by quantity. `lost`: hosts
    without a sample.
    """
    found: dict[str, Any] = {name: {} for name in ("before", "after", "least", "most", "links", "series")}
    for host, some in samples.items():
        if not some:
            continue
        first, last, own_role = some[0], some[-1], {"role": peers[host].role}
        columns = {key: [one.state.get(key) for one in some] for key in SERIES if any(key in one.state for one in some)}
        values = {key: [value for value in column if value is not None] for key, column in columns.items()}
        reasons = dict.fromkeys(reason for one in some for reason in one.state.get("throttle", ()))
        found["before"][host] = own_role | first.state
        found["after"][host] = own_role | last.state
        found["least"][host] = own_role | {key: min(values[key]) for key in LEAST if key in values}
        most = {key: max(values[key]) for key in MOST if key in values}
        found["most"][host] = own_role | most | {"throttle": list(reasons)}
        found["series"][host] = {"t": [round(one.t, 2) for one in some]} | columns
        found["links"][host] = []
        for name, (sent, received) in last.traffic.items():
            kind, _, link = name.partition(" ")
            sent_before, received_before = first.traffic.get(name, (math.inf, math.inf))
            if sent >= sent_before and received >= received_before:  # no counter went back
                moved = {"sent_bytes": sent - sent_before, "received_bytes": received - received_before}
                found["links"][host].append({"link": link, "kind": kind} | moved)
    return found | {"lost": [host for host in peers if not samples.get(host)]}


def machine_notes(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a reader must know of a row's hosts: throttled, held back by power, unequal, silent links."""
    hosts = list(dict.fromkeys(host for run in runs for host in run.get("most", {})))
    notes = []
    clocks: dict[str, float] = {}
    memories: dict[str, float] = {}
    for host in hosts:
        most = [run["most"][host] for run in runs if host in run["most"]]
        reasons = dict.fromkeys(reason for state in most for reason in state.get("throttle", ()))
        if SETTING in reasons:
            notes.append(f"{host}: a setting limits the GPU's clocks")
            del reasons[SETTING]
        if reasons:
            notes.append(f"THROTTLED: {host} ({', '.join(reasons)})")
        if busy := busy_clocks(runs, host):
            clocks[host] = statistics.median(busy)
            if clocks[host] < CAPPED_MHZ:
                power = max((state.get("power_w", 0.0) for state in most), default=0.0)
                notes.append(f"POWER-CAPPED: {host} ran at {clocks[host]:.0f} MHz under load, at most {power:.0f} W")
        if used := [state["gpu_memory_mib"] for state in most if state.get("gpu_memory_mib")]:
            memories[host] = max(used)
    for host in dict.fromkeys(host for run in runs for host in run.get("lost", ())):
        gaps = [str(run["run"] + 1) for run in runs if host in run["lost"]]
        notes.append(f"nothing is known of {host} in run {', '.join(gaps)} of {len(runs)}: the connection was lost")
    for what, values, limit, unit in (
        ("SM clock under load", clocks, UNEQUAL_CLOCK, "MHz"),
        ("GPU memory", memories, UNEQUAL_MEMORY, "MiB"),
    ):
        if len(values) > 1 and min(values.values()) < (1 - limit) * max(values.values()):
            each = ", ".join(f"{host} {value:,.0f} {unit}" for host, value in values.items())
            notes.append(f"ASYMMETRIC HOSTS: {what}: {each}")
    moved = [link for run in runs for links in run.get("links", {}).values() for link in links]
    if len(hosts) > 1 and moved and not any(link["sent_bytes"] + link["received_bytes"] for link in moved):
        notes.append("no byte went over the links between the hosts")
    return notes


def busy_clocks(runs: Sequence[Mapping[str, Any]], host: str) -> list[float]:
    """SM clocks of the samples that found the GPU at work."""
    found = []
    for run in runs:
        series = run.get("series", {}).get(host, {})
        pairs = zip(series.get("sm_clock_mhz", ()), series.get("utilization_pct", ()), strict=False)
        found += [clock for clock, busy in pairs if clock is not None and busy is not None and busy >= BUSY_PCT]
    return found


class Watchers:
    """The hosts of some deployments, each with a running `far/watch`."""

    def __init__(self, fleet: Fleet, deployments: Sequence[Deployment]) -> None:
        """Start them all; when the user interrupts, no program stays running."""
        self._fleet = fleet
        self._peers = {host: links_of(host, one) for one in deployments for host in one.hosts}
        self._running: dict[str, tuple[Process, Iterator[str]]] = {}
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def begin(self) -> None:
        """A run is about to begin. Returns when every host has been sampled once."""
        self._start()
        self._ask(b'{"begin": true}\n', "begun")

    def end(self) -> dict[str, Any]:
        """The state of the hosts since `begin`."""
        return describe(self._ask(b'{"end": true}\n', "ended"), self._peers)

    def close(self) -> None:
        while self._running:
            self._running.popitem()[1][0].close()

    def _start(self) -> None:
        """Watch those that are not watched: at the start, and again after a connection was lost."""
        for host in self._peers:
            if host in self._running:
                continue
            with suppress(*LOST):
                process = self._fleet[host].start(*watch_command())
                self._running[host] = process, process.lines()
                self._read(host, "ready")

    def _ask(self, word: bytes, last: str) -> dict[str, list[Sample]]:
        """Send a line to each host that is watched; what each prints until the line with the last word."""
        for process, _ in self._running.values():
            with suppress(ConnectionLostError):  # reading finds it lost, too
                process.write(word)
        return {host: self._read(host, last) for host in self._peers if host in self._running}

    def _read(self, host: str, last: str) -> list[Sample]:
        """The samples until the line with this word; none from a host that is lost: this run has a gap."""
        process, lines = self._running[host]
        samples: list[Sample] = []
        with suppress(*LOST):
            for line in lines:
                if line.startswith(f'{{"{last}"'):
                    return samples
                if line.startswith('{"t"'):
                    samples.append(read_sample(line, self._peers[host]))
        del self._running[host]
        process.close(0)
        return []
