"""A desk whose servers can be measured: they are of known timing, and no second passes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any
from urllib.parse import urlsplit

from fake_host import FakeProcess
from fake_load import round_lines
from known_server import ENGINES, Connection, Send, State
from machine import Desk, Machine

from cluster.argv.far import source
from cluster.argv.question import Question

RECIPE = """\
model: example/toy
served_model_name: {model}
architecture: ToyForCausalLM
image: example.org/vllm:1
parameters_b: 1
backend: ray
vllm: {{max-model-len: 4096, gpu-memory-utilization: 0.8, quantization: fp8}}
ready_timeout_s: 60
bench: {{pp: [64], tg: [16], depth: [0], runs: 2}}
reference:
  - source: the write-up
    depth_mode: cold
    rows:
      - {{test: tg16, tp: 1, t_s: 200}}
      - {{test: tg16, tp: 2, t_s: 340}}
    vram_mb: {{head: 92160, worker: 92160}}
"""


def server(rate: float, ttft_s: float = 0.005, engine: str = "") -> State:
    """A server of known timing; `rate` in tokens a second."""
    return State(ttft_s, rate, engine=ENGINES[engine])


class Answering(Connection):
    """The server of known timing without a socket and a clock: what it sends in answer to a request, and when."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.portions: list[tuple[float, bytes]] = []
        self.transport: Any = self

    def write(self, data: bytes) -> None:
        self.portions.append((0.0, data))

    def play(self, sends: Iterator[Send], begin: float, sent: list[Any]) -> None:
        self.portions += [(t, data) for t, data, _ in sends]


class LoadClient(FakeProcess):
    """far/load.py beside servers of known timing; None: there is no server. No answer takes its time, and each is
    recorded as up to 1 % faster or slower than it should be, by chance but the same in every run of the tests."""

    def __init__(self, servers: Sequence[State | None], given: Mapping[str, Any], seed: int = 0) -> None:
        super().__init__([json.dumps({"ready": True, "python": "3.12.3", "hostname": "exact"})])
        self.servers, self.given, self.chance = [*servers], given, Random(seed)

    def write(self, data: bytes) -> None:
        super().write(data)
        for line in data.splitlines():
            given = json.loads(line)
            free = [0.0] * given["concurrency"]  # when each connection is
            answers = []
            for request in given["asks"]:
                begin, pace = heappop(free), self.chance.uniform(0.99, 1.01)
                portions = [(begin + 0.001 + pace * t, data) for t, data in self.answer(request)]
                answers.append((begin, portions))
                heappush(free, portions[-1][0] if portions else begin)
            for printed in round_lines(given["id"], answers):
                self.say(printed)

    def answer(self, request: dict[str, Any]) -> list[tuple[float, bytes]]:
        state = self.servers[request["server"]]
        if state is None:
            return []
        answering = Answering(state)
        answering.answer(request["path"], request["body"] or {})
        return answering.portions


class Watcher(FakeProcess):
    """far/watch over a machine of the desk: it takes a sample when a run begins and when it ends."""

    def __init__(self, machine: Machine, stdin: bytes) -> None:
        super().__init__([json.dumps({"ready": True})])
        self.machine = machine
        self.programs = json.loads(stdin.splitlines()[-1])["programs"]
        self.samples: list[dict[str, Any]] = []

    def write(self, data: bytes) -> None:
        super().write(data)
        self.samples.append({"t": time.time(), "said": [self.run(one) for one in self.programs]})
        if b"begin" in data:
            self.say(json.dumps({"begun": True}))
            return
        for sample in self.samples:
            self.say(json.dumps(sample))
        self.say(json.dumps({"ended": len(self.samples), "hangs": False}))
        self.samples.clear()

    def run(self, program: dict[str, Any]) -> str:
        words = ("python3", "-I", "-S", "-", json.dumps(program["given"]))
        return self.machine.answer(Question(words, stdin=program["source"].encode())).out.decode()


def is_bare(desk: Desk) -> bool:
    """Whether every host is as it was before."""
    return not any(machine.docker.containers or machine.kept() for machine in desk)


@contextmanager
def measurable(desk: Desk, rates: Sequence[float], on_start: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Deployments of one host answer at the first rate (tokens a second), of two at the second, and so on; of replicas
    each has a server of its own, if it runs when a load client starts.

    `on_start` is called whenever a load client starts.
    """
    of_size = [server(rate) for rate in rates]
    replicas = {machine.address: server(rates[0]) for machine in desk}
    started = count()

    def replica(url: str) -> State | None:
        [machine] = [one for one in desk if one.address == urlsplit(url).hostname]
        return replicas[machine.address] if any(life.serving for life in machine.lives()) else None

    def starter(machine: Machine) -> Callable[[tuple[str, ...], bytes], FakeProcess]:
        def start(argv: tuple[str, ...], stdin: bytes) -> FakeProcess:
            if source("watch") in stdin:
                return Watcher(machine, stdin)
            assert source("load") in stdin
            assert argv[:3] == ("docker", "exec", "--interactive")
            assert any(one.name == argv[3] and one.running for one in machine.docker.containers.values())
            on_start()
            setup = json.loads(stdin.splitlines()[-1])
            if len(setup["urls"]) > 1:
                servers = [replica(url) for url in setup["urls"]]
            else:
                [hosts] = [one for one in desk.serving().values() if machine.name in one]
                servers = [of_size[len(hosts) - 1]]
            return LoadClient(servers, setup, next(started))

        return start

    for name, host in desk.hosts.items():
        host.starter = starter(desk[name])
    yield
