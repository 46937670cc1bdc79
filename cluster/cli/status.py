"""`cluster status`: hosts, ranks, Ray, server, queue, memory; never changes anything."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.argv.docker import docker_exec
from cluster.argv.question import Question
from cluster.deploy import prove
from cluster.deploy.session import Connect, answered, look, open_fleet, raise_all, read_named
from cluster.errors import ClusterError, ExitCode, ManyErrors
from cluster.hosts.connect import connect
from cluster.hosts.fleet import Fleet
from cluster.screen import Screen
from cluster.spark import ranks
from cluster.spark import server as spark_server
from cluster.spark.deployments import Deployment, deployments, directory
from cluster.spark.fact import Missing
from cluster.spark.identity import check_machines
from cluster.spark.look import Seen
from cluster.spark.memory import GIB
from cluster.spark.ranks import Failed, RankState, Ready, State, judge_nodes, judge_ranks
from cluster.spark.server import Completion, Server


@dataclass(frozen=True, slots=True)
class Status:
    """How one deployment is doing. `wrong` is empty when all is well."""

    deployment: Deployment
    state: State
    ranks: Mapping[str, RankState | Missing | None]
    server: Completion | Missing
    nodes: int | None
    wrong: tuple[str, ...]

    @property
    def word(self) -> str:
        """down, starting, ready, unhealthy, or that a rank could not be looked at."""
        if isinstance(self.state, Ready):
            unknown = any(isinstance(rank, Missing) for rank in self.ranks.values())
            return "unhealthy" if self.wrong else "not known to be whole" if unknown else "ready"
        all_gone = all(rank is None or getattr(rank, "state", "") == "exited" for rank in self.ranks.values())
        return "down" if all_gone else "unhealthy" if isinstance(self.state, Failed) else "starting"


def run(args: argparse.Namespace, screen: Screen, connect: Connect = connect) -> ExitCode:
    """Carry out `cluster status`; 4 when a deployment is not as it should be."""
    if args.watch or args.print_unit:
        from cluster.cli import watch

        return watch.run(args, screen, connect)
    named = read_named(args)
    with open_fleet(named.hosts, connect) as fleet:
        seens, errors = answered(look(fleet, named.hosts))
        found = deployments(seens.values(), named.hosts)
        statuses = [inspect(deployment, fleet, seens) for deployment in found]
    rows = [host_row(name, seen) for name, seen in seens.items()]
    rows += [[error.host, "unreachable", "", "", "", ""] for error in errors]
    screen.table("", ["host", "machine", ">GiB available", ">GiB GPU", ">power W", "containers"], rows)
    alike = [*check_machines({host: seen.machine for host, seen in seens.items()})]
    for finding in alike:
        screen.warn(f"{finding.host}: {finding.what} ({finding.evidence}); {finding.remedy}")
    for status in statuses:
        print_deployment(status, screen)
    if not statuses:
        screen.line(f"no deployment on {', '.join(seens) or 'any host that answered'}; start one with `cluster up`")
    screen.document({**as_document(seens, errors, statuses), "findings": [finding.as_dict() for finding in alike]})
    if screen.json_mode and errors:
        return ManyErrors(errors).exit_code
    raise_all(errors)
    return ExitCode.REFUSED if alike or any(status.word != "ready" for status in statuses) else ExitCode.DONE


def inspect(deployment: Deployment, fleet: Fleet, seens: Mapping[str, Seen]) -> Status:
    """Ask all ranks, the server and Ray of one deployment, in one round trip a host."""
    here = [host for host in deployment.hosts if host in deployment.ranks and host in seens]
    asked: dict[str, list[Question]] = {host: [ranks.question([deployment.ranks[host].name])] for host in here}
    head = deployment.head
    if head in asked:
        asked[head].append(spark_server.question(server_of(deployment, seens[head]), ask=False, timeout_s=5))
        if deployment.spec["backend"] == "ray":
            name = deployment.ranks[head].name
            asked[head].append(docker_exec(name, ("python3", "/cluster/ray_nodes.py"), timeout_s=9))
    states: dict[str, RankState | Missing | None] = {}
    for host in deployment.hosts:
        if host in seens:  # a container that was not found is gone, if the host lists what it has
            containers = seens[host].containers
            states[host] = containers if isinstance(containers, Missing) else None
        else:
            why = "the host did not answer" if host in fleet.names else "not among the hosts of this command"
            states[host] = Missing(why, "absent")
    outcomes = fleet.ask(asked)
    for host, outcome in outcomes.items():
        read = ranks.parse(outcome.value[0]) if outcome.value else Missing(str(outcome.error))
        states[host] = read if isinstance(read, Missing) else read.get(deployment.ranks[host].name)
    answers = outcomes[head].value if head in outcomes else None
    server = spark_server.parse(answers[1]) if answers else Missing("the head was not asked")
    healthy = not isinstance(server, Missing) and server.healthy
    count, wrong = None, []
    if answers and len(answers) > 2 and healthy:
        nodes = ranks.parse_nodes(answers[2])
        if isinstance(nodes, Missing):
            wrong = [f"Ray does not say which nodes it has: {nodes.why}"]
        else:
            addresses = [deployment.seen["hosts"][host]["address"] for host in deployment.hosts]
            count, wrong = sum(node.alive for node in nodes), judge_nodes(nodes, addresses)
    return Status(deployment, judge_ranks(states, healthy), states, server, count, tuple(wrong))


def server_of(deployment: Deployment, seen: Seen) -> Server:
    """Where the deployment's API is, seen from its head."""
    home = "" if isinstance(seen.identity, Missing) else seen.identity.data_dir
    return Server.of_spec(deployment.spec, directory(home, deployment.id))


