"""What the guard of a rank's memory costs on this machine, with the limits of a recipe at their defaults.

    .venv/bin/python scripts/bench/guard.py [--seconds 60]

Prints CPU time as a share of one core, and resident memory at the beginning and the end. Exits 1 when it takes more
than 1 % of a core, or when it grew.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from cluster.config.recipe import MemoryGuard
from cluster.deploy.rank import GUARD

PROGRAM = Path(__file__).resolve().parents[2] / "cluster" / "far" / "guard.py"
GOAL_PCT = 1.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    seconds = parser.parse_args().seconds
    limits = GUARD | MemoryGuard(loading_gib=0).model_dump()
    words = [sys.executable, "-I", "-S", str(PROGRAM), json.dumps(limits)]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as guard:
        assert guard.stdin
        guard.stdin.write(b"s")
        guard.stdin.flush()
        time.sleep(1)
        before, resident = cpu_s(guard.pid), resident_kib(guard.pid)
        time.sleep(seconds)
        share, after = 100 * (cpu_s(guard.pid) - before) / seconds, resident_kib(guard.pid)
    print(f"CPU: {share:.2f} % of a core over {seconds:g} s; resident: {resident} → {after} KiB")
    return int(share > GOAL_PCT or after > resident)


def cpu_s(pid: int) -> float:
    """CPU time so far, from the scheduler, in nanoseconds there: ticks are too coarse."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def resident_kib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


if __name__ == "__main__":
    sys.exit(main())
