"""What `scaling` and `sweep` end with: warnings, tables, files, the one document, the exit code."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from cluster.bench.ceiling import bytes_a_token
from cluster.bench.compare import Entry
from cluster.bench.page import table_document
from cluster.bench.report import Table
from cluster.bench.series import read_point
from cluster.bench.warnings import warnings
from cluster.cli.series import Log, Step, exit_code
from cluster.cli.told import Told
from cluster.config.recipe import Recipe
from cluster.errors import ExitCode
from cluster.screen import Screen


def changed_defaults(args: argparse.Namespace, recipe: Recipe) -> dict[str, Any]:
    """What `--set bench.…` changes, as options of bench, which reads the recipe's file by itself."""
    keys = [text.partition("=")[0].partition(".")[2] for text in args.set if text.startswith("bench.")]
    return {key: getattr(recipe.bench, key) for key in keys if getattr(args, key, 0) is None}


def entry_of(step: Step, log: Log) -> Entry | None:
    """A step's measurement; None when there is none."""
    point = log.series.point(step.values)
    result = read_point(point, log.path.parent) if point else None
    if point is None or result is None:
        return None
    recipe = step.wanted.recipe
    return Entry(
        step.label, result, log.path.parent / point.result, point, bytes_a_token(recipe), tuple(recipe.reference)
    )


def say_warnings(entries: Sequence[Entry], screen: Screen) -> None:
    """What must be said aloud with these numbers, wherever they go; once when it is true of all."""
    said: dict[str, list[str]] = {}
    for entry in entries:
        for line in warnings(entry.result):
            said.setdefault(line, []).append(entry.label)
    for line, labels in said.items():
        screen.line(f"! {line}" if len(labels) == len(entries) else f"! {', '.join(labels)}: {line}")


def print_tables(tables: Sequence[Table], screen: Screen) -> None:
    """Tables with their notes; one without rows is its notes."""
    for table in tables:
        if table.rows:
            headers = [text if number < table.text_columns else f">{text}" for number, text in enumerate(table.headers)]
            screen.table(table.title, headers, table.rows)
        for note in table.notes:
            screen.line(f"  {note}")


def end(steps: Sequence[Step], log: Log, tables: Sequence[Table], entries: Sequence[Entry], screen: Screen) -> ExitCode:
    """The files, the error that ended it early, the one document, the exit code."""
    screen.line(f"series: {log.path}")
    if entries:
        screen.line(f"page:   cluster report {log.path} -o {log.series.kind}.html")
    code = exit_code(log, steps)
    if log.error:
        log.error.remedy = "; ".join(filter(None, (log.error.remedy, "the same command with --resume goes on")))
        Told().error(log.error)
    elif code != ExitCode.DONE:
        screen.warn("the same command with --resume tries what failed again")
    screen.document(
        log.series.document()
        | {"path": str(log.path), "exit": int(code), "results": [entry.result.document() for entry in entries]}
        | {"tables": [table_document(table) for table in tables]}
        | ({"error": log.error.as_dict()} if log.error else {})
    )
    return code
