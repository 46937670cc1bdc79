"""A deployment that serves, over time: hangs (not compiles, not long prefills), lost ranks, what gets worse."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

from cluster.config.recipe import AMPLE_GIB, LOW_GIB, LOW_S
from cluster.diagnosis.rules import OF_OUTPUTS, read_rules
from cluster.spark.deployments import Container, LockState
from cluster.spark.fact import NOT_ASKED, Missing
from cluster.spark.finding import Check, Finding
from cluster.spark.gpu import Gpu, GpuProcess, GpuState, judge_gpu
from cluster.spark.links import Links
from cluster.spark.memory import GIB, Memory
from cluster.spark.ranks import Failed
from cluster.spark.server import Completion, Load

RANK = Check("rank", "it-hangs#a-rank-is-gone")
SERVER = Check("server", "it-hangs")
MEMORY_FALLING = Check("memory-falling", "memory-is-full")
WEDGE = Check("wedge", "it-hangs#wedged")
MEMORY_LOW = Check("memory-low", "memory-is-full")
CLOCKS = Check("clocks", "it-is-slow#power-cap")
LINK = Check("link", "it-hangs#the-link-is-cut")

HISTORY_S = 900.0
"""So long snapshots are kept."""
CHANGING = ("up", "down", "restart", "swap")
"""First words of what a lock is held for by those who start and stop ranks; a benchmark holds it too and does not."""


@dataclass(frozen=True, slots=True)
class HostSnapshot:
    """One host of the deployment at one time.

    `cpu_s`: CPU time so far of our rank's GPU processes and all below them. `available`: bytes. `links`: those that
    face the peers, and whether each is up. `why`: why the host did not answer, empty when it did.
    """

    gpu: Gpu | None = None
    cpu_s: float | None = None
    available: int | None = None
    links: Mapping[str, bool] = field(default_factory=dict)
    why: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A deployment at one time. `t`: seconds that only grow. `hosts`: every host of it, in rank order.

    `healthy`: whether /health is 200. `load`: the server's counters. `lost`: the rank that ended first. `lock`: a lock
    that somebody holds on one of the hosts.
    """

    t: float
    hosts: Mapping[str, HostSnapshot]
    healthy: bool | None = None
    load: Load | None = None
    lost: Failed | None = None
    lock: LockState | None = None

    @property
    def requests(self) -> float | None:
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
    """What is remembered of a deployment since its ranks were started.

    `since`: the first snapshot. `served_since`: the first one at which the server answered. `frozen_since`: the first
    one of those in a row at which requests were there and no counter moved.
    """

    snapshots: tuple[Snapshot, ...] = ()
    since: float = 0.0
    served_since: float | None = None
    frozen_since: float | None = None

    @property
    def last(self) -> Snapshot:
        return self.snapshots[-1]

    @property
    def frozen_s(self) -> float:
        """For how long requests have been there without a counter moving."""
        return 0.0 if self.frozen_since is None else self.last.t - self.frozen_since

    def recent(self, seconds: float, least: int = 3) -> tuple[Snapshot, ...]:
        """The snapshots of the last `seconds` with the one before them, more when they are rare; empty when there are
        fewer than `least`, or none so old."""
        old = [at for at, snapshot in enumerate(self.snapshots) if snapshot.t <= self.last.t - seconds]
        enough = old and len(self.snapshots) >= least
        return self.snapshots[min(old[-1], len(self.snapshots) - least) :] if enough else ()

    def of_host(self, host: str, seconds: float) -> tuple[HostSnapshot, ...]:
        return tuple(snapshot.hosts[host] for snapshot in self.recent(seconds))

    def after(self, snapshot: Snapshot) -> History:
        since = self.since if self.snapshots else snapshot.t
        kept = tuple(old for old in self.snapshots if old.t >= snapshot.t - HISTORY_S)
        served = snapshot.t if self.served_since is None and snapshot.healthy else self.served_since
        return History((*kept, snapshot), since, served, self._frozen(snapshot))

    def _frozen(self, snapshot: Snapshot) -> float | None:
        """A snapshot without counters changes nothing: the next one is compared with the last that had some."""
        if snapshot.requests is None:
            return self.frozen_since
        if not snapshot.requests:
            return None
        before = next((old.load for old in reversed(self.snapshots) if old.requests is not None), None)
        moved = before is None or snapshot.load is None or before.counters != snapshot.load.counters
        return snapshot.t if moved or self.frozen_since is None else self.frozen_since


