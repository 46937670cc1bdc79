"""From files and names to values: the inventory, the hosts and the recipe that are meant."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from cluster.config.extend import read_extended
from cluster.config.find import (
    DEFAULT_RECIPE,
    VARIABLE,
    expand,
    find_inventory,
    find_recipe,
    is_path,
    nearest,
    usual_inventories,
)
from cluster.config.inventory import Defaults, HostEntry, Inventory, InventoryFile
from cluster.config.recipe import Mount, Recipe
from cluster.config.validate import dotted, validate
from cluster.config.written import Document, KeyPath, read_document
from cluster.errors import UsageError

_BARE = r"(?P<bare>[0-9A-Fa-f:.]+(?:%\w+)?)"
_PORTED = r"(?:\[(?P<v6>[^]\s]+)]|(?P<host>[^@:/\s\[\]-][^@:/\s\[\]]*))(?::(?P<port>[0-9]{1,5}))?"
_ADDRESS = re.compile(rf"(?:(?P<user>[^@\s-][^@\s]*)@)?(?:{_PORTED}|{_BARE})")


@dataclass(frozen=True, slots=True)
class ResolvedHost:
    """One machine with the inventory's defaults applied; empty text and port 0 mean what ssh would use.

    `identity_file` and `known_hosts_file` are absolute paths on this machine; `data_dir` and `hf_home` are paths
    on the host, in which `~` stands for the login's home.
    """

    name: str
    address: str
    user: str = ""
    port: int = 0
    identity_file: str = ""
    jump: str = ""
    known_hosts_file: str = ""
    fabric: tuple[str, ...] = ()
    data_dir: str = "~/.local/share/cluster"
    hf_home: str = "~/.cache/huggingface"
    env: Mapping[str, str] = field(default_factory=dict, hash=False)


def resolve_hosts(file: InventoryFile, names: Sequence[str], ssh_knows: Callable[[str], bool]) -> list[ResolvedHost]:
    """The hosts that names mean, in order. Each of `names` may be a comma-separated list, as `-n` takes it.

    A name is a host of the inventory, a group of it, an address, `user@host:port`, `[v6]:port`, or what ssh knows
    (`ssh_knows`, asked last). Without names: every host of the inventory, in its order.
    Raises UsageError: a name nobody knows (with the nearest), a host twice, a key file that is not there.
    """
    inventory = file.inventory
    words = split_names(names) if names else list(inventory.hosts)
    if not words:
        raise _nothing(file)
    hosts = [_host(file, name, ssh_knows) for word in words for name in _members(inventory, word)]
    _refuse_twice(hosts)
    for host in hosts:
        _check_files(file, host)
    return hosts


def split_names(names: Sequence[str]) -> list[str]:
    """Words of comma-separated lists, in Unicode's composed form. Raises UsageError for an empty one."""
    words = [unicodedata.normalize("NFC", word.strip()) for text in names for word in text.split(",")]
    if not all(words):
        raise UsageError(f"-n {','.join(names)}: a name is empty (a comma too many?)")
    return words


def _members(inventory: Inventory, word: str) -> list[str]:
    return list(inventory.groups[word]) if word in inventory.groups else [word]


def _host(file: InventoryFile, name: str, ssh_knows: Callable[[str], bool]) -> ResolvedHost:
    inventory = file.inventory
    entry = inventory.hosts.get(name)
    if entry:
        return with_defaults(name, entry, inventory)
    found = parse_address(name)
    if found and (found.user or found.port or _is_address(found.address) or ssh_knows(found.address)):
        defaults = inventory.defaults
        return ResolvedHost(
            name,
            found.address,
            found.user,
            found.port,
            data_dir=defaults.data_dir,
            hf_home=defaults.hf_home,
            env=dict(defaults.env),
        )
    known = [*inventory.hosts, *inventory.groups]
    listed = f"known: {', '.join(known)}" if known else "`cluster inventory add NAME ADDRESS` makes it known"
    near = nearest(name, known)
    raise UsageError(
        f"`{name}` is not in {file.title} and ssh does not know it",
        remedy=f"{near}; {listed}" if near else listed,
    )


def with_defaults(name: str, entry: HostEntry, inventory: Inventory) -> ResolvedHost:
    base = inventory.defaults
    return ResolvedHost(
        name=name,
        address=entry.address,
        user=entry.user or base.user,
        port=entry.port or base.port,
        identity_file=entry.identity_file or base.identity_file,
        jump=entry.jump,
        known_hosts_file=entry.known_hosts_file or base.known_hosts_file,
        fabric=tuple(entry.fabric),
        data_dir=entry.data_dir or base.data_dir,
        hf_home=entry.hf_home or base.hf_home,
        env={**base.env, **entry.env},
    )


