"""What an inventory may say. One model, every key described; unknown keys are errors."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from cluster.config.strict import Environment, RemotePath, Strict, Word, wrong_at

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
