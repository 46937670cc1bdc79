"""Times `cluster explain` on a log of 100 MB whose last line says what was wrong.

    .venv/bin/python scripts/bench/explain.py [--mb 100] [--rounds 3] [--other ../before/.venv/bin/cluster]

The limit is Python reading the same file line by line; `--other` is another version of `cluster`. All take turns. Whole
processes, imports included: median of seconds by the clock, of seconds of CPU, and the most memory. Goals and past
numbers: docs/log.md.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

OWN = str(Path(sys.executable).with_name("cluster"))
LIMIT = [sys.executable, "-c", "import sys; print(sum(1 for line in open(sys.argv[1], encoding='utf-8')))"]
CAUSE = "(EngineCore pid=71) ERROR torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
SHAPES = (
    "INFO {at} [loggers.py:257] Engine 000: Avg prompt throughput: {n}.3 tokens/s, Avg generation throughput: {n}.1"
    " tokens/s, Running: {n} reqs, Waiting: 0 reqs, GPU KV cache usage: {n}.2%, Prefix cache hit rate: 0.0%",
    'INFO:     10.0.0.{n}:50122 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
    "WARNING {at} [protocol.py:117] fields {word} {word} of a request were ignored",
    "DEBUG {at} [core.py:901] {word} {word} {word} {n}",
    "spark1:71:{n} [0] NCCL INFO Channel {n}/0 : 0[0] -> 1[0] [send] via NET/IB/0",
)


def lines() -> Iterator[str]:
    """For ever: what a server logs while nothing is wrong; the same at each run."""
    some = random.Random(7)
    words = ["".join(some.choices("abcdefghijklmnopqrstuvwxyz", k=8)) for _ in range(5000)]
    while True:
        at = f"11-29 {some.randrange(24):02}:{some.randrange(60):02}:{some.randrange(60):02}"
        yield some.choice(SHAPES).format(at=at, n=some.randrange(1, 250), word=some.choice(words)) + "\n"


def write(file: Path, size: int) -> None:
    with file.open("w") as log:
        for line in lines():
            size -= log.write(line)
            if size < len(CAUSE):
                break
        log.write(CAUSE + "\n")


def run(words: list[str]) -> tuple[float, float, float, str]:
    """Seconds by the clock, seconds of CPU, most memory in MiB, and what was printed."""
    began = time.monotonic()
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout
        said = process.stdout.read()
        _pid, _status, used = os.wait4(process.pid, 0)
        process.returncode = 0
    return time.monotonic() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--other", help="another `cluster` program")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "vllm.log")
        write(log, int(given.mb * 1e6))
        programs = {"explain": [OWN, "explain"], "other": [given.other, "explain"], "reading": LIMIT}
        if not given.other:
            del programs["other"]
        runs: dict[str, list[tuple[float, float, float]]] = {name: [] for name in programs}
        for _ in range(given.rounds):
            for name, words in programs.items():
                *took, said = run([*words, str(log)])
                assert name == "reading" or "CUDA out of memory" in said, said
                runs[name].append((took[0], took[1], took[2]))
    print(f"{given.mb:g} MB, median of {given.rounds}; load {os.getloadavg()[0]:.1f}")
    for name, rows in runs.items():
        clock, cpu, memory = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"{name:8} {clock:6.1f} s by the clock, {cpu:6.1f} s of CPU, at most {memory:4.0f} MiB")


if __name__ == "__main__":
    main()
