"""Watches a deployment that serves: tells hangs from compiles and long prefills, lost ranks, what gets worse."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, TypeVar

from cluster.diagnosis.rules import OF_OUTPUTS, read_rules
from cluster.spark.deployments import LockState
from cluster.spark.fact import Missing
from cluster.spark.finding import Check, Finding, Level
from cluster.spark.gpu import Gpu, GpuProcess, judge_gpu
from cluster.spark.links import Links
from cluster.spark.memory import GIB, Memory
from cluster.spark.ranks import Failed
from cluster.spark.server import Load

RANK = Check("rank", "it-hangs#a-rank-is-gone")
SERVER = Check("server", "it-hangs")
MEMORY_FALLING = Check("memory-falling", "memory-is-full")
SOCKET_FALLBACK = Check("socket-fallback", "it-is-slow#tcp-instead-of-roce")
WEDGE = Check("wedge", "it-hangs#wedged")
MEMORY_LOW = Check("memory-low", "memory-is-full")
CLOCKS = Check("clocks", "it-is-slow#power-cap")
LINK = Check("link", "it-hangs#the-link-is-cut")

KEPT_S = 900.0
MOST = 450
"""Looks are kept for a quarter of an hour, and never more than so many."""
CARRIED_S, CARRIES_BYTES, CARRIES_TOKENS = 60.0, 64 << 10, 20
"""In a minute so many tokens over several ranks move more than so many bytes, and an idle link less."""

N = TypeVar("N", int, float)
CHANGING = ("up", "down", "restart", "swap")
"""First words of what a lock is held for by those who start and stop ranks; a benchmark holds it too and does not."""


@dataclass(frozen=True, slots=True)
class HostSnapshot:
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
class Snapshot:
    """One look at a deployment. `t`: seconds that only grow. `hosts`: every host of it, in rank order.

    `healthy`: what /health says. `load`: the server's counters. `lost`: the rank that ended first. `lock`: a lock that
    somebody holds on one of the hosts.
    """

    t: float
    hosts: Mapping[str, HostSnapshot]
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
class History:
    """What is remembered of a deployment since its ranks were started: the latest looks, and what went before them.

    `since`: the first look. `served_since`: the first one at which the server answered. `frozen_since`: the first one
    of those in a row at which requests were there and no counter moved. `rdma`: the HCAs were seen to carry tokens.
    """

    snapshots: tuple[Snapshot, ...] = ()
    since: float = 0.0
    served_since: float | None = None
    frozen_since: float | None = None
    rdma: bool = False

    @property
    def last(self) -> Snapshot:
        """The latest look."""
        return self.snapshots[-1]

    @property
    def frozen_s(self) -> float:
        """For how long requests have been there without a counter moving."""
        return 0.0 if self.frozen_since is None else self.last.t - self.frozen_since

    def recent(self, seconds: float, looks: int = 3) -> tuple[Snapshot, ...]:
        """The looks of the last `seconds` with the one before them, more when they are rare; empty when there are fewer
        than `looks`, or none so old."""
        old = [at for at, snapshot in enumerate(self.snapshots) if snapshot.t <= self.last.t - seconds]
        enough = old and len(self.snapshots) >= looks
        return self.snapshots[min(old[-1], len(self.snapshots) - looks) :] if enough else ()

    def of_host(self, host: str, seconds: float) -> tuple[HostSnapshot, ...]:
        """The same for one host."""
        return tuple(snapshot.hosts[host] for snapshot in self.recent(seconds))

    def after(self, snapshot: Snapshot) -> History:
        """The history with one more look."""
        if not self.snapshots:
            served, frozen = snapshot.t if snapshot.healthy else None, snapshot.t if snapshot.requests else None
            return History((snapshot,), snapshot.t, served, frozen, self.rdma)
        kept = tuple(old for old in self.snapshots if old.t >= snapshot.t - KEPT_S)[1 - MOST :]
        served = snapshot.t if self.served_since is None and snapshot.healthy else self.served_since
        more = replace(self, snapshots=(*kept, snapshot), served_since=served, frozen_since=self._frozen(snapshot))
        looks = more.recent(CARRIED_S)
        generates = looks and len(snapshot.hosts) > 1 and tokens_in(looks) >= CARRIES_TOKENS
        carried = generates and all((moved or 0) >= CARRIES_BYTES for moved in grown(looks, "rdma_bytes").values())
        return replace(more, rdma=self.rdma or bool(carried))

    def _frozen(self, snapshot: Snapshot) -> float | None:
        """A look that tells no counters changes nothing: the next one is compared with the last that did."""
        if snapshot.requests is None:
            return self.frozen_since
        if not snapshot.requests:
            return None
        before = next((old.load for old in reversed(self.snapshots) if old.requests is not None), None)
        moved = before is None or snapshot.load is None or before.counters != snapshot.load.counters
        return snapshot.t if moved or self.frozen_since is None else self.frozen_since


def tokens_in(looks: Sequence[Snapshot]) -> float:
    """Tokens generated meanwhile; 0 when not known, or when the server started again."""
    before, now = (look.load.tokens if look.load else None for look in (looks[0], looks[-1]))
    return 0.0 if before is None or now is None else max(0.0, now - before)


def grown(looks: Sequence[Snapshot], counter: Literal["rdma_bytes", "tcp_bytes"]) -> dict[str, int | None]:
    """How far a counter of each host came; None when not known, or when it started again."""
    first, last = ({host: getattr(one, counter) for host, one in look.hosts.items()} for look in (looks[0], looks[-1]))
    return {host: None if None in (first[host], b) or b < first[host] else b - first[host] for host, b in last.items()}


def read_host(
    containers: Sequence[str],
    facing: tuple[Sequence[str], str],
    memory: Memory | Missing,
    gpus: tuple[Gpu, ...] | Missing,
    processes: tuple[GpuProcess, ...] | Missing,
    links: Links | Missing,
) -> HostSnapshot:
    """One host's facts as a look. `containers`: ids of our ranks there; `facing`: HCAs and netdev towards the peers."""
    spent = () if isinstance(processes, Missing) else [one.cpu_s for one in processes if one.container in containers]
    up: dict[str, bool] = {}
    rdma = tcp = None
    if not isinstance(links, Missing):
        hcas, netdev = facing
        rows = [link for link in links.links if link.hca in hcas]
        up = {f"{link.hca} ({link.netdev})": link.is_active and link.operstate != "down" for link in rows}
        rdma = total([link.moved_bytes for link in rows])
        for own in [one for one in links.netdevs if one.name == netdev][:1]:
            tcp = own.rx_bytes + own.tx_bytes
            if not any(link.netdev == netdev for link in rows):
                up[netdev] = own.operstate != "down"
    return HostSnapshot(
        gpu=None if isinstance(gpus, Missing) or not gpus else gpus[0],
        cpu_s=total(spent),
        available=None if isinstance(memory, Missing) else memory.available,
        links=up,
        rdma_bytes=rdma,
        tcp_bytes=tcp,
    )


