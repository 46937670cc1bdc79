"""`cluster scaling`: up, bench, down for each size with everything else equal, and one report."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from cluster.bench.compare import Entry, compare
from cluster.bench.report import Table, bench_table
from cluster.bench.result import find_baseline
from cluster.bench.series_tables import moments_table, steps_table
from cluster.cli import up
from cluster.cli.ending import changed_defaults, end, entry_of, print_tables, say_warnings
from cluster.cli.series import Log, Step, carry_out, make_room, open_log, show_plan
from cluster.config.load import choose_recipe
from cluster.deploy.session import Connect, Named, read_named, read_recipe
from cluster.errors import ExitCode, UsageError
from cluster.hosts.connect import connect
from cluster.screen import Screen


def run(args: argparse.Namespace, screen: Screen, connect: Connect = connect) -> ExitCode:
    """Carry out `cluster scaling`. 6 when some sizes or requests failed; an error that ended it gives its own code."""
    named = read_named(args)
    steps = read_steps(args, named)
    if args.dry_run:
        return show_plan(steps, screen, connect)
    log = open_log("scaling", steps, ("tp",), args, screen)
    make_room(steps, log, named, args, screen, connect)
    screen.note(f"backend {steps[0].args.backend} at every size" + ("" if args.backend else ", as the recipe says"))
    carry_out(steps, log, named, screen, connect)
    return finish(steps, log, screen)


def read_steps(args: argparse.Namespace, named: Named) -> list[Step]:
    """The sizes as steps, smallest deployment first as given. Raises UsageError; no host is asked."""
    name = choose_recipe(args.recipe, args.recipe_option, named.file.inventory)
    sizes = list(dict.fromkeys(args.tp or [1, len(named.hosts) // args.pipeline]))
    refuse_sizes(sizes, args.pipeline, named)
    recipe = read_recipe(args, named.file)
    backend = args.backend or recipe.backend
    steps = []
    for tp in sizes:
        hosts = named.hosts[: tp * args.pipeline]
        own = {"recipe": name, "recipe_option": None, "tp": tp, "solo": False, "backend": backend}
        own |= {"nodes": ",".join(host.name for host in hosts), **changed_defaults(args, recipe)}
        given = argparse.Namespace(**vars(args) | own)
        wanted = up.read_wanted(given, Named(named.file, hosts, True))
        steps.append(Step(f"TP={tp}", {"tp": tp}, wanted, given))
    return steps


def refuse_sizes(sizes: Sequence[int], pipeline: int, named: Named) -> None:
    """Raises UsageError for sizes that the hosts do not make, and for hosts that no size uses."""
    if pipeline < 1 or not sizes or min(sizes) < 1:
        raise UsageError("--tp and --pipeline-parallel are 1 or more")
    need, there = max(sizes) * pipeline, len(named.hosts)
    names = ",".join(host.name for host in named.hosts)
    if need > there:
        raise UsageError(
            f"--tp {max(sizes)} needs {need} hosts (one GPU each), {there} named: {names}", remedy="name more with -n"
        )
    if need < there:
        raise UsageError(
            f"the largest size, --tp {max(sizes)}, uses {need} of {there} hosts: {names}",
            remedy=f"-n {','.join(host.name for host in named.hosts[:need])}",
        )


def finish(steps: Sequence[Step], log: Log, screen: Screen) -> ExitCode:
    """Print what was measured, whether or not all of it was."""
    entries = [entry for step in steps if (entry := entry_of(step, log))]
    tables = report(entries, log)
    say_warnings(entries, screen)
    print_tables(tables, screen)
    return end(steps, log, tables, entries, screen)


def report(entries: Sequence[Entry], log: Log) -> list[Table]:
    """What each size did, memory by moment, and last each larger size beside the smallest."""
    tables = [steps_table(log.series, {entry.label: entry.result for entry in entries})]
    tables += [replace(bench_table(entry.result), title=entry.label) for entry in entries]
    memory = moments_table(entries)
    tables += [memory] if memory else []
    if len(entries) == 1 and (entries[0].tp or 1) > 1:
        return tables + with_stored(entries[0], log)
    by_size = sorted(entries, key=lambda entry: entry.tp or 0)
    return tables + [table for entry in by_size[1:] for table in compare(by_size[0], entry)]


def with_stored(entry: Entry, log: Log) -> list[Table]:
    """One size alone: compared with the stored baseline whose conditions agree, else what differs is named."""
    shapes = [row.shape for row in entry.result.rows]
    baseline = find_baseline(log.path.parent, entry.result.manifest, 1, shapes)
    if baseline.result:
        return compare(Entry("TP=1", baseline.result, baseline.path, reading=entry.reading,
                             references=entry.references), entry)  # fmt: skip
    refused = [f"not compared with {path.name}: {'; '.join(map(str, against[:5]))}"
               for path, against in baseline.refused[:3]]  # fmt: skip
    return [Table("scaling", (), (), tuple(refused or ["no single-node baseline of this recipe is stored"]))]
