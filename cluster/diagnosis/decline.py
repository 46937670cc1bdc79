"""What gets worse while a deployment serves: memory, clocks, links, the way that the traffic takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from cluster.diagnosis.pulse import CARRIED_S, CARRIES_BYTES, CARRIES_TOKENS, Course, grown, tokens_between
from cluster.diagnosis.rules import OF_OUTPUTS
from cluster.spark.finding import Finding
from cluster.spark.gpu_state import judge_gpu

GIB = 1 << 30
FLOOR = 2 * GIB
"""With less available a Spark begins to stand still: the GPU's memory is the host's."""
HORIZON_S = 7200.0
TRENDS_S = (300.0, 900.0)
"""A fall is looked for in the last minutes first, a slower one in all that is remembered."""
LEAST_FALL = GIB // 4
HELD_S = 30.0
HOLDERS = "docker ps; nvidia-smi --query-compute-apps=pid,process_name,used_gpu_memory --format=csv"
TCP_BYTES = 1 << 20


def judge_memory(course: Course) -> Iterator[Finding]:
    """Memory that is nearly out, or falls steadily so that it will be within two hours. Loading is no decline."""
    for host in course.last.hosts:
        low = [look.available for look in course.of_host(host, HELD_S)]
        if low and all(value is not None and value < FLOOR for value in low):
            yield Finding(
                "fault", "memory-low", host, f"only {(low[-1] or 0) / GIB:.1f} GiB of memory are available",
                f"MemAvailable below {FLOOR / GIB:.0f} GiB for {HELD_S:.0f} s", HOLDERS,
            )  # fmt: skip
        else:
            yield from _falling(host, course)


def _falling(host: str, course: Course) -> Iterator[Finding]:
    serving = [look for look in course.pulses if course.served_since is not None and look.t >= course.served_since]
    rows = [(look.t, look.hosts[host].available) for look in serving]
    told = [(t, value) for t, value in rows if value is not None]
    trends = [[row for row in told if row[0] >= course.last.t - seconds] for seconds in TRENDS_S]
    told = next((rows for rows in trends if steady_fall(rows)), [])
    rate = steady_fall(told)
    if not rate:
        return
    left_s = max(0.0, (told[-1][1] - FLOOR) / rate)
    if left_s < HORIZON_S:
        first, last = told[0][1] / GIB, told[-1][1] / GIB
        yield Finding(
            "warning", "memory-falling", host,
            f"memory falls by {rate * 60 / GIB:.2f} GiB a minute and will be out in {left_s / 60:.0f} min",
            f"MemAvailable {first:.1f} → {last:.1f} GiB in {(told[-1][0] - told[0][0]) / 60:.0f} min", HOLDERS,
        )  # fmt: skip


def steady_fall(told: Sequence[tuple[float, int]]) -> float:
    """Bytes a second by which memory falls; 0 when it does not, or not steadily: the most that is available in each
    quarter of the time is well below that of the one before, so neither dips nor a single step count."""
    if len(told) < 8 or told[-1][0] - told[0][0] < TRENDS_S[0] * 0.9:
        return 0.0
    span = (told[-1][0] - told[0][0]) / 4
    quarters: list[list[int]] = [[], [], [], []]
    for t, value in told:
        quarters[min(3, int((t - told[0][0]) / span))].append(value)
    if not all(quarters):
        return 0.0
    falls = [before - after for before, after in pairwise(map(max, quarters))]
    steady = min(falls) * 4 >= max(falls) > 0 and sum(falls) >= LEAST_FALL
    return sum(falls) / (3 * span) if steady else 0.0


def judge_clocks(course: Course) -> Iterator[Finding]:
    """Low clocks under load, at every look of half a minute."""
    for host, now in course.last.hosts.items():
        looks = course.of_host(host, HELD_S)
        states = {judge_gpu(look.gpu) if look.gpu else "unknown" for look in looks}
        if not now.gpu or not states or not states <= {"capped", "slowed"}:
            continue
        rule, power = OF_OUTPUTS["gpu-power-capped"], f"{now.gpu.power_w:.0f}"
        reasons = ", ".join(now.gpu.throttle or ()) or "no reason told"
        evidence = f"{now.gpu.utilization_pct} % busy at {power} W, {now.gpu.sm_clock_mhz} MHz; {reasons}"
        if "capped" in states:
            what = "the GPU is held at low clocks and power: its power is capped by supply or firmware"
            yield Finding("fault", "clocks", host, what, evidence, rule.remedy)
        else:
            yield Finding(
                "warning", "clocks", host, "the GPU works at low clocks", evidence, "nvidia-smi -q -d PERFORMANCE"
            )


def judge_links(course: Course) -> Iterator[Finding]:
    """A link to the peers that is down at two looks in a row; one twin of two halves the bandwidth."""
    for host, now in course.last.hosts.items():
        before = course.pulses[-2].hosts.get(host) if len(course.pulses) > 1 else None
        down = [name for name, up in now.links.items() if not up and before and before.links.get(name) is False]
        if down:
            alone = len(down) == len(now.links)
            what = (
                "the link to its peers is down"
                if alone
                else "one of its links to the peers is down: half the bandwidth"
            )
            remedy = f"see the cable at both ends; on {host}: rdma link; ip link"
            yield Finding("fault" if alone else "warning", "link", host, what, ", ".join(down), remedy)


def judge_transport(course: Course) -> Iterator[Finding]:
    """Tokens come, the HCAs that carried them before stand still, and the netdevs carry bytes instead."""
    looks = course.recent(CARRIED_S)
    if not looks or not course.rdma or tokens_between(looks[0], looks[-1]) < CARRIES_TOKENS:
        return
    first, last = looks[0].hosts, looks[-1].hosts
    rdma = {host: grown(first[host].rdma_bytes, one.rdma_bytes) for host, one in last.items()}
    tcp = {host: grown(first[host].tcp_bytes, one.tcp_bytes) for host, one in last.items()}
    still = all(value is not None and value < CARRIES_BYTES for value in rdma.values())
    if still and all(value is not None and value >= TCP_BYTES for value in tcp.values()):
        moved = ", ".join(f"{host} {(value or 0) >> 20} MiB" for host, value in tcp.items())
        yield Finding(
            "warning", "socket-fallback", "", "the traffic between the ranks goes over sockets, no longer over RDMA",
            f"the HCAs stood still for {CARRIED_S:.0f} s while tokens came; over TCP: {moved}",
            "cluster doctor; cluster down and cluster up, which proves the way again",
        )  # fmt: skip