def host_row(name: str, seen: Seen) -> list[str]:
    """One host's line; `?` for what could not be read."""
    product = "?" if isinstance(seen.identity, Missing) else seen.identity.product or seen.identity.arch
    memory = None if isinstance(seen.memory, Missing) else seen.memory.available
    power = None if isinstance(seen.gpu, Missing) or not seen.gpu else seen.gpu[0].power_w
    room = ["?" if value is None else f"{value / GIB:.1f}" for value in (memory, prove.gpu_bytes(seen.gpu_processes))]
    listed = None if isinstance(seen.containers, Missing) else seen.containers
    running = "?" if listed is None else str(sum(one.state == "running" for one in listed))
    return [name, product, *room, "?" if power is None else f"{power:.0f}", running]


def print_deployment(status: Status, screen: Screen) -> None:
    """The deployment's own lines: what it is, every rank, Ray, the server."""
    deployment = status.deployment
    screen.line(f"{deployment.id}: {status.word} ({deployment.served_name}, {', '.join(deployment.hosts)})")
    for host, rank in status.ranks.items():
        screen.line(f"  {host}: {rank_text(rank)}")
    if status.nodes is not None:
        screen.line(f"  Ray: {status.nodes} of {len(deployment.hosts)} nodes")
    if not isinstance(status.server, Missing) and status.server.load and status.server.load.queue:
        screen.line(f"  server: {status.server.load.queue}")
    for wrong in status.wrong:
        screen.warn(f"  {wrong}")
    if isinstance(status.state, Failed):
        screen.warn(f"  {status.state.host}: {status.state.why}; cluster up starts it again")


def rank_text(rank: RankState | Missing | None) -> str:
    """One rank in a line."""
    if rank is None:
        return "no container"
    if isinstance(rank, Missing):
        return f"unknown: {rank.why}"
    if rank.state != "running":
        return f"{rank.state}, exit {rank.exit_code}{': ' + rank.ended if rank.ended else ''}"
    return f"running, {rank.stage or 'starting'}"


def as_document(
    seens: Mapping[str, Seen], errors: Sequence[ClusterError], statuses: Sequence[Status]
) -> dict[str, Any]:
    """The same for `--json`."""
    columns = ("machine", "available_gib", "gpu_gib", "power_w", "containers")
    hosts = {name: dict(zip(columns, host_row(name, seen)[1:], strict=True)) for name, seen in seens.items()}
    return {
        "hosts": hosts,
        "unreachable": [error.as_dict() for error in errors],
        "deployments": [
            {
                "id": status.deployment.id,
                "state": status.word,
                "model": status.deployment.served_name,
                "hosts": list(status.deployment.hosts),
                "ranks": {host: rank_text(rank) for host, rank in status.ranks.items()},
                "ray_nodes": status.nodes,
                "wrong": list(status.wrong),
                "why": status.state.why if isinstance(status.state, Failed) else "",
            }
            for status in statuses
        ],
    }
