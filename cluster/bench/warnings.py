"""What must be said aloud before the numbers of a result. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.bench.endpoint import REMEDIES, engine_warnings, lacking
from cluster.bench.result import Result

LOUD = ("THROTTLED", "POWER-CAPPED", "ASYMMETRIC HOSTS")
"""How notes on the machines begin that make a row worth nothing; they are said before the numbers too."""


def warnings(result: Result) -> tuple[str, ...]:
    """What must be said aloud with these numbers."""
    manifest = result.manifest
    lines = [*engine_warnings(manifest.engine, manifest.model)]
    if manifest.simulated:
        lines.append(f"SIMULATED HOSTS ({', '.join(manifest.products)}): these numbers say nothing about real ones")
    if manifest.weights == "dummy":
        lines.append("DUMMY WEIGHTS: the model's weights are random; speed only, the text has no meaning")
    if result.failed:
        total = sum(row.requests for row in result.rows)
        lines.append(f"{result.failed} of {total} requests FAILED; the numbers are those of the others")
    queued = [row.shape.name for row in result.rows if row.queued]
    if queued:
        lines.append(f"QUEUED in {some_names(queued, 0)}: more clients than max-num-seqs, so the queue is measured too")
    lines += unusable_rows(result)
    if not result.complete:
        lines.append("INTERRUPTED: not all runs were measured")
    lines += dict.fromkeys(note for row in result.rows for note in row.notes if note.startswith(LOUD))
    missed = [row.shape.name for row in result.rows if row.cache and set(row.cache) - {"hit", "partial"}]
    if missed:
        lines.append(f"NO VERIFIED CACHE HIT in {some_names(missed, 0)}: see the notes")
    if result.sentinel and result.sentinel.drifted:
        lines.append(f"THE MACHINE DRIFTED: {result.sentinel}")
    if manifest.refused_fields:
        lines.append(f"the server refused {lacking(manifest.refused_fields)}")
    return tuple(lines)


def unusable_rows(result: Result) -> list[str]:
    """Rows with answers of another model, or of a part of the prompt: they measured something else."""
    found = []
    for begin, remedy in REMEDIES.items():
        doubted = [(row.shape.name, said) for row in result.rows for said in row.failures if begin in said]
        if doubted:
            names = some_names(list(dict.fromkeys(name for name, _ in doubted)), 0)
            found.append(f"DO NOT BELIEVE {names}: {doubted[0][1].partition(' × ')[2]}; {remedy}")
    return found


def some_names(names: Sequence[str], total: int) -> str:
    """A few names in words; `total`: how many there could be."""
    if len(names) == total and total > 1:
        return "all rows"
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