@dataclass(frozen=True, slots=True)
class HostAnswers:
    """What one host answered, None for what could not be read. `server` is asked on the head only; `machine` is the
    machine-id; `why` it did not answer, empty when it did."""

    containers: tuple[Container, ...] | None = None
    lock: LockState | None = None
    memory: Memory | None = None
    gpus: tuple[Gpu, ...] | None = None
    processes: tuple[GpuProcess, ...] | None = None
    links: Links | None = None
    machine: str | Missing = NOT_ASKED
    server: Completion | None = None
    why: str = ""

    def snapshot(self, container: str, hcas: Sequence[str], netdev: str) -> HostSnapshot:
        """Of one deployment: the id of its rank's container here, and the HCAs and the netdev towards the peers."""
        up: dict[str, bool] = {}
        if self.links:
            rows = [link for link in self.links.links if link.hca in hcas]
            plain = {one.name: one.operstate != "down" for one in self.links.netdevs if one.name == netdev}
            up = {f"{link.hca} ({link.netdev})": link.is_active and link.operstate != "down" for link in rows}
            up |= {} if any(link.netdev == netdev for link in rows) else plain
        spent = [one.cpu_s for one in self.processes or () if one.container == container]
        cpu_s = sum(filter(None, spent)) if spent and None not in spent else None
        available = self.memory.available if self.memory else None
        return HostSnapshot(self.gpus[0] if self.gpus else None, cpu_s, available, up, self.why)


FLOOR, AMPLE = int(LOW_GIB * GIB), int(AMPLE_GIB * GIB)
HORIZON_S = 7200.0
TRENDS_S = (300.0, 900.0)
"""A fall is looked for in the last minutes first, a slower one in all that is remembered."""
LEAST_FALL = GIB // 4
HELD_S = 30.0
HOLDERS = "docker ps; nvidia-smi --query-compute-apps=pid,process_name,used_gpu_memory --format=csv"


def judge_memory(history: History) -> Iterator[Finding]:
    """Memory that is nearly out, or falls steadily so that it will be within two hours. Loading is no decline."""
    served = [one for one in history.snapshots if history.served_since is not None and one.t >= history.served_since]
    for host in history.last.hosts:
        low = [one.available for one in history.of_host(host, LOW_S)]
        if low and all(value is not None and value < FLOOR for value in low):
            what = f"only {(low[-1] or 0) / GIB:.1f} GiB of memory are available"
            yield MEMORY_LOW.fault(host, what, f"MemAvailable below {FLOOR / GIB:.0f} GiB for {LOW_S:.0f} s", HOLDERS)
            continue
        series = [(one.t, value) for one in served if (value := one.hosts[host].available) is not None]
        trends = [[row for row in series if row[0] >= history.last.t - seconds] for seconds in TRENDS_S]
        for rate, rows in [(rate, rows) for rows in trends if (rate := steady_fall(rows))][:1]:
            (begin, first), (end, last) = rows[0], rows[-1]
            left_s = max(0.0, (last - FLOOR) / rate)
            what = f"memory falls by {rate * 60 / GIB:.2f} GiB a minute and will run out in {left_s / 60:.0f} min"
            evidence = f"MemAvailable {first / GIB:.1f} → {last / GIB:.1f} GiB in {(end - begin) / 60:.0f} min"
            if left_s < HORIZON_S:
                yield MEMORY_FALLING.warning(host, what, evidence, HOLDERS)


def steady_fall(series: Sequence[tuple[float, int]]) -> float:
    """Bytes a second by which memory falls; 0 when it does not, or not steadily: the most that is available in each
    quarter of the time is well below that of the one before, so neither dips nor a single step count."""
    if len(series) < 8 or series[-1][0] - series[0][0] < TRENDS_S[0] * 0.9:
        return 0.0
    span = (series[-1][0] - series[0][0]) / 4
    most: dict[int, int] = {}
    for t, value in series:
        quarter = min(3, int((t - series[0][0]) / span))
        most[quarter] = max(value, most.get(quarter, 0))
    falls = [before - after for before, after in pairwise(most.values())]
    steady = len(most) == 4 and min(falls) * 4 >= max(falls) > 0 and sum(falls) >= LEAST_FALL
    return sum(falls) / (3 * span) if steady else 0.0


