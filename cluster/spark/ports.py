"""Which TCP ports are taken (/proc/net/tcp and tcp6, proc(5)), and whether a rank has a place on a host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cluster.argv.far import far
from cluster.argv.ports import ports_used
from cluster.spark.deployments import Deployment
from cluster.spark.fact import Missing, read_section
from cluster.spark.finding import Check, Finding

if TYPE_CHECKING:
    from cluster.argv.question import Answer, Question
    from cluster.spark.look import Seen
    from cluster.spark.request import Wanted

PORTS = Check("ports", "it-does-not-start#ports-and-names")


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket in LISTEN. `pid` is None and `process` empty when this user may not see whose it is; `uid` owns it."""

    address: str
    port: int
    pid: int | None
    process: str
    uid: int = 0


def question() -> Question:
    """Ask for the listening sockets alone."""
    return far("look", {"sections": ["listening"]})


def parse(answer: Answer) -> tuple[Listener, ...] | Missing:
    """Read the section `listening` of far/look."""
    return read_section(answer, "listening", tuple[Listener, ...])


def check_ports(wanted: Wanted, seen: Seen, found: Sequence[Deployment]) -> Iterator[Finding]:
    """The ports a rank needs are free, or held by a rank of ours that goes first."""
    if isinstance(seen.listening, Missing):
        yield PORTS.unknown(seen.host, "listening ports", seen.listening)
        return
    mine = [use for deployment in found for use in deployment.ports_on(seen.host)]
    rank = wanted.names.index(seen.host)
    uses = ports_used(backend=wanted.backend, size=wanted.size, rank=rank, api_port=wanted.recipe.port)
    taken: dict[str, dict[int, str]] = {}
    for listener in sorted(seen.listening, key=lambda row: row.port):
        use = next((use.what for use in uses if use.first <= listener.port <= use.last), None)
        if use and not any(own.first <= listener.port <= own.last for own in mine):
            holder = (
                f"{listener.process} (pid {listener.pid})" if listener.pid else "a process this user may not look at"
            )
            taken.setdefault(holder, {})[listener.port] = use
    for holder, ports in taken.items():
        yield _taken(seen.host, holder, ports, wanted.recipe.port)


def _taken(host: str, holder: str, ports: Mapping[int, str], api_port: int) -> Finding:
    """All ports that one process holds."""
    rows = ", ".join(f"{port} ({use})" for port, use in ports.items())
    what = f"port {rows} is taken" if len(ports) == 1 else f"ports {rows} are taken"
    other = ", or take another with --set port=N" if api_port in ports else ""
    see = f"sudo ss -ltnp sport = :{next(iter(ports))}"
    return PORTS.fault(host, what, f"{holder} listens there", f"on {host}: {see}; stop it{other}")
