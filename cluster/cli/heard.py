"""What the watch asks of hosts at each look, in one round trip each, and what it heard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.argv.question import Answer, Question
from cluster.config.names import ResolvedHost
from cluster.hosts.fleet import Fleet
from cluster.spark import completion, containers, gpu, gpu_processes, identity, links, lock, memory, ranks
from cluster.spark.completion import Completion, Server
from cluster.spark.containers import Container
from cluster.spark.deployed import Deployment
from cluster.spark.fact import Missing
from cluster.spark.gpu import Gpu
from cluster.spark.gpu_processes import GpuProcess
from cluster.spark.links import Links
from cluster.spark.lock import LockState
from cluster.spark.memory import Memory
from cluster.spark.ranks import RankState
from cluster.spark.ready import Failed, judge_ranks
from cluster.spark.sections import NOT_ASKED

SERVER_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Heard:
    """One host's answers. `server` is None where no server was asked. `why` it did not answer, empty when it did.

    `machine` is its machine-id.
    """

    containers: tuple[Container, ...] | Missing
    lock: LockState | Missing
    memory: Memory | Missing
    gpus: tuple[Gpu, ...] | Missing
    processes: tuple[GpuProcess, ...] | Missing
    links: Links | Missing
    server: Completion | Missing | None = None
    why: str = ""
    machine: str | Missing = NOT_ASKED


def hear(fleet: Fleet, hosts: Mapping[str, ResolvedHost], servers: Mapping[str, Server]) -> dict[str, Heard]:
    """Ask all hosts. Of one that failed every connection is closed, so that the next look makes a new one."""
    asked = {name: questions(host, servers.get(name)) for name, host in hosts.items()}
    heard = {}
    for name, outcome in fleet.ask(asked).items():
        if outcome.value is None:
            fleet[name].close()
            missing = Missing(str(outcome.error), "timeout")
            heard[name] = Heard(missing, missing, missing, missing, missing, missing, None, missing.why)
        else:
            heard[name] = read(outcome.value)
    return heard


def questions(host: ResolvedHost, server: Server | None) -> list[Question]:
    """All that is asked of one host."""
    asked = [containers.question(), lock.question(host.data_dir), memory.question(), gpu.question(), links.question()]
    asked.append(identity.machine_question())
    return asked + ([completion.question(server, ask=False, timeout_s=SERVER_TIMEOUT_S)] if server else [])


def read(answers: Sequence[Answer]) -> Heard:
    """The answers to `questions`, in their order."""
    listed, held, kernel, card, linked, machine = answers[:6]
    return Heard(
        containers.parse(listed), lock.parse(held), memory.parse(kernel), gpu.parse(card), gpu_processes.parse(card),
        links.parse(linked), completion.parse(answers[6]) if len(answers) > 6 else None,
        machine=identity.parse_machine(machine),
    )  # fmt: skip


def ask_ranks(deployment: Deployment, fleet: Fleet, heard: Mapping[str, Heard]) -> Failed | None:
    """The rank that ended first, in its own words; None while all that are known run. Only ended ones are asked."""
    seen = [host for host in deployment.hosts if host in heard and not isinstance(heard[host].containers, Missing)]
    ended = [host for host in seen if host in deployment.ranks and deployment.ranks[host].state != "running"]
    states: dict[str, RankState | Missing | None] = dict.fromkeys(deployment.hosts, Missing("not asked"))
    states |= {host: None for host in seen if host not in deployment.ranks}
    asked = {host: [ranks.question([deployment.ranks[host].name])] for host in ended}
    for host, outcome in (fleet.ask(asked) if asked else {}).items():
        told = ranks.parse(outcome.value[0]) if outcome.value else Missing(str(outcome.error))
        states[host] = told if isinstance(told, Missing) else told.get(deployment.ranks[host].name)
    state = judge_ranks(states, healthy=True)
    return state if isinstance(state, Failed) else None
