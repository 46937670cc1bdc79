"""What more hosts bought: two sizes side by side, the published numbers, and what the memory allows at most. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.bench.result import Baseline, Result
from cluster.bench.rows import Row, suffix
from cluster.bench.statistics import Ratio, Stat, ratio, stat
from cluster.bench.tables import MISSING, Column, Table, table
from cluster.config.recipe import Recipe, Reference
from cluster.spark.memory import GIB

SPARK_BYTES_PER_S = 273e9
"""Memory bandwidth of a GB10 as NVIDIA's data sheet of the DGX Spark has it."""

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

_EXPERTS = re.compile(r"\bA\d+(\.\d+)?B\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Reading:
    """Bytes read for one token. `bytes` is None when they are not known; `why` says why, or where they are from."""

    bytes: float | None
    why: str

    def ceiling_t_s(self, tp: int | None, concurrency: int = 1) -> float | None:
        """Tokens a second that `tp` Sparks cannot exceed; one reading serves all requests of a batch.

        Pipeline stages read one after the other, so they do not raise it for a single request.
        """
        if self.bytes is None or not tp:
            return None
        return concurrency * tp * SPARK_BYTES_PER_S / self.bytes


UNKNOWN = Reading(None, "the recipe is not known")


def bytes_a_token(recipe: Recipe) -> Reading:
    """What a recipe reads for one token: parameters × bytes of its quantisation, else the size of its files.

    A quantisation whose bytes are not known here is that of a checkpoint: its files tell.
    """
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
class Published:
    """The recipe's numbers for one row at both sizes; None where nothing was published in this measuring mode."""

    base: float | None
    now: float | None
    speed_up: float | None


@dataclass(frozen=True, slots=True)
class ScalingRow:
    """One number at both sizes. Rates in tokens a second, the time in ms; a speed-up above 1 is always the better.

    `efficiency` is the speed-up ÷ the growth in hosts.
    """

    what: str
    test: str
    depth: int
    base: Stat | None
    now: Stat | None
    speed_up: Ratio | None
    efficiency: float | None
    published: Published


def scaling_rows(base: Result, now: Result, references: Sequence[Reference] = ()) -> tuple[ScalingRow, ...]:
    """Compare what both results have. The caller has asked `differences` whether they may be compared.

    Prompt processing and time to first response of the same prompt length are pooled over the lengths of output:
    they are measured before the first token.
    """
    growth = (now.manifest.nodes or 1) / (base.manifest.nodes or 1)
    usable = [ref for ref in references if ref.depth_mode == now.manifest.depth_mode]
    both = {row.shape for row in base.rows} & {row.shape for row in now.rows}
    before, after = (_numbers([row for row in side.rows if row.shape in both]) for side in (base, now))
    rows = []
    for (what, test, depth), new in after.items():
        old = before.get((what, test, depth))
        gain = None
        if old is not None and new is not None:
            gain = ratio(old, new) if what == TTFR else ratio(new, old)
        first, second = (_published(usable, what, test, side.manifest.tp) for side in (base, now))
        less, more = (second, first) if what == TTFR else (first, second)
        published = Published(first, second, more / less if more and less else None)
        efficiency = gain.value / growth if gain else None
        rows.append(ScalingRow(what, test, depth, old, new, gain, efficiency, published))
    order = (TG, PP, TTFR)
    return tuple(sorted(rows, key=lambda row: order.index(row.what)))


def _numbers(rows: Sequence[Row]) -> dict[tuple[str, str, int], Stat | None]:
    found: dict[tuple[str, str, int], list[Stat | None]] = {}
    for row in rows:
        tail = suffix(row.context_size, row.concurrency, row.concurrency)
        prompt, output = (name + tail for name in row.shape.names)
        found.setdefault((TG, output, row.context_size), []).append(row.tg_throughput)
        found.setdefault((PP, prompt, row.context_size), []).append(row.pp_throughput)
        found.setdefault((TTFR, prompt, row.context_size), []).append(row.ttfr)
    return {key: stat([value for one in stats if one for value in one.values]) for key, stats in found.items()}


def _published(references: Sequence[Reference], what: str, test: str, tp: int | None) -> float | None:
    """The first published number for this row and size."""
    rows = (row for one in references for row in one.rows if row.test.removesuffix(" (c1)") == test and row.tp == tp)
    values = (row.ttfr_ms if what == TTFR else row.t_s for row in rows)
    return next((value for value in values if value is not None), None)


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What the memory of that many Sparks allows, as a column of a scaling table."""

    label: str
    reading: Reading
    tp: int | None

    def cell(self, row: ScalingRow) -> str:
        """The most for a row of token generation, and how much of it was reached."""
        if row.what != TG:
            return ""
        clients = re.search(r" \(c(\d+)\)$", row.test)
        ceiling = self.reading.ceiling_t_s(self.tp, int(clients[1]) if clients else 1)
        if ceiling is None:
            return MISSING
        return f"{ceiling:,.1f}" + (f" ({row.now.mean / ceiling:.0%})" if row.now else "")

    @property
    def note(self) -> str:
        if self.reading.bytes is None:
            return f"ceiling n/a: {self.reading.why}"
        return (
            f"ceiling (part of it reached): 273 GB/s × {self.tp} ÷ {self.reading.bytes / 1e9:,.3g} GB a token "
            f"({self.reading.why}); the cache read at depth is not counted"
        )


def scaling_table(
    rows: Sequence[ScalingRow],
    baseline: Baseline,
    now: Result,
    references: Sequence[Reference] = (),
    ceiling: Ceiling | None = None,
    title: str = "scaling",
) -> Table:
    """TP=1 beside TP=N: t/s (or ms), speed-up with its 95 % interval, efficiency, the published numbers."""
    old, new = (f"TP={side.manifest.tp}" if side else "TP=?" for side in (baseline.result, now))
    columns = [
        Column("what", lambda row: row.what),
        Column("test", lambda row: row.test),
        Column(old, lambda row: row.base),
        Column(new, lambda row: row.now),
        Column("speed-up", lambda row: _times(row.speed_up and row.speed_up.value)),
        Column("95 %", interval),
        Column("efficiency", lambda row: row.efficiency, ".0%"),
    ]
    if ceiling and ceiling.reading.bytes is not None:
        columns.append(Column(f"ceiling {ceiling.label}", ceiling.cell))
    published = any(row.published.base is not None or row.published.now is not None for row in rows)
    if published:
        columns += [
            Column(f"published {old}", lambda row: _number(row.published.base)),
            Column(f"published {new}", lambda row: _number(row.published.now)),
            Column("published speed-up", lambda row: _times(row.published.speed_up) or ""),
        ]
    notes = [f"t/s; {TTFR} in ms; a speed-up above 1 is better; ± is the sample standard deviation"]
    notes += [f"baseline: {baseline.path.name}"] if baseline.path else []
    others = [str(item) for item in baseline.differences if not item.must_agree]
    notes += ["also different: " + "; ".join(others)] if others else []
    for reference in references:
        mode, wanted = reference.depth_mode, now.manifest.depth_mode
        if mode != wanted:
            notes.append(f"not shown, measured in mode {mode!r}, this in {wanted!r}: {reference.source}")
        elif published:
            with_what = f" ({reference.measured_with})" if reference.measured_with else ""
            notes.append(f"published: {reference.source}{with_what}")
    return table(title, columns, rows, [*notes, *([ceiling.note] if ceiling else [])], text_columns=2)


def interval(row: ScalingRow) -> str:
    """The interval of a speed-up in words."""
    gain = row.speed_up
    if gain is None:
        return MISSING
    if gain.low is None or gain.high is None:
        return "one run"
    text = f"{gain.low:.2f}–{gain.high:.2f}"
    return text if gain.significant else f"{text} (not significant)"


def _times(gain: float | None) -> str | None:
    return None if gain is None else f"{gain:.2f}×"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"
