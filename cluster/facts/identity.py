"""Who a host is and who we are on it: names, ids, user, interpreter."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.commands.far import far
from cluster.commands.question import Answer, Question
from cluster.facts.fact import Missing
from cluster.facts.sections import read_section


@dataclass(frozen=True, slots=True)
class Identity:
    """One host as its own files tell it.

    `product` is the firmware's product name (a Spark says `NVIDIA_DGX_Spark`), `arch` as `uname -m` (`aarch64`),
    `python` the version of the interpreter that answered, `path` the PATH of a non-login shell. `sudo`: `sudo -n` works
    without a password. `data_dir` and `hf_home` are absolute, `~` expanded on the host. `management_address` is the
    address the host was reached at over SSH, else the one its default route leaves from; empty when there is neither.
    `named_addresses` are those that /etc/hosts gives `hostname` (Ubuntu's own is 127.0.1.1).
    """

    product: str
    machine_id: str
    boot_id: str
    hostname: str
    kernel: str
    arch: str
    user: str
    uid: int
    gid: int
    home: str
    groups: tuple[str, ...]
    python: str
    path: str
    sudo: bool
    data_dir: str
    hf_home: str
    management_address: str = ""
    named_addresses: tuple[str, ...] = ()


def question(data_dir: str, hf_home: str) -> Question:
    """Ask for the identity alone."""
    return far("look", {"sections": ["identity"], "data_dir": data_dir, "hf_home": hf_home})


def parse(answer: Answer) -> Identity | Missing:
    """Read the section `identity` of far/look."""
    return read_section(answer, "identity", Identity)
