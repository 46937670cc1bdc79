"""The one door: sources in, a diagnosis out. Pure; every source is read once, in pieces, with bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from cluster.diagnosis import outputs as diagnosis_outputs
from cluster.diagnosis.outputs import Output, Outputs, logs_in, recognise, settle
from cluster.diagnosis.root import (
    Explanation,
    explain_hits,
    explain_trouble,
    is_overcome,
    judge,
    of_cluster,
    of_hit,
    order_of,
)
from cluster.diagnosis.scan import Scan, Source, scan

JUDGES: tuple[Callable[[Outputs], Iterator[Explanation]], ...] = (
    diagnosis_outputs.judge_ports,
    diagnosis_outputs.judge_link_events,
    diagnosis_outputs.judge_interfaces,
    diagnosis_outputs.judge_neighbours,
    diagnosis_outputs.judge_gids,
    diagnosis_outputs.judge_bandwidth,
    diagnosis_outputs.judge_machines,
    diagnosis_outputs.judge_disk,
    diagnosis_outputs.judge_memory,
    diagnosis_outputs.judge_processes,
    diagnosis_outputs.judge_gpus,
    diagnosis_outputs.judge_docker,
    diagnosis_outputs.judge_ray,
    diagnosis_outputs.judge_load,
    diagnosis_outputs.judge_completion,
)


@dataclass(frozen=True, slots=True)
class FileDiagnosis:
    """What one source says by itself: findings, the cause first, and `secondary`, what follows from them.

    `read_as`: what was recognised in it; `normal`: notices that look bad and are not, or were overcome later; `note`:
    why less than everything was read.
    """

    name: str
    read_as: tuple[str, ...]
    findings: tuple[Explanation, ...]
    secondary: tuple[Explanation, ...]
    normal: tuple[Explanation, ...]
    lines: int
    note: str = ""

    @property
    def known(self) -> bool:
        """Whether anything in it was recognised."""
        return bool(self.read_as or self.findings or self.normal)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What all sources say together. `root`: the cause to deal with first, None when nothing failed; `secondary`: what
    follows from it and from other causes, on whatever host."""

    root: Explanation | None
    findings: tuple[Explanation, ...]
    secondary: tuple[Explanation, ...]
    files: tuple[FileDiagnosis, ...]

    @property
    def failed(self) -> bool:
        """Whether something is broken, known or unknown."""
        return any(found.level in ("fault", "unknown") for file in self.files for found in file.findings)


def explain(sources: Iterable[Source], *, by_cluster: bool = False) -> Diagnosis:
    """Read every source to its end and say what is wrong, which of it is the cause, and what to do.

    Sources of one deployment belong into one call: ranks explain each other, and outputs tell causes apart.
    `by_cluster`: `cluster` started the ranks, so no remedy sets up what they already have.
    """
    scans = [scan(source) for source in sources]
    outputs = Outputs(output for one in scans for output in _outputs(one))
    beside = {one.source.name for one in scans if one.source.beside}
    own = Outputs(output for output in outputs if output.file not in beside)
    found = [one for judged in JUDGES for one in judged(own)]
    found += [one for each in scans for one in explain_hits(each) if not _is_past(one, each, scans)]
    found = settle(_once(found), outputs)
    unknown = [one for each in scans if not each.source.beside for one in explain_trouble(each)]
    if by_cluster:
        found, unknown = list(map(of_cluster, found)), list(map(of_cluster, unknown))
    together = judge(found, unknown)
    files = tuple(_of_file(one, outputs, found, unknown) for one in scans)
    return Diagnosis(together.root, together.findings, together.secondary, files)


def _is_past(found: Explanation, its: Scan, scans: Sequence[Scan]) -> bool:
    """Whether the server was seen well after something that happened beside it."""
    well = [one.well for one in scans if one.well is not None]
    if not its.source.beside or found.time is None or not well:
        return False
    place = order_of([found.time, *well])
    return place(found.time) < max(map(place, well))


def _outputs(one: Scan) -> tuple[Output, ...]:
    return () if one.binary else recognise(one.source.name, one.source.host, one.kept.lines())


def _once(found: Iterable[Explanation]) -> list[Explanation]:
    """The same finding in the same file once."""
    return list({(one.id, one.file, one.finding.what): one for one in reversed(list(found))}.values())[::-1]


def _of_file(
    one: Scan, outputs: Outputs, found: Sequence[Explanation], unknown: Sequence[Explanation]
) -> FileDiagnosis:
    name = one.source.name
    alone = judge([it for it in found if it.file == name], [it for it in unknown if it.file == name])
    normal = {hit.rule.id: hit for hit in reversed(one.hits) if hit.rule.level == "normal" or is_overcome(hit, one)}
    read_as = list(logs_in(one.kept.lines())) if not one.binary else []
    read_as += [output.kind for output in outputs if output.file == name]
    return FileDiagnosis(
        name,
        tuple(read_as),
        alone.findings,
        alone.secondary,
        tuple(of_hit(hit, one) for hit in reversed(normal.values())),
        one.lines,
        "not text, so not read" if one.binary else "only its beginning was read" if one.cut else "",
    )
