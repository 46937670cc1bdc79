"""Looks at a running deployment, one after the other: what is watched for hangs and decline. Values, and what a look
is read from; None is unknown everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cluster.spark.fact import Missing
from cluster.spark.gpu import Gpu
from cluster.spark.gpu_processes import GpuProcess
from cluster.spark.links import Links
from cluster.spark.lock import LockState
from cluster.spark.memory import Memory
from cluster.spark.metrics import Load
from cluster.spark.ready import Failed

KEPT_S = 900.0
MOST = 450
"""Looks are kept for a quarter of an hour, and never more than so many."""
CARRIED_S, CARRIES_BYTES, CARRIES_TOKENS = 60.0, 64 << 10, 20
"""In a minute so many tokens over several ranks move more than so many bytes, and an idle link less."""


CHANGING = ("up", "down", "restart", "swap")
"""First words of what a lock is held for by those who start and stop ranks; a benchmark holds it too and does not."""


@dataclass(frozen=True, slots=True)
class HostPulse:
    """One look at one host of the deployment.

    `cpu_s`: CPU time so far of our ranks' GPU processes and all below them. `available`: bytes. `links`: the links that
    face the peers, and whether each is up. `rdma_bytes`, `tcp_bytes`: sent and received so far by the HCAs and by the
    netdev that face the peers. `why`: why the host did not answer, empty when it did.
    """

    gpu: Gpu | None = None
    cpu_s: float | None = None
    available: int | None = None
    links: Mapping[str, bool] = field(default_factory=dict)
    rdma_bytes: int | None = None
    tcp_bytes: int | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Pulse:
    """One look at a deployment. `t`: seconds that only grow. `hosts`: every host of it, in rank order.

    `healthy`: what /health says. `load`: the server's counters. `lost`: the rank that ended first. `lock`: a lock that
    somebody holds on one of the hosts.
    """

    t: float
    hosts: Mapping[str, HostPulse]
    healthy: bool | None = None
    load: Load | None = None
    lost: Failed | None = None
    lock: LockState | None = None

    @property
    def requests(self) -> float | None:
        """Requests that run or wait."""
        if self.load is None or self.load.running is None:
            return None
        return self.load.running + (self.load.waiting or 0.0)

    @property
    def changing(self) -> bool:
        """Whether somebody is starting or stopping something on these hosts."""
        return self.lock is not None and self.lock.why.partition(" ")[0] in CHANGING

    def knows(self, host: str) -> bool:
        """Whether a host answered; with "", whether all did and the server was asked."""
        if host in self.hosts:
            return not self.hosts[host].why
        return self.healthy is not None and not any(one.why for one in self.hosts.values())


@dataclass(frozen=True, slots=True)
class Course:
    """What is remembered of a deployment since its ranks were started: the latest looks, and what went before them.

    `since`: the first look. `served_since`: the first one at which the server answered. `frozen_since`: the first one
    of those in a row at which requests were there and no counter moved. `rdma`: the HCAs were seen to carry tokens.
    """

    pulses: tuple[Pulse, ...] = ()
    since: float = 0.0
    served_since: float | None = None
    frozen_since: float | None = None
    rdma: bool = False

    @property
    def last(self) -> Pulse:
        """The latest look."""
        return self.pulses[-1]

    @property
    def frozen_s(self) -> float:
        """For how long requests have been there without a counter moving."""
        return 0.0 if self.frozen_since is None else self.last.t - self.frozen_since

    def recent(self, seconds: float, looks: int = 3) -> tuple[Pulse, ...]:
        """The looks of the last `seconds` with the one before them, more when they are rare; empty when there are fewer
        than `looks`, or none so old."""
        begin = self.last.t - seconds
        old = [at for at, pulse in enumerate(self.pulses) if pulse.t <= begin]
        return self.pulses[min(old[-1], len(self.pulses) - looks) :] if old and len(self.pulses) >= looks else ()

    def of_host(self, host: str, seconds: float) -> tuple[HostPulse, ...]:
        """The same for one host."""
        return tuple(pulse.hosts[host] for pulse in self.recent(seconds))

    def after(self, pulse: Pulse) -> Course:
        """The course with one more look."""
        if not self.pulses:
            served, frozen = pulse.t if pulse.healthy else None, pulse.t if pulse.requests else None
            return Course((pulse,), pulse.t, served, frozen, self.rdma)
        kept = tuple(old for old in self.pulses if old.t >= pulse.t - KEPT_S)[1 - MOST :]
        served = pulse.t if self.served_since is None and pulse.healthy else self.served_since
        more = replace(self, pulses=(*kept, pulse), served_since=served, frozen_since=self._frozen(pulse))
        return replace(more, rdma=self.rdma or _rdma_carried(more.recent(CARRIED_S)))

    def _frozen(self, pulse: Pulse) -> float | None:
        """A look that tells no counters changes nothing: the next one is compared with the last that did."""
        if pulse.requests is None:
            return self.frozen_since
        if not pulse.requests:
            return None
        before = next((old.load for old in reversed(self.pulses) if old.requests is not None), None)
        moved = before is None or pulse.load is None or before.counters != pulse.load.counters
        return pulse.t if moved or self.frozen_since is None else self.frozen_since


def tokens_between(first: Pulse, last: Pulse) -> float:
    """Tokens generated between two looks; 0 when not known, or when the server began anew."""
    if first.load is None or last.load is None or first.load.tokens is None or last.load.tokens is None:
        return 0.0
    return max(0.0, last.load.tokens - first.load.tokens)


def grown(first: int | None, last: int | None) -> int | None:
    """How far a counter came; None when not known, or when it began anew."""
    return None if first is None or last is None or last < first else last - first


def _rdma_carried(looks: Sequence[Pulse]) -> bool:
    if not looks or len(looks[-1].hosts) < 2 or tokens_between(looks[0], looks[-1]) < CARRIES_TOKENS:
        return False
    first, last = looks[0], looks[-1]
    moved = [grown(first.hosts[name].rdma_bytes, one.rdma_bytes) for name, one in last.hosts.items()]
    return all((bytes_ or 0) >= CARRIES_BYTES for bytes_ in moved)


def read_host(
    containers: Sequence[str],
    facing: tuple[Sequence[str], str],
    memory: Memory | Missing,
    gpus: tuple[Gpu, ...] | Missing,
    processes: tuple[GpuProcess, ...] | Missing,
    links: Links | Missing,
) -> HostPulse:
    """One host's facts as a look. `containers`: ids of our ranks there; `facing`: HCAs and netdev towards the peers."""
    spent = () if isinstance(processes, Missing) else [one.cpu_s for one in processes if one.container in containers]
    known = [one for one in spent if one is not None]
    up, rdma, tcp = ({}, None, None) if isinstance(links, Missing) else _read_links(links, *facing)
    return HostPulse(
        gpu=None if isinstance(gpus, Missing) or not gpus else gpus[0],
        cpu_s=sum(known) if known and len(known) == len(spent) else None,
        available=None if isinstance(memory, Missing) else memory.available,
        links=up,
        rdma_bytes=rdma,
        tcp_bytes=tcp,
    )


def _read_links(links: Links, hcas: Sequence[str], netdev: str) -> tuple[dict[str, bool], int | None, int | None]:
    """Which facing links are up, bytes over the HCAs, bytes over the netdev."""
    rows = [link for link in links.links if link.hca in hcas]
    up = {f"{link.hca} ({link.netdev})": link.is_active and link.operstate != "down" for link in rows}
    sums = [
        None if None in (link.xmit_bytes, link.rcv_bytes) else _sum(link.xmit_bytes, link.rcv_bytes) for link in rows
    ]
    own = next((one for one in links.netdevs if one.name == netdev), None)
    if own and not any(link.netdev == netdev for link in rows):
        up[netdev] = own.operstate != "down"
    rdma = None if not sums or None in sums else _sum(*sums)
    return up, rdma, own.rx_bytes + own.tx_bytes if own else None


def _sum(*values: int | None) -> int:
    return sum(value or 0 for value in values)
