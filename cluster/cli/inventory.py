"""`cluster inventory list|show|check|add`: the machines and what is known of them. Only `add` connects."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from cluster.cli.options import Parser, common
from cluster.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from cluster.config.inventory import InventoryFile
    from cluster.config.names import ResolvedHost
    from cluster.screen import Screen


def configure(parser: Parser) -> None:
    """Sub-commands and their options."""
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs", required=True)
    common(verbs.add_parser("list", help="hosts and groups", allow_abbrev=False))
    show = verbs.add_parser("show", help="hosts with every value, defaults applied", allow_abbrev=False)
    show.add_argument("names", nargs="*", metavar="HOST", help="hosts or groups (default: all)")
    common(show)
    common(verbs.add_parser("check", help="validate the file, without connecting", allow_abbrev=False))
    add = verbs.add_parser("add", help="record a host, and its key once you agree", allow_abbrev=False)
    add.add_argument("name", metavar="NAME", help="what you will call it")
    add.add_argument("address", nargs="?", metavar="ADDRESS", help="address or ssh name, or user@host:port")
    add.add_argument("--user", help="login name (default: what ssh would use)")
    add.add_argument("--port", help="SSH port (default: what ssh would use)")
    add.add_argument("--identity-file", metavar="FILE", help="private key (default: what ssh would offer)")
    add.add_argument("--jump", metavar="HOST", help="jump host as `ssh -J` writes it")
    add.add_argument("--known-hosts-file", metavar="FILE", help="file for the host's key")
    add.add_argument("-y", "--yes", action="store_true", help="do not ask about the key")
    common(add)


def run(args: argparse.Namespace, screen: Screen) -> ExitCode:
    """Carry out one of the verbs; 2 when `check` found something wrong."""
    if args.verb == "add":
        from cluster.cli.inventory_add import add

        return add(args, screen)
    return {"list": _list, "show": _show, "check": _check}[args.verb](args, screen)


def load_existing(option: str | None) -> InventoryFile:
    """The inventory; unlike for other commands there must be one. Raises UsageError."""
    from cluster.config.find import VARIABLE, usual_inventories
    from cluster.config.load import load_inventory

    file = load_inventory(option)
    if file.path is None:
        first, second = usual_inventories()
        raise UsageError(
            f"there is no inventory (looked at -i, ${VARIABLE}, ./{first}, {second})",
            remedy="`cluster inventory add NAME ADDRESS` makes one",
        )
    return file


def _list(args: argparse.Namespace, screen: Screen) -> ExitCode:
    file = load_existing(args.inventory)
    inventory = file.inventory
    rows = []
    for name, entry in inventory.hosts.items():
        groups = ", ".join(group for group, members in inventory.groups.items() if name in members)
        rows.append((name, entry.address, entry.user or inventory.defaults.user or "(ssh)", groups))
    screen.line(f"# {file.path}")
    screen.table("", ("host", "address", "user", "groups"), rows)
    screen.document(
        {"path": str(file.path), "hosts": [row[0] for row in rows], "groups": inventory.groups}
        | {"default_recipe": inventory.default_recipe}
    )
    return ExitCode.DONE


def _show(args: argparse.Namespace, screen: Screen) -> ExitCode:
    file = load_existing(args.inventory)
    hosts = _resolve(file, args.names)
    screen.line(f"# {file.path}")
    for host in hosts:
        screen.line(f"{host.name}:")
        for key, value in asdict(host).items():
            if key != "name":
                screen.line(f"  {key}: {_shown(value)}")
    screen.document({"path": str(file.path), "hosts": [asdict(host) for host in hosts]})
    return ExitCode.DONE


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={inner}" for key, inner in value.items()) or "(none)"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "(found on the host)"
    return str(value or "(what ssh would use)")


def _resolve(file: InventoryFile, names: Sequence[str]) -> list[ResolvedHost]:
    """Hosts of the inventory only; no question to ssh."""
    from cluster.config.names import resolve_hosts

    return resolve_hosts(file, names, lambda _: False)


def _check(args: argparse.Namespace, screen: Screen) -> ExitCode:
    from cluster.config.find import find_recipe
    from cluster.config.names import missing_files, same_machines

    file = load_existing(args.inventory)
    problems = [*missing_files(file), *same_machines(file)]
    if file.inventory.default_recipe:
        try:
            find_recipe(file.inventory.default_recipe)
        except UsageError as error:
            problems.append(f"{file.path}: default_recipe: {error.what}")
    for problem in problems:
        screen.line(problem)
    if not problems:
        screen.good(f"{file.path}: ok, hosts: {', '.join(file.inventory.hosts) or 'none'}")
    screen.document({"path": str(file.path), "problems": problems})
    return ExitCode.USAGE if problems else ExitCode.DONE
