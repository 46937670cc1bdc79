"""The server's hosts while a row is measured: memory, power, clocks and traffic, sampled by `far/watch`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from cluster.argv.far import WORDS, framed, source
from cluster.argv.question import Answer
from cluster.errors import ConnectionLostError, UnreachableError
from cluster.hosts.fleet import Fleet
from cluster.hosts.protocol import Host, Process
from cluster.spark import gpu, memory
from cluster.spark import links as spark_links
from cluster.spark.deployments import Deployment
from cluster.spark.fact import Missing
from cluster.spark.gpu import CAPPED_MHZ

PERIOD_S = 2.0
MIB = 1 << 20
LEAST = ("memory_available_mib", "sm_clock_mhz")
MOST = ("gpu_memory_mib", "power_w", "temperature_c", "utilization_pct", "sm_clock_mhz")
SERIES = ("memory_available_mib", "gpu_memory_mib", "sm_clock_mhz", "power_w", "temperature_c", "utilization_pct")
BUSY_PCT = 50
UNEQUAL_CLOCK, UNEQUAL_MEMORY = 0.10, 0.20


class Machine(Protocol):
    """The hosts that serve, as a measurement sees them."""

    def begin(self) -> None:
        """A run is about to begin. Returns when every host has been looked at once."""
        ...

    def end(self) -> dict[str, Any]:
        """What the hosts were like since `begin`, as `describe` has it; empty when nothing is known of them."""
        ...


class NoMachine:
    def begin(self) -> None:
        pass

    def end(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, slots=True)
class Fabric:
    """How one host is connected to its peers: HCAs for RDMA, the netdev for TCP."""

    role: str
    hcas: tuple[str, ...] = ()
    netdev: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a host. `bytes_sent` and `bytes_received` by link: `hca NAME` or `netdev NAME`."""

    t: float
    state: dict[str, Any]
    traffic: dict[str, tuple[int, int]]


def watch_command(period_s: float = PERIOD_S) -> tuple[tuple[str, ...], bytes]:
    """Words and first stdin of the watching program, for `Host.start`."""
    questions: tuple[tuple[str, Any], ...] = (
        ("look", {"sections": ["memory"]}),
        ("gpu", orjson.loads(gpu.question().argv[-1])),
        ("links", {}),
    )
    programs = [{"source": source(name).decode(), "given": given} for name, given in questions]
    return WORDS, framed(source("watch")) + orjson.dumps({"programs": programs, "period_s": period_s}) + b"\n"


def read_sample(line: str, fabric: Fabric) -> Sample:
    """One line of the watching program, without what is not told; traffic over the links to the peers only.

    Raises ValueError, KeyError or TypeError when it is none.
    """
    look = orjson.loads(line)
    looked, asked, linked = (Answer(0, said.encode()) for said in look["said"])
    ram, card, rows, links = (
        memory.parse(looked),
        gpu.parse(asked),
        gpu.parse_processes(asked),
        spark_links.parse(linked),
    )
    state: dict[str, Any] = {}
    if not isinstance(ram, Missing) and ram.available is not None:
        state["memory_available_mib"] = ram.available // MIB
    if not isinstance(rows, Missing) and all(row.used_mib is not None for row in rows):
        state["gpu_memory_mib"] = sum(row.used_mib or 0 for row in rows)
    if not isinstance(card, Missing) and card:
        one = card[0]
        state |= {"sm_clock_mhz": one.sm_clock_mhz, "power_w": one.power_w, "temperature_c": one.temperature_c}
        state |= {"utilization_pct": one.utilization_pct, "throttle": list(one.throttle or ())}
    traffic = {}
    for link in () if isinstance(links, Missing) else links.links:
        if link.hca in fabric.hcas and link.xmit_bytes is not None and link.rcv_bytes is not None:
            traffic[f"hca {link.hca}"] = (link.xmit_bytes, link.rcv_bytes)
    for netdev in () if isinstance(links, Missing) else links.netdevs:
        if netdev.name == fabric.netdev:
            traffic[f"netdev {netdev.name}"] = (netdev.tx_bytes, netdev.rx_bytes)
    known = {key: value for key, value in state.items() if value is not None}
    return Sample(float(look["t"]), known, traffic)


def describe(samples: Mapping[str, Sequence[Sample]], fabrics: Mapping[str, Fabric]) -> dict[str, Any]:
    """One run as the row keeps it, by moment and host.

    `before`, `after`: the first and last look. `least`, `most`: the extremes of all looks, with every reason for
    throttling. `links`: bytes sent and received meanwhile. `series`: the looks themselves, by quantity. `lost`: hosts
    that told nothing.
    """
    found: dict[str, dict[str, Any]] = {name: {} for name in ("before", "after", "least", "most", "links", "series")}
    for host, looks in samples.items():
        if not looks:
            continue
        role = {"role": fabrics[host].role}
        found["before"][host] = role | looks[0].state
        found["after"][host] = role | looks[-1].state
        found["least"][host] = role | _extreme(looks, LEAST, min)
        reasons = [reason for look in looks for reason in look.state.get("throttle", ())]
        found["most"][host] = role | _extreme(looks, MOST, max) | {"throttle": list(dict.fromkeys(reasons))}
        found["links"][host] = []
        for name, now in looks[-1].traffic.items():
            kind, _, link = name.partition(" ")
            sent, received = (
                new - old for new, old in zip(now, looks[0].traffic.get(name, (math.inf,) * 2), strict=True)
            )
            if sent >= 0 and received >= 0:  # no counter went back
                moved = {"link": link, "kind": kind, "sent_bytes": sent, "received_bytes": received}
                found["links"][host].append(moved)
        found["series"][host] = {"t": [round(look.t, 2) for look in looks]}
        for key in SERIES:
            if any(key in look.state for look in looks):
                found["series"][host][key] = [look.state.get(key) for look in looks]
    lost = [host for host in fabrics if not samples.get(host)]
    return {**found, "lost": lost} if fabrics else {}


