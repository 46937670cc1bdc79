"""`cluster pull`: load → connect → lock → look → fetch what is missing → look again."""

from __future__ import annotations

import argparse

from cluster.deploy import fetch, gate
from cluster.deploy.apply import apply
from cluster.deploy.plan import filled, remove_probes, remove_token
from cluster.deploy.session import Connect, at_work, read_named, read_recipe, see
from cluster.errors import ExitCode
from cluster.hosts.connect import connect
from cluster.screen import Screen
from cluster.spark.fact import Missing
from cluster.spark.image import Image
from cluster.spark.memory import GIB
from cluster.spark.request import Wanted
from cluster.spark.weights import Weights


def run(args: argparse.Namespace, screen: Screen, connect: Connect = connect) -> ExitCode:
    named = read_named(args)
    recipe = read_recipe(args, named.file)
    wanted = Wanted(recipe, named.hosts, len(named.hosts), 1, "none")
    how = fetch.How(args.yes, fetch.read_token(args.hub_token_file))
    at_hosts = at_work(wanted.hosts, f"pull {recipe.name}", screen, connect, dry_run=args.dry_run)
    with fetch.naming_what_stays(how), at_hosts as session:
        seens = see(session.fleet, wanted.hosts, wanted, screen.trouble)
        if not args.dry_run:
            apply(filled(remove_probes(seens), remove_token(seens)), session)
        gate.judge_stock(wanted, seens, screen)
        if not args.dry_run and fetch.fetch_missing(wanted, seens, how, session):
            seens = see(session.fleet, wanted.hosts, wanted, screen.trouble)
            gate.judge_stock(wanted, seens, screen)
    names = [recipe.image, *(model.id for model in wanted.models)]
    stock = {host: dict(zip(names, (seen.image, *seen.copies), strict=False)) for host, seen in seens.items()}
    rows = [(host, name, one) for host, had in stock.items() for name, one in had.items()]
    screen.table("", ["host", "image, model", "there"], [[host, name, describe(one)[0]] for host, name, one in rows])
    missing = [f"{host}: {name}" for host, name, one in rows if isinstance(one, Missing)]
    if missing:
        screen.line(f"not there: {'; '.join(missing)}")
    else:
        screen.good(f"{recipe.name}: image and weights are on {', '.join(seens)}, whole and the same")
    hosts = {host: {name: describe(one)[1] for name, one in had.items()} for host, had in stock.items()}
    screen.document({"recipe": recipe.name, "complete": not missing, "hosts": hosts})
    return ExitCode.DONE


def describe(one: Image | Weights | Missing) -> tuple[str, dict[str, object]]:
    """What a host has of an image or a model, or why not: for the table, and for `--json`."""
    if isinstance(one, Missing):
        return one.why, {"there": False, "why": one.why}
    if isinstance(one, Image):
        shown = f"content {one.content_id[:12]}, {one.size_bytes / GIB:.1f} GiB"
        return shown, {"there": True, "content": one.content_id, "bytes": one.size_bytes}
    version = f"commit {one.commit[:12]}" if one.commit else one.path
    shown = f"{version}, {one.files} files, {one.bytes / GIB:.1f} GiB"
    return shown, {"there": True, "commit": one.commit, "files": one.files, "bytes": one.bytes}
