"""Who else uses a host: engines, listeners on ports, other model servers, Ollama; and what its packet filter drops."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import TYPE_CHECKING, Any, Literal

from cluster.argv.far import far
from cluster.argv.ports import ports_used
from cluster.argv.question import Answer, Question
from cluster.spark.fact import Fact, Missing, known, read_section
from cluster.spark.finding import Check, Finding, Level

if TYPE_CHECKING:
    from cluster.spark.deployments import Deployment
    from cluster.spark.look import Seen
    from cluster.spark.request import Wanted

OTHERS = Check("tenants", "memory-is-full#another-tenant")
"""Warning: Ollama has a model loaded (`ollama stop NAME` on that host unloads it), or earlyoom and the like would end
the engine; note: somebody's desktop session. Silent about Ollama without a model; login screens."""
PORTS = Check("ports", "it-does-not-start#ports-and-names")
"""Fault: a port that this rank needs is taken, and by whom. Silent about ports of managed ranks that stop first."""


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """A process of vLLM or Ray. `name` is its title (`VLLM::Worker_TP0`, `ray::RayWorkerProc`, `raylet`,
    `gcs_server`, `vllm serve`, `ray agent`), `container` the container's full id, empty outside of one."""

    pid: int
    name: str
    rss_bytes: int
    container: str


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket in LISTEN. `pid` is None and `process` empty when this user may not see whose it is; `uid` owns it."""

    address: str
    port: int
    pid: int | None
    process: str
    uid: int = 0


Kind = Literal["ollama", "desktop", "killer", "mdns"]

KINDS: dict[Kind, tuple[str, ...]] = {
    "ollama": ("ollama", "ollama_llama_server"),
    "desktop": ("gnome-shell", "plasmashell", "Xorg", "Xwayland", "xfce4-session"),
    "killer": ("earlyoom", "nohang", "dgx-anti-oom"),
    "mdns": ("avahi-daemon",),
}
NAMES = {name: kind for kind, names in KINDS.items() for name in names}
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
class NamedProcess:
    """A process with one of the names, and its first words."""

    pid: int
    uid: int
    words: tuple[str, ...]


def question() -> Question:
    return far("others", {"sections": ["tenants"], "names": list(NAMES)})


def parse(answer: Answer) -> tuple[Tenant, ...] | Missing:
    rows = read_section(answer, "tenants", tuple[NamedProcess, ...])
    return rows if isinstance(rows, Missing) else tuple(one for one in map(_tenant, rows) if one)


def _tenant(row: NamedProcess) -> Tenant | None:
    """What a process is to us; None for one that only has the name: a server without a model, a login screen."""
    names = [word.rpartition("/")[2].partition(":")[0] for word in row.words[:2]]
    name = next((name for name in names if name in NAMES), "")
    kind = NAMES.get(name)
    if kind == "ollama" and name == "ollama" and "runner" not in row.words:
        return None  # Ollama runs one process more for each model that is loaded
    if kind is None or (kind == "desktop" and not FIRST_UID <= row.uid <= LAST_UID):
        return None
    if kind == "mdns":
        document = _MDNS.search(row.words[0])
        return Tenant(kind, document[1], row.pid, row.uid) if document else None
    return Tenant(kind, name, row.pid, row.uid)


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
    if any(netdev.startswith(one.rstrip("*+")) if one[-1] in "*+" else netdev == one for one in devices):
        return True
    for found in _NETWORK.finditer(rule):
        with suppress(ValueError):
            if network.overlaps(IPv4Network(found[0], strict=False)):
                return True
    return False


def parse_firewall(answer: Answer) -> Firewall | Missing:
    text = read_section(answer, "firewall", str)
    return text if isinstance(text, Missing) else parse_rules(text)


def parse_rules(text: str) -> Firewall:
    """Read the rules of iptables or nft. No rules drop nothing."""
    rules = [line.strip() for line in text.splitlines()]
    if any(rule.startswith("-P INPUT ") for rule in rules):
        ends = [rule for rule in rules if rule.startswith("-A INPUT ")][-1:]
        drops = [rule for rule in rules if re.match("-P INPUT (DROP|REJECT)", rule)]
        drops += [rule for rule in ends if re.fullmatch(r"-A INPUT -j (DROP|REJECT).*", rule)]
        passes = tuple(rule for rule in rules if rule.startswith("-A ") and not _LAST_WORD.search(rule))
        return Firewall(drops[0] if drops else "", passes)
    return _nft(rules)


def _nft(rules: list[str]) -> Firewall:
    drops, family = "", ""
    passes: list[str] = []
    chain: list[str] = []
    for line in rules:
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


PACKET_FILTER = Fact("firewall", lambda: far("others", {"sections": ["firewall"]}), parse_firewall)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in Ollama's memory: `gpu_bytes` of its `bytes` are GPU memory; `context` in tokens."""

    name: str
    bytes: int
    gpu_bytes: int
    context: int | None = None

    @property
    def split(self) -> bool:
        return self.gpu_bytes < self.bytes


