"""One row of a benchmark: a shape of request, measured some times, and what its repetition at the end shows. Pure.

Field names follow llama-benchy 0.4; ours add.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from cluster.bench.measure import BatchMeasure, RequestMeasure
from cluster.bench.metrics import ServerCounts, server_document, server_notes, verify_hits
from cluster.bench.sampling import machine_notes
from cluster.bench.statistics import Stat, spread, stat, t95

MISSES = {
    "miss": "missed the prefix cache",
    "unknown": "cannot be verified, the server does not report cached tokens of each",
}
"""What is noted of requests that did not verifiably meet their context in the prefix cache."""

Phase = Literal["cold", "context", "cached"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Prompt tokens, generated tokens, tokens of context before the prompt, requests at the same time.

    `phase`: context and prompt in one request that no cache has seen (cold), the context alone (context), or both with
    the context in the server's prefix cache from just before (cached).
    """

    pp: int
    tg: int
    depth: int
    concurrency: int = 1
    phase: Phase = "cold"

    @property
    def prompt_tokens(self) -> int:
        return self.depth if self.phase == "context" else self.depth + self.pp

    @property
    def names(self) -> tuple[str, str]:
        """llama-benchy's names of the row's two lines, `pp2048` and `tg128` or `ctx_pp` and `ctx_tg`."""
        return ("ctx_pp", "ctx_tg") if self.phase == "context" else (f"pp{self.pp}", f"tg{self.tg}")

    @property
    def name(self) -> str:
        """For messages: `pp2048 tg128 @ d4096 (c4)`."""
        return f"{' '.join(self.names)}{suffix(self.depth, self.concurrency, self.concurrency)}"


def suffix(depth: int, concurrency: int, most: int) -> str:
    """llama-benchy's name after `pp2048`; `most` is the highest concurrency of the result."""
    return (f" @ d{depth}" if depth else "") + (f" (c{concurrency})" if most > 1 else "")


@dataclass(frozen=True, slots=True)
class Row:
    """A shape with its numbers over all runs. Rates in tokens a second, times in ms.

    The first fields are llama-benchy's BenchmarkRun; `tg_throughput` under concurrency is the steady window's rate,
    llama-benchy's own is `tg_wall_throughput`. `why`: the reason for a field that is None. `machine`: the hosts in each
    run (`sampling.describe`), `server`: what it counted (`metrics.server_document`).
    `percentiles`: by `e2e_ttft_ms`, `tpot_ms` (over requests) and `itl_ms` (over tokens).
    `repeated`: runs (from 0) that were measured once more, since the connection to the load client was lost.
    `cache`: in a cached row, how many requests met their context there (`metrics.verify_hits`). `queue`: ms before the
    server began. `queued`: of the requests at the same time, how many the server has no place for. `replicas`: of
    several servers, what each counted.
    """

    concurrency: int
    context_size: int
    prompt_size: int
    response_size: int
    is_context_prefill_phase: bool
    pp_throughput: Stat | None
    pp_req_throughput: Stat | None
    tg_throughput: Stat | None
    tg_req_throughput: Stat | None
    peak_throughput: Stat | None
    peak_req_throughput: Stat | None
    ttfr: Stat | None
    est_ppt: Stat | None
    e2e_ttft: Stat | None
    tg_wall_throughput: Stat | None = None
    runs: int = 0
    requests: int = 0
    failed: int = 0
    failures: tuple[str, ...] = ()
    why: dict[str, str] | None = None
    notes: tuple[str, ...] = ()
    est_ppt_from: str = ""
    counted: str = ""
    client: tuple[dict[str, float], ...] = ()
    machine: tuple[dict[str, Any], ...] = ()
    server: dict[str, Any] | None = None
    output_tokens: Stat | None = None
    percentiles: dict[str, dict[str, float | None]] | None = None
    phase: Phase = "cold"
    cache: dict[str, int] | None = None
    queue: Stat | None = None
    tool_calls: int = 0
    queued: int = 0
    repeated: tuple[int, ...] = ()
    replicas: dict[str, dict[str, Any] | None] | None = None

    @property
    def shape(self) -> Shape:
        return Shape(self.prompt_size, self.response_size, self.context_size, self.concurrency, self.phase)

    def document(self) -> dict[str, Any]:
        return asdict(self)


