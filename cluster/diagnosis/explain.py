"""The one door: sources in, a diagnosis out. Pure; every source is read once, in pieces, with bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cluster.diagnosis import root as causes
from cluster.diagnosis.lines import TextLine
from cluster.diagnosis.outputs import SETTLERS, Outputs, judge_outputs, logs_in, recognise
from cluster.diagnosis.root import Explanation
from cluster.diagnosis.scan import Scan, Source, scan


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
    texts = [one.kept_lines() for one in scans]
    outputs = Outputs(
        output
        for one, lines in zip(scans, texts, strict=True)
        for output in recognise(one.source.name, one.source.host, lines)
    )
    beside = {one.source.name for one in scans if one.source.beside}
    found = list(judge_outputs(Outputs(output for output in outputs if output.file not in beside)))
    found += [one for each in scans for one in causes.explain_hits(each) if not _is_past(one, each, scans)]
    found = list({(one.id, one.file, one.finding.what): one for one in reversed(found)}.values())[::-1]
    settled = [SETTLERS[one.id](one, outputs) if one.id in SETTLERS else one for one in found]
    found = [one for one in settled if one is not None]
    unknown = [one for each in scans if not each.source.beside for one in causes.explain_trouble(each)]
    if by_cluster:
        found, unknown = list(map(causes.of_cluster, found)), list(map(causes.of_cluster, unknown))
    files = [_of_file(one, lines, outputs, found, unknown) for one, lines in zip(scans, texts, strict=True)]
    return Diagnosis(*causes.judge(found, unknown), tuple(files))


def _is_past(found: Explanation, its: Scan, scans: Sequence[Scan]) -> bool:
    """Whether the server was seen well after something that happened beside it."""
    well = [one.well for one in scans if one.well is not None]
    if not its.source.beside or found.time is None or not well:
        return False
    place = causes.order_of([found.time, *well])
    return place(found.time) < max(map(place, well))


def _of_file(
    one: Scan,
    lines: Sequence[TextLine],
    outputs: Outputs,
    found: Sequence[Explanation],
    unknown: Sequence[Explanation],
) -> FileDiagnosis:
    name = one.source.name
    own = ([it for it in every if it.file == name] for every in (found, unknown))
    _, findings, secondary = causes.judge(*own)
    past = [hit for hit in reversed(one.hits) if hit.rule.level == "normal" or causes.is_overcome(hit, one)]
    return FileDiagnosis(
        name,
        (*logs_in(lines), *(output.kind for output in outputs if output.file == name)),
        findings,
        secondary,
        tuple(causes.of_hit(hit, one) for hit in reversed({hit.rule.id: hit for hit in past}.values())),
        one.lines,
        "not text, so not read" if one.binary else "only its beginning was read" if one.cut else "",
    )
