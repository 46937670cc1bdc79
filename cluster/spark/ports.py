"""Which TCP ports are taken (/proc/net/tcp and tcp6, proc(5)), and whether a rank has a place on a host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cluster.argv.ports import ports_used
from cluster.argv.question import Answer
from cluster.spark.deployments import Deployment
from cluster.spark.fact import Missing, read_section
from cluster.spark.finding import Check, Finding

if TYPE_CHECKING:
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


def parse(answer: Answer) -> tuple[Listener, ...] | Missing:
    return read_section(answer, "listening", tuple[Listener, ...])


def check_ports(wanted: Wanted, seen: Seen, found: Sequence[Deployment]) -> Iterator[Finding]:
    """The ports a rank needs are free, or held by a rank of ours that goes first."""
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
