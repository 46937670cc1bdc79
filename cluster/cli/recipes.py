"""`cluster recipes list|show|check`: what can be served. Reads files only; no host is asked."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster.argv.vllm import OURS, SHORT, Layout, vllm_serve
from cluster.cli.options import Parser, common
from cluster.config.find import find_recipe, recipe_files
from cluster.config.inventory import load_inventory
from cluster.config.recipe import choose_recipe, final_recipe, load_recipe, read_dockerfile, read_recipe
from cluster.config.written import annotated
from cluster.deploy.rank import SETTINGS
from cluster.errors import ClusterError, ExitCode, UsageError
from cluster.screen import Screen


def configure(parser: Parser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs", required=True)
    common(verbs.add_parser("list", help="every recipe that a name finds", allow_abbrev=False))
    show = verbs.add_parser("show", help="a recipe as it will be used, every key explained", allow_abbrev=False)
    show.add_argument("recipe", nargs="?", metavar="RECIPE", help="recipe name or file (default: the default recipe)")
    show.add_argument(
        "--set", action="append", default=[], metavar="KEY.SUB=VALUE", help="change a recipe key; VALUE is YAML"
    )
    common(show)
    check = verbs.add_parser("check", help="validate recipes", allow_abbrev=False)
    check.add_argument("recipes", nargs="*", metavar="RECIPE", help="recipe names or files (default: all)")
    common(check)


def run(args: argparse.Namespace, screen: Screen) -> ExitCode:
    """Carry out one of the verbs; 2 when `check` found something wrong."""
    return {"list": _list, "show": _show, "check": _check}[args.verb](args, screen)


def _list(args: argparse.Namespace, screen: Screen) -> ExitCode:
    default = choose_recipe(None, None, load_inventory(args.inventory).inventory)
    rows = {name: _row(name, path) for name, path in recipe_files().items()}
    marks = {name: " *" if name == default else " ?" if row.get("unverified") else "" for name, row in rows.items()}
    shown = [(name + marks[name], row["where"], row["summary"]) for name, row in rows.items()]
    screen.table("", ("recipe", "where", "summary"), shown)
    screen.line(f"* is the default: {default}")
    if " ?" in marks.values():
        screen.line("? is not verified in every part: cluster recipes show RECIPE, key unverified")
    screen.document({"default": default, "recipes": list(rows.values())})
    return ExitCode.DONE


def _row(name: str, path: Path) -> dict[str, Any]:
    """What `list` says of a recipe; a broken one is listed too."""
    row: dict[str, Any] = {"name": name, "path": str(path), "where": "packaged" if path.is_absolute() else "./recipes"}
    try:
        recipe = read_recipe(path)
    except UsageError as error:
        return row | {"summary": f"broken: see `cluster recipes check {name}`", "error": error.what}
    row |= {"summary": recipe.summary, "model": recipe.model, "image": recipe.image}
    return row | ({"unverified": recipe.unverified} if recipe.unverified else {})


def _show(args: argparse.Namespace, screen: Screen) -> ExitCode:
    wanted = args.recipe or choose_recipe(None, None, load_inventory(args.inventory).inventory)
    file = load_recipe(wanted)
    recipe = final_recipe(file.recipe, args.set)
    extends = f", which extends {file.parent}" if file.parent else ""
    screen.line(f"# {file.path}{extends}" + (f", with --set {' '.join(args.set)}" if args.set else ""))
    screen.line(annotated(recipe))
    screen.document({"path": str(file.path), "recipe": recipe.model_dump(mode="json")})
    return ExitCode.DONE


def _check(args: argparse.Namespace, screen: Screen) -> ExitCode:
    paths = [find_recipe(name) for name in args.recipes] or list(recipe_files().values())
    if not paths:
        raise UsageError("no recipes found", code="recipe-not-found", remedy="name a file: cluster recipes check FILE")
    results = {str(path): list(problems_of(path)) for path in paths}
    for path, problems in results.items():
        for problem in problems:
            screen.line(problem)
        if not problems:
            screen.good(f"{path}: ok")
    screen.document({"recipes": [{"path": path, "problems": problems} for path, problems in results.items()]})
    return ExitCode.USAGE if any(results.values()) else ExitCode.DONE


def problems_of(path: Path) -> Iterator[str]:
    """What is wrong with a recipe file, one line each; nothing when it can be used."""
    try:
        recipe = read_recipe(path)
        read_dockerfile(recipe.dockerfile)
    except UsageError as error:
        yield error.what
        return
    if recipe.name != path.stem:
        yield f"{path}: name: expected `{path.stem}`, as the file is called and `up` finds it, got `{recipe.name}`"
    ours = {flag: OURS[SHORT.get(flag, flag)] for flag in recipe.vllm if SHORT.get(flag, flag) in OURS}
    yield from (f"{path}: vllm.{flag}: set by cluster; use {instead}" for flag, instead in ours.items())
    for flag in (flag for flag in recipe.fork_flags if flag not in recipe.vllm):
        yield f"{path}: fork_flags: `{flag}` is no flag under vllm"
    for name in (name for name in recipe.env if name in SETTINGS):
        yield f"{path}: env.{name}: set by cluster to `{SETTINGS[name]}` in every container"
    if not ours:
        try:
            vllm_serve(recipe, Layout(1, 1, "none", ("127.0.0.1",)))
        except ClusterError as error:
            yield f"{path}: {error.what}"
