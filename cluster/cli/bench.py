"""`cluster bench`: measure what runs (or --base-url), keep the result, and compare it with one Spark."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from cluster.argv.vllm import serve_flags
from cluster.bench.loader import Progress
from cluster.bench.result import (
    Baseline,
    Journal,
    Manifest,
    Result,
    clocks,
    find_baseline,
    read_result,
    results_dir,
    warnings,
)
from cluster.bench.rows import Row
from cluster.bench.run import Measured, run_bench
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
from cluster.bench.target import Measuring, measuring, solo_command
from cluster.bench.wanted import BenchWanted, conditions, parts_of
from cluster.cli.options import bench as bench_options
from cluster.cli.typed import typed
from cluster.config.recipe import BenchDefaults, Reference
from cluster.deploy.session import Connect
from cluster.errors import ClusterError, ExitCode, InterruptedByUser, UsageError
from cluster.hosts.connect import connect
from cluster.screen import Screen


def run(args: argparse.Namespace, screen: Screen, connect: Connect = connect) -> ExitCode:
    """Carry out `cluster bench`; 6 when some requests failed."""
    refuse_mixed(args)
    finished: list[tuple[Result, Path]] = []
    with measuring(args, connect) as subject:
        directory = results_dir(args.results or "", Path.cwd(), os.environ)
        parts = wanted_parts(args, subject)
        for wanted in parts.values():
            wanted.shapes()  # refuses impossible numbers before a file is made
        for title, wanted in parts.items():
            own = replace(subject, manifest=conditions(subject.manifest, wanted))
            journal = Journal(directory, own.manifest)
            try:
                result = measure(own, wanted, journal, screen)
                finished.append((result, journal.finish(result)))
            except (KeyboardInterrupt, ClusterError) as error:
                return stop(error, title, journal, own, directory, args, screen)
            say_part(title, wanted, result, screen)
            print_result(result, own, directory, args, screen)
            screen.line(f"result: {finished[-1][1]}")
    return end(finished, args, screen)


def end(finished: Sequence[tuple[Result, Path]], args: argparse.Namespace, screen: Screen) -> ExitCode:
    """What a suite's parts say together, the one document, the exit code."""
    print_tables(suite_tables(args.suite or "", [result for result, _ in finished]), screen)
    documents = [result.document() | {"path": str(path)} for result, path in finished]
    screen.document({"suite": args.suite, "results": documents} if args.suite else documents[0])
    return ExitCode.PARTIAL if any(result.failed for result, _ in finished) else ExitCode.DONE


def say_part(title: str, wanted: BenchWanted, result: Result, screen: Screen) -> None:
    """The title of a suite's part, and what of it was left out."""
    if not wanted.suite:
        return
    screen.line(f"{wanted.suite}: {title}")
    left_out = [shape.name for shape in wanted.shapes() if shape not in {row.shape for row in result.rows}]
    if left_out:
        screen.warn(f"left out, longer than the model's context: {', '.join(left_out)}")


def stop(
    error: KeyboardInterrupt | ClusterError,
    title: str,
    journal: Journal,
    subject: Measuring,
    directory: Path,
    args: argparse.Namespace,
    screen: Screen,
) -> ExitCode:
    """Show and keep what was measured until then. Raises the error, unless the user interrupted."""
    kept = read_result(journal.partial)
    if kept.rows:
        print_result(kept, subject, directory, args, screen)
        screen.warn(f"not all was measured; what was is in {journal.partial}")
    journal.abandon()
    if isinstance(error, KeyboardInterrupt | InterruptedByUser):
        if not kept.rows:
            of = f" of {title}" if title else ""
            screen.warn(f"interrupted before the first row{of}: nothing was measured, and nothing was saved")
        screen.document(kept.document())
        return ExitCode.INTERRUPTED
    raise error


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
    return result_of(manifest, measured, journal)


def so_far(row: Row) -> str:
    """A row's numbers as they stand, in one line."""
    told = {"pp": (row.pp_throughput, "t/s"), "tg": (row.tg_throughput, "t/s"), "e2e_ttft": (row.e2e_ttft, "ms")}
    numbers = [f"{name} {show(value)} {unit}" for name, (value, unit) in told.items() if value]
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