def parse_address(word: str) -> HostEntry | None:
    """`user@host:port`, `[v6]:port`, a bare IPv6 address, or a name; None for what is none of them.

    Raises UsageError for a port that is none.
    """
    match = _ADDRESS.fullmatch(word)
    if match is None or word.startswith("-"):
        return None
    bare = match["bare"] or ""
    host, v6 = match["host"] or bare, match["v6"] or (bare if ":" in bare else "")
    if v6 and not _is_address(v6):
        return None
    port = int(match["port"] or 0)
    if match["port"] and not 0 < port < 65536:
        raise UsageError(f"`{word}`: found port {port}, wanted 1 to 65535")
    return HostEntry(address=v6 or host, user=match["user"] or "", port=port)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _refuse_twice(hosts: Sequence[ResolvedHost]) -> None:
    names: set[str] = set()
    for host in hosts:
        if host.name in names:
            raise UsageError(f"`{host.name}` is named twice", remedy="name each host once; a group counts as its hosts")
        names.add(host.name)
    for first, second in _same_machines(hosts):
        raise UsageError(
            f"`{first.name}` and `{second.name}` are the same machine: {second.address} port {second.port or 22}",
            remedy="name each machine once",
        )


def _same_machines(hosts: Sequence[ResolvedHost]) -> Iterator[tuple[ResolvedHost, ResolvedHost]]:
    places: dict[tuple[str, int, str], ResolvedHost] = {}
    for host in hosts:
        first = places.setdefault((place_of(host.address), host.port or 22, host.jump), host)
        if first is not host:
            yield first, host


def same_machines(file: InventoryFile) -> Iterator[str]:
    """A line for each host of the inventory that is there under two names."""
    hosts = [with_defaults(name, entry, file.inventory) for name, entry in file.inventory.hosts.items()]
    for first, second in _same_machines(hosts):
        yield f"{file.title}: hosts.{second.name} is the same machine as hosts.{first.name}: {second.address}"


def place_of(address: str) -> str:
    """An address in the one form that equal addresses share."""
    return str(ipaddress.ip_address(address)) if _is_address(address) else address.casefold().rstrip(".")


def _check_files(file: InventoryFile, host: ResolvedHost) -> None:
    if host.identity_file and not Path(host.identity_file).is_file():
        raise UsageError(
            f"{file.title}: hosts.{host.name}.identity_file: there is no file `{host.identity_file}`",
            remedy="give the path of a private key on this machine, or leave it out to let ssh choose",
        )


def missing_files(file: InventoryFile) -> Iterator[str]:
    """What `resolve_hosts` would refuse about files, for every host of the inventory."""
    for name, entry in file.inventory.hosts.items():
        try:
            _check_files(file, with_defaults(name, entry, file.inventory))
        except UsageError as error:
            yield error.what


def _nothing(file: InventoryFile) -> UsageError:
    if file.path:
        return UsageError(
            f"{file.path}: lists no hosts", remedy="`cluster inventory add NAME ADDRESS`, or name hosts: -n"
        )
    first, second = usual_inventories()
    return UsageError(
        f"no hosts are named and there is no inventory (looked at -i, ${VARIABLE}, ./{first}, {second})",
        remedy="`cluster inventory add NAME ADDRESS` makes one; or name hosts that ssh knows: -n HOST,HOST",
    )


__all__ = [
    "InventoryFile",
    "RecipeFile",
    "ResolvedHost",
    "choose_recipe",
    "load_inventory",
    "load_recipe",
    "read_dockerfile",
    "read_inventory",
    "read_mounts",
    "read_recipe",
    "read_secret",
    "resolve_hosts",
]

Entry = TypeVar("Entry", HostEntry, Defaults)


@dataclass(frozen=True, slots=True)
class RecipeFile:
    """A recipe, the file it was read from, and the file of the recipe that it extends."""

    recipe: Recipe
    path: Path
    parent: Path | None = None


def load_inventory(option: str | None = None) -> InventoryFile:
    """Read the one inventory that counts (see `find_inventory`); without any, an empty one.

    Raises UsageError that names file, line and key.
    """
    path = find_inventory(option)
    return InventoryFile(Inventory()) if path is None else InventoryFile(read_inventory(path), path)


