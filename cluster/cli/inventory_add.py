"""`cluster inventory add`: see the host's key, ask, record the key, add the lines. Can be run again at any time."""

from __future__ import annotations

import argparse
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cluster.config.add_host import with_host
from cluster.config.find import inventory_to_change
from cluster.config.inventory import HostEntry, Inventory, InventoryFile
from cluster.config.load import read_inventory
from cluster.config.names import parse_address, place_of, with_defaults
from cluster.config.validate import validate
from cluster.config.written import Document, compose, read_text
from cluster.errors import ClusterError, ExitCode, RefusedError, UsageError
from cluster.hosts.known_hosts import fingerprint, judge, read_known_hosts
from cluster.hosts.new_key import ShownKey, record_key, see_key
from cluster.hosts.target import SshTarget, resolve
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
            put_back="nothing was recorded",
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
