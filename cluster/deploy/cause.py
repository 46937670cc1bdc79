"""A diagnosis as text, and the cause that evidence names in the error of a start that failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from cluster.config.find import runbook_path
from cluster.deploy import evidence
from cluster.diagnosis.explain import Diagnosis, explain
from cluster.diagnosis.lines import read_line
from cluster.diagnosis.rules import Explanation
from cluster.errors import ClusterError, InterruptedByUser, joined
from cluster.screen import Screen

SHOWN_LENGTH = 160
KINDS = {
    "log.txt": "log",
    "kernel.txt": "kernel's journal",
    "docker.txt": "Docker's journal",
    "inspect.json": "docker inspect",
    "ray-logs.tar": "Ray's logs",
}


def name_cause(failure: ClusterError, errors: Sequence[ClusterError], directory: str, screen: Screen) -> None:
    """Name in one of the errors what the evidence shows as the cause; what goes wrong here is only a warning.

    Cause, its place and remedy go into the lines of the error; of a consequence without a cause only the remedy.
    """
    if not directory:
        return
    try:
        diagnosis = explain(evidence.sources(Path(directory)), by_cluster=True)
        text = "\n".join(view(diagnosis, {}))
        evidence.write(Path(directory) / evidence.OWN, f"{text}\n".encode(), ())
    except (Exception, KeyboardInterrupt) as error:
        screen.warn(f"the evidence could not be explained: {error or type(error).__name__}")
        return
    root = diagnosis.root
    if root is None or root.level != "fault" or isinstance(failure, InterruptedByUser):
        return
    if root.rule.secondary and root.file.endswith(evidence.ERROR):  # our own words are no evidence
        return
    finding = root.finding
    named = next((one for one in errors if finding.host and finding.host == one.host), errors[0])
    if named.code == root.id:  # it says so itself, with its numbers
        named.remedy = joined(named.remedy, f"read {runbook_path(finding.runbook)}")
        return
    if not root.rule.secondary:
        at, shown = place(root).removeprefix(f"{directory}/"), read_line(finding.evidence).message[:SHOWN_LENGTH]
        named.where = joined(named.where, at if shown in named.what else f"{at}: {shown}")
        named.what, named.code = f"{named.what}; cause: {finding.what}", root.id
    steps = f"read {runbook_path(finding.runbook)}" if finding.runbook else ""
    named.remedy = joined(finding.remedy, steps, named.remedy)


def view(diagnosis: Diagnosis, missing: Mapping[str, str]) -> Iterator[str]:
    """For people: the cause with its evidence and remedy, what else there is, what follows from it, what is missing."""
    root, seen = diagnosis.root, set[str]()
    if not root and not diagnosis.failed:
        logs = [(file.lines, *evidence.of_host(Path(file.name).name)) for file in diagnosis.files]
        logs = [row for row in logs if row[2] == "log.txt"]
        hosts = ", ".join(host for _, host, _ in logs) or "no host"
        yield f"nothing known to be wrong in {sum(lines for lines, _, _ in logs)} lines of the logs of {hosts}"
    for one in [*([root] if root else []), *diagnosis.findings]:
        if one.id not in seen:
            label: str = "also" if one.level == "fault" else one.level
            if one is root and one.level != "unknown":
                label = "cause"
            at = "" if one.time is None else f", at {datetime.fromtimestamp(one.time, UTC):%H:%M:%S} UTC"
            yield from of_finding(one, label, place_of(one) + at)
        seen.add(one.id)
    follows: dict[str, list[str]] = {}
    for one in diagnosis.secondary:
        follows.setdefault(one.id, []).append(place_of(one))
    if follows:
        yield "follows from it: " + "; ".join(f"{id} ({', '.join(places[:4])})" for id, places in follows.items())
    hosts_of: dict[tuple[str, str], list[str]] = {}
    for name, why in missing.items():
        host, part = evidence.of_host(name)
        if part in KINDS:
            hosts_of.setdefault((KINDS[part], why), []).append(host)
    yield from (f"not read: {kind} of {', '.join(names)}: {why}" for (kind, why), names in hosts_of.items())


def place_of(found: Explanation) -> str:
    path = Path(found.file)
    _, name = evidence.of_host(path.name)
    kind = f"Ray's {path.name}" if path.parent.suffix == ".tar" else KINDS.get(name, name)
    return ", ".join(filter(None, (found.finding.host, f"{kind}{f' line {found.line}' if found.line else ''}")))


def of_finding(found: Explanation, label: str, where: str) -> Iterator[str]:
    """Label and cause, the line and its place, remedy, and the page that has the steps."""
    yield f"{label}: {found.finding.what} [{found.id}]"
    yield f"  {where}: {found.finding.evidence}"
    if found.finding.remedy:
        yield f"  hint: {found.finding.remedy}"
    if found.finding.runbook:
        yield f"  read: {runbook_path(found.finding.runbook)}"


def place(found: Explanation) -> str:
    return f"{found.file}:{found.line}" if found.line else found.file