def total(values: Sequence[N | None]) -> N | None:
    """The sum, when there are values and all are known."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


FLOOR = 2 * GIB
"""With less available a Spark begins to stand still: the GPU's memory is the host's."""
HORIZON_S = 7200.0
TRENDS_S = (300.0, 900.0)
"""A fall is looked for in the last minutes first, a slower one in all that is remembered."""
LEAST_FALL = GIB // 4
HELD_S = 30.0
HOLDERS = "docker ps; nvidia-smi --query-compute-apps=pid,process_name,used_gpu_memory --format=csv"
TCP_BYTES = 1 << 20


def judge_memory(history: History) -> Iterator[Finding]:
    """Memory that is nearly out, or falls steadily so that it will be within two hours. Loading is no decline."""
    served, now = history.served_since, history.last.t
    for host in history.last.hosts:
        low = [look.available for look in history.of_host(host, HELD_S)]
        if low and all(value is not None and value < FLOOR for value in low):
            what = f"only {(low[-1] or 0) / GIB:.1f} GiB of memory are available"
            yield MEMORY_LOW.fault(host, what, f"MemAvailable below {FLOOR / GIB:.0f} GiB for {HELD_S:.0f} s", HOLDERS)
            continue
        looks = [look for look in history.snapshots if served is not None and look.t >= served]
        series = [(look.t, value) for look in looks if (value := look.hosts[host].available) is not None]
        trends = [[row for row in series if row[0] >= now - seconds] for seconds in TRENDS_S]
        rate, series = next(((rate, rows) for rows in trends if (rate := steady_fall(rows))), (0.0, []))
        left_s = max(0.0, (series[-1][1] - FLOOR) / rate) if rate else HORIZON_S
        if left_s < HORIZON_S:
            (begin, first), (end, last) = series[0], series[-1]
            what = f"memory falls by {rate * 60 / GIB:.2f} GiB a minute and will run out in {left_s / 60:.0f} min"
            evidence = f"MemAvailable {first / GIB:.1f} → {last / GIB:.1f} GiB in {(end - begin) / 60:.0f} min"
            yield MEMORY_FALLING.warning(host, what, evidence, HOLDERS)


def steady_fall(series: Sequence[tuple[float, int]]) -> float:
    """Bytes a second by which memory falls; 0 when it does not, or not steadily: the most that is available in each
    quarter of the time is well below that of the one before, so neither dips nor a single step count."""
    if len(series) < 8 or series[-1][0] - series[0][0] < TRENDS_S[0] * 0.9:
        return 0.0
    span = (series[-1][0] - series[0][0]) / 4
    quarters: list[list[int]] = [[], [], [], []]
    for t, value in series:
        quarters[min(3, int((t - series[0][0]) / span))].append(value)
    if not all(quarters):
        return 0.0
    falls = [before - after for before, after in pairwise(map(max, quarters))]
    steady = min(falls) * 4 >= max(falls) > 0 and sum(falls) >= LEAST_FALL
    return sum(falls) / (3 * span) if steady else 0.0


def judge_clocks(history: History) -> Iterator[Finding]:
    """Low clocks under load, at every look of half a minute."""
    for host, now in history.last.hosts.items():
        looks = history.of_host(host, HELD_S)
        states = {judge_gpu(look.gpu) if look.gpu else "unknown" for look in looks}
        if not now.gpu or not states or not states <= {"capped", "slowed"}:
            continue
        rule, power = OF_OUTPUTS["gpu-power-capped"], f"{now.gpu.power_w:.0f}"
        reasons = ", ".join(now.gpu.throttle or ()) or "no reason reported"
        evidence = f"{now.gpu.utilization_pct} % busy at {power} W, {now.gpu.sm_clock_mhz} MHz; {reasons}"
        if "capped" in states:
            what = "the GPU is held at low clocks and power: its power is capped by supply or firmware"
            yield CLOCKS.fault(host, what, evidence, rule.remedy)
        else:
            yield CLOCKS.warning(host, "the GPU works at low clocks", evidence, "nvidia-smi -q -d PERFORMANCE")


def judge_links(history: History) -> Iterator[Finding]:
    """A link to the peers that is down at two looks in a row; one twin of two halves the bandwidth."""
    for host, now in history.last.hosts.items():
        before = history.snapshots[-2].hosts.get(host) if len(history.snapshots) > 1 else None
        down = [name for name, up in now.links.items() if not up and before and before.links.get(name) is False]
        if down:
            alone = len(down) == len(now.links)
            one = "one of its links to the peers is down: half the bandwidth"
            remedy = f"see the cable at both ends; on {host}: rdma link; ip link"
            level: Level = "fault" if alone else "warning"
            yield LINK.found(level, host, "the link to its peers is down" if alone else one, ", ".join(down), remedy)


def judge_transport(history: History) -> Iterator[Finding]:
    """Tokens come, the HCAs that carried them before stand still, and the netdevs carry bytes instead."""
    looks = history.recent(CARRIED_S)
    if not looks or not history.rdma or tokens_in(looks) < CARRIES_TOKENS:
        return
    rdma, tcp = grown(looks, "rdma_bytes"), grown(looks, "tcp_bytes")
    still = all(value is not None and value < CARRIES_BYTES for value in rdma.values())
    if still and all(value is not None and value >= TCP_BYTES for value in tcp.values()):
        moved = ", ".join(f"{host} {(value or 0) >> 20} MiB" for host, value in tcp.items())
        what = "the traffic between the ranks goes over sockets, no longer over RDMA"
        evidence = f"the HCAs moved nothing for {CARRIED_S:.0f} s while tokens came; over TCP: {moved}"
        remedy = "cluster doctor; cluster down and cluster up, which proves the transport again"
        yield SOCKET_FALLBACK.warning("", what, evidence, remedy)


FROZEN_S = 25.0
NOTED_S = 60.0
"""Time without a token after which a note says that nothing is judged yet."""
PATIENT_S = 2700.0
"""No compile and no prefill takes longer: autotuning after a change of hosts was seen to take 36 minutes."""
WORKING_CORES = 0.5
AMPLE = 8 * GIB
"""A host with so much memory available kills nobody for memory."""
RESTARTS = "cluster status --watch --on-wedge restart does it by itself; by hand: cluster down, then cluster up"

Activity = Literal["works", "rests", "unknown"]


def judge_tokens(history: History) -> Iterator[Finding]:
    """Requests and no token: a hang, or not judged yet, or for too long whatever the reason."""
    load, looks = history.last.load, history.recent(FROZEN_S)
    if history.frozen_s < FROZEN_S or not history.last.healthy or history.last.lost or load is None:
        return
    seconds = looks[-1].t - looks[0].t if looks else 0.0
    doing = {host: activity([look.hosts[host] for look in looks], seconds) for host in history.last.hosts}
    what = f"no token came for {history.frozen_s:.0f} s ({load.queue or f'{load.running:g} running'})"
    evidence = [f"generation_tokens_total {load.tokens:.0f}, /health 200"] if load.tokens is not None else []
    evidence += [f"{host} {_figures(one)}" for host, one in history.last.hosts.items()]
    shown = "; ".join(evidence)
    if set(doing.values()) == {"rests"}:
        remedy = f"{OF_OUTPUTS['server-wedged'].remedy}; {RESTARTS}"
        yield WEDGE.fault("", f"{what}, and no host is at work: it hangs", shown, remedy)
    elif history.frozen_s >= PATIENT_S:
        yield WEDGE.fault("", f"{what}: no compile and no prefill takes so long", shown, RESTARTS)
    elif history.frozen_s >= NOTED_S:
        works, blind = (", ".join(host for host in doing if doing[host] == state) for state in ("works", "unknown"))
        why = f"{works} is at work: compiling or prefilling" if works else f"whether {blind} works is not known"
        yield WEDGE.note("", f"{what}; {why}, not judged yet", shown)


def activity(looks: Sequence[HostSnapshot], seconds: float) -> Activity:
    """Whether a host does anything in these looks, `seconds` apart: power is drawn, or a GPU process or its compilers
    use CPU time while no kernel spins. A GPU held back by its power supply works, slowly."""
    states = {judge_gpu(look.gpu) if look.gpu else "unknown" for look in looks}
    if states & {"working", "slowed", "capped"}:
        return "works"
    if not states or states & {"unknown", "stalled"}:
        return "unknown"
    first, last = looks[0].cpu_s, looks[-1].cpu_s
    if "spinning" in states:
        return "rests"
    if first is None or last is None or last < first:
        return "unknown"
    return "works" if last - first >= WORKING_CORES * seconds else "rests"


def _figures(one: HostSnapshot) -> str:
    """A host's GPU in words."""
    if one.gpu is None:
        return one.why or "GPU not reported"
    power = "? W" if one.gpu.power_w is None else f"{one.gpu.power_w:.0f} W"
    busy = "? %" if one.gpu.utilization_pct is None else f"{one.gpu.utilization_pct} %"
    return f"{busy} busy at {power}, {one.gpu.sm_clock_mhz or '?'} MHz"


