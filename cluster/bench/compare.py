"""Results side by side: what each is called, whether they may be compared, and the table when they may."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cluster.bench.ceiling import UNKNOWN, Reading
from cluster.bench.manifest import Difference, differences
from cluster.bench.report import Table, scaling_table
from cluster.bench.result import Baseline, Result
from cluster.bench.scaling import TG, ScalingRow, scaling_rows
from cluster.bench.series import Point
from cluster.config.recipe import Reference

_CLIENTS = re.compile(r" \(c(\d+)\)$")


@dataclass(frozen=True, slots=True)
class Entry:
    """A measurement with what is known around it: its name here, its step of a series, the recipe's own numbers."""

    label: str
    result: Result
    path: Path | None = None
    point: Point | None = None
    reading: Reading = UNKNOWN
    references: tuple[Reference, ...] = ()

    @property
    def tp(self) -> int | None:
        """Its tensor-parallel size."""
        return self.result.manifest.tp


LABELS: tuple[Callable[[Result], str], ...] = (
    lambda result: result.manifest.recipe or result.manifest.model,
    lambda result: f"TP={result.manifest.tp}" if result.manifest.tp else result.manifest.base_url,
    lambda result: f"PP={result.manifest.pipeline}" if (result.manifest.pipeline or 1) > 1 else "",
    lambda result: result.manifest.backend,
    lambda result: result.manifest.depth_mode,
    lambda result: f"seed {result.manifest.seed}",
    lambda result: result.timestamp,
)
"""What may tell results apart, most telling first."""


def name_results(results: Sequence[Result]) -> list[str]:
    """A short name for each: only what tells them apart; their size when nothing else does."""
    chosen: list[Callable[[Result], str]] = []
    for pick in LABELS:
        names = {tuple(one(result) for one in chosen) for result in results}
        if len(names) == len(results) and chosen:
            break
        if len({pick(result) for result in results}) > 1:
            chosen.append(pick)
    chosen = chosen or [LABELS[1]]
    return [" ".join(filter(None, (pick(result) for pick in chosen))) or "server" for result in results]


def against(base: Entry, now: Entry, varied: Sequence[str] = ()) -> tuple[Difference, ...]:
    """What forbids to compare the two, but for what was varied on purpose."""
    found = differences(base.result.manifest, now.result.manifest)
    return tuple(item for item in found if item.must_agree and not _is_varied(item.key, varied))


CONSEQUENCES = {
    "image": ("image", "image_content", "versions"),
    "model": ("model", "revision", "weights"),
    "revision": ("revision",),
    "weights": ("weights",),
}
"""Conditions that follow from a recipe key by themselves."""


def _is_varied(key: str, varied: Sequence[str]) -> bool:
    """Whether a condition is one of the varied recipe keys, or follows from one."""
    plain = key.removeprefix("spec.").removeprefix("recipe.").replace("_", "-")
    for name in varied:
        roots = [name, f"vllm.{name}", *CONSEQUENCES.get(name.partition(".")[0], ())]
        for root in (root.replace("_", "-") for root in roots):
            if plain == root or plain.startswith(root + ".") or root.startswith(plain + "."):
                return True
    return False


def compare(base: Entry, now: Entry) -> list[Table]:
    """The scaling table of two sizes with the ceiling as a column; in its place what forbids it."""
    why_not = against(base, now)
    if why_not:
        text = f"{now.label} is not compared with {base.label}: " + "; ".join(map(str, why_not[:8]))
        return [Table("scaling", (), (), (text,))]
    rows = scaling_rows(base.result, now.result, now.references)
    told = Baseline(base.result, base.path, differences(base.result.manifest, now.result.manifest))
    table = with_ceiling(scaling_table(rows, told, now.result, now.references), rows, now)
    return [replace(table, title=f"scaling: {now.label} beside {base.label}")]


def with_ceiling(table: Table, rows: Sequence[ScalingRow], now: Entry) -> Table:
    """A scaling table with a column: what the memory of that many Sparks allows, and how much of it was reached."""
    if now.reading.bytes is None:
        return replace(table, notes=(*table.notes, f"ceiling n/a: {now.reading.why}"))
    cells = [_ceiling_cell(row, now) for row in rows]
    at = next((number for number, name in enumerate(table.headers) if name == "efficiency"), len(table.headers) - 1) + 1
    headers = (*table.headers[:at], f"ceiling {now.label}", *table.headers[at:])
    lines = tuple((*line[:at], cell, *line[at:]) for line, cell in zip(table.rows, cells, strict=True))
    note = (
        f"ceiling (part of it reached): 273 GB/s × {now.tp} ÷ {now.reading.bytes / 1e9:,.3g} GB a token "
        f"({now.reading.why}); the cache read at depth is not counted"
    )
    return replace(table, headers=headers, rows=lines, notes=(*table.notes, note))


def _ceiling_cell(row: ScalingRow, now: Entry) -> str:
    if row.what != TG:
        return ""
    found = _CLIENTS.search(row.test)
    ceiling = now.reading.ceiling_t_s(now.tp, int(found[1]) if found else 1)
    if ceiling is None:
        return "n/a"
    part = f" ({row.now.mean / ceiling:.0%})" if row.now else ""
    return f"{ceiling:,.1f}{part}"
