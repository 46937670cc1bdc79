"""Sources in, a diagnosis out: what is wrong, which of it is the cause, and what follows from it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from cluster.diagnosis.lines import ERROR, EXCEPTION
from cluster.diagnosis.outputs import LOGS, SETTLERS, Outputs, judge_outputs, logs_in, recognise
from cluster.diagnosis.rules import EVIDENCE_LENGTH, EXPLAINS, MOMENTS, OVERCOME, WORDS_LENGTH, Explanation
from cluster.diagnosis.scan import Hit, Scan, Source, scan
from cluster.spark.finding import ORDER

READY_TIMEOUT_S = (590.0, 640.0)
YEAR_S = 366 * 86400.0
DATED_S = 3 * YEAR_S
"""Times below it have no year (`lines.read_time` gives them 1972)."""
REACHED = {moment: number for number, moment in enumerate(MOMENTS)}


@dataclass(frozen=True, slots=True)
class FileDiagnosis:
    """What one source shows by itself: findings, the cause first, and `secondary`, what follows from them.

    `read_as`: what was recognised in it; `normal`: notices that look bad and are not, or were overcome later; `note`:
    why less than everything was read; `troubles`: lines that look like trouble and that no rule matches.
    """

    name: str
    read_as: tuple[str, ...]
    findings: tuple[Explanation, ...]
    secondary: tuple[Explanation, ...]
    normal: tuple[Explanation, ...]
    lines: int
    note: str
    troubles: tuple[int, ...] = ()

    @property
    def known(self) -> bool:
        """Whether anything in it was recognised."""
        return bool(self.read_as or self.findings or self.normal)

    @property
    def is_log(self) -> bool:
        """Whether a log is in it: what its lines do not say may still be wrong."""
        return any(kind in LOGS for kind in self.read_as)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What all sources show together. `root`: the cause to deal with first, None when nothing failed; `secondary`: what
    follows from it and from other causes, on whatever host."""

    root: Explanation | None
    findings: tuple[Explanation, ...]
    secondary: tuple[Explanation, ...]
    files: tuple[FileDiagnosis, ...]

    @property
    def failed(self) -> bool:
        """Whether something is broken, known or unknown."""
        return any(found.level in ("fault", "unknown") for file in self.files for found in file.findings)


SOCKETS = {"nccl-ib-disabled", "nccl-no-verbs", "nccl-no-device", "nccl-socket"}
"""Rules that say that the ranks talk over TCP."""
CHOSEN = {"nccl-one-hca"}
"""Rules about what `cluster` itself chose; where it could not choose better, `doctor` says why."""


def explain(sources: Iterable[Source], *, by_cluster: bool = False, sockets: bool = False) -> Diagnosis:
    """Read every source to its end: what is wrong, which of it is the cause, and what to do.

    Sources of one deployment belong into one call: ranks explain each other, and outputs tell causes apart.
    `by_cluster`: `cluster` started the ranks, so no remedy sets up what they already have. `sockets`: TCP between the
    ranks was asked for or accepted, so it is a note.
    """
    scans = [scan(source) for source in sources]
    texts = [one.kept_lines() for one in scans]
    recognised = [recognise(one.source, lines) for one, lines in zip(scans, texts, strict=True)]
    outputs = Outputs(output for each in recognised for output in each)
    found = [*judge_outputs(Outputs(output for output in outputs if not output.source.beside))]
    found += [one for each in scans for one in explain_hits(each) if not _is_past(one, each, scans)]
    found = list({(one.id, one.file, one.finding.what): one for one in reversed(found)}.values())[::-1]
    settled = [SETTLERS[one.id](one, outputs) if one.id in SETTLERS else one for one in found]
    found = [one for one in settled if one is not None]
    known = {one.file for one in found}
    silent = [each for each in scans if not each.source.beside]
    unknown = [one for each in silent for one in explain_trouble(each, alone=each.source.name not in known)]
    if by_cluster:
        found = [_of_cluster(one) for one in found if one.id not in CHOSEN]
        unknown = list(map(_of_cluster, unknown))
    if sockets:
        found = [
            replace(one, finding=replace(one.finding, level="note")) if one.id in SOCKETS else one for one in found
        ]
    files = [_of_file(one, lines, outputs, found, unknown) for one, lines in zip(scans, texts, strict=True)]
    return Diagnosis(*judge(found, unknown), tuple(files))


