"""`cluster logs`: the logs of all ranks, merged by time, or what they say is wrong."""

from __future__ import annotations

import argparse
import queue
import threading
from collections.abc import Iterator, Sequence

from cluster.actions.logs_explain import explain_all
from cluster.actions.reach import Connect, answered, look, open_fleet, raise_all, read_named
from cluster.commands.docker import docker_logs
from cluster.errors import ClusterError, ExitCode, ManyErrors, RefusedError
from cluster.hosts.connect import connect
from cluster.hosts.fleet import Fleet
from cluster.plan.deployed import Deployment, deployments
from cluster.screen import Screen

TAIL = 200
Line = tuple[str, str, str]
"""Docker's time (RFC 3339), host, text."""


def run(args: argparse.Namespace, screen: Screen, connect: Connect = connect) -> ExitCode:
    """Carry out `cluster logs`."""
    named = read_named(args)
    tail = TAIL if args.tail is None else args.tail
    with open_fleet(named.hosts, connect) as fleet:
        seens, errors = answered(look(fleet, named.hosts))
        found = deployments(seens.values())
        if not found:
            raise_all(errors)
            raise RefusedError(f"nothing of ours on {', '.join(seens)}", remedy="cluster up")
        code = ExitCode.DONE
        if args.explain:
            code = explain_all(found, fleet, args.tail, screen, errors)
        elif args.follow:
            for line in follow(found, fleet, tail):
                screen.line(written(line))
            return code
        else:
            show(read(found, fleet, tail), errors, screen)
    if screen.json_mode and errors:
        return ManyErrors(errors).exit_code
    raise_all(errors)
    return code


def show(lines: Sequence[Line], errors: Sequence[ClusterError], screen: Screen) -> None:
    """All lines, then which hosts' are missing."""
    for line in lines:
        screen.line(written(line))
    rows = [{"time": time, "host": host, "line": text} for time, host, text in lines]
    screen.document({"lines": rows, "errors": [dict(one.lines()) for one in errors]})


def written(line: Line) -> str:
    """One line as it is shown."""
    time, host, text = line
    return f"{time[:23]} {host}: {text}"


def read(found: Sequence[Deployment], fleet: Fleet, tail: int) -> list[Line]:
    """The last lines of every rank, stdout and stderr, in the order of their times."""
    asked = {host: [docker_logs(rank.name, tail=tail)] for one in found for host, rank in one.ranks.items()}
    lines: list[Line] = []
    for host, outcome in fleet.ask(asked).items():
        [answer] = outcome.get()
        lines += [split(host, line) for line in (answer.text + answer.error_text).splitlines()]
    return sorted(lines)


def split(host: str, line: str) -> Line:
    """One line of `docker logs --timestamps`."""
    time, _, text = line.partition(" ")
    return time, host, text


def follow(found: Sequence[Deployment], fleet: Fleet, tail: int) -> Iterator[Line]:
    """Lines of all ranks as they come, until every container has ended. Raises the errors of lost hosts at the end."""
    arrived: queue.Queue[Line | ClusterError | None] = queue.Queue(maxsize=10_000)
    ranks = [(host, rank.name) for one in found for host, rank in one.ranks.items()]

    def pump(host: str, name: str) -> None:
        try:
            process = fleet[host].start(docker_logs(name, tail=tail, follow=True).argv)
            try:
                for line in process.lines():
                    arrived.put(split(host, line))
            finally:
                process.close(1)
        except ClusterError as error:
            arrived.put(error)
        else:
            arrived.put(None)

    for host, name in ranks:
        threading.Thread(target=pump, args=(host, name), daemon=True).start()
    ended: list[ClusterError | None] = []
    while len(ended) < len(ranks):
        try:
            line = arrived.get(timeout=0.2)
        except queue.Empty:
            continue
        if isinstance(line, tuple):
            yield line
        else:
            ended.append(line)
    raise_all([error for error in ended if error is not None])
