"""What an inventory may say. One model, every key described; unknown keys are errors."""

from __future__ import annotations

from pydantic import Field

from cluster.config.recipe import Strict


class HostEntry(Strict):
    """One machine. Everything but the address has a default; what is left out is asked of `ssh -G`."""

    address: str = Field(description="management address or a name that ssh knows; IPv6 without brackets")
    user: str = Field("", description="login name; default: what ssh would use")
    port: int = Field(0, description="SSH port; 0: what ssh would use", ge=0, le=65535)
    identity_file: str = Field("", description="private key on this machine; default: what ssh would offer")
    jump: str = Field("", description="jump host as ssh -J writes it")
    known_hosts_file: str = Field("", description="known_hosts to check against; default: what ssh would read")
    fabric: list[str] = Field(
        default_factory=list,
        description="netdevs to use for the fabric; default: found from the hosts, paired by subnet",
    )
    data_dir: str = Field("", description="where cluster keeps its files on this host")
    hf_home: str = Field("", description="Hugging Face cache on this host")
    env: dict[str, str] = Field(
        default_factory=dict, description="environment of this host's rank only; never a secret"
    )


class Defaults(Strict):
    """Values for hosts that do not say themselves."""

    user: str = Field("", description="login name")
    port: int = Field(0, description="SSH port; 0: what ssh would use", ge=0, le=65535)
    identity_file: str = Field("", description="private key on this machine")
    known_hosts_file: str = Field("", description="known_hosts to check against")
    data_dir: str = Field("~/.local/share/cluster", description="where cluster keeps its files on a host")
    hf_home: str = Field("~/.cache/huggingface", description="Hugging Face cache on a host")
    env: dict[str, str] = Field(default_factory=dict, description="environment of every rank; never a secret")


class Inventory(Strict):
    """The Sparks of a desk."""

    hosts: dict[str, HostEntry] = Field(description="the machines, by the name you call them")
    groups: dict[str, list[str]] = Field(default_factory=dict, description="names for several hosts: `-n GROUP`")
    defaults: Defaults = Field(default_factory=Defaults, description="values for hosts that do not say themselves")  # type: ignore[arg-type]
    default_recipe: str = Field("", description="recipe used when none is named; default gemma-4-31b-fp8")
