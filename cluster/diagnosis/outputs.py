"""Outputs of commands in a text, recognised by the readers of facts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.diagnosis.explanation import EVIDENCE_LENGTH, Explanation, of_rule
from cluster.diagnosis.rules import OF_OUTPUTS
from cluster.diagnosis.text import Line
from cluster.spark import (
    bandwidth,
    completion,
    docker_text,
    gids,
    gpu_processes,
    gpu_text,
    host_text,
    ibdev2netdev,
    ip_text,
    link_events,
    memory,
    metrics,
    ray_nodes,
)

READERS: tuple[tuple[str, Callable[[str], Any]], ...] = (
    ("ports", ibdev2netdev.recognise),
    ("interfaces", ip_text.recognise),
    ("neighbours", ip_text.recognise_neighbours),
    ("gids", gids.recognise),
    ("link events", link_events.recognise),
    ("bandwidth", bandwidth.recognise),
    ("memory", memory.recognise),
    ("gpus", gpu_text.recognise),
    ("gpu processes", gpu_processes.recognise),
    ("metrics", metrics.recognise),
    ("ray status", ray_nodes.recognise),
    ("docker info", docker_text.recognise),
    ("docker ps", docker_text.recognise_containers),
    ("completion", completion.recognise),
    ("disk", host_text.recognise_disk),
    ("kernel", host_text.recognise_kernel),
    ("memlock", host_text.recognise_memlock),
    ("machine-ids", host_text.recognise_machines),
    ("hostnames", host_text.recognise_hostnames),
)

LOGS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "log of vLLM",
        re.compile(r"\b(?:DEBUG|INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d |\bUvicorn running|\bvllm\b.*INFO"),
    ),
    ("log of Ray", re.compile(r"\(raylet\)|\(gcs_server\)|\w+\.py:\d+ -- |[\w.]+\.cc:\d+: ")),
    ("log of NCCL", re.compile(r"NCCL (?:INFO|WARN) ")),
    ("log of a kernel", re.compile(r"mlx5_core |NVRM: |\bkernel: |^\[ *\d+\.\d{6}\] ")),
    ("log of a rank", re.compile(r'"cluster": "rank"')),
    ("HTTP log", re.compile(r'"(?:GET|POST) /\S* HTTP/1\.')),
    ("output of ping", re.compile(r"packets transmitted, ")),
)


@dataclass(frozen=True, slots=True)
class Output:
    """One output: what kind, as read, and the text it stands in."""

    kind: str
    value: Any
    file: str
    host: str
    lines: tuple[Line, ...]

    def find(self, *words: str) -> Line | None:
        """The first line with all of these words in it."""
        return next((line for line in self.lines if all(word in line.text for word in words)), None)

    def say(self, id: str, words: Sequence[str], **values: str) -> Explanation:
        """A rule of outputs as it applies here; `words` find the line that shows it, else stand for themselves."""
        line = self.find(*words)
        evidence = line.text.strip()[:EVIDENCE_LENGTH] if line else " ".join(words)
        return of_rule(OF_OUTPUTS[id], values, self.file, line.number if line else None, evidence, self.host)


class Outputs(tuple[Output, ...]):
    """All outputs of all files."""

    def named(self, kind: str) -> list[Output]:
        """Those of one kind, in the order of the files."""
        return [output for output in self if output.kind == kind]


def recognise(file: str, host: str, lines: tuple[Line, ...]) -> tuple[Output, ...]:
    """Every output that the readers know in one file's text."""
    text = "".join(f"{line.text}\n" for line in lines)
    found = ((kind, read(text)) for kind, read in READERS)
    return tuple(Output(kind, value, file, host, lines) for kind, value in found if value is not None)


def logs_in(lines: tuple[Line, ...]) -> Iterator[str]:
    """Which logs a text holds lines of."""
    return (name for name, pattern in LOGS if any(pattern.search(line.text) for line in lines))
