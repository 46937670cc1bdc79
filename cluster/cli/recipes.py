"""`cluster recipes list|show|check|import`: what can be served. Reads files, and only `import` writes; no host is
asked.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cluster.argv.fabric import fabric_environment
from cluster.argv.ray import ray_environment
from cluster.argv.vllm import OURS, Layout, settled, vllm_serve
from cluster.cli.options import COMMON, IMPORT, SET, Parser
from cluster.config.find import expand, find_recipe, recipe_files, shipped
from cluster.config.foreign import read_foreign
from cluster.config.imported import Imported, printable
from cluster.config.inventory import load_inventory
from cluster.config.recipe import Recipe, choose_recipe, final_recipe, load_recipe, read_dockerfile, read_recipe
from cluster.config.written import annotated
from cluster.deploy.rank import SETTINGS
from cluster.errors import ClusterError, ExitCode, UsageError
from cluster.screen import Screen

MANAGED = frozenset(
    SETTINGS | fabric_environment(address="", netdev="", hcas=[""]) | ray_environment(head="", ray_version="99.0")
)
"""Variables that cluster sets in every container."""


def configure(parser: Parser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs", required=True)
    verbs.add_parser("list", help="every recipe that a name finds", allow_abbrev=False).add_options(COMMON)
    show = verbs.add_parser("show", help="a recipe as it will be used, every key explained", allow_abbrev=False)
    show.add_options({"RECIPE?": "recipe name or file (default: the default recipe)", **SET, **COMMON})
    check = verbs.add_parser("check", help="validate recipes", allow_abbrev=False)
    check.add_options({"RECIPE*": "recipe names or files (default: all)", **COMMON})
    verbs.add_parser("import", help="recipe files of other projects as recipes", allow_abbrev=False).add_options(IMPORT)


def run(args: argparse.Namespace, screen: Screen) -> ExitCode:
    """Carry out one of the verbs; 2 when `check` found something wrong, or `import` could import nothing; 6 when it
    could import some."""
    return {"list": _list, "show": _show, "check": _check, "import": _import}[args.verb](args, screen)


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
    yield from _problems(recipe, path)


def _problems(recipe: Recipe, path: Path) -> Iterator[str]:
    ours = {flag: OURS[settled(flag)] for flag in recipe.vllm if settled(flag) in OURS}
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


def _import(args: argparse.Namespace, screen: Screen) -> ExitCode:
    folder, given = expand(args.output or "recipes"), [expand(name) for name in args.paths]
    done: dict[Path, Imported] = {}
    failed: list[ClusterError] = []
    for path in _files(given):
        try:
            imported = read_foreign(path, OURS, MANAGED)
            target = folder / f"{imported.name}.yaml"
            if target in done:
                what = f"{path}: {target} was just made of {done[target].path}"
                raise UsageError(
                    what, code="file-exists", remedy="rename one of the two, or import it with another -o DIR"
                )
            _save(imported, target, replace=args.force)
        except ClusterError as error:
            if len(given) == 1 and path in given:
                raise
            failed.append(error)
            continue
        done[target] = imported
        _tell(imported, target, screen)
    for one in failed:
        screen.warn(f"error: {one.what} [{one.code}]")
    rows = [
        {"from": str(imported.path), "path": str(target), "form": imported.form, "start": _start(imported, target)}
        | {"remarks": [asdict(remark) for remark in imported.remarks]}
        for target, imported in done.items()
    ]
    screen.document({"imported": rows, "failed": [one.as_dict() for one in failed]})
    if failed:
        screen.line(f"{len(done)} imported, {len(failed)} not")
        return ExitCode.FAILED
    return ExitCode.DONE


def _files(given: Sequence[Path]) -> list[Path]:
    """Files, and for a folder the YAML files in and below it that may be recipes: none hidden, no performance.yaml.
    Raises UsageError: no file."""
    found = []
    for path in given:
        inside = [file for file in sorted(path.rglob("*.y*ml")) if file.suffix in (".yaml", ".yml") and file.is_file()]
        plain = (file for file in inside if not any(part[0] == "." for part in file.relative_to(path).parts))
        found += [file for file in plain if file.name != "performance.yaml"] if path.is_dir() else [path]
    if not found:
        raise UsageError(f"no YAML files in {', '.join(map(str, given))}", code="recipe-not-found")
    return found


def _save(imported: Imported, target: Path, *, replace: bool) -> None:
    """Write the recipe, checked as `check` does. Raises UsageError: it has problems, or the file exists."""
    from cluster.bench.result import write_whole, writing  # here: only `import` writes

    if target.exists() and not replace:
        what = f"{imported.path}: {target} already exists"
        raise UsageError(what, code="file-exists", remedy="overwrite it with --force, or write elsewhere with -o DIR")
    recipe = imported.checked()
    if problems := list(_problems(recipe, imported.path)):
        raise UsageError("\n".join(problems), code="recipe-not-importable")
    with writing(target, "-o DIR"):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, imported.text().encode())


def _tell(imported: Imported, target: Path, screen: Screen) -> None:
    screen.good(f"{imported.path} ({imported.form}) → {target}")
    for why in dict.fromkeys(remark.why for remark in imported.remarks):
        keys = (f"{one.key}{_short(one.value)}" for one in imported.remarks if one.why == why)
        screen.text(printable(f"  {why}: {', '.join(keys)}"), "    ")
    packaged = shipped("recipes") / target.name
    if target.parent == Path("recipes") and packaged.exists() and not packaged.samefile(target):
        screen.line(f"  hides the packaged recipe {target.stem}")
    screen.line(f"  start: {_start(imported, target)}")


def _start(imported: Imported, target: Path) -> str:
    """The command that starts it at the sizes of the file."""
    found = target.stem if target.parent == Path("recipes") else target
    return f"cluster up {found}{imported.options}"


def _short(value: str) -> str:
    line = " ".join(value.split())
    return f" ({line if len(line) <= 40 else line[:39] + '…'})" if line else ""