def read_inventory(path: Path) -> Inventory:
    """Read an inventory file; relative paths in it are meant from its folder. Raises UsageError."""
    inventory = validate(Inventory, read_document(path))
    hosts = {name: _anchored(entry, path.parent) for name, entry in inventory.hosts.items()}
    changes: dict[str, object] = {"hosts": hosts, "defaults": _anchored(inventory.defaults, path.parent)}
    if is_path(inventory.default_recipe):
        changes["default_recipe"] = _absolute(inventory.default_recipe, path.parent)
    return inventory.model_copy(update=changes)


def choose_recipe(positional: str | None, option: str | None, inventory: Inventory) -> str:
    """Name or path of the recipe meant: the command line, else the inventory's default, else ours.

    Raises UsageError when RECIPE and --recipe differ.
    """
    if positional and option and positional != option:
        raise UsageError(f"two recipes are named: {positional} and --recipe {option}", remedy="leave one out")
    return positional or option or inventory.default_recipe or DEFAULT_RECIPE


def load_recipe(wanted: str) -> RecipeFile:
    """Find a recipe by name or path and read it; see `read_recipe`."""
    return read_recipe_file(find_recipe(wanted))


def read_recipe(path: Path) -> Recipe:
    """Read a recipe file: its name filled in, mount sources made absolute and found to be files.

    Raises UsageError that names file, line and key.
    """
    return read_recipe_file(path).recipe


def read_recipe_file(path: Path) -> RecipeFile:
    """A recipe as `read_recipe` reads it, with the files it is made of."""
    document, parent = read_extended(path)
    document.values.setdefault("name", path.stem)
    recipe = validate(Recipe, document)
    sources = {number: mount.source for number, mount in enumerate(recipe.mounts) if mount.source}
    found = {number: _file_of(document, ("mounts", number, "source"), text) for number, text in sources.items()}
    changes: dict[str, object] = {
        "mounts": [
            mount.model_copy(update={"source": found.get(number, "")}) for number, mount in enumerate(recipe.mounts)
        ]
    }
    if recipe.dockerfile:
        changes["dockerfile"] = _file_of(document, ("dockerfile",), recipe.dockerfile)
    return RecipeFile(recipe.model_copy(update=changes), path, parent)


def _file_of(document: Document, key: KeyPath, text: str) -> str:
    """The file that a key names; a relative path is meant from the folder of the file that the key stands in."""
    path = _absolute(text, Path(document.place_of(key)[0]).parent)
    if not Path(path).is_file():
        raise UsageError(f"{document.where(key)}: {dotted(key)}there is no file `{path}`")
    return path


def read_mounts(mounts: Sequence[Mount]) -> dict[str, bytes]:
    """Content by target path of files mounted from this machine. Raises UsageError when one cannot be read."""
    return {mount.target: _content(mount.source, "mounts") for mount in mounts if mount.source}


def read_dockerfile(path: str) -> bytes:
    """Text of a recipe's Dockerfile; empty without one.

    Raises UsageError when it cannot be read, or does not begin with the recipe's image, which is what was checked.
    """
    text = _content(path, "dockerfile") if path else b""
    bases = re.findall(rb"^\s*FROM\s+(\S+)", text, re.MULTILINE | re.IGNORECASE)
    if path and (not bases or bases[-1] not in (b"$IMAGE", b"${IMAGE}")):
        raise UsageError(
            f"{path}: does not end in an image made of the recipe's own",
            remedy="begin it with `ARG IMAGE` and `FROM $IMAGE`",
        )
    return text


def read_secret(path: str, option: str) -> str:
    """First line of a file that holds a key or token. Raises UsageError when it cannot be read or is empty."""
    try:
        text = expand(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UsageError(f"{option} {path}: {error.strerror or error}") from None
    except ValueError:
        raise UsageError(f"{option} {path}: the file is not UTF-8 text") from None
    if not text:
        raise UsageError(f"{option} {path}: the file is empty")
    return text.splitlines()[0].strip()


def _content(path: str, key: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error} ({key})") from error


def _anchored(entry: Entry, folder: Path) -> Entry:
    changes = {
        key: _absolute(getattr(entry, key), folder)
        for key in ("identity_file", "known_hosts_file")
        if getattr(entry, key)
    }
    return entry.model_copy(update=changes)


def _absolute(text: str, folder: Path) -> str:
    """`~` expanded; a relative path is meant from `folder`. Links are kept."""
    return str((folder / expand(text)).absolute())