def judge_clocks(history: History) -> Iterator[Finding]:
    """Low clocks under load for half a minute."""
    for host, now in history.last.hosts.items():
        states = gpu_states(history.of_host(host, HELD_S))
        if now.gpu and states and states <= {"capped", "slowed"}:
            evidence = f"{figures(now)}; {', '.join(now.gpu.throttle or ()) or 'no reason reported'}"
            if "capped" in states:
                what = "the GPU is held at low clocks and power: its power is capped by supply or firmware"
                yield CLOCKS.fault(host, what, evidence, OF_OUTPUTS["gpu-power-capped"].remedy)
            else:
                yield CLOCKS.warning(host, "the GPU works at low clocks", evidence, "nvidia-smi -q -d PERFORMANCE")


def gpu_states(recent: Sequence[HostSnapshot]) -> set[GpuState]:
    return {judge_gpu(one.gpu) if one.gpu else "unknown" for one in recent}


def figures(one: HostSnapshot) -> str:
    if one.gpu is None:
        return one.why or "GPU not reported"
    power = "?" if one.gpu.power_w is None else f"{one.gpu.power_w:.0f}"
    return f"{one.gpu.utilization_pct} % busy at {power} W, {one.gpu.sm_clock_mhz} MHz".replace("None", "?")


def judge_links(history: History) -> Iterator[Finding]:
    """A link to the peers that is down twice in a row; one twin of two halves the bandwidth."""
    for host, now in history.last.hosts.items():
        before = history.snapshots[-2].hosts.get(host) if len(history.snapshots) > 1 else None
        down = [name for name, up in now.links.items() if not up and before and before.links.get(name) is False]
        remedy = f"see the cable at both ends; on {host}: rdma link; ip link"
        if down and len(down) == len(now.links):
            yield LINK.fault(host, "the link to its peers is down", ", ".join(down), remedy)
        elif down:
            what = "one of its links to the peers is down: half the bandwidth"
            yield LINK.warning(host, what, ", ".join(down), remedy)


FROZEN_S = 25.0
NOTED_S = 60.0
"""Time without a token after which a note reports that nothing is judged yet."""
PATIENT_S = 2700.0
"""No compile and no prefill takes longer: autotuning after a change of hosts was seen to take 36 minutes."""
WORKING_CORES = 0.5
RESTARTS = "cluster status --watch --on-wedge restart does it by itself; by hand: cluster down, then cluster up"


def judge_tokens(history: History) -> Iterator[Finding]:
    """Requests and no token: a hang, or not judged yet, or for too long whatever the reason."""
    last, load, recent = history.last, history.last.load, history.recent(FROZEN_S)
    if history.frozen_s < FROZEN_S or not last.healthy or last.lost or load is None:
        return
    seconds = recent[-1].t - recent[0].t if recent else 0.0
    doing = {host: activity([one.hosts[host] for one in recent], seconds) for host in last.hosts}
    what = f"no token came for {history.frozen_s:.0f} s ({load.queue or f'{load.running:g} running'})"
    evidence = [] if load.tokens is None else [f"generation_tokens_total {load.tokens:.0f}, /health 200"]
    shown = "; ".join([*evidence, *(f"{host} {figures(one)}" for host, one in last.hosts.items())])
    if set(doing.values()) == {"rests"}:
        remedy = f"{OF_OUTPUTS['server-wedged'].remedy}; {RESTARTS}"
        yield WEDGE.fault("", f"{what}, and no host is at work: it hangs", shown, remedy)
    elif history.frozen_s >= PATIENT_S:
        yield WEDGE.fault("", f"{what}: no compile and no prefill takes so long", shown, RESTARTS)
    elif history.frozen_s >= NOTED_S:
        works, blind = (", ".join(host for host in doing if doing[host] == state) for state in ("works", "unknown"))
        why = f"{works} is at work: compiling or prefilling" if works else f"whether {blind} works is not known"
        yield WEDGE.note("", f"{what}; {why}, not judged yet", shown)


