"""Who a host is and who we are on it: names, ids, user, interpreter."""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from cluster.argv.far import far
from cluster.argv.question import Answer, Question
from cluster.spark.fact import Missing
from cluster.spark.sections import read_section


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


def machine_question() -> Question:
    """Ask for the machine-id alone."""
    return Question(("cat", "/etc/machine-id"))


def parse_machine(answer: Answer) -> str | Missing:
    """The machine-id, or why there is none."""
    if answer.exit != 0:
        return Missing(answer.error_text.strip() or f"/etc/machine-id: exit {answer.exit}")
    return read_machine(answer.text)


def read_machine(text: str) -> str | Missing:
    """The text of /etc/machine-id; one that was never set up is Missing."""
    found = text.strip()
    if found in ("", "uninitialized"):
        return Missing(f"/etc/machine-id is {found or 'empty, or cannot be read'}")
    return found


def host_id(machine_id: str) -> str:
    """Twelve hex digits by which a host is known in labels and results, whatever an inventory calls it.

    machine-id(5) wants the id itself kept to its machine, and what may be shown of it made with a keyed hash.
    """
    return hmac.digest(machine_id.encode(), b"cluster", "sha256").hex()[:12]


def question(data_dir: str, hf_home: str) -> Question:
    """Ask for the identity alone."""
    return far("look", {"sections": ["identity"], "data_dir": data_dir, "hf_home": hf_home})


def parse(answer: Answer) -> Identity | Missing:
    """Read the section `identity` of far/look."""
    return read_section(answer, "identity", Identity)
