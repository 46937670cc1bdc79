"""`cluster bench`: measure what runs (or --base-url), keep the result, and compare it with one Spark."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from cluster.argv.vllm import serve_flags
from cluster.bench.loader import Progress
from cluster.bench.result import (
    Journal,
    Result,
    clocks,
    find_baseline,
    read_result,
    results_dir,
    warnings,
)
from cluster.bench.rows import Row
from cluster.bench.run import run_bench
from cluster.bench.scaling import scaling_rows, scaling_table
from cluster.bench.tables import (
    Table,
    bench_table,
    latency_table,
    machine_table,
    memory_table,
    server_table,
    show,
    suite_tables,
)
from cluster.bench.target import Measuring, ServerOptions, measuring, solo_command
from cluster.bench.wanted import BenchWanted, conditions, parts_of
from cluster.cli.options import bench as bench_options
from cluster.cli.typed import typed
from cluster.config.recipe import BenchDefaults
from cluster.deploy.session import Connect
from cluster.errors import ClusterError, ExitCode, InterruptedByUser, UsageError
from cluster.hosts.connect import connect
from cluster.screen import Screen


@dataclass(frozen=True, kw_only=True)
class BenchOptions(ServerOptions):
    """What stands on the command line of `bench`; each field is named as its option's `dest`. None: the recipe's."""

    depth: Sequence[int] | None = None
    pp: Sequence[int] | None = None
    tg: Sequence[int] | None = None
    runs: int | Literal["auto"] | None = None
    concurrency: Sequence[int] | None = None
    seed: int = 1
    corpus: str = "prose"
    prefix_caching: bool = False
    chat: bool = False
    natural_stop: bool = False
    results: str | None = None
    suite: str | None = None

    @property
    def command(self) -> str:
        """The command line that means the same."""
        return typed("bench", bench_options, self)


@dataclass
class Measurements:
    """What an invocation measured: each result with its file, and what an interruption left of the next."""

    finished: list[tuple[Result, Path]] = field(default_factory=list)
    interrupted: Result | None = None

    @property
    def exit_code(self) -> ExitCode:
        """6 when some requests failed."""
        if self.interrupted:
            return ExitCode.INTERRUPTED
        return ExitCode.PARTIAL if any(result.failed for result, _ in self.finished) else ExitCode.DONE

    def document(self, suite: str | None) -> dict[str, Any]:
        """As JSON: the interrupted measurement, the results of a suite, or the one result."""
        if self.interrupted:
            return self.interrupted.document()
        documents = [result.document() | {"path": str(path)} for result, path in self.finished]
        return {"suite": suite, "results": documents} if suite else documents[0]


def run(args: argparse.Namespace, screen: Screen, connect: Connect = connect) -> ExitCode:
    """Carry out `cluster bench`; 6 when some requests failed."""
    options = BenchOptions.of(args)
    done = measure_all(options, screen, connect)
    screen.document(done.document(options.suite))
    return done.exit_code


def measure_all(options: BenchOptions, screen: Screen, connect: Connect = connect) -> Measurements:
    """Measure what the options ask for on the server they name; show and keep each part as it is finished."""
    refuse_mixed(options)
    done = Measurements()
    with measuring(options, connect) as subject:
        directory = results_dir(options.results or "", Path.cwd(), os.environ)
        parts = wanted_parts(options, subject)
        for wanted in parts.values():
            wanted.shapes()  # refuses impossible numbers before a file is made
        for title, wanted in parts.items():
            own = replace(subject, manifest=conditions(subject.manifest, wanted))
            journal = Journal(directory, own.manifest)
            try:
                result = measure(own, wanted, journal, screen)
                done.finished.append((result, journal.finish(result)))
            except (KeyboardInterrupt, ClusterError) as error:
                done.interrupted = keep_partial(error, title, journal, own, options, screen)
                return done
            say_part(title, wanted, result, screen)
            print_result(result, own, options, directory, screen)
            screen.line(f"result: {done.finished[-1][1]}")
    print_tables(suite_tables(options.suite or "", [result for result, _ in done.finished]), screen)
    return done


def say_part(title: str, wanted: BenchWanted, result: Result, screen: Screen) -> None:
    """The title of a suite's part, and what of it was left out."""
    if not wanted.suite:
        return
    screen.line(f"{wanted.suite}: {title}")
    left_out = [shape.name for shape in wanted.shapes() if shape not in {row.shape for row in result.rows}]
    if left_out:
        screen.warn(f"left out, longer than the model's context: {', '.join(left_out)}")


def keep_partial(
    error: KeyboardInterrupt | ClusterError,
    title: str,
    journal: Journal,
    subject: Measuring,
    options: BenchOptions,
    screen: Screen,
) -> Result:
    """Show and keep what was measured until now. Raises the error, unless the user interrupted."""
    kept = read_result(journal.partial)
    if kept.rows:
        print_result(kept, subject, options, journal.path.parent, screen)
        screen.warn(f"not all was measured; what was is in {journal.partial}")
    journal.abandon()
    if not isinstance(error, KeyboardInterrupt | InterruptedByUser):
        raise error
    if not kept.rows:
        of = f" of {title}" if title else ""
        screen.warn(f"interrupted before the first row{of}: nothing was measured, and nothing was saved")
    return kept