def _of_cluster(found: Explanation) -> Explanation:
    return found if found.rule.own is None else replace(found, finding=replace(found.finding, remedy=found.rule.own))


def _is_past(found: Explanation, its: Scan, scans: Sequence[Scan]) -> bool:
    """Whether the server was well after something that happened beside it."""
    well = [one.well for one in scans if one.well is not None]
    if not its.source.beside or found.time is None or not well:
        return False
    place = clock_of([found.time, *well])
    return place(found.time) < max(map(place, well))


def _of_file(
    one: Scan,
    lines: Sequence[tuple[int, str]],
    outputs: Outputs,
    found: Sequence[Explanation],
    unknown: Sequence[Explanation],
) -> FileDiagnosis:
    name = one.source.name
    own = ([it for it in every if it.file == name] for every in (found, unknown))
    _, findings, secondary = judge(*own)
    past = [next((hit for hit in hits if not counts(hit, one)), None) for hits in one.hits.values()]
    read_as = (*logs_in(lines), *(output.kind for output in outputs if output.source.name == name))
    normal = tuple(of_hit(hit, one) for hit in past if hit)
    marked = [hit.number for hit in one.troubles if hit.weight >= ERROR]
    if not marked and any(it.id == "unknown" for it in findings):
        marked = [hit.number for hit in one.troubles]
    return FileDiagnosis(name, read_as, findings, secondary, normal, one.lines, one.note, tuple(marked))


def explain_hits(scan: Scan) -> Iterator[Explanation]:
    """Of each rule the line of one source that is nearest to what happened, without those that it overcame later.

    The very words come before a rank's own, and these before what it reports of another.
    """
    for each in scan.hits.values():
        if hits := [hit for hit in each if counts(hit, scan)]:
            nearest = min(hits, key=lambda hit: hit.line.of_rank + hit.line.hearsay)
            yield _as_timeout(_with_quote(of_hit(nearest, scan), scan), scan)


def counts(hit: Hit, scan: Scan) -> bool:
    """Whether this is wrong, and the text does not reach later the moment until which it counts."""
    wanted = REACHED.get(hit.rule.until, 0)
    later = [REACHED[moment] for moment, number in scan.moments.items() if number > hit.number]
    overcome = wanted and max(later, default=0) >= wanted
    return hit.rule.level != "normal" and not overcome


def of_hit(hit: Hit, scan: Scan) -> Explanation:
    finding = hit.rule.finding(scan.source.host, hit.text, hit.groups)
    hearsay = hit.line.hearsay or scan.source.hearsay
    return Explanation(finding, hit.rule, scan.source.name, hit.number, hit.line.time, hearsay)


NEAR_LINES = 300
DECIDING = re.compile("not found|error: |fatal", re.IGNORECASE)


def _with_quote(found: Explanation, scan: Scan) -> Explanation:
    """With the line that decides, where one near it does: the first that a compiler or shell calls an error."""
    near = [hit for hit in scan.troubles if abs(hit.number - (found.line or 0)) <= NEAR_LINES]
    if not found.rule.quotes or not near:
        return found
    hit = next((hit for hit in near if DECIDING.search(hit.text)), near[0])
    finding = replace(
        found.finding,
        what=f"{found.finding.what}: {hit.line.message[:WORDS_LENGTH]}",
        evidence=hit.text.strip()[:EVIDENCE_LENGTH],
    )
    return replace(found, finding=finding, line=hit.number)


