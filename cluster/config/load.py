"""From files and names to values: the inventory, the recipe, the hosts that names mean."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from cluster.config.find import (
    DEFAULT_RECIPE,
    VARIABLE,
    find_inventory,
    find_recipe,
    is_path,
    nearest,
    usual_inventories,
)
from cluster.config.inventory import Defaults, HostEntry, Inventory
from cluster.config.recipe import Mount, Recipe
from cluster.config.validate import validate
from cluster.config.written import read_document
from cluster.errors import UsageError

Entry = TypeVar("Entry", HostEntry, Defaults)

_AD_HOC = re.compile(r"(?:(?P<user>[^@\s]+)@)?(?:\[(?P<v6>[^]\s]+)]|(?P<host>[^@:\s\[\]]+))(?::(?P<port>[0-9]+))?")


@dataclass(frozen=True, slots=True)
class InventoryFile:
    """An inventory and the file it was read from (None: no file, hosts are ad hoc)."""

    inventory: Inventory
    path: Path | None = None

    @property
    def title(self) -> str:
        """What to call it in messages."""
        return str(self.path) if self.path else "the inventory"


@dataclass(frozen=True, slots=True)
class RecipeFile:
    """A recipe and the file it was read from."""

    recipe: Recipe
    path: Path


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


def load_inventory(option: str | None = None) -> InventoryFile:
    """Read the one inventory that counts (see `find_inventory`); without any, an empty one.

    Raises UsageError that names file, line and key.
    """
    path = find_inventory(option)
    return InventoryFile(Inventory(hosts={})) if path is None else InventoryFile(read_inventory(path), path)


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
    path = find_recipe(wanted)
    return RecipeFile(read_recipe(path), path)


def read_recipe(path: Path) -> Recipe:
    """Read a recipe file: its name filled in, mount sources made absolute and found to be files.

    Raises UsageError that names file, line and key.
    """
    document = read_document(path)
    document.values.setdefault("name", path.stem)
    recipe = validate(Recipe, document)
    mounts = [mount.model_copy(update={"source": _absolute(mount.source, path.parent)}) for mount in recipe.mounts]
    for number, mount in enumerate(mounts):
        if not Path(mount.source).is_file():
            where = document.where(("mounts", number, "source"))
            raise UsageError(f"{where}: mounts.{number}.source: there is no file `{mount.source}`")
    return recipe.model_copy(update={"mounts": mounts})


def read_mounts(mounts: Sequence[Mount]) -> dict[str, bytes]:
    """Content of mounted files by target path. Raises UsageError when one cannot be read."""
    content: dict[str, bytes] = {}
    for mount in mounts:
        try:
            content[mount.target] = Path(mount.source).read_bytes()
        except OSError as error:
            raise UsageError(f"{mount.source}: cannot be read: {error.strerror or error} (mounts)") from error
    return content


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
        return _with_defaults(name, entry, inventory)
    found = _ad_hoc(name)
    if found and (found.user or found.port or _is_address(found.address) or ssh_knows(found.address)):
        defaults = inventory.defaults
        return ResolvedHost(
            name, found.address, found.user, found.port,
            data_dir=defaults.data_dir, hf_home=defaults.hf_home, env=dict(defaults.env),
        )  # fmt: skip
    known = [*inventory.hosts, *inventory.groups]
    listed = f"known: {', '.join(known)}" if known else "`cluster inventory add NAME ADDRESS` makes it known"
    near = nearest(name, known)
    raise UsageError(
        f"`{name}` is not in {file.title} and ssh does not know it",
        remedy=f"{near}; {listed}" if near else listed,
    )


def _with_defaults(name: str, entry: HostEntry, inventory: Inventory) -> ResolvedHost:
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


def _ad_hoc(word: str) -> HostEntry | None:
    """`user@host:port`, `[v6]:port`, a bare IPv6 address, or a name; None for what is none of them."""
    user, at, rest = word.rpartition("@")
    if _is_address(rest):
        return HostEntry(address=rest, user=user) if user or not at else None
    match = _AD_HOC.fullmatch(word)
    if match is None or word.startswith("-") or (match["v6"] and not _is_address(match["v6"])):
        return None
    port = int(match["port"] or 0)
    if port > 65535 or match["port"] == "0":
        raise UsageError(f"`{word}`: found port {port}, wanted 1 to 65535")
    return HostEntry(address=match["v6"] or match["host"], user=match["user"] or "", port=port)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _refuse_twice(hosts: Sequence[ResolvedHost]) -> None:
    names: set[str] = set()
    places: dict[tuple[str, int, str], str] = {}
    for host in hosts:
        if host.name in names:
            raise UsageError(
                f"`{host.name}` is named twice", remedy="name each host once (a group counts as its hosts)"
            )
        names.add(host.name)
        place = (place_of(host.address), host.port or 22, host.jump)
        if place in places:
            raise UsageError(
                f"`{places[place]}` and `{host.name}` are the same machine: {host.address} port {host.port or 22}",
                remedy="name each machine once",
            )
        places[place] = host.name


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
            _check_files(file, _with_defaults(name, entry, file.inventory))
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


def _anchored(entry: Entry, folder: Path) -> Entry:
    changes = {
        key: _absolute(getattr(entry, key), folder)
        for key in ("identity_file", "known_hosts_file")
        if getattr(entry, key)
    }
    return entry.model_copy(update=changes)


def _absolute(text: str, folder: Path) -> str:
    """`~` expanded; a relative path is meant from `folder`. Links are kept."""
    return str((folder / Path(text).expanduser()).absolute())
