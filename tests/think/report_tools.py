"""Measurements made by hand as a report meets them: rows with exact numbers, machines that report something."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench_results import manifest

from cluster.bench.result import Result
from cluster.bench.rows import Row
from cluster.bench.scaling import Entry, Reading
from cluster.bench.series import Point, Series
from cluster.bench.statistics import Stat, stat
from cluster.config.recipe import Reference, ReferenceRow

GIB = 1 << 30
BEGAN = 1_790_000_000.0
ONE, TWO = (6.4, 6.5, 6.6), (11.0, 11.2, 11.4)
"""Rates of token generation of one Spark, and of two."""
KEY = "speculative_config.num_speculative_tokens"


def stats(*values: float) -> Stat:
    found = stat(values)
    assert found is not None
    return found


def machine(hosts: int, run: int, at_s: float, throttle: Sequence[str] = ()) -> dict[str, Any]:
    """What hosts report before and after a run, and in one reading; the last host is `throttle`d."""

    def state(number: int, busy: bool) -> dict[str, Any]:
        return {
            "role": "worker" if number > 1 else "head",
            "gpu_memory_mib": 102400 + number * 1024,
            "power_w": 60.0 * busy,
            "memory_available_mib": 14336 - 100 * number,
            "sm_clock_mhz": 2418 - 50 * busy,
            "temperature_c": 70,
            "throttle": list(throttle) if number == hosts and busy else [],
        }

    names = {f"spark{number}": number for number in range(1, hosts + 1)}
    before, after = ({name: state(number, busy) for name, number in names.items()} for busy in (False, True))
    words = ("role", "throttle")
    columns = {name: {key: [one] for key, one in state.items() if key not in words} for name, state in after.items()}
    series = {name: {"t": [at_s]} | own for name, own in columns.items()}
    return {"run": run, "before": before, "after": after, "most": after, "series": series}


def row(tg_rates: Sequence[float], depth: int = 0, tg: int = 128, **given: Any) -> Row:
    """A row with these generation rates, one a run; a run takes 10 s, and rows follow each other."""
    hosts, clients = given.pop("hosts", 1), given.pop("concurrency", 1)
    throttle, runs = given.pop("throttle", ()), len(tg_rates)
    values: dict[str, Any] = {
        "concurrency": clients,
        "context_size": depth,
        "prompt_size": 2048,
        "response_size": tg,
        "is_context_prefill_phase": False,
        "pp_throughput": stats(*[200 * rate for rate in tg_rates]),
        "pp_req_throughput": None,
        "tg_throughput": stats(*tg_rates),
        "tg_req_throughput": stats(*[rate / clients for rate in tg_rates]),
        "peak_throughput": None,
        "peak_req_throughput": None,
        "ttfr": stats(*[9000 / rate for rate in tg_rates]),
        "est_ppt": None,
        "e2e_ttft": stats(*[(9000 + depth) / rate for rate in tg_rates]),
        "runs": runs,
        "requests": runs * clients,
        "machine": tuple(machine(hosts, run, BEGAN + depth / 100 + 20 * run, throttle) for run in range(runs)),
    }
    return Row(**values | given)


REFERENCE = Reference(
    source="the write-up",
    depth_mode="cold",
    rows=[
        ReferenceRow(test="tg128", tp=1, t_s=6.5),
        ReferenceRow(test="tg128", tp=2, t_s=11.2),
        ReferenceRow(test="pp2048", tp=1, ttfr_ms=1300),
        ReferenceRow(test="pp2048", tp=2, ttfr_ms=906),
    ],
    vram_mb={"head": 105721, "worker": 103161},
)


def up(hosts: int) -> dict[str, Any]:
    """What `cluster up --json` prints, as far as a report reads it."""

    def memory(available: float, gpu: float) -> dict[str, dict[str, int]]:
        return {
            f"spark{number}": {"available": round(available * GIB), "gpu": round(gpu * GIB)}
            for number in range(1, hosts + 1)
        }

    moments = {"idle": memory(117, 0), "loaded": memory(52, 64), "ready": memory(13.5, 103)}
    return {"changed": True, "stages_s": {"look": 1.0, "wait": 99.0}, "memory_bytes": moments}


def entry(tp: int, rates: Sequence[float], depths: Sequence[int] = (0, 16384), label: str = "", **given: Any) -> Entry:
    """A size measured at some depths."""
    point = Point(label or f"TP={tp}", given.pop("values", {"tp": tp}), up=up(tp), result="x.json")
    rows = given.pop("rows", None) or tuple(row(rates, depth, hosts=tp) for depth in depths)
    result = Result(manifest(tp, **given), tuple(rows), 1.0, f"2026-11-28 0{tp}:00:00Z")
    return Entry(point.label, result, None, point, Reading(31e9, "31 billion parameters"), (REFERENCE,))


def sweep_step(tokens: int, *rates: float, rows: Sequence[Row] = (), **given: Any) -> Entry:
    """A number of drafted tokens, measured."""
    spec = {"tp": 1, "recipe": {"vllm": {"speculative-config": {"num_speculative_tokens": tokens}}}}
    label = f"num_speculative_tokens={tokens}"
    return entry(1, rates, label=label, values={KEY: str(tokens)}, rows=rows or (row(rates),), spec=spec, **given)


def sweep_series(*entries: Entry, kind: str = "sweep", key: str = KEY, failed: Sequence[Point] = ()) -> Series:
    points = [one.point for one in entries if one.point]
    return Series(kind, "gemma", {}, (key,), "2026-11-28 00:00:00Z", (*points, *failed))
