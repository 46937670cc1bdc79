"""`cluster logs`: the logs of all ranks, merged by time, or (`--explain`) what they show to be wrong."""

from __future__ import annotations

import argparse
import queue
import re
import shlex
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cluster.argv.docker import docker_logs, why_failed
from cluster.argv.question import Answer, Question
from cluster.cli.explain import as_document
from cluster.deploy import evidence
from cluster.deploy.cause import view
from cluster.deploy.session import Connect, choose_one, find, finish, look, open_fleet, read_named
from cluster.diagnosis.explain import explain
from cluster.diagnosis.lines import read_time
from cluster.errors import ClusterError, ConnectionLostError, ExitCode, RefusedError, about, raise_all
from cluster.hosts.connect import connect
from cluster.hosts.fleet import HOST_SILENCE_S, Fleet
from cluster.screen import Screen
from cluster.spark.deployments import Deployment
from cluster.spark.fact import plain

EVER = "-30d"
"""How far back a host's journal is read where it is not known when the container was started."""
TAIL = 200
RETRY_S = 5.0


RELAYED = re.compile(r"\(Ray\w+ pid=.*?\b[A-Z]+ (\d\d-\d\d) (\d\d:\d\d:\d\d) \[")
"""A line of a worker that Ray relayed, with vLLM's own month, day and time."""
LATE_S = 120.0


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time[:19]).timestamp()


class RankLine(NamedTuple):
    """A line of a rank, by the keys of `--json`. `time` is docker's (RFC 3339), empty where it gave none."""

    time: str
    host: str
    deployment: str
    line: str

    @property
    def printed(self) -> str:
        """When it was printed: Ray relays its workers' lines up to a minute late, with vLLM's own time."""
        own = RELAYED.search(self.line)
        if not own or not self.time:
            return self.time
        time = f"{self.time[:4]}-{own[1]}T{own[2]}"  # vLLM writes month and day; docker and containers use UTC
        return time if time <= self.time and _seconds(self.time) - _seconds(time) < LATE_S else self.time

    def text(self, several: bool) -> str:
        """As it is shown, with its deployment where there are several."""
        return f"{self.time[:23]} {f'{self.host}/{self.deployment}' if several else self.host}: {self.line}"


def run(args: argparse.Namespace, screen: Screen, connect: Connect = connect) -> ExitCode:
    """Carry out `cluster logs`; 3 when a host could not be reached, or was lost."""
    named = read_named(args)
    tail = TAIL if args.tail is None else args.tail
    with open_fleet(named.hosts, connect) as fleet:
        seens, errors = look(fleet, named.hosts)
        found = find(seens, named.hosts)
        if not found:
            raise_all(errors)
            what, remedy = f"no deployment on {', '.join(seens)}", "start one with: cluster up"
            raise RefusedError(what, code="no-deployment", remedy=remedy)
        choose_one(found, named)
        code = ExitCode.DONE
        if args.explain:
            code = explain_all(found, fleet, args.tail, screen, errors)
        elif args.follow:
            for error in errors:
                screen.warn(error.what)
            follow(found, fleet, tail, screen, errors)
            raise_all(errors)
        else:
            lines = read(found, fleet, tail, errors)
            for line in lines:
                screen.line(line.text(len(found) > 1))
            rows = [line._asdict() for line in lines]
            screen.document({"lines": rows, "errors": [one.as_dict() for one in errors]})
    return finish(errors, screen, code)


def explain_all(
    found: Sequence[Deployment], fleet: Fleet, tail: int | None, screen: Screen, errors: list[ClusterError]
) -> ExitCode:
    """Explain each deployment by itself; 4 when something in one has failed, known or unknown.

    Errors of hosts that are lost meanwhile are added to `errors`.
    """
    documents, failed = [], False
    for one in found:
        with tempfile.TemporaryDirectory(prefix="cluster-") as place:
            missing = {f"{host}-log.txt": "no container of it was seen" for host in one.hosts if host not in one.ranks}
            asked, ray = {}, one.spec["backend"] == "ray"
            for host, rank in one.ranks.items():
                at = read_time(rank.started_at)
                asked[host] = evidence.questions(rank.name, EVER if at is None else f"@{at:.0f}", tail=tail, ray=ray)
            absent, lost = evidence.collect(asked, fleet, Path(place))
            errors += [error for error in lost if error.host not in {known.host for known in errors}]
            missing |= absent
            accepted = bool(one.seen.get("accepts_sockets"))
            diagnosis = explain(evidence.sources(Path(place)), by_cluster=True, sockets=accepted)
        if len(found) > 1:
            screen.line(f"{one.id}:")
        for line in view(diagnosis, missing):
            screen.line(line)
        failed = failed or diagnosis.failed
        parts = as_document(diagnosis)
        for row in [*parts["files"], *parts["secondary"], *filter(None, [parts["root"]])]:
            row["file"] = row["file"].removeprefix(f"{place}/")
        documents.append({"deployment": one.id, **parts, "missing": missing})
    screen.document({"deployments": documents, "errors": [error.as_dict() for error in errors]})
    return ExitCode.REFUSED if failed else ExitCode.DONE