def measure(subject: Measuring, wanted: BenchWanted, journal: Journal, screen: Screen) -> Result:
    """All rows, each kept and told as it is measured."""
    screen.stay()
    with screen.waiting("the load client") as line:
        steps = Steps(line.update)
        if screen.interactive:
            subject.loader.on_progress = steps.progress

        def keep(row: Row) -> None:
            journal.add(row)
            screen.note(so_far(row))

        measured = run_bench(subject.loader, wanted, keep, subject.machine, steps.begin)
    manifest = replace(
        subject.manifest,
        model=measured.model,
        corpus=measured.corpus,
        refused_fields=measured.refused_fields,
        engine={} if subject.manifest.deployment else measured.engine,
        client_where=measured.where,
        est_ppt_from=clocks(measured.rows),
    )
    return Result(
        manifest=manifest,
        rows=measured.rows,
        latency_ms=measured.latency_ms,
        timestamp=journal.timestamp,
        request=measured.request,
        sentinel=measured.sentinel,
    )


def so_far(row: Row) -> str:
    """A row's numbers as they stand, in one line."""
    known = {"pp": (row.pp_throughput, "t/s"), "tg": (row.tg_throughput, "t/s"), "e2e_ttft": (row.e2e_ttft, "ms")}
    numbers = [f"{name} {show(value)} {unit}" for name, (value, unit) in known.items() if value]
    numbers += [f"{row.failed} of {row.requests} requests failed"] if row.failed else []
    return f"  {row.shape.name}: {', '.join(numbers) or 'no number'} (runs: {row.runs})"


class Steps:
    """What is being measured, in one line."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._step = ""

    def begin(self, step: str) -> None:
        """A new step."""
        self._step = step
        self._show(step)

    def progress(self, so_far: Progress) -> None:
        """How far it is."""
        self._show(f"{self._step}: {so_far.done} answers, {so_far.chunks} chunks, {so_far.seconds:.0f} s")


def refuse_mixed(options: BenchOptions) -> None:
    """Raises UsageError for options that a suite has of its own."""
    own = ("pp", "tg", "depth", "concurrency", "prefix_caching", "chat", "natural_stop")
    given = [f"--{name.replace('_', '-')}" for name in own if getattr(options, name) not in (None, False)]
    if options.suite and given:
        raise UsageError(
            f"--suite {options.suite} has its own {', '.join(given)}",
            code="options-conflict",
            remedy=f"leave out --suite or {', '.join(given)}",
        )


def wanted_parts(options: BenchOptions, subject: Measuring) -> dict[str, BenchWanted]:
    """What is to be measured, by title: one measurement, or the parts of a suite.

    What the command line leaves out the recipe says, else it has llama-benchy's defaults.
    """
    defaults = subject.recipe.bench if subject.recipe else BenchDefaults()
    plain = BenchWanted(
        base_url=subject.server.url,
        model=options.model or subject.server.model,
        pp=tuple(options.pp or defaults.pp),
        tg=tuple(options.tg or defaults.tg),
        depth=tuple(defaults.depth if options.depth is None else options.depth),
        runs=defaults.runs if options.runs is None else options.runs,
        concurrency=tuple(options.concurrency or defaults.concurrency),
        seed=options.seed,
        corpus=options.corpus,
        natural_stop=options.natural_stop,
        depth_mode="prefix-caching" if options.prefix_caching else "cold",
        chat=options.chat,
        max_num_seqs=max_num_seqs(subject.manifest.spec),
    )
    if not options.suite:
        return {"": plain}
    parts = {}
    for part in parts_of(options.suite):
        values = {item.name: getattr(part, item.name) for item in fields(part) if item.name != "title"}
        values["runs"] = part.runs if options.runs is None else options.runs
        parts[part.title] = replace(plain, suite=options.suite, **values)
    return parts


def max_num_seqs(spec: Mapping[str, Any]) -> int | None:
    """How many requests a deployment computes at the same time, where its recipe or words say so."""
    said = serve_flags(spec["recipe"]["vllm"], spec.get("words", ())).get("max-num-seqs") if "recipe" in spec else None
    return int(said) if said is not None and str(said).isdecimal() else None


def print_result(result: Result, subject: Measuring, options: BenchOptions, directory: Path, screen: Screen) -> None:
    """The tables of the rows, of the server, of the hosts, and what the second Spark bought, or how to measure that."""
    for line in warnings(result):
        screen.warn(line)
    of_hosts = (server_table(result), memory_table(result), machine_table(result))
    print_tables([bench_table(result), latency_table(result), *(table for table in of_hosts if table)], screen)
    if (result.manifest.tp or 1) == 1:
        return
    references = subject.recipe.reference if subject.recipe else ()
    baseline = find_baseline(directory, result.manifest, 1, [row.shape for row in result.rows])
    if baseline.result:
        rows = scaling_rows(baseline.result, result, references)
        print_tables([scaling_table(rows, baseline, result, references)], screen)
        return
    for path, against in baseline.refused[:3]:
        screen.warn(f"not compared with {path.name}: {'; '.join(str(item) for item in against[:5])}")
    screen.line("no single-node baseline of this recipe under these conditions; this makes one:")
    screen.line(f"  cluster down && {solo_command(result.manifest)} && {options.command}")


def print_tables(tables: Sequence[Table], screen: Screen) -> None:
    """Tables with their notes."""
    for table in tables:
        screen.table(table.title, table.marked_headers, table.rows, table.notes)