def judge_ranks(history: History) -> Iterator[Finding]:
    """A rank that ended or is gone. One that only lost a peer may be explained by that peer at the next look."""
    lost, before = history.last.lost, history.snapshots[-2:-1]
    if lost is None or history.last.changing or (lost.by_peer and not (before and before[0].lost)):
        return
    tail = next((line.strip() for line in reversed(lost.tail) if line.strip()), "")
    evidence = f"last line: {tail[:300]}" if tail and ": " not in lost.why else ""
    remedy = "cluster logs --explain names the cause; cluster up starts it again"
    yield RANK.fault(lost.host, f"its rank has ended: {lost.why}", evidence, remedy)


def judge_server(history: History) -> Iterator[Finding]:
    """All ranks run and /health is not 200. A server that never answered may still be starting."""
    looks = history.recent(FROZEN_S)
    if not looks or history.last.lost or history.last.changing or any(look.healthy is not False for look in looks):
        return
    if history.served_since is None and history.last.t - history.since < PATIENT_S:
        return
    since = "any more" if history.served_since is not None else f"within {PATIENT_S / 60:.0f} min"
    what = f"all ranks run and the server does not answer {since}"
    evidence = f"/health is not 200 for {looks[-1].t - looks[0].t:.0f} s"
    yield SERVER.fault(next(iter(history.last.hosts)), what, evidence, f"cluster logs --explain; {RESTARTS}")