def activity(recent: Sequence[HostSnapshot], seconds: float) -> Literal["works", "rests", "unknown"]:
    """Whether a host did anything in these `seconds`: power is drawn, or a GPU process or its compilers use CPU time
    while no kernel spins. A GPU held back by its power supply works, slowly."""
    states = gpu_states(recent)
    if states & {"working", "slowed", "capped"}:
        return "works"
    if not states or states & {"unknown", "stalled"}:
        return "unknown"
    first, last = recent[0].cpu_s, recent[-1].cpu_s
    if "spinning" in states:
        return "rests"
    if first is None or last is None or last < first:
        return "unknown"
    return "works" if last - first >= WORKING_CORES * seconds else "rests"


def judge_ranks(history: History) -> Iterator[Finding]:
    """A rank that ended or is gone. One that only lost a peer may be explained by that peer a moment later."""
    lost, before = history.last.lost, history.snapshots[-2:-1]
    if lost is None or history.last.changing or (lost.by_peer and not (before and before[0].lost)):
        return
    tail = next((line.strip() for line in reversed(lost.tail) if line.strip()), "")
    evidence = f"last line: {tail[:300]}" if tail and ": " not in lost.why else ""
    remedy = "cluster logs --explain names the cause; cluster up starts it again"
    yield RANK.fault(lost.host, f"its rank has ended: {lost.why}", evidence, remedy)


def judge_server(history: History) -> Iterator[Finding]:
    """All ranks run and /health is not 200. A server that never answered may still be starting."""
    recent, served = history.recent(FROZEN_S), history.served_since is not None
    if not recent or history.last.lost or history.last.changing or any(one.healthy is not False for one in recent):
        return
    if served or history.last.t - history.since >= PATIENT_S:
        when = "any more" if served else f"in {PATIENT_S / 60:.0f} min"
        what = f"all ranks run and the server does not answer {when}"
        evidence = f"/health is not 200 for {recent[-1].t - recent[0].t:.0f} s"
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
    known = [one.hosts[lost.host].available for one in history.snapshots]
    least = min((value for value in known if value is not None), default=None)
    return "it ended for memory: restarts would make it worse" if is_memory_error(lost, least) else ""


def is_memory_error(lost: Failed, available: int | None) -> bool:
    """Whether a rank ended for memory. SIGKILL counts as that unless memory (`available`, bytes) was ample."""
    printed = (lost.why, *lost.tail)
    if any(rule.search(line) for rule in read_rules("memory") for line in printed):
        return True
    killed = re.search(r"\b137\b|SIGKILL", lost.why) and (available is None or available < AMPLE)
    return bool(killed) or "killed for memory" in lost.why


JUDGES = (judge_ranks, judge_tokens, judge_server, judge_memory, judge_clocks, judge_links)
CALM = 3
"""A finding is over when so many snapshots in a row that could have shown it do not."""

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class OpenFinding:
    """A finding that is not over. `since`: when it was shown; `calm`: snapshots that did not show it any more."""

    finding: Finding
    since: float
    calm: int = 0


def follow(
    before: Mapping[Key, OpenFinding], history: History
) -> tuple[dict[Key, OpenFinding], list[Finding], list[OpenFinding]]:
    """After the latest snapshot: all open findings, those that are new or have another level, and those that are over.

    A snapshot that could not show a finding ends none.
    """
    found = {(one.check, one.host): one for judge in JUDGES for one in judge(history)}
    same = {key for key in found.keys() & before.keys() if found[key].level == before[key].finding.level}
    shown = {key: OpenFinding(one, before[key].since if key in same else history.last.t) for key, one in found.items()}
    calm = {
        key: replace(one, calm=one.calm + history.last.knows(one.finding.host))
        for key, one in before.items()
        if key not in found
    }
    return (
        shown | {key: one for key, one in calm.items() if one.calm < CALM},
        [one for key, one in found.items() if key not in same],
        [one for one in calm.values() if one.calm >= CALM],
    )
