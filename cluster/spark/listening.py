"""Which TCP ports are taken, from /proc/net/tcp and tcp6 (proc(5)); a port is never tested by connecting to it."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.argv.far import far
from cluster.argv.question import Answer, Question
from cluster.spark.fact import Missing
from cluster.spark.sections import read_section


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket in LISTEN. `pid` is None and `process` empty when this user may not see whose it is; `uid` owns it."""

    address: str
    port: int
    pid: int | None
    process: str
    uid: int = 0


def question() -> Question:
    """Ask for the listening sockets alone."""
    return far("look", {"sections": ["listening"]})


def parse(answer: Answer) -> tuple[Listener, ...] | Missing:
    """Read the section `listening` of far/look."""
    return read_section(answer, "listening", tuple[Listener, ...])
