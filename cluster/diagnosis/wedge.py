"""Does a deployment that looks alive still serve: a hang told from a compile and a long prefill; lost ranks; silence.

A hang is requests, counters that stand still, and nobody at work, all of it for 25 s. Whoever compiles or
prefills shows it in power or in CPU time. What is not known is never a hang.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from cluster.diagnosis.decline import FLOOR
from cluster.diagnosis.pulse import Course, HostPulse
from cluster.diagnosis.rules import OF_OUTPUTS, read_rules
from cluster.spark.finding import Finding
from cluster.spark.gpu_state import judge_gpu
from cluster.spark.ready import Failed

FROZEN_S = 25.0
TOLD_S = 60.0
"""Time without a token after which it is said that nothing is judged yet."""
PATIENT_S = 2700.0
"""No compile and no prefill takes longer: autotuning after a change of hosts was seen to take 36 minutes."""
WORKING_CORES = 0.5
AMPLE = 8 << 30
"""A host with so much memory available kills nobody for memory."""
RESTARTS = "cluster status --watch --on-wedge restart does it by itself; by hand: cluster down, then cluster up"

Activity = Literal["works", "rests", "unknown"]


def judge_tokens(course: Course) -> Iterator[Finding]:
    """Requests and no token: a hang, or not judged yet, or for too long whatever the reason."""
    load, looks = course.last.load, course.recent(FROZEN_S)
    if course.frozen_s < FROZEN_S or not course.last.healthy or course.last.lost or load is None:
        return
    seconds = looks[-1].t - looks[0].t if looks else 0.0
    doing = {host: activity([look.hosts[host] for look in looks], seconds) for host in course.last.hosts}
    told = f"no token came for {course.frozen_s:.0f} s ({load.queue or f'{load.running:g} running'})"
    evidence = [f"generation_tokens_total {load.tokens:.0f}, /health 200"] if load.tokens is not None else []
    evidence += [f"{host} {_figures(one)}" for host, one in course.last.hosts.items()]
    shown = "; ".join(evidence)
    if set(doing.values()) == {"rests"}:
        remedy = f"{OF_OUTPUTS['server-wedged'].remedy}; {RESTARTS}"
        yield Finding("fault", "wedge", "", f"{told}, and no host is at work: it hangs", shown, remedy)
    elif course.frozen_s >= PATIENT_S:
        yield Finding("fault", "wedge", "", f"{told}: no compile and no prefill takes so long", shown, RESTARTS)
    elif course.frozen_s >= TOLD_S:
        works = [host for host, what in doing.items() if what == "works"]
        blind = [host for host, what in doing.items() if what == "unknown"]
        why = f"{', '.join(works)} is at work: compiling or prefilling" if works else _blind(blind)
        yield Finding("note", "wedge", "", f"{told}; {why}, not judged yet", shown)


def _blind(hosts: Sequence[str]) -> str:
    return f"whether {', '.join(hosts)} works is not known"


def activity(looks: Sequence[HostPulse], seconds: float) -> Activity:
    """Whether a host does anything in these looks, `seconds` apart: power is drawn, or a GPU process or its compilers
    use CPU time while no kernel spins. A GPU held back by its power supply works, slowly."""
    states = {judge_gpu(look.gpu) if look.gpu else "unknown" for look in looks}
    if states & {"working", "slowed", "capped"}:
        return "works"
    if not states or states & {"unknown", "stalled"}:
        return "unknown"
    if "spinning" in states:
        return "rests"
    spent = [look.cpu_s for look in looks]
    first, last = spent[0], spent[-1]
    if first is None or last is None or last < first:
        return "unknown"
    return "works" if last - first >= WORKING_CORES * seconds else "rests"


def _figures(one: HostPulse) -> str:
    """A host's GPU in words."""
    if one.gpu is None:
        return one.why or "tells nothing of its GPU"
    power = "? W" if one.gpu.power_w is None else f"{one.gpu.power_w:.0f} W"
    busy = "? %" if one.gpu.utilization_pct is None else f"{one.gpu.utilization_pct} %"
    return f"{busy} busy at {power}, {one.gpu.sm_clock_mhz or '?'} MHz"


def judge_ranks(course: Course) -> Iterator[Finding]:
    """A rank that ended or is gone. One that only lost a peer may be explained by that peer at the next look."""
    lost, before = course.last.lost, course.pulses[-2:-1]
    if lost is None or course.last.changing or (lost.by_peer and not (before and before[0].lost)):
        return
    tail = next((line.strip() for line in reversed(lost.tail) if line.strip()), "")
    yield Finding(
        "fault", "rank", lost.host, f"its rank has ended: {lost.why}", f"last line: {tail[:300]}" if tail else "",
        "cluster logs --explain names the cause; cluster up starts it again",
    )  # fmt: skip


def judge_server(course: Course) -> Iterator[Finding]:
    """All ranks run and /health is not 200. A server that never answered may still be starting."""
    looks = course.recent(FROZEN_S)
    if not looks or course.last.lost or course.last.changing or any(look.healthy is not False for look in looks):
        return
    if course.served_since is None and course.last.t - course.since < PATIENT_S:
        return
    since = "any more" if course.served_since is not None else f"within {PATIENT_S / 60:.0f} min"
    yield Finding(
        "fault", "server", next(iter(course.last.hosts)), f"all ranks run and the server does not answer {since}",
        f"/health is not 200 for {looks[-1].t - looks[0].t:.0f} s", f"cluster logs --explain; {RESTARTS}",
    )  # fmt: skip


def why_no_restart(finding: Finding, course: Course) -> str:
    """Why a restart is no cure for a finding; empty when it is one."""
    if any(one.available is not None and one.available < FLOOR for one in course.last.hosts.values()):
        return "memory is nearly out: a restart would make it worse"
    cut = [host for host, one in course.last.hosts.items() if one.links and not any(one.links.values())]
    if cut:
        return f"the link of {', '.join(cut)} has to be up first"
    if finding.check in ("wedge", "server"):
        return ""
    lost = course.last.lost
    if finding.check != "rank" or lost is None:
        return f"a restart is no cure for this ({finding.check})"
    if "asked to end" in lost.why:
        return "it was asked to end"
    known = [look.hosts[lost.host].available for look in course.pulses]
    least = min((value for value in known if value is not None), default=None)
    return "it ended for memory: restarts would make it worse" if is_memory_error(lost, least) else ""


def is_memory_error(lost: Failed, available: int | None) -> bool:
    """Whether a rank ended for memory. SIGKILL counts as that unless memory (`available`, bytes) was ample."""
    said = (lost.why, *lost.tail)
    told = [rule for rule in read_rules("memory") if rule.id != "killed" and any(rule.search(line) for line in said)]
    killed = re.search(r"\b137\b|SIGKILL", lost.why)
    scarce = available is None or available < AMPLE
    return bool(told) or "killed for memory" in lost.why or bool(killed and scarce)
