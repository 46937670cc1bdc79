"""What an inventory may say; every key described, unknown keys are errors. And how a host is added to its text."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from cluster.config.validate import validate
from cluster.config.written import Environment, RemotePath, Strict, Word, compose, parse_document, wrong_at
from cluster.errors import UsageError

_NAME = re.compile(r"[^\s,@:/\[\]\x00-][^\s,@:/\[\]\x00]*")


def _check_address(text: str) -> str:
    if text.startswith("["):
        raise ValueError(f"found `{text}`; an IPv6 address is written without brackets, the port has its own key")
    if "@" in text:
        raise ValueError(f"found `{text}`; the login name has its own key, `user`")
    if "/" in text:
        raise ValueError(f"found `{text}`; an address or a name is wanted, no URL and no subnet")
    if ":" in text:
        _check_v6(text)
    if not text:
        raise ValueError("found empty text; an address or a name that ssh knows is wanted")
    return text


def _check_v6(text: str) -> None:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise ValueError(f"found `{text}`, no IPv6 address; the port has its own key, `port`") from None


def _nfc(value: Any) -> Any:
    return unicodedata.normalize("NFC", value) if isinstance(value, str) else value


def _compose_names(data: Any) -> Any:
    """Names in Unicode's composed form, so that two ways to type `ä` are one name."""
    if not isinstance(data, dict):
        return data
    composed = {
        _nfc(name): [_nfc(v) for v in value] if isinstance(value, list) else value for name, value in data.items()
    }
    if len(composed) != len(data):
        raise ValueError("two names are equal in Unicode's composed form")
    for name in composed:
        if not _NAME.fullmatch(name):
            raise ValueError(f"`{name}` cannot be a name: no blanks, none of , @ : / [ ] and no dash in front")
    return composed


Named = BeforeValidator(_compose_names)


class HostEntry(Strict):
    """One machine. Everything but the address has a default; what is left out is asked of `ssh -G`."""

    address: Annotated[Word, AfterValidator(_check_address)] = Field(
        description="management address, or a name that ssh knows; IPv6 without brackets"
    )
    user: Word = Field(default="", description="login name; default: what ssh would use")
    port: int = Field(default=0, description="SSH port; 0: what ssh would use", ge=0, le=65535)
    identity_file: str = Field(
        default="",
        description="private key on this machine; a relative path starts at this file's folder; "
        "default: what ssh would offer",
    )
    jump: Word = Field(default="", description="jump host as `ssh -J` writes it: user@host:port")
    known_hosts_file: str = Field(
        default="", description="known_hosts file to check the host's key against; default: what ssh would read"
    )
    fabric: list[Word] = Field(
        default=[],
        description="netdevs of the fabric, e.g. enp1s0f0np0; default: found from the hosts, paired by subnet",
    )
    data_dir: RemotePath = Field(default="", description="folder on this host where cluster keeps its files")
    hf_home: RemotePath = Field(default="", description="Hugging Face home on this host (the folder above hub/)")
    env: Environment = Field(default={}, description="environment of this host's rank only; never a secret")


class Defaults(Strict):
    """Values for hosts of this file that do not say themselves."""

    user: Word = Field(default="", description="login name; default: what ssh would use")
    port: int = Field(default=0, description="SSH port; 0: what ssh would use", ge=0, le=65535)
    identity_file: str = Field(default="", description="private key on this machine; default: what ssh would offer")
    known_hosts_file: str = Field(
        default="", description="known_hosts file to check host keys against; default: what ssh would read"
    )
    data_dir: RemotePath = Field(
        default="~/.local/share/cluster", description="folder on each host where cluster keeps its files"
    )
    hf_home: RemotePath = Field(
        default="~/.cache/huggingface", description="Hugging Face home on each host (the folder above hub/)"
    )
    env: Environment = Field(default={}, description="environment of every rank; never a secret")


