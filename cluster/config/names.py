"""What a name means: a host or group of the inventory, an address, or something ssh knows."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cluster.config.find import VARIABLE, nearest, usual_inventories
from cluster.config.inventory import HostEntry, Inventory, InventoryFile
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
