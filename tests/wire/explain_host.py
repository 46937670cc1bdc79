"""Reads a host over SSH as `cluster status` and `cluster logs --explain` do, and tells how long and how big that was.

A process of its own, since the largest size of a process is of its whole life.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from cluster.argv.question import Question
from cluster.config.inventory import HostEntry
from cluster.deploy import evidence
from cluster.diagnosis.explain import explain
from cluster.hosts.fleet import Fleet
from cluster.hosts.ssh import SshHost
from cluster.hosts.target import resolve
from cluster.spark import look as spark_look


def size_mb() -> float:
    """The largest size so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(entry: str, most_s: str) -> None:
    """Print one JSON document. No deadline is later than `most_s`."""

    def hurried(question: Question) -> Question:
        return replace(question, timeout_s=min(question.timeout_s, float(most_s)))

    began, before = time.monotonic(), size_mb()
    with Fleet([SshHost("spark1", resolve("spark1", HostEntry(**json.loads(entry))))]) as fleet:
        look, asked_at = spark_look.Look(), time.time()
        answers = fleet["spark1"].ask([*map(hurried, spark_look.questions(look))])
        facts = spark_look.read("spark1", look, answers, (asked_at, time.time()))
        with tempfile.TemporaryDirectory() as place:
            questions = evidence.questions("rank", "-60s", ray=True)
            asked = {"spark1": {name: hurried(question) for name, question in questions.items()}}
            missing, _ = evidence.collect(asked, fleet, Path(place))
            kept = sum(file.stat().st_size for file in Path(place).iterdir())
            diagnosis = explain(evidence.sources(Path(place)))
    root = diagnosis.root
    told = {
        "root": root and [root.id, Path(root.file).name],
        "findings": [f"{one.level} {one.id}" for one in diagnosis.findings],
        "missing": missing,
        "kept_mb": kept / 1e6,
        "seconds": time.monotonic() - began,
        "grown_mb": size_mb() - before,
        "facts": {name: repr(getattr(facts, name))[:300] for name in ("containers", "gpu_processes", "docker")},
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