def result_of(manifest: Manifest, measured: Measured, journal: Journal) -> Result:
    """What is written."""
    return Result(
        manifest=manifest,
        rows=measured.rows,
        latency_ms=measured.latency_ms,
        timestamp=journal.timestamp,
        request=measured.request,
        sentinel=measured.sentinel,
    )


def refuse_mixed(args: argparse.Namespace) -> None:
    """Raises UsageError for options that a suite has of its own."""
    own = ("pp", "tg", "depth", "concurrency", "prefix_caching", "chat", "natural_stop")
    given = [f"--{name.replace('_', '-')}" for name in own if getattr(args, name) not in (None, False)]
    if args.suite and given:
        raise UsageError(f"--suite {args.suite} has its own {', '.join(given)}", remedy="leave one of the two out")


def wanted_parts(args: argparse.Namespace, subject: Measuring) -> dict[str, BenchWanted]:
    """What is to be measured, by title: one measurement, or the parts of a suite."""
    plain = wanted_of(args, subject)
    if not args.suite:
        return {"": plain}
    parts = {}
    for part in parts_of(args.suite):
        values = {item.name: getattr(part, item.name) for item in fields(part) if item.name != "title"}
        values["runs"] = part.runs if args.runs is None else args.runs
        parts[part.title] = replace(plain, suite=args.suite, **values)
    return parts


def wanted_of(args: argparse.Namespace, subject: Measuring) -> BenchWanted:
    """What the command line asks for; what it leaves out the recipe says, else llama-benchy's defaults."""
    defaults = subject.recipe.bench if subject.recipe else BenchDefaults()
    return BenchWanted(
        base_url=subject.server.url,
        model=args.model or subject.server.model,
        pp=tuple(args.pp or defaults.pp),
        tg=tuple(args.tg or defaults.tg),
        depth=tuple(defaults.depth if args.depth is None else args.depth),
        runs=defaults.runs if args.runs is None else args.runs,
        concurrency=tuple(args.concurrency or defaults.concurrency),
        seed=args.seed,
        corpus=args.corpus,
        natural_stop=args.natural_stop,
        depth_mode="prefix-caching" if args.prefix_caching else "cold",
        chat=args.chat,
        max_num_seqs=max_num_seqs(subject.manifest.spec),
    )


def max_num_seqs(spec: Mapping[str, Any]) -> int | None:
    """How many requests a deployment computes at the same time, where its recipe or words say so."""
    said = serve_flags(spec["recipe"]["vllm"], spec.get("words", ())).get("max-num-seqs") if "recipe" in spec else None
    return int(said) if said is not None and str(said).isdecimal() else None


def print_result(result: Result, subject: Measuring, directory: Path, args: argparse.Namespace, screen: Screen) -> None:
    """The tables of the rows, of the server, of the hosts, and what the second Spark bought."""
    for line in warnings(result):
        screen.warn(line)
    of_hosts = (server_table(result), memory_table(result), machine_table(result))
    print_tables([bench_table(result), latency_table(result), *(table for table in of_hosts if table)], screen)
    if result.manifest.tp and result.manifest.tp > 1:
        baseline = find_baseline(directory, result.manifest, 1, [row.shape for row in result.rows])
        print_scaling(result, baseline, subject.recipe.reference if subject.recipe else (), args, screen)


def print_scaling(
    result: Result, baseline: Baseline, references: Sequence[Reference], args: argparse.Namespace, screen: Screen
) -> None:
    """The scaling table, or why there is none and the command that makes the baseline."""
    if baseline.result:
        rows = scaling_rows(baseline.result, result, references)
        print_tables([scaling_table(rows, baseline, result, references)], screen)
        return
    for path, against in baseline.refused[:3]:
        screen.warn(f"not compared with {path.name}: {'; '.join(str(item) for item in against[:5])}")
    screen.line("no single-node baseline of this recipe under these conditions; this makes one:")
    screen.line(f"  cluster down && {solo_command(result.manifest)} && {typed('bench', bench_options, args)}")


def print_tables(tables: Sequence[Table], screen: Screen) -> None:
    """Tables with their notes."""
    for table in tables:
        screen.table(table.title, table.marked_headers, table.rows, table.notes)