def _as_timeout(found: Explanation, scan: Scan) -> Explanation:
    """An engine that fails ten minutes after the start, with no process to name, ran out of time."""
    empty = found.id == "engine-start-failed" and "proc(s): {}" in found.finding.evidence
    if empty and found.time is not None and scan.started_at is not None:
        passed = (of_year(found.time) - of_year(scan.started_at)) % YEAR_S
        if READY_TIMEOUT_S[0] <= passed <= READY_TIMEOUT_S[1]:
            return found.settled("vllm-ready-timeout", passed=f"{passed:.0f}")
    return found


def explain_trouble(scan: Scan, *, alone: bool = True) -> Iterator[Explanation]:
    """The first error line that no rule knows, the end of a traceback before anything else; `alone`, also one that
    merely looks like trouble.

    A text that went on after it has overcome it: a traceback is then worth a note, another error line nothing.
    """
    late = max((number for moment, number in scan.moments.items() if REACHED[moment]), default=0)
    ranked = sorted(scan.troubles, key=lambda one: (one.number < late, one.line.hearsay, -one.weight, one.number))
    for trouble in ranked[:1]:
        if trouble.number > late:
            if trouble.weight >= ERROR or alone:
                yield of_hit(trouble, scan)
        elif trouble.weight == EXCEPTION:
            yield of_hit(replace(trouble, rule=OVERCOME), scan)


def judge(
    found: Sequence[Explanation], unknown: Sequence[Explanation]
) -> tuple[Explanation | None, tuple[Explanation, ...], tuple[Explanation, ...]]:
    """Separate causes from consequences: the earliest cause that ends things, all causes with it first and then worst
    first, and what follows from causes."""
    explained = {id for one in found for id in EXPLAINS.get(one.id, ())}
    rest = in_time([one for one in found if one.id not in explained])
    causes = [one for one in rest if one.level == "fault" and not one.rule.secondary]
    deaths = [one for one in rest if one.rule.secondary]
    others = [one for one in rest if one not in causes and one not in deaths]
    if all(one.rule.slow for one in causes):
        # no cause is known: an error before the known consequences, else the worst consequence
        errors = in_time([one for one in unknown if one.level == "unknown"])
        faults = [one for one in deaths if one.level == "fault"]
        telling = sorted(deaths, key=lambda one: ORDER.index(one.level))[:1]
        if errors and (not faults or in_time([faults[0], errors[0]])[0] == errors[0]):
            telling = errors[:1]
        causes, deaths = telling + causes, [one for one in deaths if one not in telling]
        others += [one for one in unknown if one.level == "note"]
    grave = [one for one in causes if one.level in ("fault", "unknown")]
    root = next((one for one in grave if not one.rule.slow), grave[0] if grave else None)
    ordered = sorted([*causes, *others], key=lambda one: (one != root, ORDER.index(one.level)))
    return root, tuple(ordered), (*deaths, *(one for one in found if one.id in explained))


def in_time(found: Sequence[Explanation]) -> list[Explanation]:
    """In the order of events: by file and line; of several files by time, those last that have none.

    What a rank reports of another one comes last: the other knows better, and may print it a second later.
    """
    files = list(dict.fromkeys(one.file for one in found))
    ordered = sorted(found, key=lambda one: (files.index(one.file), one.line or 0))
    if len(files) > 1:
        place = clock_of([one.time for one in ordered if one.time is not None])
        ordered.sort(key=lambda one: (one.time is None, place(one.time or 0.0)))
    return sorted(ordered, key=lambda one: one.hearsay)


def clock_of(times: Sequence[float]) -> Callable[[float], float]:
    """A key that sorts these times. Half of all logs have no year: then the story begins after the longest part of the
    year in which nothing happened, so that it may go over New Year."""
    if all(time >= DATED_S for time in times):
        return float
    moments = sorted({of_year(time) for time in times})
    begin = max(((moment - moments[number - 1]) % YEAR_S, moment) for number, moment in enumerate(moments))[1]
    return lambda time: (of_year(time) - begin) % YEAR_S


def of_year(time: float) -> float:
    moment = datetime.fromtimestamp(time, UTC)
    return (moment.replace(year=1972) - datetime(1972, 1, 1, tzinfo=UTC)).total_seconds()