def known_values(kind: type, document: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a dataclass in a JSON object, lists as tuples; unknown keys of later versions are left out."""
    names = {field.name for field in fields(kind)}
    return {key: tuple(value) if isinstance(value, list) else value for key, value in document.items() if key in names}


def parse_row(document: dict[str, Any]) -> Row:
    """The inverse of `Row.document`. Raises TypeError or KeyError."""
    values = known_values(Row, document)
    stats = {key: value for key, value in values.items() if isinstance(value, dict) and "values" in value}
    return Row(**values | {key: Stat(**known_values(Stat, value)) for key, value in stats.items()})


@dataclass(slots=True)
class Observed:
    """What was seen beside the requests of a row, one item a run; `repeated`: runs that were measured again.

    `server`: one item a run and server; `replicas`: of several the same by server, None where it counts nothing;
    `lost`: of those, which answered none of a run's requests, once a run.
    """

    client: list[dict[str, float]] = field(default_factory=list)
    machine: list[dict[str, Any]] = field(default_factory=list)
    server: list[ServerCounts] = field(default_factory=list)
    repeated: list[int] = field(default_factory=list)
    replicas: dict[str, list[ServerCounts | None]] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)


def summarise(
    shape: Shape,
    batches: Sequence[BatchMeasure],
    observed: Observed = Observed(),
    *,
    natural_stop: bool = False,
    queued: int = 0,
) -> Row:
    """The row of a shape over its runs; one batch a run. `natural_stop`: outputs were free to end by themselves."""
    failures = [failure for batch in batches for failure in batch.failures]
    if shape.phase == "cached":
        batches = [verify_hits(batch, shape.depth) for batch in batches]
    requests = [request for batch in batches for request in batch.requests]
    claimed = [request for request in requests if request.is_as_claimed]
    pp_each, tg_each = _stat(claimed, "pp_t_s"), _stat(requests, "tg_t_s")
    alone = shape.concurrency == 1
    rates = {
        "pp_throughput": pp_each if alone else _stat(batches, "pp_total_t_s"),
        "pp_req_throughput": pp_each,
        "tg_throughput": tg_each if alone else _stat(batches, "tg_steady_t_s"),
        "tg_req_throughput": tg_each,
        "peak_throughput": _stat(batches, "peak_t_s"),
        "peak_req_throughput": stat([rate for batch in batches for rate in batch.peaks_each_t_s]),
        "ttfr": _stat(claimed, "ttfr_ms"),
        "est_ppt": _stat(claimed, "est_ppt_ms"),
        "e2e_ttft": _stat(claimed, "e2e_ttft_ms"),
        "tg_wall_throughput": None if alone else _stat(batches, "tg_wall_t_s"),
    }
    why = reasons(shape.concurrency, batches, requests)
    if failures and not requests:
        why = dict.fromkeys(rates, "no request was served")
    latencies = {
        "e2e_ttft_ms": spread([request.e2e_ttft_ms for request in claimed]),
        "tpot_ms": spread([request.tpot_ms for request in requests if request.tpot_ms is not None]),
        "itl_ms": spread([gap for request in requests for gap in request.itl_ms]),
    }
    notes = [f"queued: {queued} of {shape.concurrency} requests wait for the others (max-num-seqs)"] if queued else []
    notes += [
        f"REPLICA LOST: {name} answered no request in {count} of {len(batches)} runs"
        for name, count in Counter(observed.lost).items()
    ]
    notes += [
        *request_notes(shape, requests, natural_stop),
        *server_notes(observed.server, rates["e2e_ttft"]),
        *machine_notes(observed.machine),
    ]
    notes += [
        f"run {run + 1} was measured again: the connection to the load client was lost" for run in observed.repeated
    ]
    return Row(
        concurrency=shape.concurrency,
        context_size=shape.depth,
        prompt_size=shape.pp,
        response_size=shape.tg,
        is_context_prefill_phase=shape.phase == "context",
        **rates,
        runs=len(batches),
        requests=len(requests) + len(failures),
        failed=len(failures),
        failures=tuple(f"{count} × {text}" for text, count in Counter(failures).most_common(5)),
        why=why,
        notes=tuple(notes),
        client=tuple(observed.client),
        machine=tuple(observed.machine),
        server=server_document(observed.server),
        replicas={name: server_document([one for one in runs if one]) for name, runs in observed.replicas.items()}
        or None,
        phase=shape.phase,
        queued=queued,
        repeated=tuple(observed.repeated),
        est_ppt_from=", ".join(sorted({request.est_ppt_from for request in requests})),
        counted=", ".join(sorted({request.counted for request in requests})),
        output_tokens=stat([request.output_tokens for request in requests if request.counted != "not"]),
        percentiles={name: value for name, value in latencies.items() if value},
        cache=dict(Counter(request.cache for request in requests)) if shape.phase == "cached" else None,
        tool_calls=sum(request.finish_reason == "tool_calls" for request in requests),
        queue=_stat(requests, "queue_ms"),
    )


def _stat(items: Sequence[RequestMeasure] | Sequence[BatchMeasure], name: str) -> Stat | None:
    """One number of requests or batches, of those that have it."""
    return stat([value for item in items if (value := getattr(item, name)) is not None])


def reasons(concurrency: int, batches: Sequence[BatchMeasure], requests: Sequence[RequestMeasure]) -> dict[str, str]:
    """Why a number is missing, for some of the runs at least."""
    each = next((request.tg_why for request in requests if request.tg_why), "")
    missed = next((f"the context was not in the cache: {MISSES[r.cache]}" for r in requests if not r.is_as_claimed), "")
    found = {"tg_req_throughput": each, "tg_throughput": each if concurrency == 1 else "", "peak_throughput": ""}
    found |= dict.fromkeys(("pp_throughput", "pp_req_throughput", "ttfr", "est_ppt", "e2e_ttft"), missed)
    for batch in reversed(batches):
        found |= {key: why for key, why in batch.why.items() if why and (concurrency > 1 or key == "peak_throughput")}
    return {key: why for key, why in found.items() if why}


def request_notes(shape: Shape, requests: Sequence[RequestMeasure], natural_stop: bool) -> Iterator[str]:
    """Whether the prompts met a prefix cache as they should, how long they were, and how the outputs ended."""
    of_all, sent = f"of {len(requests)}", shape.prompt_tokens
    cached = [r.cached_tokens for r in requests if r.cached_tokens]
    if cached and shape.phase != "cached":
        yield f"{len(cached)} {of_all} cold requests met a prefix cache (up to {max(cached)} tokens)"
    for outcome, text in MISSES.items():
        if some := [r.cached_tokens for r in requests if r.cache == outcome]:
            had = "" if outcome == "unknown" else f" ({max(some)} of {shape.depth} tokens were there)"
            yield f"NO VERIFIED CACHE HIT: {len(some)} {of_all} requests {text}{had}; not in the prompt's numbers"
    if partial := [r.cached_tokens for r in requests if r.cache == "partial"]:
        had = f"{min(partial)} of {shape.depth} tokens of context in the cache"
        yield f"{len(partial)} {of_all} requests had {had}; the rest was computed with the prompt and is in its numbers"
    if other := {r.prompt_tokens for r in requests if r.prompt_tokens != sent}:
        yield f"the server counted {_list(other)} prompt tokens, {sent} were wanted"
    if not all(r.prompt_counted for r in requests):
        yield "the server does not report the prompt's length; the length sent is used"
    counted = [r for r in requests if r.counted != "not"]
    lengths = {r.output_tokens for r in counted if round(r.output_tokens) != shape.tg}
    if natural_stop and counted:
        least, most = (pick(r.output_tokens for r in counted) for pick in (min, max))
        full = f"{sum(r.finish_reason == 'length' for r in counted)} of {len(counted)} reached the limit of {shape.tg}"
        yield f"outputs ended by themselves after {least:g} to {most:g} tokens; {full}"
    elif lengths:
        ends = ", ".join(sorted({r.finish_reason for r in requests if r.finish_reason} or {"unknown"}))
        yield f"outputs of {_list(lengths)} tokens instead of {shape.tg} (finish_reason {ends})"
    if any(r.counted == "spread" for r in requests):
        yield "tokens per event are estimated: the server gives only their total"


def _list(values: set[int] | set[float]) -> str:
    return ", ".join(f"{value:g}" for value in sorted(values)[:3]) + (", …" if len(values) > 3 else "")


WHAT = {"pp_throughput": "pp t/s", "tg_throughput": "tg t/s", "e2e_ttft": "e2e_ttft"}
NOTABLE = 0.02
NOTABLE_ALONE = 0.05
"""Change from which on a drift is warned of; the second where no repetition shows how much runs differ anyway."""


@dataclass(frozen=True, slots=True)
class Change:
    """One number of the sentinel in its first and its last run. `change` is a part of the first.

    `noise`: what two single runs differ by in 95 of 100 cases, by the spread of the row's runs; None for one run.
    """

    what: str
    begin: float
    end: float
    change: float
    noise: float | None

    @property
    def is_drift(self) -> bool:
        """Whether it is more than runs differ by anyway."""
        return abs(self.change) > (NOTABLE_ALONE if self.noise is None else max(NOTABLE, self.noise))


@dataclass(frozen=True, slots=True)
class Sentinel:
    """The row `test` in its first run and at the end; `extra`: it was measured once more for this."""

    test: str
    extra: bool
    changes: tuple[Change, ...]

    @property
    def drifted(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.is_drift)

    def __str__(self) -> str:
        changes = ", ".join(f"{change.what} {change.change:+.1%}" for change in self.changes)
        return f"{self.test} at the end, against its first run: {changes}"

    def document(self) -> dict[str, Any]:
        """As JSON holds it; whether a change is a drift stands beside it."""
        changes = [asdict(change) | {"drift": change.is_drift} for change in self.changes]
        return asdict(self) | {"changes": changes}


def choose_sentinel(shapes: Sequence[Shape]) -> Shape:
    """The shape that costs the server least, with the longest output of those."""
    return min(shapes, key=lambda shape: (shape.depth, shape.concurrency, shape.pp, -shape.tg))


def compare_runs(first: Row, last: Row, all_runs: Row, *, extra: bool) -> Sentinel | None:
    """The sentinel of two rows of one run each; None when they have no number in common."""
    changes = []
    for key, what in WHAT.items():
        begin, end, every = getattr(first, key), getattr(last, key), getattr(all_runs, key)
        if begin is None or end is None:
            continue
        noise = None
        if every and every.std is not None:  # the spread of a difference is √2 times that of one
            noise = t95(len(every.values) - 1) * math.sqrt(2) * every.std / every.mean
        changes.append(Change(what, begin.mean, end.mean, end.mean / begin.mean - 1, noise))
    return Sentinel(first.shape.name, extra, tuple(changes)) if changes else None


def parse_sentinel(document: Mapping[str, Any]) -> Sentinel:
    """The inverse of `Sentinel.document`. Raises KeyError or TypeError."""
    changes = tuple(Change(**known_values(Change, one)) for one in document["changes"])
    return Sentinel(document["test"], document["extra"], changes)
