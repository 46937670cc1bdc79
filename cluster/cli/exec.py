"""`cluster exec -- CMD`: the same words on every host, and every host's outcome."""

from __future__ import annotations

import argparse
from typing import Any

from cluster.argv.question import Question
from cluster.deploy.session import Connect, finish, open_fleet, read_named
from cluster.errors import ExitCode, UsageError
from cluster.hosts.connect import connect
from cluster.screen import Screen


def run(args: argparse.Namespace, screen: Screen, connect: Connect = connect) -> ExitCode:
    """Run a command on hosts; 1 when it failed on one, 3 when a host could not be reached."""
    if not args.words:
        remedy = "cluster exec -n spark1,spark2 -- nvidia-smi -L"
        raise UsageError("no command after --", code="no-command", remedy=remedy)
    named = read_named(args)
    question = Question(tuple(args.words), timeout_s=args.timeout, limit=8 << 20, changes=True)
    with open_fleet(named.hosts, connect) as fleet:
        outcomes = fleet.ask({host.name: [question] for host in named.hosts})
    rows: dict[str, dict[str, Any]] = {}
    errors = []
    for name, outcome in outcomes.items():
        if outcome.error:
            rows[name] = outcome.error.as_dict()
            errors.append(outcome.error)
            continue
        [answer] = outcome.get()
        rows[name] = {"exit": answer.exit, "out": answer.text, "err": answer.error_text, "cut": answer.cut}
        for line in (answer.text + answer.error_text).splitlines():
            screen.line(f"{name}: {line}")
        if answer.exit != 0 or answer.cut:
            ended = f"ended after {args.timeout:.0f} s" if answer.exit is None else f"exit {answer.exit}"
            screen.warn(f"{name}: {ended}{', output was cut' if answer.cut else ''}")
    screen.document(rows)
    failed = any(row.get("exit") != 0 for row in rows.values())
    return finish(errors, screen, ExitCode.FAILED if failed else ExitCode.DONE)
