"""A desk whose servers can be measured: the real load client, against servers of known timing on loopback."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from bench_live import Child, known_server
from fake_host import FakeProcess
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


class LoadClient(FakeProcess):
    """far/load.py as a real process, with the real addresses of its servers in place of the deployments'."""

    def __init__(self, argv: Sequence[str], stdin: bytes, urls: Sequence[str]) -> None:
        super().__init__()
        program, _, setup = stdin.rstrip(b"\n").rpartition(b"\n")
        self.given = json.loads(setup)
        real = json.dumps(self.given | {"base_url": urls[0], "others": urls[1:]})
        inside = argv[argv.index("python3") + 1 :]  # what `docker exec` would run in the container
        self.child = Child([sys.executable, *inside], program + b"\n" + real.encode() + b"\n")

    def lines(self) -> Iterator[str]:
        return self.child.lines()

    def write(self, data: bytes) -> None:
        with suppress(BrokenPipeError):  # who reads finds that it has ended
            self.child.write(data)

    def close(self, timeout_s: float = 5.0) -> int | None:
        ended, self.ended = self.ended, True
        return None if ended else self.child.close()

    def end(self, exit_code: int = 0) -> None:
        self.close()


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
    each has a server of its own, as long as it runs.

    `on_start` is called whenever a load client starts.
    """
    with ExitStack() as running:
        urls = [running.enter_context(known_server("--ttft-ms", "5", "--rate", str(rate))) for rate in rates]

        @cache
        def server(address: str) -> str:
            return running.enter_context(known_server("--ttft-ms", "5", "--rate", str(rates[0])))

        def solo(address: str) -> str:
            [machine] = [one for one in desk if one.address == address]
            return server(address) if any(life.serving for life in machine.lives()) else "http://127.0.0.1:9"

        def starter(machine: Machine) -> Callable[[tuple[str, ...], bytes], FakeProcess]:
            def start(argv: tuple[str, ...], stdin: bytes) -> FakeProcess:
                if source("watch") in stdin:
                    return Watcher(machine, stdin)
                assert source("load") in stdin
                assert argv[:3] == ("docker", "exec", "--interactive")
                assert any(one.name == argv[3] and one.running for one in machine.docker.containers.values())
                on_start()
                setup = json.loads(stdin.splitlines()[-1])
                if not setup["others"]:
                    [hosts] = [one for one in desk.serving().values() if machine.name in one]
                    return LoadClient(argv, stdin, [urls[len(hosts) - 1]])
                addresses = [urlsplit(url).hostname for url in (setup["base_url"], *setup["others"])]
                return LoadClient(argv, stdin, [solo(str(address)) for address in addresses])

            return start

        for name, host in desk.hosts.items():
            host.starter = starter(desk[name])
        yield