def _extreme(looks: Sequence[Sample], keys: Sequence[str], pick: Any) -> dict[str, Any]:
    """The lowest or highest of each quantity."""
    values = {key: [look.state[key] for look in looks if key in look.state] for key in keys}
    return {key: pick(found) for key, found in values.items() if found}


def machine_notes(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a reader must know of a row's hosts: throttled, held back by power, unequal, silent links."""
    hosts = list(dict.fromkeys(host for run in runs for host in run.get("most", {})))
    notes = []
    clocks: dict[str, float] = {}
    memories: dict[str, float] = {}
    for host in hosts:
        most = [run["most"][host] for run in runs if host in run["most"]]
        reasons = list(dict.fromkeys(reason for state in most for reason in state.get("throttle", ())))
        if reasons:
            notes.append(f"THROTTLED: {host} ({', '.join(reasons)})")
        busy = busy_clocks(runs, host)
        if busy:
            clocks[host] = statistics.median(busy)
            if clocks[host] < CAPPED_MHZ:
                power = max((state.get("power_w", 0.0) for state in most), default=0.0)
                notes.append(f"POWER-CAPPED: {host} ran at {clocks[host]:.0f} MHz under load, at most {power:.0f} W")
        if held := [state["gpu_memory_mib"] for state in most if state.get("gpu_memory_mib")]:
            memories[host] = max(held)
    for host in dict.fromkeys(host for run in runs for host in run.get("lost", ())):
        gaps = [str(run.get("run", at) + 1) for at, run in enumerate(runs) if host in run.get("lost", ())]
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
    """SM clocks at the looks that found the GPU at work."""
    found = []
    for run in runs:
        series = run.get("series", {}).get(host, {})
        pairs = zip(series.get("sm_clock_mhz", ()), series.get("utilization_pct", ()), strict=False)
        found += [clock for clock, busy in pairs if clock is not None and busy is not None and busy >= BUSY_PCT]
    return found


LOST = (UnreachableError, ValueError, KeyError, TypeError)
"""What a host that cannot be reached, a connection that ends, or a line of something else raises."""


class Watcher:
    """One host's `far/watch`. When it is lost, this run has a gap, and the next begins with a new one."""

    def __init__(self, host: Host, fabric: Fabric) -> None:
        self.host, self.fabric = host, fabric
        self.process: Process | None = None
        self.lines: Iterator[str] = iter(())

    def start(self) -> None:
        """Watch, unless it is watched. Raises one of LOST."""
        if self.process is None:
            self.process = self.host.start(*watch_command())
            self.lines = self.process.lines()
            self.read("ready")

    def ask(self, word: bytes) -> None:
        if self.process:
            self.process.write(word)

    def read(self, last: str) -> list[Sample]:
        """What it prints until the line with this word. Raises one of LOST."""
        samples: list[Sample] = []
        for line in self.lines:
            if line.startswith(f'{{"{last}"'):
                return samples
            if line.startswith('{"t"'):
                samples.append(read_sample(line, self.fabric))
        raise ConnectionLostError("the sampling program ended", code="sampling-lost", where=self.host.name)

    def close(self, timeout_s: float = 5.0) -> None:
        """End the program."""
        process, self.process = self.process, None
        if process:
            process.close(timeout_s)


class Watchers:
    """The hosts of a deployment, watched by `far/watch` on each; a host that is lost is missing until it is back."""

    def __init__(self, fleet: Fleet, deployment: Deployment) -> None:
        """Start them all; when the user interrupts, none is left behind."""
        self._all = {host: Watcher(fleet[host], fabric_of(host, deployment)) for host in deployment.hosts}
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def begin(self) -> None:
        self._start()
        self._each(b'{"begin": true}\n', "begun")

    def end(self) -> dict[str, Any]:
        samples = self._each(b'{"end": true}\n', "ended")
        return describe(samples, {host: one.fabric for host, one in self._all.items()})

    def close(self) -> None:
        for one in self._all.values():
            one.close()

    def _start(self) -> None:
        for one in self._all.values():
            try:
                one.start()
            except LOST:
                one.close(0)

    def _each(self, word: bytes, last: str) -> dict[str, list[Sample]]:
        """Send a line to each host that is watched, then what each prints until the line with the last word."""
        found: dict[str, list[Sample]] = {}
        for one in self._all.values():
            with suppress(ConnectionLostError):  # reading finds it lost, too
                one.ask(word)
        for host, one in self._all.items():
            try:
                found[host] = one.read(last) if one.process else []
            except LOST:
                one.close(0)
        return found


def fabric_of(host: str, deployment: Deployment) -> Fabric:
    """How a host reaches its peers, as the deployment was started; one alone has none."""
    end = deployment.seen["hosts"].get(host, {}) if len(deployment.hosts) > 1 else {}
    return Fabric(role(host, deployment), tuple(end.get("hcas", ())), end.get("netdev") or "")


@contextmanager
def watching(fleet: Fleet, deployment: Deployment) -> Iterator[Machine]:
    watchers = Watchers(fleet, deployment)
    try:
        yield watchers
    finally:
        watchers.close()


def role(host: str, deployment: Deployment) -> str:
    return "head" if host == deployment.head else "worker"
