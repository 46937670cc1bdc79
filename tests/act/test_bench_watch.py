"""far/watch as a real program beside a false nvidia-smi, and the watchers of a deployment over fake hosts."""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from bench_live import Child
from fake_host import FakeHost, FakeProcess

from cluster.bench.sampling import PeerLinks, Sample, Watchers, links_of, read_sample, watch_command
from cluster.errors import ConnectionLostError, InterruptedByUser
from cluster.hosts.fleet import Fleet

CARD = "NVIDIA GB10, 580.95.05, [N/A], [N/A], 45.10, 2411, 61, 96, 0x0000000000000000, [N/A]"
HOST = PeerLinks("head")


@contextmanager
def watching(tmp_path: Path, script: str, patience: str = "10.0") -> Iterator[tuple[Child, Iterator[str]]]:
    """The program with this nvidia-smi, sampling every 0.2 s."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\n{script}\n")
    smi.chmod(0o755)
    words, setup = watch_command(0.2)
    length, _, rest = setup.partition(b"\n")
    program, others = rest[: int(length)], rest[int(length) :]
    program = program.replace(b"PATIENCE_S = 10.0", b"PATIENCE_S = " + patience.encode())
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    child = Child(words, b"%d\n%s" % (len(program), program) + others, env)
    lines = child.lines()
    assert json.loads(next(lines)) == {"ready": True}
    try:
        yield child, lines
    finally:
        child.close()


def stretch(child: Child, lines: Iterator[str], *between: Callable[[], object]) -> tuple[list[Sample], dict[str, Any]]:
    """Begin, do this, end."""
    child.write(b'{"begin": true}\n')
    assert json.loads(next(lines)) == {"begun": True}
    for act in between:
        act()
    child.write(b'{"end": true}\n')
    samples = []
    for line in lines:
        if line.startswith('{"ended"'):
            return samples, json.loads(line)
        samples.append(read_sample(line, HOST))
    raise AssertionError("it ended")


APPS = 'echo "7, VLLM::Worker_TP0, $(cat "$(dirname "$0")/used")"'
SMI = f"""case "$1" in *compute-apps*) {APPS};; *) echo "{CARD}";; esac"""


def test_peak_between_the_ends_is_seen(tmp_path: Path) -> None:
    used = tmp_path / "used"
    used.write_text("1000")
    grow, shrink = (partial(used.write_text, text) for text in ("5000", "2000"))
    with watching(tmp_path, SMI) as (child, lines):
        samples, _ = stretch(child, lines, grow, lambda: time.sleep(1.5), shrink)
        more, ended = stretch(child, lines)
    used_mib = [sample.state["gpu_memory_mib"] for sample in samples]
    assert (used_mib[0], max(used_mib), used_mib[-1]) == (1000, 5000, 2000)
    assert samples[0].state["sm_clock_mhz"] == 2411
    assert samples[0].state["memory_available_mib"] > 0
    assert [sample.t for sample in samples] == sorted(sample.t for sample in samples)
    assert (len(more), ended) == (2, {"ended": 2, "hangs": False}), "a second stretch starts empty"


def test_driver_that_hangs_does_not_hold_up_the_measurement(tmp_path: Path) -> None:
    with watching(tmp_path, "exec sleep 20", patience="0.3") as (child, lines):
        began = time.monotonic()
        samples, ended = stretch(child, lines)
        assert time.monotonic() - began < 8
    assert (samples, ended) == ([], {"ended": 0, "hangs": True})


def test_host_without_nvidia_smi_reports_the_rest(tmp_path: Path) -> None:
    with watching(tmp_path, "exit 9") as (child, lines):
        samples, _ = stretch(child, lines)
    assert set(samples[0].state) == {"memory_available_mib"}


class Watching(FakeProcess):
    """far/watch on a fake host; `dies_at`: the word after which its connection is lost."""

    def __init__(self, available_kib: int, dies_at: str = "") -> None:
        super().__init__(['{"ready":true}'])
        self.available_kib, self.dies_at = available_kib, dies_at

    def write(self, data: bytes) -> None:
        super().write(data)
        if self.dies_at and self.dies_at in data.decode():
            self.end(255)
        elif b"begin" in data:
            self.say('{"begun":true}')
        else:
            meminfo = json.dumps({"memory": {"value": f"MemAvailable: {self.available_kib} kB"}})
            self.say(json.dumps({"t": 1.0, "said": [meminfo, "", ""]}, separators=(",", ":")))
            self.say('{"ended":1,"hangs":false}')


def watchers(**processes: Watching | list[Watching | Exception]) -> Watchers:
    """`processes`: what each start on a host gives, in order."""

    def host(name: str, given: Watching | list[Watching | Exception]) -> FakeHost:
        starts = given if isinstance(given, list) else [given]

        def start(words: tuple[str, ...], setup: bytes) -> FakeProcess:
            started = starts.pop(0)
            if isinstance(started, Exception):
                raise started
            return started

        return FakeHost(name, lambda question: pytest.fail("asked"), starter=start)

    names = tuple(processes)
    ends = {name: {"netdev": "eth1", "hcas": ["mlx5_0"]} for name in names}
    deployment = SimpleNamespace(hosts=names, head=names[0], seen={"hosts": ends})
    return Watchers(Fleet([host(*item) for item in processes.items()]), [cast(Any, deployment)])


def test_every_host_of_the_deployment_is_watched() -> None:
    watched = watchers(spark1=Watching(1 << 20), spark2=Watching(2 << 20))
    watched.begin()
    found = watched.end()
    assert found["after"] == {
        "spark1": {"role": "head", "memory_available_mib": 1024},
        "spark2": {"role": "worker", "memory_available_mib": 2048},
    }
    assert found["lost"] == []


GONE = ConnectionLostError("spark2 did not answer within 5 s", code="host-unreachable", where="spark2")


@pytest.mark.parametrize(
    ("starts", "lost"),
    [
        ([Watching(2 << 20, "begin"), GONE, Watching(2 << 20)], [True, True, False]),
        ([Watching(2 << 20, "end"), GONE, Watching(2 << 20)], [True, True, False]),
        ([GONE, Watching(2 << 20)], [False]),
    ],
)
def test_host_that_is_lost_leaves_a_gap_and_is_watched_in_the_next_run(
    starts: list[Watching | Exception], lost: list[bool]
) -> None:
    watched = watchers(spark1=Watching(1 << 20), spark2=starts)
    for is_lost in lost:
        watched.begin()
        found = watched.end()
        assert (list(found["after"]), found["lost"]) == (
            (["spark1"], ["spark2"]) if is_lost else (["spark1", "spark2"], [])
        )


def test_no_watching_program_is_left_when_the_second_is_not_started() -> None:
    first = Watching(1 << 20)
    with pytest.raises(InterruptedByUser):
        watchers(spark1=first, spark2=[InterruptedByUser()])
    assert first.ended


def test_one_host_alone_has_no_fabric() -> None:
    ends = {"spark1": {"netdev": "eth1", "hcas": ["mlx5_0"]}}
    alone = SimpleNamespace(hosts=("spark1",), head="spark1", seen={"hosts": ends})
    assert links_of("spark1", cast(Any, alone)) == PeerLinks("head")
    both = SimpleNamespace(hosts=("spark1", "spark2"), head="spark1", seen={"hosts": ends})
    assert links_of("spark1", cast(Any, both)) == PeerLinks("head", ("mlx5_0",), "eth1")
