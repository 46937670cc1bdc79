"""`cluster inventory list|show|check|add`: the machines and what is known of them. Only `add` connects."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from unicodedata import normalize

from cluster.cli.options import COMMON, Parser
from cluster.config.find import find_recipe, inventory_to_change, usual_inventories
from cluster.config.inventory import (
    LOOKED_AT,
    HostEntry,
    Inventory,
    InventoryFile,
    inventory_problems,
    load_inventory,
    parse_address,
    place_of,
    read_inventory,
    resolve_hosts,
    with_defaults,
    with_host,
)
from cluster.config.written import Document, compose, read_text, validate
from cluster.errors import ClusterError, ExitCode, RefusedError, UsageError
from cluster.hosts.known_hosts import KnownKey, fingerprint, judge, read_known_hosts, record_key, see_key
from cluster.hosts.target import SshTarget, resolve
from cluster.screen import Screen


def configure(parser: Parser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs", required=True)
    verbs.add_parser("list", help="hosts and groups", allow_abbrev=False).add_options(COMMON)
    show = verbs.add_parser("show", help="hosts with every value, defaults applied", allow_abbrev=False)
    show.add_options({"HOST*": "hosts or groups (default: all)", **COMMON})
    verbs.add_parser("check", help="validate the file, without connecting", allow_abbrev=False).add_options(COMMON)
    add = verbs.add_parser("add", help="record a host, and its key once you agree", allow_abbrev=False)
    add.add_argument("name", metavar="NAME", type=partial(normalize, "NFC"), help="what you will call it")
    add.add_argument("address", nargs="?", metavar="ADDRESS", help="address or ssh name, or user@host:port")
    add.add_argument("--user", help="login name (default: what ssh would use)")
    add.add_argument("--port", help="SSH port (default: what ssh would use)")
    add.add_argument("--identity-file", metavar="FILE", help="private key (default: what ssh would offer)")
    add.add_argument("--jump", metavar="HOST", help="jump host as `ssh -J` writes it")
    add.add_argument("--known-hosts-file", metavar="FILE", help="file for the host's key")
    add.add_argument("-y", "--yes", action="store_true", help="do not ask about the key")
    add.add_options(COMMON)


def run(args: argparse.Namespace, screen: Screen) -> ExitCode:
    """Carry out one of the verbs; 2 when `check` found something wrong."""
    if args.verb == "add":
        return add(args, screen)
    file = load_inventory(args.inventory)
    if file.path is None:
        what = f"no inventory found ({LOOKED_AT.format(*usual_inventories())})"
        remedy = "create one with `cluster inventory add NAME ADDRESS`"
        raise UsageError(what, code="inventory-not-found", remedy=remedy)
    return {"list": list_hosts, "show": show, "check": check}[args.verb](file, args, screen)


def list_hosts(file: InventoryFile, args: argparse.Namespace, screen: Screen) -> ExitCode:
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


def show(file: InventoryFile, args: argparse.Namespace, screen: Screen) -> ExitCode:
    """Hosts of the inventory with every value; ssh is not asked."""
    hosts = [asdict(host) for host in resolve_hosts(file, args.hosts, None)]
    screen.line(f"# {file.path}")
    for host in hosts:
        screen.line(f"{host['name']}:")
        for key, value in host.items():
            if isinstance(value, dict):
                value = ", ".join(f"{name}={inner}" for name, inner in value.items()) or "(none)"
            elif isinstance(value, tuple):
                value = ", ".join(value) or "(found on the host)"
            if key != "name":
                screen.line(f"  {key}: {value or ('(none)' if key == 'sm_max_mhz' else '(what ssh would use)')}")
    screen.document({"path": str(file.path), "hosts": hosts})
    return ExitCode.DONE


def check(file: InventoryFile, args: argparse.Namespace, screen: Screen) -> ExitCode:
    problems = list(inventory_problems(file))
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


def add(args: argparse.Namespace, screen: Screen) -> ExitCode:
    """Record a host and its key; what is recorded already is left alone.

    Raises UsageError, UnreachableError, RefusedError for a key that has changed.
    """
    path = inventory_to_change(args.inventory)
    text = read_text(path) if path.exists() else ""
    is_blank = compose(text, str(path)) is None
    file = InventoryFile(Inventory() if is_blank else read_inventory(path), path)
    given, existing = _given(args), file.inventory.hosts.get(args.name)
    written = {} if existing else {"address": args.name} | given
    values = {"hosts": {args.name: {key: str(value) for key, value in written.items()}}}
    entry = existing or validate(Inventory, Document("command line", values)).hosts[args.name]
    changed = with_host(text, args.name, written, str(path)) if written else ""
    host = with_defaults(args.name, entry, file.inventory.defaults)
    defaulted = ("user", "port", "identity_file", "known_hosts_file")
    entry = entry.model_copy(update={key: getattr(host, key) for key in defaulted})
    target = resolve(args.name, entry)
    if existing:
        _check_same(given, entry, target, f"{path}: hosts.{args.name}")
    shown = see_key(args.name, entry, target)
    known_hosts = Path(target.known_hosts[0])
    is_known = _is_known(args.name, shown, target)
    if not is_known:
        kind = shown.kind.removeprefix("ssh-").split("-")[0]
        screen.note(f"{args.name} ({entry.address}) presents the key {fingerprint(shown.key)} ({shown.kind})")
        screen.note(f"compare it on the host: ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub")
        if not args.yes and not screen.confirm(f"record it in {known_hosts}?"):
            remedy = "compare the fingerprint, then run the command with --yes"
            raise UsageError("not confirmed, nothing was recorded", code="not-confirmed", remedy=remedy)
        record_key(shown, known_hosts)
    if changed:
        write_text(path, changed)
    screen.good(f"{args.name} is {'now' if changed else 'already'} in {path}, its key in {known_hosts}")
    screen.document(
        {"host": args.name, "inventory": str(path), "added": bool(changed), "known_hosts": str(known_hosts)}
        | {"key_added": not is_known, "fingerprint": fingerprint(shown.key), "kind": shown.kind}
    )
    return ExitCode.DONE


def _given(args: argparse.Namespace) -> dict[str, str | int]:
    """Keys of the new host as the command line gives them; options add to ADDRESS. Raises UsageError when both
    give a part, and differ."""
    given: dict[str, str | int] = {}
    if args.address:
        parsed = parse_address(args.address)
        if parsed is None:
            remedy = "HOST, user@HOST:port or user@[IPv6]:port"
            raise UsageError(f"`{args.address}` is not an address", code="address-invalid", remedy=remedy)
        given = parsed.model_dump(exclude_defaults=True)
    for key in ("user", "port", "identity_file", "jump", "known_hosts_file"):
        value = getattr(args, key)
        if value and str(given.get(key, value)) != value:
            what = f"two values for {key}: {given[key]} in {args.address}, and --{key} {value}"
            raise UsageError(what, code="address-conflict", remedy="leave one out")
        if value:
            given[key] = str(Path(value).absolute()) if key.endswith("_file") and value[0] != "~" else value
    return given


def _check_same(given: Mapping[str, str | int], entry: HostEntry, target: SshTarget, where: str) -> None:
    """What the command line gives is what the inventory has, or what ssh makes of it. Raises UsageError."""
    by_ssh = {"address": target.hostname, "user": target.user, "port": target.port}
    for key, value in given.items():
        kept, same = getattr(entry, key), place_of if key == "address" else str
        if same(str(value)) not in (same(str(kept)), same(str(by_ssh.get(key, kept)))):
            what = f"{where}.{key} is `{kept}`, the command line has `{value}`"
            raise UsageError(what, code="host-exists", remedy="edit the file; this command only adds")


def _is_known(name: str, shown: KnownKey, target: SshTarget) -> bool:
    """Whether the key shown is known. Raises RefusedError when another one is, or it is revoked."""
    state, known = judge(read_known_hosts(target.known_hosts), target.key_names, shown.kind, shown.key)
    if known and state in ("changed", "revoked"):
        what = "is revoked" if state == "revoked" else f"has changed: known {fingerprint(known.key)}"
        raise RefusedError(
            f"{name}: the host key {what}, presented {fingerprint(shown.key)}",
            code="host-key-revoked" if state == "revoked" else "host-key-changed",
            where=known.place,
            remedy=f"if the host was reinstalled: ssh-keygen -R '{target.key_name}' -f {known.file}, then retry",
        )
    return state == "trusted"


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
        raise ClusterError(f"{path}: cannot be written: {error.strerror or error}", code="file-not-written") from error
