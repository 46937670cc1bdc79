"""Who else uses a host: processes of engines, other model servers, Ollama, and what its packet filter drops."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, ip_network
from typing import TYPE_CHECKING, Any, Literal

from cluster.argv.far import far
from cluster.spark.fact import Missing, read_section
from cluster.spark.finding import Check, Finding, Level

if TYPE_CHECKING:
    from cluster.argv.question import Answer, Question
    from cluster.spark.look import Seen

OTHERS = Check("tenants", "memory-is-full#another-tenant")


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """A process of vLLM or Ray. `name` is its title (`VLLM::Worker_TP0`, `ray::RayWorkerProc`, `raylet`,
    `gcs_server`, `vllm serve`, `ray agent`), `container` the container's full id, empty outside of one."""

    pid: int
    name: str
    rss_bytes: int
    container: str


def processes_question() -> Question:
    """Ask for the engine processes alone."""
    return far("look", {"sections": ["processes"]})


def parse_processes(answer: Answer) -> tuple[EngineProcess, ...] | Missing:
    """Read the section `processes` of far/look."""
    return read_section(answer, "processes", tuple[EngineProcess, ...])


Kind = Literal["ollama", "desktop", "killer", "mdns"]

NAMES: dict[str, Kind] = {
    "ollama": "ollama",
    "ollama_llama_server": "ollama",
    "gnome-shell": "desktop",
    "plasmashell": "desktop",
    "Xorg": "desktop",
    "Xwayland": "desktop",
    "xfce4-session": "desktop",
    "earlyoom": "killer",
    "nohang": "killer",
    "dgx-anti-oom": "killer",
    "avahi-daemon": "mdns",
}
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
        document = _MDNS.search(row.words[0])
        return Tenant(kind, document[1], row.pid, row.uid) if document else None
    return Tenant(kind, name, row.pid, row.uid)


def _has_model(name: str, words: Sequence[str]) -> bool:
    """Ollama runs one process more for each model that is loaded."""
    return name == "ollama_llama_server" or "runner" in words


_TABLE = re.compile(r"table (?P<family>\w+) \S+ \{")
_NETWORK = re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?:/\d{1,2})?(?![\d.])", re.ASCII)
_DEVICE = re.compile(r'(?:iif(?:name)? |-i )"?([^"\s]+)')
_LAST_WORD = re.compile(r"(?:counter packets \d+ bytes \d+ )?(?:-j )?(?:drop|reject)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Firewall:
    """`drops`: the rule by which IPv4 packets that come in are dropped unless another rule says otherwise, empty when
    there is none. `passes`: the rules by which some are accepted, or sent to other rules."""

    drops: str = ""
    passes: tuple[str, ...] = ()

    def may_pass(self, netdev: str, network: IPv4Network) -> bool:
        """Whether something from a network on a netdev may come in: nothing is dropped, or some rule names either."""
        return not self.drops or any(_names(rule, netdev, network) for rule in self.passes)


def _names(rule: str, netdev: str, network: IPv4Network) -> bool:
    devices = [found[1] for found in _DEVICE.finditer(rule)]
    named = any(netdev.startswith(one.rstrip("*+")) if one[-1] in "*+" else netdev == one for one in devices)
    return named or any(network.overlaps(one) for one in _networks(rule))


def _networks(rule: str) -> Iterator[IPv4Network]:
    for found in _NETWORK.finditer(rule):
        try:
            network = ip_network(found[0], strict=False)
        except ValueError:
            continue
        if isinstance(network, IPv4Network):
            yield network


def parse_firewall(answer: Answer) -> Firewall | Missing:
    """Read the section `firewall` of far/others, which is the rules' text."""
    text = read_section(answer, "firewall", str)
    return text if isinstance(text, Missing) else parse_rules(text)


def parse_rules(text: str) -> Firewall:
    """Read a whole ruleset. No rules at all drop nothing."""
    return _iptables(text) if re.search(r"^-P INPUT ", text, re.MULTILINE) else _nft(text)


def _iptables(text: str) -> Firewall:
    rules = [line.strip() for line in text.splitlines()]
    own = [rule for rule in rules if rule.startswith("-A INPUT ")]
    drops = next((rule for rule in rules if re.match("-P INPUT (DROP|REJECT)", rule)), "")
    if not drops and own and re.fullmatch(r"-A INPUT -j (DROP|REJECT).*", own[-1]):
        drops = own[-1]
    return Firewall(drops, tuple(rule for rule in rules if rule.startswith("-A ") and not _LAST_WORD.search(rule)))


def _nft(text: str) -> Firewall:
    drops, family = "", ""
    passes: list[str] = []
    chain: list[str] = []
    for line in map(str.strip, text.splitlines()):
        table = _TABLE.match(line)
        family = table["family"] if table else family
        if line.startswith("chain "):
            chain = []
        elif line == "}" and chain and "hook input" in chain[0] and family in ("ip", "inet"):
            policy, last = chain[0], chain[-1]
            drops = drops or (policy if "policy drop" in policy else last if _LAST_WORD.match(last) else "")
        elif line:
            chain.append(line)
        if re.search(r"\b(accept|jump|goto)\b", line) and " hook " not in line:
            passes.append(line)
    return Firewall(drops, tuple(passes))


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in Ollama's memory: `gpu_bytes` of its `bytes` are GPU memory; `context` in tokens where it is told."""

    name: str
    bytes: int
    gpu_bytes: int
    context: int | None = None

    @property
    def split(self) -> bool:
        """Whether a part of it is computed by the CPU."""
        return self.gpu_bytes < self.bytes


def read_loaded(document: Mapping[str, Any]) -> tuple[Loaded, ...]:
    """The models of /api/ps. `context_length` is there since Ollama 0.10; `size_vram` is left out when it is 0."""
    models = document.get("models")
    return tuple(
        Loaded(
            str(one.get("model") or one.get("name") or ""),
            _number(one, "size") or 0,
            _number(one, "size_vram") or 0,
            _number(one, "context_length"),
        )
        for one in (models if isinstance(models, list) else ())
        if isinstance(one, dict)
    )


def _number(document: Mapping[str, Any], key: str) -> int | None:
    value = document.get(key)
    return value if isinstance(value, int) else None


TENANTS: Mapping[Kind, tuple[Level, str, str]] = {
    "ollama": ("warning", "Ollama has a model loaded", "ollama ps; ollama stop NAME"),
    "killer": (
        "warning",
        "a program ends large processes when memory is short, as it is beside a model",
        "sudo systemctl stop it while a model is served",
    ),
    "desktop": (
        "note",
        "somebody's desktop session takes memory that a model could have",
        "sudo systemctl isolate multi-user.target ends it",
    ),
}
"""Kind → level, what it does, remedy."""


def check_tenants(seen: Seen) -> Iterator[Finding]:
    """Others that take memory which a model needs, or end what takes much; those on the GPU are named elsewhere."""
    if isinstance(seen.tenants, Missing):
        yield OTHERS.unknown(seen.host, "other programs", seen.tenants)
        return
    on_gpu = set() if isinstance(seen.gpu_processes, Missing) else {row.pid for row in seen.gpu_processes}
    for kind, (level, what, remedy) in TENANTS.items():
        here = [one for one in seen.tenants if one.kind == kind and one.pid not in on_gpu]
        if here:
            evidence = ", ".join(f"{one.name} (pid {one.pid}, uid {one.uid})" for one in here)
            yield OTHERS.found(level, seen.host, what, evidence, f"on {seen.host}: {remedy}")