def why_no_restart(finding: Finding, history: History) -> str:
    """Why a restart is no cure for a finding; empty when it is one."""
    if any(one.available is not None and one.available < FLOOR for one in history.last.hosts.values()):
        return "memory is nearly out: a restart would make it worse"
    cut = [host for host, one in history.last.hosts.items() if one.links and not any(one.links.values())]
    if cut:
        return f"the link of {', '.join(cut)} has to be up first"
    if finding.check in ("wedge", "server"):
        return ""
    lost = history.last.lost
    if finding.check != "rank" or lost is None:
        return f"a restart is no cure for this ({finding.check})"
    if "asked to end" in lost.why:
        return "it was asked to end"
    known = [look.hosts[lost.host].available for look in history.snapshots]
    least = min((value for value in known if value is not None), default=None)
    return "it ended for memory: restarts would make it worse" if is_memory_error(lost, least) else ""


def is_memory_error(lost: Failed, available: int | None) -> bool:
    """Whether a rank ended for memory. SIGKILL counts as that unless memory (`available`, bytes) was ample."""
    said = (lost.why, *lost.tail)
    if any(rule.search(line) for rule in read_rules("memory") if rule.id != "killed" for line in said):
        return True
    killed = re.search(r"\b137\b|SIGKILL", lost.why) and (available is None or available < AMPLE)
    return bool(killed) or "killed for memory" in lost.why


