"""What an inventory may say, every key described; the hosts that names mean; how a host is added to its text."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import AfterValidator, field_validator, model_validator

from cluster.config import written
from cluster.config.find import VARIABLE, did_you_mean, expand, find_inventory, is_path, usual_inventories
from cluster.config.written import Environment, RemotePath, Strict, Word, form, key, parse_document, validate, wrong_at
from cluster.errors import UsageError

Entry = TypeVar("Entry", "HostEntry", "Defaults")
LEAST_MHZ = 1200
"""A GPU that works below 1000 MHz counts as held back by its supply (gpu.CAPPED_MHZ)."""
LOOKED_AT = f"looked at -i, ${VARIABLE}, ./{{}}, {{}}"
_BARE = r"(?P<bare>[0-9A-Fa-f:.]+(?:%\w+)?)"
_PORTED = r"(?:\[(?P<v6>[^]\s]+)]|(?P<host>[^@:/\s\[\]-][^@:/\s\[\]]*))(?::(?P<port>[0-9]{1,5}))?"
_ADDRESS = re.compile(rf"(?:(?P<user>[^@\s-][^@\s]*)@)?(?:{_PORTED}|{_BARE})")


def _check_address(text: str) -> str:
    mistakes = {
        "[": "an IPv6 address without brackets (the port has its own key)",
        "@": "an address without a login name (which has its own key, `user`)",
        "/": "an address or a name, not a URL or a subnet",
    }
    wanted = next((wanted for sign, wanted in mistakes.items() if sign in text), "")
    if wanted or not text:
        raise ValueError(f"expected {wanted or 'an address or a name that ssh knows'}, got `{text}`")
    if ":" in text and not _is_address(text):
        raise ValueError(f"expected an IPv6 address, got `{text}`; the port has its own key, `port`")
    return text


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


HostName = Annotated[
    str,
    AfterValidator(partial(unicodedata.normalize, "NFC")),  # so that two ways to type `ä` are one name
    form(r"(?!-)[^\s,@:/\[\]\x00]+", "a name without blanks, , @ : / [ ] and a dash in front", re.UNICODE),
]


class Clocks(Strict):
    """A limit of the GPU's clocks, set by `up` with sudo and put back by `down`."""

    sm_max_mhz: int = key("highest SM clock in MHz, e.g. 2000; 0: no limit", 0, ge=0, le=10_000)

    @field_validator("sm_max_mhz")
    @classmethod
    def _check_sm_max_mhz(cls, value: int) -> int:
        if 0 < value < LEAST_MHZ:
            raise ValueError(f"expected 0 or at least {LEAST_MHZ} MHz, got {value}")
        return value


class HostEntry(Strict):
    """One machine. Everything but the address has a default; what is left out is asked of `ssh -G`."""

    address: Annotated[Word, AfterValidator(_check_address)] = key(
        "management address, or a name that ssh knows; IPv6 without brackets"
    )
    user: Word = key("login name; default: what ssh would use", "")
    port: int = key("SSH port; 0: what ssh would use", 0, ge=0, le=65535)
    identity_file: str = key(
        "private key on this machine; a relative path starts at this file's folder; default: what ssh would offer", ""
    )
    jump: Word = key("jump host as `ssh -J` writes it: user@host:port", "")
    known_hosts_file: str = key("known_hosts file to check the host's key against; default: what ssh would read", "")
    fabric: list[Word] = key(
        "netdevs of the fabric, e.g. enp1s0f0np0; default: found from the hosts, paired by subnet", []
    )
    data_dir: RemotePath = key("folder on this host where cluster keeps its files", "")
    hf_home: RemotePath = key("Hugging Face home on this host (the folder above hub/)", "")
    env: Environment = key("environment of this host's rank only; never a secret", {})
    clocks: Clocks | None = key("limit of this host's GPU clocks while a deployment is there", None)


class Defaults(Strict):
    """Values for hosts of this file that do not say themselves."""

    user: Word = key("login name; default: what ssh would use", "")
    port: int = key("SSH port; 0: what ssh would use", 0, ge=0, le=65535)
    identity_file: str = key("private key on this machine; default: what ssh would offer", "")
    known_hosts_file: str = key("known_hosts file to check host keys against; default: what ssh would read", "")
    data_dir: RemotePath = key("folder on each host where cluster keeps its files", "~/.local/share/cluster")
    hf_home: RemotePath = key("Hugging Face home on each host (the folder above hub/)", "~/.cache/huggingface")
    env: Environment = key("environment of every rank; never a secret", {})
    clocks: Clocks | None = key("limit of each host's GPU clocks while a deployment is there", None)