class Inventory(Strict):
    """The Sparks of a desk."""

    hosts: Annotated[dict[str, HostEntry], Named] = Field(
        default={}, description="the machines, by the name you call them"
    )
    groups: Annotated[dict[str, list[str]], Named] = Field(
        default={}, description="names for several hosts, used as `-n GROUP`"
    )
    defaults: Defaults = Field(default=Defaults(), description="values for hosts that do not say themselves")
    default_recipe: str = Field(
        default="", description="recipe, or path of one, used when none is named; default: gemma-4-31b-fp8"
    )

    @model_validator(mode="after")
    def _check_groups(self) -> Inventory:
        for name, members in self.groups.items():
            if name in self.hosts:
                raise wrong_at(("groups", name), "a host has the same name")
            for member in members:
                if member not in self.hosts:
                    raise wrong_at(("groups", name), f"`{member}` is no host; hosts: {', '.join(self.hosts) or 'none'}")
            if len(set(members)) < len(members) or not members:
                found = ", ".join(members) or "none"
                raise wrong_at(("groups", name), f"found {found}, wanted one or more different hosts")
        return self


@dataclass(frozen=True, slots=True)
class InventoryFile:
    """An inventory and the file it was read from (None: no file, hosts are ad hoc)."""

    inventory: Inventory
    path: Path | None = None

    @property
    def title(self) -> str:
        """What to call it in messages."""
        return str(self.path) if self.path else "the inventory"


HEADER = "# Hosts of `cluster`; every key is explained in inventory/example.yaml and docs/configuration.md.\n"


def with_host(text: str, name: str, values: Mapping[str, str | int], file: str) -> str:
    """The inventory's text with one more host, the last one. `text` may be empty.

    Raises UsageError when the file is not valid as it is, has that host already, or is written in a way that lines
    cannot be added to (the lines to add by hand are given).
    """
    before: dict[str, Any] = {}
    root = compose(text, file)
    if root is not None:
        document = parse_document(text, file)
        validate(Inventory, document)
        before = dict(document.values)
    hosts = dict(before.get("hosts") or {})
    if name in hosts:
        raise UsageError(f"{file}: hosts.{name} is there already")
    wanted = before | {"hosts": hosts | {name: {key: str(value) for key, value in values.items()}}}
    result = _insert(text, root, name, values)
    if not _says(result, wanted, file):
        lines = _block({name: dict(values)}, 2)
        raise UsageError(f"{file}: a host cannot be added to hosts as it is written", remedy=f"add by hand:\n{lines}")
    return result


def _says(text: str, wanted: Mapping[str, Any], file: str) -> bool:
    try:
        document = parse_document(text, file)
        validate(Inventory, document)
    except UsageError:
        return False
    return document.values == wanted


def _insert(text: str, root: yaml.Node | None, name: str, values: Mapping[str, str | int]) -> str:
    end = "\r\n" if "\r\n" in text else "\n"
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith(("\n", "\r")):
        lines[-1] += end
    at, indent, flow = len(lines), 2, False
    head = [] if lines else HEADER.splitlines(keepends=True)
    found = next((pair for pair in root.value if pair[0].value == "hosts"), None) if root else None
    if found is None:
        head.append("hosts:\n")
    elif _is_block(found[1]):
        last_key, last_value = found[1].value[-1]
        at, indent = _last_line(last_value) + 1, last_key.start_mark.column
        flow = isinstance(last_value, yaml.MappingNode) and bool(last_value.flow_style)
    else:
        at = found[0].start_mark.line + 1
        lines[at - 1] = lines[at - 1].replace(" {}", "", 1) if found[1].value == [] else lines[at - 1]
    added = "".join(head) + _block({name: dict(values)}, indent, flow=flow)
    return "".join([*lines[:at], added.replace("\n", end), *lines[at:]])


def _is_block(node: yaml.Node) -> bool:
    return isinstance(node, yaml.MappingNode) and not node.flow_style and bool(node.value)


def _last_line(node: yaml.Node) -> int:
    """Line (from 0) on which a value ends. A block's own end mark lies behind the comments and blanks after it."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style and node.value:
        return max(_last_line(value) for pair in node.value for value in pair)
    if isinstance(node, yaml.SequenceNode) and not node.flow_style and node.value:
        return max(_last_line(item) for item in node.value)
    is_block_text = isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")
    return int(node.end_mark.line) - (1 if is_block_text else 0)


def _block(values: Mapping[str, Any], indent: int, *, flow: bool = False) -> str:
    text = yaml.safe_dump(
        dict(values), sort_keys=False, allow_unicode=True, width=10_000, default_flow_style=None if flow else False
    )
    return "".join(" " * indent + line for line in text.splitlines(keepends=True))
