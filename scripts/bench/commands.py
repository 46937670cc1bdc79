"""How long the commands take on the two hosts of a lab that is up, with an image that serves at once.

    .venv/bin/cluster lab up
    .venv/bin/python scripts/bench/commands.py [--rounds 5]

Prints median and range in seconds, and of `up` its own share: all but waiting for the engine. Whole processes, imports
included. The hosts have to be empty, and are empty afterwards. Goals and past numbers: docs/log.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

CLUSTER = str(Path(sys.executable).with_name("cluster"))
PAIR = ("-n", "spark1,spark2", "--tp", "2")
QUICK = ("--set", "image=cluster-lab/vllm:quick", "--yes", "--json")
UPS = {"solo": ("--solo", "-n", "spark1"), "mp": (*PAIR, "--backend", "mp"), "Ray": PAIR}


def run(*words: str) -> tuple[float, str]:
    """A command that must succeed: its seconds, and what it printed."""
    began = time.monotonic()
    done = subprocess.run([CLUSTER, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"cluster {' '.join(words)}: exit {done.returncode}\n{done.stderr}")
    return time.monotonic() - began, done.stdout


def show(what: str, runs: list[float]) -> None:
    print(f"{what:32} {statistics.median(runs):6.2f} ({min(runs):.2f}-{max(runs):.2f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = range(parser.parse_args().rounds)
    show("--help", [run("--help")[0] for _ in rounds])
    show("doctor", [run("doctor")[0] for _ in rounds])
    for name, words in UPS.items():
        stages = json.loads(run("up", *words, *QUICK)[1])["stages_s"]
        show(f"up {name}, own share", [sum(stages.values()) - stages["wait for Ray and vLLM"]])
        if name == "mp":
            show("status", [run("status")[0] for _ in rounds])
            show("exec -- true", [run("exec", "--", "true")[0] for _ in rounds])
            again = [run("up", *words, *QUICK) for _ in rounds]
            proofs = [json.loads(text)["stages_s"]["prove"] for _, text in again]
            show("up again, beyond its proofs", [took - proof for (took, _), proof in zip(again, proofs, strict=True)])
            show("up --dry-run", [run("up", *words, *QUICK, "--dry-run")[0] for _ in rounds])
        show("down", [run("down")[0]])


if __name__ == "__main__":
    main()
