"""Time series of a deployment by hand: what the tests of the watch share. All is well until a test says otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cluster.diagnosis.hang import History, HostSnapshot, Key, OpenFinding, Snapshot, follow
from cluster.spark.finding import Finding
from cluster.spark.gpu import Gpu
from cluster.spark.server import Load

GIB = 1 << 30
HOSTS = ("spark1", "spark2")
LINKS = {"rocep1s0f0 (enp1s0f0np0)": True, "roceP2p1s0f0 (enP2p1s0f0np0)": True}


def gpu(busy: int | None = 96, power: float | None = 45.0, clock: int | None = 2411, *reasons: str) -> Gpu:
    """A GPU at work."""
    return Gpu("NVIDIA GB10", "580", None, None, power, clock, 55, busy, reasons)


SPINS = gpu(95, 20.3, 2405)
RESTS = gpu(0, 11.0, 2411)
CAPPED = gpu(96, 16.4, 611)


def host(t: float = 0.0, **changes: Any) -> HostSnapshot:
    """A host at work: a CPU core spins beside the GPU, the HCAs carry."""
    values: dict[str, Any] = {
        "gpu": gpu(),
        "cpu_s": t,
        "available": 20 * GIB,
        "links": LINKS,
        "rdma_bytes": int(t * 1e7),
        "tcp_bytes": int(t * 300),
    }
    return HostSnapshot(**values | changes)


def pulse(
    t: float, *, tokens: float | None = None, running: float = 1.0, waiting: float = 0.0, **changes: Any
) -> Snapshot:
    """A look at a pair that generates ten tokens a second."""
    load = Load(running, waiting, 10 * t if tokens is None else tokens, 2048.0, 0.1)
    values: dict[str, Any] = {"hosts": {name: host(t) for name in HOSTS}, "healthy": True, "load": load}
    return replace(Snapshot(t, values.pop("hosts"), **values), **changes)


def with_hosts(one: Snapshot, **changes: Any) -> Snapshot:
    """The same look with all hosts changed."""
    return replace(one, hosts={name: replace(host, **changes) for name, host in one.hosts.items()})


def with_host(one: Snapshot, name: str, **changes: Any) -> Snapshot:
    """The same look with one host changed."""
    return replace(one, hosts={**one.hosts, name: replace(one.hosts[name], **changes)})


@dataclass
class Story:
    """Looks every `interval` seconds, and what was said at which of them."""

    interval: float = 10.0
    t: float = 0.0
    history: History = field(default_factory=History)
    open_findings: Mapping[Key, OpenFinding] = field(default_factory=dict)
    said: list[tuple[float, Finding]] = field(default_factory=list)
    over: list[tuple[float, str]] = field(default_factory=list)

    def go(self, seconds: float, look: Callable[[float], Snapshot] = pulse) -> Story:
        """Let time pass with these looks."""
        until = self.t + seconds
        while self.t < until:
            self.t += self.interval
            self.history = self.history.after(look(self.t))
            change = follow(self.open_findings, self.history)
            self.open_findings = change.open_findings
            self.said += [(self.t, finding) for finding in change.raised]
            self.over += [(self.t, ended.finding.check) for ended in change.over]
        return self

    def told(self) -> list[tuple[str, str, str]]:
        """Level, check and host of all that was said, in order."""
        return [(one.level, one.check, one.host) for _, one in self.said]

    def faults(self) -> Iterator[tuple[float, Finding]]:
        """The faults, with their time."""
        return ((t, one) for t, one in self.said if one.level == "fault")
