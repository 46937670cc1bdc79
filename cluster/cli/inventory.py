"""`cluster inventory list|show|check|add`: the machines and what is known of them. Only `add` connects."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.cli.options import Parser, common
from cluster.config.find import inventory_to_change
from cluster.config.inventory import HostEntry, Inventory, InventoryFile, with_host
from cluster.config.load import parse_address, place_of, read_inventory, with_defaults
from cluster.config.validate import validate
from cluster.config.written import Document, compose, read_text
from cluster.errors import ClusterError, ExitCode, RefusedError, UsageError
from cluster.hosts.known_hosts import ShownKey, fingerprint, judge, read_known_hosts, record_key, see_key
from cluster.hosts.target import SshTarget, resolve
from cluster.screen import Screen

if TYPE_CHECKING:
    from cluster.config.inventory import InventoryFile
    from cluster.config.load import ResolvedHost
    from cluster.screen import Screen


@dataclass(frozen=True, slots=True)
class New:
    """A host to add: the keys to write (empty: it stands in the inventory already), and how to reach it."""

    name: str
    written: dict[str, str | int]
    entry: HostEntry


def add(args: argparse.Namespace, screen: Screen) -> ExitCode:
    """Record a host and its key; what stands there already is left alone.

    Raises UsageError, UnreachableError, RefusedError for a key that has changed.
    """
    path = inventory_to_change(args.inventory)
    text = read_text(path) if path.exists() else ""
    is_blank = compose(text, str(path)) is None
    new = _new(args, InventoryFile(Inventory() if is_blank else read_inventory(path), path))
    changed = with_host(text, new.name, new.written, str(path)) if new.written else ""
    target = resolve(new.name, new.entry)
    shown = see_key(new.name, new.entry, target)
    known_hosts = Path(target.known_hosts[0])
    is_known = _is_known(new.name, shown, target)
    if not is_known:
        _agree(args, screen, new, shown, known_hosts)
        record_key(shown, known_hosts)
    if changed:
        write_text(path, changed)
    screen.good(f"{new.name} is {'now' if changed else 'already'} in {path}, its key in {known_hosts}")
    screen.document(
        {"host": new.name, "inventory": str(path), "added": bool(changed), "known_hosts": str(known_hosts)}
        | {"key_added": not is_known, "fingerprint": fingerprint(shown.key.key), "kind": shown.key.kind}
    )
    return ExitCode.DONE


def _new(args: argparse.Namespace, file: InventoryFile) -> New:
    """What the command line adds. Raises UsageError."""
    given = _given(args)
    there = file.inventory.hosts.get(args.name)
    if there is None:
        given.setdefault("address", args.name)
        values = {"hosts": {args.name: {key: str(value) for key, value in given.items()}}}
        entry = validate(Inventory, Document("command line", values, {})).hosts[args.name]
        return New(args.name, given, _to_reach(args.name, entry, file))
    entry = _to_reach(args.name, there, file)
    for key, value in given.items():
        if not _agrees(key, value, entry):
            raise UsageError(
                f"{file.path}: hosts.{args.name}.{key} is `{getattr(entry, key)}` there, `{value}` here",
                remedy="edit the file; this command only adds",
            )
    return New(args.name, {}, entry)


def _given(args: argparse.Namespace) -> dict[str, str | int]:
    """Keys of the new host as the command line gives them; options count more than parts of ADDRESS."""
    given: dict[str, str | int] = {}
    if args.address:
        parsed = parse_address(args.address)
        if parsed is None:
            raise UsageError(f"`{args.address}` is no address", remedy="HOST, user@HOST:port or user@[IPv6]:port")
        parts: dict[str, str | int] = {"address": parsed.address, "user": parsed.user, "port": parsed.port}
        given |= {key: value for key, value in parts.items() if value}
    for key in ("user", "port", "identity_file", "jump", "known_hosts_file"):
        value = getattr(args, key)
        if value:
            given[key] = str(Path(value).absolute()) if key.endswith("_file") and value[0] != "~" else value
    return given


def _to_reach(name: str, entry: HostEntry, file: InventoryFile) -> HostEntry:
    """The entry with the inventory's defaults."""
    host = with_defaults(name, entry, file.inventory)
    return entry.model_copy(
        update={key: getattr(host, key) for key in ("user", "port", "identity_file", "known_hosts_file")}
    )


def _agrees(key: str, value: str | int, entry: HostEntry) -> bool:
    """Whether a key given again is what the inventory has; an address may be what ssh makes of the one there."""
    if key == "address":
        target = resolve("", entry)
        return place_of(str(value)) in (place_of(entry.address), place_of(target.hostname))
    if key == "port" and not entry.port:
        return int(value) == resolve("", entry).port
    if key == "user" and not entry.user:
        return value == resolve("", entry).user
    return str(getattr(entry, key)) == str(value)


def _is_known(name: str, shown: ShownKey, target: SshTarget) -> bool:
    """Whether the key shown is known. Raises RefusedError when another one is, or it is revoked."""
    names = (target.key_name, target.host_key_alias or target.hostname)
    verdict = judge(read_known_hosts(target.known_hosts), names, shown.key.kind, shown.key.key)
    if verdict.by and (verdict.is_changed or verdict.is_revoked):
        where = f"{verdict.by.file}:{verdict.by.line}"
        what = "is marked as revoked" if verdict.is_revoked else f"has changed: known {fingerprint(verdict.by.key)}"
        raise RefusedError(
            f"{name}: the host key {what}, shown {fingerprint(shown.key.key)}",
            where=where,
            rolled_back="nothing was recorded",
            remedy=f"if the host was set up anew: ssh-keygen -R '{target.key_name}' -f {verdict.by.file}, then again",
        )
    return verdict.is_trusted


def _agree(args: argparse.Namespace, screen: Screen, new: New, shown: ShownKey, known_hosts: Path) -> None:
    """Show the fingerprint and ask. Raises UsageError without a yes."""
    kind = shown.key.kind.removeprefix("ssh-").split("-")[0]
    screen.note(f"{new.name} ({new.entry.address}) shows the key {fingerprint(shown.key.key)} ({shown.key.kind})")
    screen.note(f"it should be what the host itself says: ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub")
    if not args.yes and not screen.confirm(f"record it in {known_hosts}?"):
        raise UsageError("nothing was recorded", remedy="compare the fingerprint, then run it again with --yes")


def write_text(path: Path, text: str) -> None:
    """Replace a file's text in one step, keeping its mode; links are followed. Raises ClusterError."""
    real = path.resolve()
    new = real.with_name(f".{real.name}.{os.getpid()}")
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(text.encode())
        new.chmod(real.stat().st_mode & 0o777 if real.exists() else 0o644)
        new.replace(real)
    except OSError as error:
        with suppress(OSError):
            new.unlink()
        raise ClusterError(f"{path}: cannot be written: {error.strerror or error}") from error


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
    from cluster.config.load import resolve_hosts

    return resolve_hosts(file, names, lambda _: False)


def _check(args: argparse.Namespace, screen: Screen) -> ExitCode:
    from cluster.config.find import find_recipe
    from cluster.config.load import missing_files, same_machines

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