def read_loaded(document: Mapping[str, Any]) -> tuple[Loaded, ...]:
    """The models of /api/ps. `context_length` is there since Ollama 0.10; `size_vram` is left out when it is 0."""
    models = document.get("models")
    loaded = []
    for one in models if isinstance(models, list) else ():
        if isinstance(one, dict):
            numbers = {name: value for name, value in one.items() if isinstance(value, int)}
            size, in_gpu = numbers.get("size", 0), numbers.get("size_vram", 0)
            name = str(one.get("model") or one.get("name") or "")
            loaded.append(Loaded(name, size, in_gpu, numbers.get("context_length")))
    return tuple(loaded)


_KILLER = "a program ends large processes when memory is short, as it is beside a model"
_DESKTOP = "somebody's desktop session takes memory that a model could have"
TENANTS: Mapping[Kind, tuple[Level, str, str]] = {
    "ollama": ("warning", "Ollama has a model loaded", "ollama ps; ollama stop NAME"),
    "killer": ("warning", _KILLER, "sudo systemctl stop it while a model is served"),
    "desktop": ("note", _DESKTOP, "sudo systemctl isolate multi-user.target ends it"),
}
"""Kind → level, what it does, remedy."""


_ENGINE = re.compile(r"^(?:PID )?[ \t]*(?:[a-z_][\w-]*[ \t]+)?(?P<pid>\d+)[ \t].*\bvllm serve\b", re.MULTILINE)
_LISTENER = re.compile(
    r"^(?:tcp[ \t]+)?LISTEN[ \t]+\d+[ \t]+\d+[ \t]+(?P<address>\S+):(?P<port>\d+)[ \t]", re.MULTILINE
)


def recognise_engines(text: str) -> tuple[int, ...] | None:
    """The pids of `vllm serve` in a list of processes."""
    return tuple(int(row["pid"]) for row in _ENGINE.finditer(text)) or None


def recognise_listeners(text: str) -> tuple[tuple[str, int], ...] | None:
    """Address and port of each listening socket in what `ss -ltn` prints."""
    return tuple((row["address"], int(row["port"])) for row in _LISTENER.finditer(text)) or None


def check_tenants(seen: Seen) -> Iterator[Finding]:
    """Others that take memory which a model needs, or end what takes much; those on the GPU are named elsewhere."""
    tenants = seen.of(OTHER_PROGRAMS)
    if isinstance(tenants, Missing):
        yield OTHERS.unknown(seen.host, "other programs", tenants)
        return
    on_gpu = {row.pid for row in known(seen.gpu_processes) or ()}
    for kind, (level, what, remedy) in TENANTS.items():
        here = [one for one in tenants if one.kind == kind and one.pid not in on_gpu]
        if here:
            evidence = ", ".join(f"{one.name} (pid {one.pid}, uid {one.uid})" for one in here)
            yield OTHERS.found(level, seen.host, what, evidence, f"on {seen.host}: {remedy}")


OTHER_PROGRAMS = Fact("tenants", question, parse, check_tenants)


def check_ports(wanted: Wanted, seen: Seen, found: Sequence[Deployment]) -> Iterator[Finding]:
    """The ports a rank needs are free, or held by a rank of a deployment that is stopped first."""
    host, api_port = seen.host, wanted.recipe.port
    if isinstance(seen.listening, Missing):
        yield PORTS.unknown(host, "listening ports", seen.listening)
        return
    mine = [use for deployment in found for use in deployment.ports_on(host)]
    uses = ports_used(backend=wanted.backend, size=wanted.size, rank=wanted.names.index(host), api_port=api_port)
    taken: dict[str, dict[int, str]] = {}
    for one in sorted(seen.listening, key=lambda row: row.port):
        use = next((use.what for use in uses if use.first <= one.port <= use.last), None)
        if use and not any(own.first <= one.port <= own.last for own in mine):
            holder = f"{one.process} (pid {one.pid})" if one.pid else "a process this user may not look at"
            taken.setdefault(holder, {})[one.port] = use
    for holder, ports in taken.items():
        rows = ", ".join(f"{port} ({use})" for port, use in ports.items())
        what = f"port {rows} is taken" if len(ports) == 1 else f"ports {rows} are taken"
        remedy = f"on {host}: sudo ss -ltnp sport = :{next(iter(ports))}; stop it"
        other = ", or take another with --set port=N" if api_port in ports else ""
        yield PORTS.fault(host, what, f"{holder} listens there", remedy + other)
