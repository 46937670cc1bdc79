"""`cluster logs`: the logs of all ranks, merged by time, or what they say is wrong."""

from __future__ import annotations

import argparse
import queue
import shlex
import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cluster.argv.docker import docker_logs, why_failed
from cluster.argv.question import Answer, Question
from cluster.cli.logs_explain import explain_all
from cluster.deploy.session import Connect, answered, find, look, open_fleet, raise_all, read_named
from cluster.errors import ClusterError, ConnectionLostError, ExitCode, ManyErrors, RefusedError, about
from cluster.hosts.connect import connect
from cluster.hosts.fleet import Fleet
from cluster.screen import Screen
from cluster.spark.deployed import Deployment

TAIL = 200
LOST_S = 180.0
"""A host that is silent for so long is given up; the others are followed further."""
AGAIN_S = 5.0


class Line(NamedTuple):
    """A line of a rank. `time` is docker's (RFC 3339), empty where it gave none."""

    time: str
    host: str
    deployment: str
    text: str


def run(args: argparse.Namespace, screen: Screen, connect: Connect = connect) -> ExitCode:
    """Carry out `cluster logs`; 3 when a host could not be reached, or was lost."""
    named = read_named(args)
    tail = TAIL if args.tail is None else args.tail
    with open_fleet(named.hosts, connect) as fleet:
        seens, errors = answered(look(fleet, named.hosts))
        found = find(seens, named.hosts)
        if not found:
            raise_all(errors)
            raise RefusedError(f"nothing of ours on {', '.join(seens)}", remedy="cluster up")
        code = ExitCode.DONE
        if args.explain:
            code = explain_all(found, fleet, args.tail, screen, errors)
        elif args.follow:
            for error in errors:
                screen.warn(error.what)
            follow(found, fleet, tail, screen, errors)
        else:
            lines = read(found, fleet, tail, errors)
            show(lines, errors, screen, several=len(found) > 1)
    if screen.json_mode and errors and not args.follow:
        return ManyErrors(errors).exit_code
    raise_all(errors)
    return code


def show(lines: Sequence[Line], errors: Sequence[ClusterError], screen: Screen, *, several: bool) -> None:
    """All lines, then which hosts' are missing."""
    for line in lines:
        screen.line(written(line, several=several))
    rows = [{"time": one.time, "host": one.host, "deployment": one.deployment, "line": one.text} for one in lines]
    screen.document({"lines": rows, "errors": [one.as_dict() for one in errors]})


def written(line: Line, *, several: bool) -> str:
    """One line as it is shown, with its deployment where there are several."""
    rank = f"{line.host}/{line.deployment}" if several else line.host
    return f"{line.time[:23]} {rank}: {line.text}"


def ranks_of(found: Sequence[Deployment]) -> Iterator[tuple[str, str, str]]:
    """Host, deployment and container of every rank; a host may have a rank of several deployments."""
    yield from ((host, one.id, rank.name) for one in found for host, rank in one.ranks.items())


def read(found: Sequence[Deployment], fleet: Fleet, tail: int, errors: list[ClusterError]) -> list[Line]:
    """The last lines of every rank, stdout and stderr, in the order of their times.

    What could not be read is added to `errors`.
    """
    asked: dict[str, dict[str, Question]] = {}
    for host, deployment, name in ranks_of(found):
        asked.setdefault(host, {})[deployment] = docker_logs(name, tail=tail)
    lines: list[Line] = []
    for host, outcome in fleet.ask({host: tuple(logs.values()) for host, logs in asked.items()}).items():
        errors += [outcome.error] if outcome.error else []
        for deployment, answer in zip(asked[host], outcome.value or (), strict=False):
            given = [*answer.text.splitlines(), *answer.error_text.splitlines()]
            here = [split(host, deployment, line) for line in given]
            lines += [line for line in here if line.time or answer.exit == 0]
            if answer.exit != 0:
                why = why_failed(Answer(answer.exit, err=answer.err))
                what = f"the log of {deployment} could not be read to its end: {why}"
                remedy = f"on {host} run: {shlex.join(asked[host][deployment].argv)}"
                errors.append(ClusterError(what, where=host, host=host, remedy=remedy))
    return sorted(lines, key=lambda line: line.time)


def split(host: str, deployment: str, line: str) -> Line:
    """One line of `docker logs --timestamps`."""
    time, _, text = line.partition(" ")
    return Line(time, host, deployment, text) if time[4:5] == "-" else Line("", host, deployment, line)


def follow(found: Sequence[Deployment], fleet: Fleet, tail: int, screen: Screen, errors: list[ClusterError]) -> None:
    """Show the lines of all ranks as they come, until every container has ended.

    A host that stays lost is added to `errors`; the others are followed on.
    """
    arrived: queue.Queue[Line | str | ClusterError | None] = queue.Queue(maxsize=10_000)
    ranks = list(ranks_of(found))

    def pump(host: str, deployment: str, name: str) -> None:
        try:
            for one in come(fleet, host, deployment, name, tail):
                arrived.put(one)
        except ClusterError as error:
            arrived.put(error)
        else:
            arrived.put(None)

    for rank in ranks:
        threading.Thread(target=pump, args=rank, daemon=True).start()
    running = len(ranks)
    while running:
        try:
            one = arrived.get(timeout=0.2)
        except queue.Empty:
            continue
        if isinstance(one, Line):
            screen.line(written(one, several=len(found) > 1))
        elif isinstance(one, str):
            screen.warn(one)
        else:
            running -= 1
            errors += [one] if one else []


def come(fleet: Fleet, host: str, deployment: str, name: str, tail: int) -> Iterator[Line | str]:
    """A rank's lines as they come; a word where its host is lost, then what it printed meanwhile.

    Raises ClusterError when the host stays lost.
    """
    last, lost_at = "", 0.0
    while True:
        again, began = last, fleet.time.monotonic()
        asked = docker_logs(name, since=again, tail=None if again else tail, follow=True)
        try:
            with about(host):
                process = fleet[host].start(asked.argv)
                try:
                    for text in process.lines():
                        line = split(host, deployment, text)
                        if not again or line.time > again:
                            last = max(last, line.time)
                            yield line
                finally:
                    process.close(1)
            return
        except ConnectionLostError as error:
            now = fleet.time.monotonic()
            if not lost_at or now - began > AGAIN_S:
                lost_at = now
                yield f"{error.what}; its lines follow when it answers again"
            if now - lost_at > LOST_S:
                raise
        fleet.time.sleep(AGAIN_S)
