"""`cluster sweep`: up, bench, down with one recipe key varied, and one table."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from cluster.bench.compare import Entry
from cluster.bench.report import Table
from cluster.bench.series_tables import moments_table
from cluster.bench.sweep_table import prompt_table, sweep_tables
from cluster.bench.vary import SIZES, Vary, combinations, label_of, parse_vary
from cluster.cli import up
from cluster.cli.ending import changed_defaults, end, entry_of, print_tables, say_warnings
from cluster.cli.series import Log, Step, carry_out, make_room, open_log, show_plan
from cluster.config.load import choose_recipe
from cluster.deploy.session import Connect, Named, read_named
from cluster.errors import ExitCode, UsageError
from cluster.hosts.connect import connect
from cluster.screen import Screen


def run(args: argparse.Namespace, screen: Screen, connect: Connect = connect) -> ExitCode:
    """Carry out `cluster sweep`. 6 when some values or requests failed; an error that ended it gives its own code."""
    varied = parse_vary(args.vary)
    named = read_named(args)
    steps = read_steps(args, varied, named)
    if args.dry_run:
        return show_plan(steps, screen, connect)
    log = open_log("sweep", steps, [one.key for one in varied], args, screen)
    make_room(steps, log, named, args, screen, connect)
    carry_out(steps, log, named, screen, connect)
    return finish(steps, log, screen)


def read_steps(args: argparse.Namespace, varied: Sequence[Vary], named: Named) -> list[Step]:
    """Every combination as a step, each checked against itself. Raises UsageError; no host is asked."""
    refuse_both(args, varied)
    name = choose_recipe(args.recipe, args.recipe_option, named.file.inventory)
    return [read_step(args, values, name, named) for values in combinations(varied)]


def refuse_both(args: argparse.Namespace, varied: Sequence[Vary]) -> None:
    """Raises UsageError for a size that is fixed and varied."""
    fixed = {"tp": args.tp or args.solo, "pp": args.pipeline != 1, "backend": args.backend}
    for one in varied:
        if fixed.get(one.key):
            raise UsageError(f"--vary {one.key} and the same option are both given", remedy="leave one out")


def read_step(args: argparse.Namespace, values: Mapping[str, str], name: str, named: Named) -> Step:
    """One combination: `--set KEY=VALUE` for recipe keys, the options of `up` for sizes."""
    sets = [*args.set, *(f"{key}={value}" for key, value in values.items() if key not in SIZES)]
    own: dict[str, Any] = {"recipe": name, "recipe_option": None, "set": sets}
    own |= {option: int(values[key]) for key, option in (("tp", "tp"), ("pp", "pipeline")) if key in values}
    own |= {"backend": values.get("backend", args.backend)}
    given = argparse.Namespace(**vars(args) | own)
    hosts = named.hosts
    if given.tp or given.solo:  # a size of its own takes the first hosts, as in `scaling`
        need = given.pipeline if given.solo else given.tp * given.pipeline
        hosts = named.hosts[:need] if {"tp", "pp"} & set(values) or given.solo else named.hosts
    try:
        wanted = up.read_wanted(given, Named(named.file, hosts, True))
    except UsageError as error:
        error.what = f"{label_of(dict(values))}: {error.what}"
        raise
    given.nodes, given.solo, given.tp = ",".join(wanted.names), False, wanted.tp
    vars(given).update(changed_defaults(given, wanted.recipe))
    return Step(label_of(dict(values)), dict(values), wanted, given)


def finish(steps: Sequence[Step], log: Log, screen: Screen) -> ExitCode:
    """Print the table of what was measured, whether or not all of it was."""
    entries = [entry for step in steps if (entry := entry_of(step, log))]
    tables = report(log, entries)
    say_warnings(entries, screen)
    print_tables(tables, screen)
    return end(steps, log, tables, entries, screen)


def report(log: Log, entries: Sequence[Entry]) -> list[Table]:
    """The table of the sweep, prompt processing, memory by moment."""
    memory = moments_table(entries)
    tables = [*sweep_tables(log.series, entries), *([prompt_table(entries)] if entries else [])]
    return [*tables, memory] if memory else tables
