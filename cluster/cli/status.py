"""`cluster status`: hosts, ranks, Ray, server, queue, memory; never changes anything."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.argv.docker import docker_exec
from cluster.argv.question import Question
from cluster.deploy import prove
from cluster.deploy.session import Connect, finish, look, open_fleet, read_named
from cluster.errors import ExitCode
from cluster.hosts.connect import connect
from cluster.hosts.fleet import Fleet
from cluster.screen import Screen
from cluster.spark import ranks
from cluster.spark import server as spark_server
from cluster.spark.deployments import Deployment, deployments
from cluster.spark.fact import Missing, known
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
    server: Completion | None
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

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.deployment.id,
            "state": self.word,
            "model": self.deployment.served_name,
            "hosts": list(self.deployment.hosts),
            "ranks": {host: rank_text(rank) for host, rank in self.ranks.items()},
            "ray_nodes": self.nodes,
            "wrong": list(self.wrong),
            "why": self.state.why if isinstance(self.state, Failed) else "",
        }


def run(args: argparse.Namespace, screen: Screen, connect: Connect = connect) -> ExitCode:
    """Carry out `cluster status`; 4 when a deployment is not as it should be."""
    if args.watch or args.print_unit:
        from cluster.cli import watch

        return watch.run(args, screen, connect)
    named = read_named(args)
    with open_fleet(named.hosts, connect) as fleet:
        seens, errors = look(fleet, named.hosts)
        found = deployments(seens.values(), named.hosts)
        statuses = [inspect(deployment, fleet, seens) for deployment in found]
    hosts = {name: host_row(seen) for name, seen in seens.items()}
    rows = [[name, *row.values()] for name, row in hosts.items()]
    rows += [[error.host, "unreachable", "", "", "", ""] for error in errors]
    screen.table("", ["host", "machine", ">GiB available", ">GiB GPU", ">power W", "containers"], rows)
    alike = [*check_machines({host: seen.machine for host, seen in seens.items()})]
    for finding in alike:
        screen.warn(f"{finding.host}: {finding.what} ({finding.evidence}); {finding.remedy}")
    clients = {}
    for status in statuses:
        print_deployment(status, screen)
        head = status.deployment.head
        if args.clients and head in seens and status.word == "ready":
            clients[status.deployment.id] = prove.print_clients(status.deployment.spec, seens[head], screen)
    if not statuses:
        screen.line(f"no deployment on {', '.join(seens) or 'any host that answered'}; start one with `cluster up`")
    screen.document(
        {
            "hosts": hosts,
            "unreachable": [error.as_dict() for error in errors],
            "deployments": [status.as_dict() for status in statuses],
            "findings": [finding.as_dict() for finding in alike],
            **({"clients": clients} if args.clients else {}),
        }
    )
    wrong = alike or any(status.word != "ready" for status in statuses)
    return finish(errors, screen, ExitCode.REFUSED if wrong else ExitCode.DONE)


def inspect(deployment: Deployment, fleet: Fleet, seens: Mapping[str, Seen]) -> Status:
    """Ask all ranks, the server and Ray of one deployment, in one round trip a host."""
    asked: dict[str, list[Question]] = {}
    states: dict[str, RankState | Missing | None] = {}
    for host in deployment.hosts:
        if host not in seens:
            why = "the host did not answer" if host in fleet.names else "not among the hosts of this command"
            states[host] = Missing(why, "absent")
            continue
        containers = seens[host].containers  # a container that was not found is gone, if the host lists what it has
        states[host] = containers if isinstance(containers, Missing) else None
        if host in deployment.ranks:
            asked[host] = [ranks.question([deployment.ranks[host].name])]
    head = deployment.head
    if head in asked:
        asked[head].append(spark_server.question(server_of(deployment, seens[head]), ask=False, timeout_s=5))
        if deployment.spec["backend"] == "ray":
            name = deployment.ranks[head].name
            asked[head].append(docker_exec(name, ("python3", "/cluster/ray_nodes.py"), timeout_s=9))
    completion, nodes, wrong = None, None, []
    for host, outcome in fleet.ask(asked).items():
        answers = [*(outcome.value or ())]
        read = ranks.parse(answers[0]) if answers else Missing(str(outcome.error))
        states[host] = read if isinstance(read, Missing) else read.get(deployment.ranks[host].name)
        completion = known(spark_server.parse(answers[1])) if answers[1:] else completion
        if answers[2:] and completion and completion.healthy:
            alive = ranks.parse_nodes(answers[2])
            if isinstance(alive, Missing):
                wrong = [f"Ray does not report its nodes: {alive.why}"]
                continue
            nodes = sum(node.alive for node in alive)
            wrong = judge_nodes(alive, [deployment.seen["hosts"][host]["address"] for host in deployment.hosts])
    state = judge_ranks(states, healthy=completion is not None and completion.healthy)
    return Status(deployment, state, states, completion, nodes, tuple(wrong))


def server_of(deployment: Deployment, seen: Seen) -> Server:
    """Where the deployment's API is, seen from its head."""
    return Server.of_spec(deployment.spec, seen.home(deployment.id))


def host_row(seen: Seen) -> dict[str, str]:
    """One host's cells by their keys in `--json`; `?` for what could not be read."""
    identity, memory, gpus = known(seen.identity), known(seen.memory), known(seen.gpu)
    containers = known(seen.containers)
    power = gpus[0].power_w if gpus else None
    values = {
        "machine": identity.product or identity.arch if identity else None,
        "available_gib": gib(memory.available if memory else None),
        "gpu_gib": gib(prove.gpu_bytes(seen.gpu_processes)),
        "power_w": None if power is None else f"{power:.0f}",
        "containers": None if containers is None else str(sum(one.state == "running" for one in containers)),
    }
    if seen.gpu_memory:
        values["gpu_gib"] = " of ".join(f"{value / GIB:.1f}" for value in seen.gpu_memory)
    return {key: "?" if value is None else value for key, value in values.items()}


def gib(value: int | None) -> str | None:
    return None if value is None else f"{value / GIB:.1f}"


def print_deployment(status: Status, screen: Screen) -> None:
    deployment = status.deployment
    screen.line(f"{deployment.id}: {status.word} ({deployment.served_name}, {', '.join(deployment.hosts)})")
    for host, rank in status.ranks.items():
        screen.line(f"  {host}: {rank_text(rank)}")
    if status.nodes is not None:
        screen.line(f"  Ray: {status.nodes} of {len(deployment.hosts)} nodes")
    if status.server and status.server.load and status.server.load.queue:
        screen.line(f"  server: {status.server.load.queue}")
    for wrong in status.wrong:
        screen.warn(f"  {wrong}")
    if isinstance(status.state, Failed):
        screen.warn(f"  {status.state.host}: {status.state.why}; cluster up starts it again")


def rank_text(rank: RankState | Missing | None) -> str:
    if rank is None:
        return "no container"
    if isinstance(rank, Missing):
        return f"unknown: {rank.why}"
    if rank.state != "running":
        return f"{rank.state}, exit {rank.exit_code}{': ' + rank.ended if rank.ended else ''}"
    return f"running, {rank.stage or 'starting'}"
