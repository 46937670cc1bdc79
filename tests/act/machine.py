"""A desk of simulated machines: each answers what `cluster` asks of a host, in the formats of the real programs.

What is asked and what is done go through one Desk, so that a test can copy it, compare it and let time pass. The docker
command is `fake_docker`; the programs of far/ that only ask docker run as they are, over it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from types import SimpleNamespace
from typing import Any

from fake_docker import Container
from fake_host import FakeHost, FakeProcess, lost
from rank_life import RankLife
from spark import DATA, GIB, HUB, IMAGE, LOCK, MODEL, Machine, Port, Stranger, spark_ports

from cluster.argv.question import Answer, Question
from cluster.errors import ConnectionLostError
from cluster.hosts.cancel import Cancel, Scope
from cluster.hosts.fleet import Fleet

__all__ = ["DATA", "GIB", "HUB", "IMAGE", "MODEL", "Desk", "Killed", "Machine", "Port", "Stranger", "unreachable"]


class Killed(BaseException):
    """SIGKILL of the operator: no error of ours, so nothing is rolled back."""


class Desk:
    """All machines, and the time they live in (it is a fleet's `clock`).

    `sockets`: NCCL falls back; `leaky`: the engine prints its secrets; `cut`: machines whose fabric link is cut;
    `trouble(life)`: why an engine cannot start; `says`: what the model answers; `arguments`: what it gives to tools;
    `answers`: status and error of a completion, 0 when none comes in time.
    """

    def __init__(self, *names: str) -> None:
        self.now = 0.0
        self.sleeps = 0
        self.killed = False
        self.sockets = self.leaky = False
        self.cut: set[str] = set()
        self.says = " Paris, and it has been so for a long time."
        self.arguments = '{"city": "Paris"}'
        self.answers = (200, "")
        self.bad_flag, self.last_line = "", "RuntimeError: unknown kernel"
        self.hub: set[str] = {MODEL}
        self.hub_token = ""
        self.on_sleep: list[Any] = []
        self.machines = {name: Machine(self, name, count, spark_ports(count)) for count, name in enumerate(names, 1)}
        self.hosts = self._hosts()

    def __iter__(self) -> Iterator[Machine]:
        return iter(self.machines.values())

    def __getitem__(self, name: str) -> Machine:
        return self.machines[name]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("hosts", "on_sleep")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, on_sleep=[])
        self.hosts = self._hosts()

    def _hosts(self) -> dict[str, DeskHost]:
        return {name: DeskHost(self, machine) for name, machine in self.machines.items()}

    def copy(self) -> Desk:
        return pickle.loads(pickle.dumps(self))

    def connect(self, entries: Mapping[str, Any]) -> Fleet:
        """What `hosts.connect.connect` does, here: an inventory may call a machine as it likes, its address decides."""
        cancel = Cancel()
        by_address = {machine.address: name for name, machine in self.machines.items()}
        hosts = []
        for name, entry in entries.items():
            host = self.hosts[by_address.get(entry.address, name)]
            host.name, host.cancel, host.changes = name, cancel, 0
            hosts.append(host)
        return Fleet(hosts, cancel=cancel, clock=self)

    # time

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1767225600.0 + self.now

    def sleep(self, seconds: float, /) -> None:
        with LOCK:
            self.sleeps += 1
            self.now += seconds
            self.settle()
        for event in list(self.on_sleep):
            event()

    def at_sleep(self, number: int, act: Callable[[], object]) -> None:
        """Something happens while everybody waits for the n-th time from now."""
        first = self.sleeps
        self.on_sleep.append(lambda: act() if self.sleeps == first + number else None)

    def pass_time(self, seconds: float) -> None:
        with LOCK:
            for _ in range(max(1, round(seconds))):
                self.now += 1
                self.settle()

    def settle(self) -> None:
        while [life for life in self.lives() if life.step()]:
            pass

    # ranks

    def lives(self) -> list[RankLife]:
        return [life for machine in self for life in machine.lives()]

    @property
    def containers(self) -> list[Container]:
        return [one for machine in self for one in machine.docker.containers.values()]

    def ranks_of(self, container: Container) -> list[Container]:
        label = f"cluster.deployment={container.labels['cluster.deployment']}"
        return [one for one in self.containers if one.carries(label)]

    def trouble(self, life: RankLife) -> str:
        """Why an engine cannot start; empty when it can."""
        return self.last_line if self.bad_flag and self.bad_flag in life.engine else ""

    def move_bytes(self, head: RankLife) -> None:
        """A completion over several ranks goes through the HCAs, or not."""
        for life in (head, *head.peers().values()):
            named = life.container.env.get("NCCL_IB_HCA", "").lstrip("=").split(",")
            for port in life.machine.ports:
                if port.hca in named and life.rdma and life.size > 1:
                    port.bytes += 1 << 20

    # faults

    def kill(self) -> None:
        """SIGKILL of the operator: its connections close, so its locks end."""
        self.killed = True
        for host in self.hosts.values():
            host.end_processes()
        raise Killed

    def recover(self) -> None:
        """A new operator, and whatever was unreachable is there again."""
        self.killed, self.on_sleep = False, []
        self.hosts = self._hosts()

    def reboot(self, name: str) -> None:
        machine = self.machines[name]
        machine.boots += 1
        machine.gpu_limit_mhz = None
        for container in machine.docker.containers.values():
            if container.running:
                container.end(255, self.now)
                if container.options.get("--restart") == ["always"]:
                    machine.docker.start(container)
        self.hosts[name].end_processes()
        self.settle()

    def kill_rank(self, name: str) -> None:
        """`docker kill` by somebody, or the kernel: the rank says nothing."""
        for life in self[name].lives():
            life.over = True
            life.container.end(137, self.now)

    def when_asked(self, name: str, word: str, event: Callable[[], object]) -> None:
        """Something happens, once, just before a machine answers a question with this word."""
        host = self.hosts[name]
        answer, still = host.handler, [event]

        def handler(question: Question) -> Answer:
            if word in " ".join(question.argv) and still:
                still.pop()()
            return answer(question)

        host.handler = handler

    def when_locked(self, name: str, event: Callable[[], object]) -> None:
        """Something happens, once, just before the lock of a machine is taken."""
        host, still = self.hosts[name], [event]
        start = host.start

        def started(argv: Sequence[str], stdin: bytes = b"", *, lasting: bool = False) -> FakeProcess:
            if lasting and still:
                still.pop()()
            return start(argv, stdin, lasting=lasting)

        host.start = started  # type: ignore[method-assign]

    # what a test looks at

    def serving(self) -> dict[str, list[str]]:
        """Deployments that answer: id → hosts of all their running ranks."""
        found: dict[str, list[str]] = {}
        for head in (life for life in self.lives() if life.serving):
            ranks = [head, *head.peers().values()]
            if len(ranks) == head.size:
                found[head.container.labels["cluster.deployment"]] = sorted(one.machine.name for one in ranks)
        return found

    def deployment(self) -> str:
        """The one that serves, on all machines, with nothing of ours beside it."""
        [(name, hosts)] = self.serving().items()
        assert hosts == list(self.machines)
        for machine in self:
            assert [one.labels["cluster.deployment"] for one in machine.docker.containers.values()] == [name]
            assert machine.kept() == [name]
        return name

    def state(self) -> dict[str, Any]:
        """Everything that a command could have changed, for comparison; times and traffic left out."""
        return {
            machine.name: SimpleNamespace(
                containers={one.id: (one.name, one.state, one.starts) for one in machine.docker.containers.values()},
                images=dict(machine.docker.images),
                files=dict(machine.files),
                folders=set(machine.folders),
                models=dict(machine.models),
                cached=machine.cached_bytes,
                processes=sorted(row[1:4] for row in machine.rows()),
            )
            for machine in self
        }


class DeskHost(FakeHost):
    """The connection to a machine of a desk, and more ways to fail.

    `killed_at`, `dropped_at`: just before the n-th change the operator is killed, or the host becomes unreachable;
    `away_at`: the host cannot be reached for `away_s` from then on.
    """

    def __init__(self, desk: Desk, machine: Machine) -> None:
        super().__init__(machine.name, machine.answer, machine.started, machine.put, audit=machine.audit)
        self.desk = desk
        self.killed_at = self.dropped_at = self.away_at = 0
        self.away_s, self.back_at = 0.0, inf
        self.processes: list[FakeProcess] = []

    def start(self, argv: Sequence[str], stdin: bytes = b"", *, lasting: bool = False) -> FakeProcess:
        if lasting and self.desk.killed:  # a thread of the one that was killed
            raise unreachable(self.name)
        process = super().start(argv, stdin, lasting=lasting)
        self.processes.append(process)
        return process

    def drop(self, seconds: float = inf) -> None:
        """It does not answer any more, or for so long."""
        self.back_at = self.desk.now + seconds
        self.faults.unreachable = unreachable(self.name)
        self.end_processes()

    def end_processes(self) -> None:
        for process in self.processes:
            process.end()
        self.processes.clear()

    def _reach(self, scope: Scope) -> None:
        if self.desk.killed:
            raise Killed
        if self.desk.now >= self.back_at:
            self.back_at, self.faults.unreachable = inf, None
        super()._reach(scope)

    def _count_change(self) -> int:
        if self.desk.killed:
            raise Killed
        number = super()._count_change()
        if number == self.killed_at:
            self.desk.kill()
        if number == self.dropped_at:
            self.drop()
            raise lost(self.name)
        if number == self.away_at:
            self.away_at, self.changes = 0, number - 1
            self.drop(self.away_s)
            error = unreachable(self.name)
            error.sent = False
            raise error
        return number


def unreachable(name: str) -> ConnectionLostError:
    """What a host that is switched off gives."""
    what = f"{name} did not answer within 10 s"
    return ConnectionLostError(what, code="host-unreachable", where=name, remedy="is it on?")
