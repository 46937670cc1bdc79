"""What more hosts bought: two sizes side by side, the published numbers, and what the memory allows at most. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.bench.result import Manifest, Result, differences
from cluster.bench.rows import suffix
from cluster.bench.series import Point
from cluster.bench.statistics import Ratio, Stat, ratio, stat
from cluster.bench.tables import MISSING, Table, cell, number, table
from cluster.config.recipe import Recipe, Reference, ReferenceRow
from cluster.spark.gpu import Card
from cluster.spark.memory import GIB

BYTES_A_PARAMETER = {
    "fp8": 1.0,
    "modelopt_fp4": 0.5625,  # 4 bits, and an FP8 scale for 16 values
    "nvfp4": 0.5625,
    "awq": 0.52,  # 4 bits, and a 16-bit scale and a 4-bit zero for 128 values
    "awq_marlin": 0.52,
    "gptq": 0.52,
    "gptq_marlin": 0.52,
}
"""By the value of vLLM's --quantization."""

PASSED = 1.03
"""So many times a ceiling is above it, and no matter of rounding."""

_EXPERTS = re.compile(r"\bA\d+(\.\d+)?B\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Reading:
    """Bytes read for one token. `bytes` is None when they are not known; `why` says why, or where they are from."""

    bytes: float | None = None
    why: str = ""

    def ceiling_t_s(self, card: Card | None, tp: int | None, concurrency: int = 1) -> float | None:
        """Tokens a second that `tp` hosts of one card cannot exceed; one reading serves all requests of a batch. None
        where the bytes, the card or the size is unknown.

        Pipeline stages read one after the other, so they do not raise it for a single request.
        """
        if self.bytes is None or card is None or not tp:
            return None
        return concurrency * tp * card.bytes_per_s / self.bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """A measurement with what is known around it: its name here, its step of a series, the recipe's own numbers."""

    label: str
    result: Result
    path: Path | None = None
    point: Point | None = None
    reading: Reading = Reading()
    references: tuple[Reference, ...] = ()

    @property
    def tp(self) -> int | None:
        return self.result.manifest.tp

    @property
    def replicas(self) -> int:
        """How many servers shared the requests, 0 where it was one."""
        return len(self.result.manifest.replicas)


def bytes_a_token(recipe: Recipe) -> Reading:
    """What a recipe reads for one token: parameters × bytes of its quantisation, else the size of its files."""
    flags, active, total, files = recipe.vllm, recipe.active_parameters_b, recipe.parameters_b, recipe.weights_gib
    each, parameters = BYTES_A_PARAMETER.get(str(flags.get("quantization"))), active or total
    if flags.get("speculative-config"):
        return Reading(None, "speculative decoding gives more than one token for one reading of the weights")
    if active is None and (_EXPERTS.search(recipe.model) or "moe-backend" in flags):
        return Reading(None, "a mixture of experts reads its active parameters only; the recipe does not say how many")
    if each is not None and parameters is not None:
        why = f"{parameters:g} billion parameters × {each:g} bytes ({flags['quantization']})"
        return Reading(parameters * 1e9 * each, why)
    if each is None and files is None:
        return Reading(None, "the recipe does not say weights_gib, and its quantization does not imply the bytes")
    if each is None and files is not None and active is None:
        return Reading(files * GIB, f"weight files of {files:g} GiB")
    if files is None or active is None or total is None:
        return Reading(None, "the recipe does not say parameters_b")
    return Reading(active / total * files * GIB, f"{active:g} of {total:g} billion parameters are read")


PP, TG, TTFR = "prompt processing", "token generation", "time to first response"


@dataclass(frozen=True, slots=True)
class ScalingRow:
    """One number at both sizes. Rates in tokens a second, the time in ms; a speed-up above 1 is always better.

    `efficiency`: speed-up ÷ growth in hosts. `published`: the recipe's numbers at both sizes and their speed-up, None
    where nothing was published in this depth mode.
    """

    what: str
    test: str
    depth: int
    concurrency: int
    base: Stat | None
    now: Stat | None
    speed_up: Ratio | None
    efficiency: float | None
    published: tuple[float | None, float | None, float | None]


def scaling_rows(base: Result, now: Result, references: Sequence[Reference] = ()) -> list[ScalingRow]:
    """Compare what both results have. The caller has asked `differences` whether they may be compared.

    Prompt processing and time to first response of the same prompt length are pooled over the lengths of output:
    they are measured before the first token.
    """
    growth = (now.manifest.nodes or 1) / (base.manifest.nodes or 1)
    known = [row for one in references if one.depth_mode == now.manifest.depth_mode for row in one.rows]
    both = {row.shape for row in base.rows} & {row.shape for row in now.rows}
    values: dict[tuple[str, str, int, int], tuple[list[float], list[float]]] = {}
    for side, row in ((side, row) for side, one in ((1, now), (0, base)) for row in one.rows if row.shape in both):
        prompt, output = (name + suffix(row.context_size, row.concurrency, row.concurrency) for name in row.shape.names)
        numbers = ((TG, output, row.tg_throughput), (PP, prompt, row.pp_throughput), (TTFR, prompt, row.ttfr))
        for what, test, value in numbers:
            pair = values.setdefault((what, test, row.context_size, row.concurrency), ([], []))
            pair[side].extend(value.values if value else ())
    rows = []
    for (what, test, depth, concurrency), (before, after) in values.items():
        old, new = stat(before), stat(after)
        gain = ratio(old, new) if what == TTFR else ratio(new, old)
        first, second = (_published(known, what, test, one.manifest) for one in (base, now))
        less, more = (second, first) if what == TTFR else (first, second)
        published = (first, second, more / less if more and less else None)
        efficiency = gain.value / growth if gain else None
        rows.append(ScalingRow(what, test, depth, concurrency, old, new, gain, efficiency, published))
    return sorted(rows, key=lambda row: (TG, PP, TTFR).index(row.what))


def _published(rows: Sequence[ReferenceRow], what: str, test: str, of: Manifest) -> float | None:
    """The first published number for this row and size; none for replicas."""
    rows = () if of.replicas else rows
    own = (row for row in rows if row.test.removesuffix(" (c1)") == test and row.tp == of.tp)
    values = (row.ttfr_ms if what == TTFR else row.t_s for row in own)
    return next((value for value in values if value is not None), None)


def scaling_table(base: Entry, now: Entry) -> Table:
    """Two sizes: t/s (or ms), speed-up with its 95 % interval, efficiency, the ceiling, the published numbers."""
    rows, reading, lines = scaling_rows(base.result, now.result, now.references), now.reading, []
    card, passed = now.result.manifest.card, []
    published = any(row.published[:2] != (None, None) for row in rows)
    for row in rows:
        gain, most = row.speed_up, reading.ceiling_t_s(card, now.tp, row.concurrency)
        line = {"what": row.what, "test": row.test, base.label: row.base, now.label: row.now}
        line |= {"speed-up": f"{gain.value:.2f}×" if gain else None, "95 %": interval(gain)}
        line |= {"efficiency": cell(row.efficiency, ".0%"), f"ceiling {now.label}": ""}
        if most and row.what == TG:
            line[f"ceiling {now.label}"] = f"{most:,.1f}" + (f" ({row.now.mean / most:.0%})" if row.now else "")
            passed += [row.test] if row.now and row.now.mean > PASSED * most else []
        if published:
            first, second, times = row.published
            line[f"published {base.label}"] = number(first) if first else ""
            line[f"published {now.label}"] = number(second) if second else ""
            line["published speed-up"] = f"{times:.2f}×" if times else ""
        lines.append(line)
    notes = [f"t/s; {TTFR} in ms; a speed-up above 1 is better; ± is the sample standard deviation"]
    notes += [f"baseline: {base.path.name}"] if base.path else []
    found = differences(base.result.manifest, now.result.manifest)
    others = [str(item) for item in found if not item.must_agree]
    notes += ["also different: " + "; ".join(others)] if others else []
    for reference in now.references:
        mode, wanted = reference.depth_mode, now.result.manifest.depth_mode
        if mode != wanted:
            notes.append(f"not shown, measured in mode {mode!r}, this in {wanted!r}: {reference.source}")
        elif published:
            with_what = f" ({reference.measured_with})" if reference.measured_with else ""
            notes.append(f"published: {reference.source}{with_what}")
    if reading.bytes is None:
        notes += [f"ceiling n/a: {reading.why}"] if reading.why else []
    elif card is None:
        gpus = "; ".join(now.result.manifest.gpus)
        notes.append(f"ceiling n/a: the memory bandwidth of {gpus or 'these GPUs'} is not known here")
    else:
        notes.append(
            f"ceiling (part of it reached): {card.bytes_per_s / 1e9:,g} GB/s × {now.tp} ÷ "
            f"{reading.bytes / 1e9:,.3g} GB a token ({reading.why}); the cache read at depth is not counted"
        )
    if passed:
        notes.append(f"ABOVE THE CEILING in {', '.join(passed)}: the bytes a token or the GPU are not what is assumed")
    return table(f"scaling: {now.label} beside {base.label}", lines, notes, 2, optional=(f"ceiling {now.label}",))


def uses_table(one: Entry, other: Entry) -> Table:
    """Two uses of the same hosts, one server over all of them (`one`) and replicas (`other`): which is better, at how
    many clients. The ratio is that of the second, above 1 where it is better; better: beyond chance (95 %)."""
    lines, wins = [], dict[tuple[str, int], dict[str, list[int]]]()
    for row in scaling_rows(one.result, other.result):
        gain = row.speed_up
        better = "not known" if gain is None else "one run" if gain.low is None else "no difference"
        if gain and gain.significant:
            better = other.label if gain.value > 1 else one.label
        wins.setdefault((row.what, row.depth), {}).setdefault(better, []).append(row.concurrency)
        line = {"what": row.what, "test": row.test, "clients": str(row.concurrency)}
        line |= {one.label: cell(row.base), other.label: cell(row.now)}
        line |= {f"{other.label} ÷ {one.label}": f"{gain.value:.2f}×" if gain else MISSING, "95 %": interval(gain)}
        lines.append(line | {"better": better})
    notes = [f"t/s; {TTFR} in ms, where the ratio is turned round: above 1 {other.label} is better"]
    for (what, depth), found in wins.items():
        each = "; ".join(f"{who} at {', '.join(map(str, sorted({*clients})))}" for who, clients in found.items())
        notes.append(f"{what}{f' at depth {depth}' if depth else ''}, better by clients: {each}")
    return table(f"{other.label} or {one.label}: the same hosts", lines, notes, 2)


def interval(gain: Ratio | None) -> str:
    """The interval of a speed-up in words."""
    if gain is None:
        return MISSING
    if gain.low is None or gain.high is None:
        return "one run"
    return f"{gain.low:.2f}–{gain.high:.2f}" + ("" if gain.significant else " (not significant)")
