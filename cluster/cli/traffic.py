"""The way that the traffic of a running deployment takes: one short completion, the HCAs' counters before and after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cluster.cli.status import Status
from cluster.config.names import ResolvedHost
from cluster.deploy import prove
from cluster.deploy.again import subject_of
from cluster.diagnosis.transport import Transport
from cluster.errors import ClusterError, InterruptedByUser
from cluster.hosts.fleet import Fleet
from cluster.spark import completion
from cluster.spark.deployed import Deployment
from cluster.spark.fact import Missing
from cluster.spark.finding import Finding, unknown
from cluster.spark.lock import LockState
from cluster.spark.look import Seen
from cluster.spark.ready import Ready

TOKENS = 8
ANSWER_S = 4.0
"""A busy server may take longer; its other requests then move the counters as well as ours would."""


def has_traffic(status: Status, seens: Mapping[str, Seen]) -> bool:
    """Whether a deployment serves over several ranks, on hosts that all answer."""
    hosts = status.deployment.hosts
    serves = isinstance(status.state, Ready) and not status.wrong and status.deployment.running
    return serves and len(hosts) > 1 and set(hosts) <= set(seens)


def check_traffic(
    status: Status, hosts: Sequence[ResolvedHost], seens: Mapping[str, Seen], fleet: Fleet
) -> Iterator[Finding]:
    """One short completion of a deployment that `has_traffic`, and the way it took. `hosts` in rank order."""
    deployment = status.deployment
    for host in deployment.hosts:
        lock = seens[host].lock
        if isinstance(lock, LockState) and lock.held:  # a measurement may be under way, which one more request spoils
            what = f"the way of {deployment.id}'s traffic was not looked at: the hosts are in use"
            yield Finding("note", "transport", host, what, f"{lock.who}: {lock.why}", "run it again when that is done")
            return
    try:
        yield from _ask(subject_of(deployment, hosts, seens), deployment, fleet)
    except InterruptedByUser:
        raise
    except ClusterError as error:
        yield unknown("transport", deployment.head, Missing(error.what), f"the way of {deployment.id}'s traffic")


def _ask(subject: prove.Subject, deployment: Deployment, fleet: Fleet) -> Iterator[Finding]:
    if not subject.fabric.rdma:
        return
    head = deployment.head
    before = prove.read_links(fleet, subject.wanted.names)
    question = completion.question(subject.server, ask=True, timeout_s=ANSWER_S, tokens=TOKENS)
    done = completion.parse(fleet.ask({head: [question]})[head].get()[0])
    answered = not isinstance(done, Missing) and done.status != 0
    wrong = done.wrong(subject.wanted.served_name, judge_text=False) if not isinstance(done, Missing) else ""
    if answered and wrong:
        remedy = "cluster logs --explain says why"
        yield Finding("fault", "deployment", head, f"{deployment.id} answers, but {wrong}", remedy=remedy)
        return
    fleet.time.sleep(prove.COUNTERS_SETTLE_S)
    transport = prove.read_transport(subject, fleet, before)
    if transport.verdict == "rdma":
        return
    if not answered:
        late = Missing(f"the server did not answer within {ANSWER_S:.0f} s", "timeout")
        yield unknown("transport", head, late, f"the way of {deployment.id}'s traffic")
        return
    yield from _judge(deployment, transport)


def _judge(deployment: Deployment, transport: Transport) -> Iterator[Finding]:
    accepted = str(deployment.seen.get("accepts_sockets", ""))
    if transport.verdict == "unknown":
        why = Missing(transport.why)
        yield unknown("transport", deployment.head, why, f"the way of {deployment.id}'s traffic")
    elif accepted:
        what = f"the traffic of {deployment.id} goes over sockets, as was accepted: {accepted}"
        yield Finding("note", "transport", deployment.head, what, transport.why)
    else:
        yield Finding(
            "fault", "transport", deployment.head, f"RDMA is not used between the ranks of {deployment.id}",
            transport.why, "cluster down and cluster up, which proves the way again; --allow-socket accepts TCP",
        )  # fmt: skip