def read(found: Sequence[Deployment], fleet: Fleet, tail: int, errors: list[ClusterError]) -> list[RankLine]:
    """The last lines of every rank, stdout and stderr, in the order of their times.

    What could not be read is added to `errors`.
    """
    asked: dict[str, dict[str, Question]] = {}
    for host, deployment, name in ranks_of(found):
        asked.setdefault(host, {})[deployment] = docker_logs(name, tail=tail)
    lines: list[RankLine] = []
    for host, outcome in fleet.ask({host: tuple(logs.values()) for host, logs in asked.items()}).items():
        errors += [outcome.error] if outcome.error else []
        for deployment, answer in zip(asked[host], outcome.value or (), strict=False):
            printed = [*answer.text.splitlines(), *answer.error_text.splitlines()]
            here = [split(host, deployment, line) for line in printed]
            lines += [line for line in here if line.time or answer.exit == 0]
            if answer.exit != 0:
                why = why_failed(Answer(answer.exit, err=answer.err))
                what = f"the log of {deployment} could not be read to its end: {why}"
                remedy = f"on {host} run: {shlex.join(asked[host][deployment].argv)}"
                errors.append(ClusterError(what, code="log-incomplete", where=host, host=host, remedy=remedy))
    return sorted(lines, key=lambda line: line.printed)


def ranks_of(found: Sequence[Deployment]) -> list[tuple[str, str, str]]:
    """Host, deployment and container of every rank; a host may have a rank of several deployments."""
    return [(host, one.id, rank.name) for one in found for host, rank in one.ranks.items()]


def split(host: str, deployment: str, line: str) -> RankLine:
    time, _, text = plain(line).partition(" ")
    return RankLine(time, host, deployment, text) if time[4:5] == "-" else RankLine("", host, deployment, line)


def follow(found: Sequence[Deployment], fleet: Fleet, tail: int, screen: Screen, errors: list[ClusterError]) -> None:
    """Show the lines of all ranks as they come, until every container has ended.

    A host that stays lost is added to `errors`; the others are followed on.
    """
    arrived: queue.Queue[Callable[[], None] | None] = queue.Queue(maxsize=10_000)
    ranks = ranks_of(found)

    def pump(host: str, deployment: str, name: str) -> None:
        try:
            for one in come(fleet, host, deployment, name, tail):
                if isinstance(one, RankLine):
                    arrived.put(partial(screen.line, one.text(len(found) > 1)))
                else:
                    arrived.put(partial(screen.warn, one))
        except ClusterError as error:
            errors.append(error)
        arrived.put(None)

    for rank in ranks:
        threading.Thread(target=pump, args=rank, daemon=True).start()
    running = len(ranks)
    while running:
        with suppress(queue.Empty):
            show = arrived.get(timeout=0.2)
            if show:
                show()
            else:
                running -= 1


def come(fleet: Fleet, host: str, deployment: str, name: str, tail: int) -> Iterator[RankLine | str]:
    """A rank's lines as they come; a warning where its host is lost, then what it printed meanwhile.

    Raises ClusterError when the host stays lost.
    """
    last, lost_at = "", 0.0
    while True:
        seen, started_at = last, fleet.time.monotonic()
        asked = docker_logs(name, since=seen, tail=None if seen else tail, follow=True)
        try:
            with about(host):
                process = fleet[host].start(asked.argv)
                try:
                    for text in process.lines():
                        line = split(host, deployment, text)
                        if not seen or line.time > seen:
                            last = max(last, line.time)
                            yield line
                finally:
                    process.close(1)
            return
        except ConnectionLostError as error:
            now = fleet.time.monotonic()
            if not lost_at or now - started_at > RETRY_S:
                lost_at = now
                yield f"{error.what}; its lines follow when it answers again"
            if now - lost_at > HOST_SILENCE_S:
                raise  # the others are followed further
        fleet.time.sleep(RETRY_S)
