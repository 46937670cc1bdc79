"""`cluster bench`: measure what runs (or --base-url), keep the result, and compare it with one Spark."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from cluster.argv.vllm import serve_flags
from cluster.bench.loader import Progress
from cluster.bench.result import Journal, Result, find_baseline, read_result, results_dir, warnings
from cluster.bench.rows import Row
from cluster.bench.run import run_bench
from cluster.bench.sampling import Watchers
from cluster.bench.scaling import Entry, scaling_table
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
from cluster.bench.target import ServerOptions, Serving, serving, solo_command
from cluster.bench.wanted import BenchWanted, conditions, parts_of
from cluster.cli.options import typed
from cluster.config.recipe import BenchDefaults, Recipe
from cluster.deploy.session import Connect
from cluster.errors import ClusterError, ExitCode, InterruptedByUser, UsageError
from cluster.hosts.connect import connect
from cluster.screen import Screen


@dataclass(frozen=True, kw_only=True)
class BenchOptions(ServerOptions):
    """The command line of `bench`; each field is named as its option's `dest`. None: the recipe's."""

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
    replicas: bool = False


@dataclass
class Measurements:
    """What an invocation measured: each result with its file, and what an interruption left of the next."""

    finished: list[tuple[Result, Path]] = field(default_factory=list)
    interrupted: Result | None = None

    @property
    def exit_code(self) -> ExitCode:
        if self.interrupted:
            return ExitCode.INTERRUPTED
        return ExitCode.PARTIAL if any(result.failed for result, _ in self.finished) else ExitCode.DONE

    def document(self, suite: str | None) -> dict[str, Any]:
        """As JSON: the one result, or those of a suite; the last may be an interrupted one, which has no path."""
        documents = [result.document() | {"path": str(path)} for result, path in self.finished]
        documents += [self.interrupted.document()] if self.interrupted else []
        return {"suite": suite, "results": documents} if suite else documents[0]


def run(args: argparse.Namespace, screen: Screen, connect: Connect = connect) -> ExitCode:
    """Carry out `cluster bench`; 6 when some requests failed."""
    options = BenchOptions.of(args)
    done = measure_all(options, screen, connect)
    screen.document(done.document(options.suite))
    return done.exit_code


def measure_all(options: BenchOptions, screen: Screen, connect: Connect = connect) -> Measurements:
    """Measure what the options ask for on the server they name; show and keep each part as it is finished."""
    own = ("pp", "tg", "depth", "concurrency", "prefix_caching", "chat", "natural_stop")
    given = ", ".join(f"--{name.replace('_', '-')}" for name in own if getattr(options, name) not in (None, False))
    if options.suite and given:
        what = f"--suite {options.suite} has its own {given}"
        raise UsageError(what, code="options-conflict", remedy=f"leave out --suite or {given}")
    done = Measurements()
    with serving(options, connect, "bench", replicas=options.replicas or None) as at, watching(at) as machine:
        directory = results_dir(options.results)
        parts = wanted_parts(options, at)
        for wanted in parts.values():
            wanted.shapes()  # refuses impossible numbers before a file is made
        for title, wanted in parts.items():
            journal = Journal(directory, conditions(at.manifest(), wanted))
            try:
                result = measure(at, machine, wanted, journal, screen)
                result = replace(result, timestamp=journal.timestamp)
                done.finished.append((result, journal.finish(result)))
            except (KeyboardInterrupt, ClusterError) as error:
                kept = read_result(journal.partial)
                if kept.rows:
                    print_result(kept, at.recipe, options, directory, screen)
                    screen.warn(f"not all was measured; what was is in {journal.partial}")
                else:
                    journal.partial.unlink()
                if not isinstance(error, KeyboardInterrupt | InterruptedByUser):
                    raise
                if not kept.rows:
                    of = f" of {title}" if title else ""
                    screen.warn(f"interrupted before the first row{of}: nothing was measured, and nothing was saved")
                done.interrupted = kept
                return done
            if wanted.suite:
                screen.line(f"{wanted.suite}: {title}")
                left_out = [shape.name for shape in wanted.shapes() if shape not in {row.shape for row in result.rows}]
                if left_out:
                    screen.warn(f"left out, longer than the model's context: {', '.join(left_out)}")
            print_result(result, at.recipe, options, directory, screen)
            screen.line(f"result: {done.finished[-1][1]}")
    print_tables(suite_tables(options.suite or "", [result for result, _ in done.finished]), screen)
    return done


def watching(at: Serving) -> AbstractContextManager[Watchers | None]:
    """The hosts of deployments, sampled; of another server nothing is known."""
    return closing(Watchers(at.within, at.deployments)) if at.within else nullcontext()


def measure(at: Serving, machine: Watchers | None, wanted: BenchWanted, journal: Journal, screen: Screen) -> Result:
    """All rows, each kept and shown as it is measured."""
    screen.stay()
    with screen.waiting("the load client") as line:
        step = ""

        def begin(name: str) -> None:
            nonlocal step
            step = name
            line.update(step)

        def progress(now: Progress) -> None:
            line.update(f"{step}: {now.done} answers, {now.chunks} chunks, {now.seconds:.0f} s")

        def keep(row: Row) -> None:
            journal.add(row)
            rates = {"pp": row.pp_throughput, "tg": row.tg_throughput}
            numbers = [f"{name} {show(value)} t/s" for name, value in rates.items() if value]
            numbers += [f"e2e_ttft {show(row.e2e_ttft)} ms"] if row.e2e_ttft else []
            numbers += [f"{row.failed} of {row.requests} requests failed"] if row.failed else []
            screen.note(f"  {row.shape.name}: {', '.join(numbers) or 'no number'} (runs: {row.runs})")

        if screen.interactive:
            at.loader.on_progress = progress
        return run_bench(at.loader, wanted, keep, machine, begin, conditions(at.manifest(), wanted))


def wanted_parts(options: BenchOptions, at: Serving) -> dict[str, BenchWanted]:
    """What is to be measured, by title: one measurement, or the parts of a suite.

    What the command line leaves out the recipe has, else llama-benchy's defaults count.
    """
    defaults = at.recipe.bench if at.recipe else BenchDefaults()
    plain = BenchWanted(
        urls=tuple(one.url for one in at.servers),
        model=options.model or at.server.model,
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
        max_num_seqs=max_num_seqs(at.deployment.spec if at.deployment else {}),
    )
    if not options.suite:
        return {"": plain}
    parts = parts_of(options.suite, plain)
    return parts if options.runs is None else {title: replace(one, runs=plain.runs) for title, one in parts.items()}


def max_num_seqs(spec: Mapping[str, Any]) -> int | None:
    """How many requests a deployment computes at the same time, where its recipe or its extra flags set it."""
    flags = serve_flags(spec["recipe"]["vllm"], spec.get("words", ())) if "recipe" in spec else {}
    most = str(flags.get("max-num-seqs"))
    return int(most) if most.isdecimal() else None


def print_result(result: Result, recipe: Recipe | None, options: BenchOptions, directory: Path, screen: Screen) -> None:
    """The tables of the rows, of the server, of the hosts, and what the second Spark bought, or how to measure that."""
    for line in warnings(result):
        screen.warn(line)
    of_hosts = (server_table(result), memory_table(result), machine_table(result))
    print_tables([bench_table(result), latency_table(result), *(table for table in of_hosts if table)], screen)
    if (result.manifest.tp or 1) == 1 and not result.manifest.replicas:
        return
    references = recipe.reference if recipe else ()
    baseline, refused = find_baseline(directory, result)
    if baseline:
        path, alone = baseline
        now = Entry(result.manifest.size, result, references=tuple(references))
        print_tables([scaling_table(Entry("TP=1", alone, path), now)], screen)
        return
    if result.manifest.replicas:
        return
    for line in refused:
        screen.warn(line)
    screen.line("no single-node baseline of this recipe under these conditions; this makes one:")
    screen.line(f"  cluster down && {solo_command(result.manifest)} && {typed('bench', options)}")


def print_tables(tables: Sequence[Table], screen: Screen) -> None:
    """Tables with their notes, the columns of numbers set right."""
    for table in tables:
        marks = [text if at < table.text_columns else f">{text}" for at, text in enumerate(table.headers)]
        screen.table(table.title, marks, table.rows, table.notes)
