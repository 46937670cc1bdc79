"""Who shares a host with us, told by its processes: another model server, a desktop, killers of processes, mDNS."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cluster.argv.far import far
from cluster.argv.question import Answer, Question
from cluster.spark.fact import Missing
from cluster.spark.sections import read_section

Kind = Literal["ollama", "desktop", "killer", "mdns"]

NAMES: dict[str, Kind] = {
    "ollama": "ollama", "ollama_llama_server": "ollama",
    "gnome-shell": "desktop", "plasmashell": "desktop", "Xorg": "desktop", "Xwayland": "desktop",
    "xfce4-session": "desktop",
    "earlyoom": "killer", "nohang": "killer", "dgx-anti-oom": "killer",
    "avahi-daemon": "mdns",
}  # fmt: skip
FIRST_UID, LAST_UID = 1000, 59_999
"""Uids of people; login screens run under others."""
_MDNS = re.compile(r"running \[([^\]]+)\]")


@dataclass(frozen=True, slots=True)
class Tenant:
    """One process. `ollama`: a model is loaded. `desktop`: somebody's session, no login screen. `killer`: it ends large
    processes when memory is short. `mdns`: `name` is this host's name on the network, `spark1.local`."""

    kind: Kind
    name: str
    pid: int
    uid: int


@dataclass(frozen=True, slots=True)
class Row:
    """A process with one of the names, as far/others tells it: its first words."""

    pid: int
    uid: int
    words: tuple[str, ...]


def question() -> Question:
    """Ask for the tenants, and for the firewall, which is read from the same answer."""
    return far("others", {"sections": ["tenants", "firewall"], "names": list(NAMES)})


def parse(answer: Answer) -> tuple[Tenant, ...] | Missing:
    """Read the section `tenants` of far/others."""
    rows = read_section(answer, "tenants", tuple[Row, ...])
    return rows if isinstance(rows, Missing) else tuple(one for one in map(_tenant, rows) if one)


def _tenant(row: Row) -> Tenant | None:
    """What a process is to us; None for one that only has the name: a server without a model, a login screen."""
    names = [word.rpartition("/")[2].partition(":")[0] for word in row.words[:2]]
    name = next((name for name in names if name in NAMES), "")
    kind = NAMES.get(name)
    if kind is None or (kind == "ollama" and not _has_model(name, row.words)):
        return None
    if kind == "desktop" and not FIRST_UID <= row.uid <= LAST_UID:
        return None
    if kind == "mdns":
        told = _MDNS.search(row.words[0])
        return Tenant(kind, told[1], row.pid, row.uid) if told else None
    return Tenant(kind, name, row.pid, row.uid)


def _has_model(name: str, words: Sequence[str]) -> bool:
    """Ollama runs one process more for each model that is loaded."""
    return name == "ollama_llama_server" or "runner" in words
