"""`cluster pull`: load → connect → lock → look → fetch what is missing → look again: whole, and the same everywhere."""

from __future__ import annotations

import argparse
from typing import Any

from cluster.deploy import fetch, gate
from cluster.deploy.apply import apply
from cluster.deploy.plan import filled, remove_probes, remove_token
from cluster.deploy.session import Connect, Session, locked, open_fleet, reach, read_named, read_recipe, see
from cluster.errors import ExitCode
from cluster.hosts.connect import connect
from cluster.screen import Screen
from cluster.spark.fact import Missing
from cluster.spark.image import Image
from cluster.spark.memory import GIB
from cluster.spark.request import Wanted
from cluster.spark.weights import Weights


def run(args: argparse.Namespace, screen: Screen, connect: Connect = connect) -> ExitCode:
    """Carry out `cluster pull`."""
    named = read_named(args)
    wanted = Wanted(read_recipe(args, named.file), named.hosts, len(named.hosts), 1, "none")
    how = fetch.How(args.yes, args.dry_run, fetch.read_token(args.hub_token_file))
    with open_fleet(wanted.hosts, connect) as fleet:
        reach(fleet)
        lock = locked(fleet, wanted.hosts, f"pull {wanted.recipe.name}", dry_run=args.dry_run)
        with lock as guard, fetch.naming_what_stays(how):
            session = Session(fleet, guard, screen, args.dry_run)
            seens = see(fleet, wanted.hosts, wanted, screen.trouble)
            if not args.dry_run:
                apply(filled(remove_probes(seens), remove_token(seens)), session)
            gate.judge_stock(wanted, seens, screen)
            if not args.dry_run and fetch.fetch_missing(wanted, seens, how, session):
                seens = see(fleet, wanted.hosts, wanted, screen.trouble)
                gate.judge_stock(wanted, seens, screen)
    recipe = wanted.recipe
    names = [recipe.image, *(model.id for model in wanted.models)]
    stock = {host: dict(zip(names, (seen.image, *seen.copies), strict=False)) for host, seen in seens.items()}
    rows = [[host, name, describe(one)] for host, had in stock.items() for name, one in had.items()]
    screen.table("", ["host", "image, model", "there"], rows)
    missing = [f"{row[0]}: {row[1]}" for row in rows if isinstance(stock[row[0]][row[1]], Missing)]
    if missing:
        screen.line(f"not there: {'; '.join(missing)}")
    else:
        screen.good(f"{recipe.name}: image and weights are on {', '.join(seens)}, whole and the same")
    hosts = {host: {name: as_document(one) for name, one in had.items()} for host, had in stock.items()}
    screen.document({"recipe": recipe.name, "complete": not missing, "hosts": hosts})
    return ExitCode.DONE


def describe(one: Image | Weights | Missing) -> str:
    """`content 1f2e3d4c5b6a, 18.2 GiB`, `commit 9a8b7c6d5e4f, 14 files, 59.0 GiB`, or why it is not there."""
    if isinstance(one, Missing):
        return one.why
    if isinstance(one, Image):
        return f"content {one.content_id[:12]}, {one.size_bytes / GIB:.1f} GiB"
    version = f"commit {one.commit[:12]}" if one.commit else one.path
    return f"{version}, {one.files} files, {one.bytes / GIB:.1f} GiB"


def as_document(one: Image | Weights | Missing) -> dict[str, Any]:
    """The same for `--json`."""
    if isinstance(one, Missing):
        return {"there": False, "why": one.why}
    if isinstance(one, Image):
        return {"there": True, "content": one.content_id, "bytes": one.size_bytes}
    return {"there": True, "commit": one.commit, "files": one.files, "bytes": one.bytes}