JUDGES = (judge_ranks, judge_tokens, judge_server, judge_memory, judge_clocks, judge_links, judge_transport)
CALM_LOOKS = 3
"""A finding is over when so many looks in a row that could have shown it do not."""

Key = tuple[str, str]
"""Check and host."""


@dataclass(frozen=True, slots=True)
class OpenFinding:
    """A finding that is not over. `since`: when it was shown; `calm`: looks that did not show it any more."""

    finding: Finding
    since: float
    calm: int = 0


@dataclass(frozen=True, slots=True)
class Update:
    """What one look changed: findings that are new or have another level, and those that are over."""

    open_findings: Mapping[Key, OpenFinding] = field(default_factory=dict)
    raised: tuple[Finding, ...] = ()
    over: tuple[OpenFinding, ...] = ()


def follow(before: Mapping[Key, OpenFinding], history: History) -> Update:
    """What stands after the latest look, and what that changes. A look that could not show a finding ends none."""
    found = {(one.check, one.host): one for judged in JUDGES for one in judged(history)}
    open_findings: dict[Key, OpenFinding] = {}
    raised, over = [], []
    for key, finding in found.items():
        known = before.get(key)
        if known and known.finding.level == finding.level:
            open_findings[key] = OpenFinding(finding, known.since)
        else:
            raised.append(finding)
            open_findings[key] = OpenFinding(finding, history.last.t)
    for key, known in before.items():
        calm = known.calm + history.last.knows(known.finding.host)
        if key not in found and calm < CALM_LOOKS:
            open_findings[key] = replace(known, calm=calm)
        elif key not in found:
            over.append(known)
    return Update(open_findings, tuple(raised), tuple(over))
