"""`cluster logs --explain`: what the ranks' logs, and what lies beside them on their hosts, say is wrong."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cluster.argv.question import Question
from cluster.cli.explain import as_document, of_finding
from cluster.deploy import evidence, saved
from cluster.diagnosis.explain import Diagnosis, explain
from cluster.diagnosis.explanation import Explanation
from cluster.diagnosis.logline import read_time
from cluster.errors import ClusterError, ExitCode
from cluster.hosts.fleet import Fleet
from cluster.screen import Screen
from cluster.spark.deployed import Deployment

KINDS = {
    "log.txt": "log", "kernel.txt": "kernel's journal", "docker.txt": "Docker's journal",
    "inspect.json": "docker inspect", "ray-logs.tar": "Ray's logs",
}  # fmt: skip
EVER = "-30d"
"""How far back a host's journal is read where it is not known when the container was started."""


def explain_all(
    found: Sequence[Deployment], fleet: Fleet, tail: int | None, screen: Screen, errors: list[ClusterError]
) -> ExitCode:
    """Explain each deployment by itself; 4 when something in one has failed, known or unknown.

    Errors of hosts that are lost meanwhile are added to `errors`.
    """
    told, failed = [], False
    for one in found:
        with tempfile.TemporaryDirectory(prefix="cluster-") as place:
            missing = {f"{host}-log.txt": "no container of it was seen" for host in one.hosts if host not in one.ranks}
            absent, lost = evidence.collect(questions(one, tail), fleet, Path(place))
            errors += [error for error in lost if error.host not in {known.host for known in errors}]
            missing |= absent
            diagnosis = explain(saved.sources(Path(place)), by_cluster=True)
        if len(found) > 1:
            screen.line(f"{one.id}:")
        for line in view(diagnosis, missing):
            screen.line(line)
        failed = failed or diagnosis.failed
        told.append(document(one.id, diagnosis, missing, place))
    screen.document({"deployments": told, "errors": [error.as_dict() for error in errors]})
    return ExitCode.REFUSED if failed else ExitCode.DONE


def questions(one: Deployment, tail: int | None) -> dict[str, dict[str, Question]]:
    """What each host is asked of its rank."""
    ray = one.spec["backend"] == "ray"
    return {
        host: evidence.questions(rank.name, since(rank.started_at), tail=tail, ray=ray)
        for host, rank in one.ranks.items()
    }


def since(started_at: str) -> str:
    """A container's start, as journalctl takes it."""
    at = read_time(started_at)
    return EVER if at is None else f"@{at:.0f}"


def document(deployment: str, diagnosis: Diagnosis, missing: Mapping[str, str], place: str) -> dict[str, Any]:
    """For `--json`: as `cluster explain`, with the names of files as evidence has them."""
    told = as_document(diagnosis)
    for row in [*told["files"], *told["secondary"], *filter(None, [told["root"]])]:
        row["file"] = row["file"].removeprefix(f"{place}/")
    return {"deployment": deployment, **told, "missing": dict(missing)}


def view(diagnosis: Diagnosis, missing: Mapping[str, str]) -> Iterator[str]:
    """For people: the cause with its evidence and remedy, what else there is, what follows from it."""
    root = diagnosis.root
    if root:
        yield from of_finding(root, "unknown" if root.level == "unknown" else "cause", where(root))
    elif not diagnosis.failed:
        yield f"nothing wrong found in {read_in(diagnosis)}"
    seen = {root.id} if root else set()
    for one in diagnosis.findings:
        if one.id not in seen:
            yield from of_finding(one, "also" if one.level == "fault" else one.level, where(one))
        seen.add(one.id)
    follows: dict[str, list[str]] = {}
    for one in diagnosis.secondary:
        follows.setdefault(one.id, []).append(place_of(one))
    if follows:
        yield "follows from it: " + "; ".join(f"{id} ({', '.join(places[:4])})" for id, places in follows.items())
    yield from unread(missing)


def unread(missing: Mapping[str, str]) -> Iterator[str]:
    """What could not be had of what matters, and why."""
    hosts: dict[tuple[str, str], list[str]] = {}
    for name, why in missing.items():
        host, part = saved.of_host(name)
        if part in KINDS:
            hosts.setdefault((KINDS[part], why), []).append(host)
    yield from (f"not read: {kind} of {', '.join(names)}: {why}" for (kind, why), names in hosts.items())


def place_of(found: Explanation) -> str:
    """Host, which log, line."""
    path = Path(found.file)
    _, name = saved.of_host(path.name)
    kind = f"Ray's {path.name}" if path.parent.suffix == ".tar" else KINDS.get(name, name)
    return ", ".join(filter(None, (found.finding.host, f"{kind}{f' line {found.line}' if found.line else ''}")))


def where(found: Explanation) -> str:
    """The place, and the time without a date, which half of all lines do not tell."""
    at = "" if found.time is None else f", at {datetime.fromtimestamp(found.time, UTC):%H:%M:%S} UTC"
    return place_of(found) + at


def read_in(diagnosis: Diagnosis) -> str:
    """How much was read of what the ranks printed."""
    logs = [file for file in diagnosis.files if saved.of_host(Path(file.name).name)[1] == "log.txt"]
    hosts = ", ".join(saved.of_host(Path(file.name).name)[0] for file in logs)
    return f"{sum(file.lines for file in logs)} lines of the logs of {hosts or 'no host'}"