class Inventory(Strict):
    """The Sparks of a desk."""

    hosts: dict[HostName, HostEntry] = key("the machines, by the name you call them", {})
    groups: dict[HostName, list[HostName]] = key("names for several hosts, used as `-n GROUP`", {})
    defaults: Defaults = key("values for hosts that do not say themselves", Defaults())
    default_recipe: str = key("recipe, or path of one, used when none is named; default: gemma-4-31b-fp8", "")

    @model_validator(mode="after")
    def _check_groups(self) -> Inventory:
        for name, members in self.groups.items():
            if name in self.hosts:
                raise wrong_at(("groups", name), "a host has this name already")
            for member in members:
                if member not in self.hosts:
                    known = ", ".join(self.hosts) or "none"
                    raise wrong_at(("groups", name), f"unknown host `{member}`; hosts: {known}")
            if len(set(members)) < len(members) or not members:
                given = ", ".join(members) or "none"
                raise wrong_at(("groups", name), f"expected one or more different hosts, got {given}")
        return self


@dataclass(frozen=True, slots=True)
class InventoryFile:
    """An inventory and the file it was read from (None: no file, hosts are ad hoc)."""

    inventory: Inventory
    path: Path | None = None

    @property
    def title(self) -> str:
        return str(self.path) if self.path else "the inventory"


def load_inventory(option: str | None = None) -> InventoryFile:
    """Read the one inventory that counts (see `find_inventory`); without any, an empty one.

    Raises UsageError that names file, line and key.
    """
    path = find_inventory(option)
    return InventoryFile(Inventory()) if path is None else InventoryFile(read_inventory(path), path)


def read_inventory(path: Path) -> Inventory:
    """Read an inventory file; relative paths in it start at its folder. Raises UsageError."""
    inventory = validate(Inventory, written.read_document(path))
    hosts = {name: _anchored(entry, path.parent) for name, entry in inventory.hosts.items()}
    changes: dict[str, object] = {"hosts": hosts, "defaults": _anchored(inventory.defaults, path.parent)}
    if is_path(inventory.default_recipe):
        changes["default_recipe"] = absolute(inventory.default_recipe, path.parent)
    return inventory.model_copy(update=changes)


def _anchored(entry: Entry, folder: Path) -> Entry:
    files = {key: getattr(entry, key) for key in ("identity_file", "known_hosts_file")}
    return entry.model_copy(update={key: absolute(text, folder) for key, text in files.items() if text})


def absolute(text: str, folder: Path) -> str:
    """`~` expanded; a relative path starts at `folder`. Links are kept."""
    return str((folder / expand(text)).absolute())


