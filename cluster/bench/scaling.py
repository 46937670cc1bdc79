"""What more hosts bought: two sizes side by side, the published numbers, and what the memory allows at most. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster.bench.result import Baseline, Result
from cluster.bench.rows import Row, suffix
from cluster.bench.statistics import Ratio, Stat, ratio, stat
from cluster.bench.tables import MISSING, Column, Table, table
from cluster.config.recipe import Recipe, Reference, ReferenceRow
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
    flags = recipe.vllm
    if flags.get("speculative-config"):
        return Reading(None, "speculative decoding gives more than one token for one reading of the weights")
    active = recipe.active_parameters_b
    if active is None and (_EXPERTS.search(recipe.model) or "moe-backend" in flags):
        return Reading(None, "a mixture of experts reads its active parameters only; the recipe does not say how many")
    parameters, quantisation = active or recipe.parameters_b, flags.get("quantization")
    each = BYTES_A_PARAMETER.get(str(quantisation))
    if each is not None:
        if parameters is None:
            return Reading(None, "the recipe does not say parameters_b")
        return Reading(parameters * 1e9 * each, f"{parameters:g} billion parameters × {each:g} bytes ({quantisation})")
    if recipe.weights_gib is None:
        return Reading(None, "the recipe does not say weights_gib, and its quantization does not imply the bytes")
    if active is None:
        return Reading(recipe.weights_gib * GIB, f"weight files of {recipe.weights_gib:g} GiB")
    if recipe.parameters_b is None:
        return Reading(None, "the recipe does not say parameters_b")
    part = active / recipe.parameters_b
    return Reading(
        part * recipe.weights_gib * GIB, f"{active:g} of {recipe.parameters_b:g} billion parameters are read"
    )


PP, TG, TTFR = "prompt processing", "token generation", "time to first response"


@dataclass(frozen=True, slots=True)
class Published:
    """The recipe's numbers for one row at both sizes; None where nothing was published in this measuring mode.

    `is_time`: less is better, so the speed-up is the other way round.
    """

    base: float | None = None
    now: float | None = None
    is_time: bool = False

    @property
    def speed_up(self) -> float | None:
        """As published; above 1 is better."""
        if not self.base or not self.now:
            return None
        return self.base / self.now if self.is_time else self.now / self.base


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
        published = Published(first, second, is_time=what == TTFR)
        efficiency = gain.value / growth if gain else None
        rows.append(ScalingRow(what, test, depth, old, new, gain, efficiency, published))
    order = (TG, PP, TTFR)
    return tuple(sorted(rows, key=lambda row: order.index(row.what)))


def _numbers(rows: Sequence[Row]) -> dict[tuple[str, str, int], Stat | None]:
    """The numbers of a result by (what, row name, depth)."""
    found: dict[tuple[str, str, int], list[Stat | None]] = {}
    for row in rows:
        tail = suffix(row.context_size, row.concurrency, row.concurrency)
        prompt, output = (name + tail for name in row.shape.names)
        found.setdefault((TG, output, row.context_size), []).append(row.tg_throughput)
        found.setdefault((PP, prompt, row.context_size), []).append(row.pp_throughput)
        found.setdefault((TTFR, prompt, row.context_size), []).append(row.ttfr)
    return {key: _pool(stats) for key, stats in found.items()}


def _pool(stats: Sequence[Stat | None]) -> Stat | None:
    """All values of some stats as one."""
    return stat([value for one in stats if one is not None for value in one.values])


def _published(references: Sequence[Reference], what: str, test: str, tp: int | None) -> float | None:
    """The first published number for this row and size."""
    pick: Callable[[ReferenceRow], float | None] = (lambda row: row.ttfr_ms) if what == TTFR else (lambda row: row.t_s)
    for reference in references:
        for row in reference.rows:
            if row.test.removesuffix(" (c1)") == test and row.tp == tp and pick(row) is not None:
                return pick(row)
    return None


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
        """Where it is from."""
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
    notes = [*_scaling_notes(baseline, now, references, published), *([ceiling.note] if ceiling else [])]
    return table(title, columns, rows, notes, text_columns=2)


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


def _scaling_notes(
    baseline: Baseline, now: Result, references: Sequence[Reference], published: bool
) -> tuple[str, ...]:
    """Units, conditions, sources."""
    notes = [f"t/s; {TTFR} in ms; a speed-up above 1 is better; ± is the sample standard deviation"]
    if baseline.path:
        notes.append(f"baseline: {baseline.path.name}")
    others = [str(item) for item in baseline.differences if not item.must_agree]
    if others:
        notes.append("also different: " + "; ".join(others))
    for reference in references:
        if reference.depth_mode != now.manifest.depth_mode:
            mode = now.manifest.depth_mode
            notes.append(f"not shown, measured in mode {reference.depth_mode!r}, this in {mode!r}: {reference.source}")
        elif published:
            with_what = f" ({reference.measured_with})" if reference.measured_with else ""
            notes.append(f"published: {reference.source}{with_what}")
    return tuple(notes)