@dataclass(frozen=True, slots=True)
class ResolvedHost:
    """One machine with the inventory's defaults applied; empty text and port 0 mean what ssh would use.

    `identity_file` and `known_hosts_file` are absolute paths on this machine; `data_dir` and `hf_home` are paths
    on the host, in which `~` stands for the login's home. `sm_max_mhz`: limit of the GPU's clocks, 0 for none.
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
    sm_max_mhz: int = 0


NOT_AD_HOC = {"user": "", "port": 0, "identity_file": "", "known_hosts_file": ""}
"""Defaults that do not hold for a host that is no entry: ssh knows better."""


def with_defaults(name: str, entry: HostEntry, base: Defaults) -> ResolvedHost:
    values = {key: getattr(entry, key) or getattr(base, key, "") for key in HostEntry.model_fields}
    clocks = values.pop("clocks")
    values["sm_max_mhz"] = clocks.sm_max_mhz if clocks else 0
    return ResolvedHost(name, **values | {"fabric": tuple(entry.fabric), "env": {**base.env, **entry.env}})


SshKnows = Callable[[str], bool] | None


def resolve_hosts(file: InventoryFile, names: Sequence[str], ssh_knows: SshKnows) -> list[ResolvedHost]:
    """The hosts that names mean, in order. Each of `names` may be a comma-separated list, as `-n` takes it.

    A name is a host of the inventory, a group of it, an address, `user@host:port`, `[v6]:port`, or what ssh knows
    (`ssh_knows`, asked last; None asks nobody). Without names: every host of the inventory, in its order.
    Raises UsageError: an unknown name (with the nearest), a host twice, a key file that does not exist.
    """
    inventory = file.inventory
    words = [unicodedata.normalize("NFC", word.strip()) for text in names for word in text.split(",")]
    if not all(words):
        raise UsageError(f"-n {','.join(names)}: empty host name (a comma too many?)", code="host-not-found")
    words = words or list(inventory.hosts)
    if not words:
        looked = f"no hosts named and no inventory found ({LOOKED_AT.format(*usual_inventories())})"
        raise UsageError(
            f"{file.path}: no hosts listed" if file.path else looked,
            code="no-hosts",
            remedy="add one with `cluster inventory add NAME ADDRESS`; or name hosts that ssh knows: -n HOST,HOST",
        )
    members = [name for word in words for name in inventory.groups.get(word, [word])]
    hosts = [_host(file, name, ssh_knows) for name in members]
    if twice := [name for at, name in enumerate(members) if name in members[:at]]:
        remedy = "name each host once; a group counts as its hosts"
        raise UsageError(f"host `{twice[0]}` is named twice", code="host-named-twice", remedy=remedy)
    for first, second in _same_machines(hosts):
        same = f"the same machine: {second.address} port {second.port or 22}"
        what, remedy = f"`{first.name}` and `{second.name}` are {same}", "name each machine once"
        raise UsageError(what, code="host-named-twice", remedy=remedy)
    for problem in missing_files(file, hosts):
        remedy = "give the path of a private key on this machine, or leave it out to let ssh choose"
        raise UsageError(problem, code="key-file-not-found", remedy=remedy)
    return hosts


def _host(file: InventoryFile, name: str, ssh_knows: SshKnows) -> ResolvedHost:
    inventory = file.inventory
    entry = inventory.hosts.get(name)
    if entry:
        return with_defaults(name, entry, inventory.defaults)
    found = parse_address(name)
    if found and (found.user or found.port or _is_address(found.address) or (ssh_knows and ssh_knows(found.address))):
        base = inventory.defaults
        return with_defaults(name, found, base.model_copy(update=NOT_AD_HOC))
    known = [*inventory.hosts, *inventory.groups]
    listed = f"known: {', '.join(known)}" if known else "add it with `cluster inventory add NAME ADDRESS`"
    place = f"neither in {file.title} nor known to ssh" if ssh_knows else f"not in {file.title}"
    what = f"host not found: `{name}` is {place}"
    raise UsageError(what, code="host-not-found", remedy=f"{did_you_mean(name, known)} {listed}".strip())


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
        raise UsageError(f"`{word}`: expected a port from 1 to 65535, got {port}", code="address-invalid")
    return HostEntry(address=v6 or host, user=match["user"] or "", port=port)


def _same_machines(hosts: Sequence[ResolvedHost]) -> Iterator[tuple[ResolvedHost, ResolvedHost]]:
    places: dict[tuple[str, int, str], ResolvedHost] = {}
    for host in hosts:
        first = places.setdefault((place_of(host.address), host.port or 22, host.jump), host)
        if first is not host:
            yield first, host


def place_of(address: str) -> str:
    """An address in the one form that equal addresses share."""
    return str(ipaddress.ip_address(address)) if _is_address(address) else address.casefold().rstrip(".")


def inventory_problems(file: InventoryFile) -> Iterator[str]:
    """A line for each host that `resolve_hosts` would refuse for its files, or that is listed under two names."""
    hosts = [with_defaults(name, entry, file.inventory.defaults) for name, entry in file.inventory.hosts.items()]
    yield from missing_files(file, hosts)
    for first, second in _same_machines(hosts):
        yield f"{file.title}: hosts.{second.name} is the same machine as hosts.{first.name}: {second.address}"


def missing_files(file: InventoryFile, hosts: Sequence[ResolvedHost]) -> Iterator[str]:
    for host in hosts:
        if host.identity_file and not Path(host.identity_file).is_file():
            yield f"{file.title}: hosts.{host.name}.identity_file: file not found: `{host.identity_file}`"


HEADER = "# Hosts of `cluster`; every key is explained in inventory/example.yaml and docs/configuration.md.\n"


def with_host(text: str, name: str, values: Mapping[str, str | int], file: str) -> str:
    """The inventory's text with one more host, the last one, on a line of its own. `text` may be empty.

    Raises UsageError when the file is not valid as it is, has that host already, or is written in a way that lines
    cannot be added to (the line to add by hand is given).
    """
    root = written.compose(text, file)
    before: dict[str, Any] = {}
    if root is not None:
        document = parse_document(text, file)
        validate(Inventory, document)
        before = document.values
    hosts = before.get("hosts") or {}
    if name in hosts:
        raise UsageError(f"{file}: hosts.{name} already exists", code="host-exists")
    row = yaml.safe_dump(
        {name: dict(values)}, sort_keys=False, allow_unicode=True, width=10_000, default_flow_style=None
    )
    result = _insert(text, root, row.rstrip())
    with suppress(UsageError):  # a file of a shape that lines cannot be added to
        document = parse_document(result, file)
        validate(Inventory, document)
        if document.values == before | {"hosts": hosts | {name: {key: str(value) for key, value in values.items()}}}:
            return result
    what = f"{file}: cannot add a host to `hosts` as it is written"
    raise UsageError(what, code="inventory-not-editable", remedy=f"add by hand:\n  {row}")


def _insert(text: str, root: Any, row: str) -> str:
    """The text with a row below the last host, above blanks and comments that follow it."""
    end = "\r\n" if "\r\n" in text else "\n"
    lines = text.splitlines() or HEADER.splitlines()
    starts = {key.value: (key.start_mark.line, value) for key, value in root.value} if root else {}
    if "hosts" not in starts:
        return end.join([*lines, "hosts:", f"  {row}", ""])
    first, hosts = starts["hosts"]
    at = min((line for line, _ in starts.values() if line > first), default=len(lines))
    while at > first + 1 and re.match(r"\s*(#|$)", lines[at - 1]):
        at -= 1
    indent = hosts.value[0][0].start_mark.column if hosts.value else 2
    lines[first] = lines[first] if hosts.value else lines[first].replace(" {}", "", 1)
    return end.join([*lines[:at], " " * indent + row, *lines[at:], ""])
