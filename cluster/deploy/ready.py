"""What `up` prints of a proof: the endpoint, how it was proven, time by stage, memory by host; and the same as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cluster.config.secrets import API_KEY
from cluster.deploy.prove import ENGINE, Held, Proof
from cluster.deploy.session import Session
from cluster.screen import Screen
from cluster.spark.fabric import Transport
from cluster.spark.fact import Missing
from cluster.spark.look import Seen
from cluster.spark.memory import GIB, moment_names
from cluster.spark.request import Wanted

EVERYWHERE = ("0.0.0.0", "::")


def print_ready(
    wanted: Wanted, proof: Proof, seens: Mapping[str, Seen], session: Session, *, changed: bool
) -> dict[str, Any]:
    """Endpoint, model, time by stage, memory by host, a line to try, and the next command. Returns the same as JSON.

    The endpoint is at the head's management address.
    """
    clock, screen, done = session.clock, session.screen, proof.completion
    head, simulated = seens[wanted.names[0]].identity, simulated_products(seens.values())
    shown = "?" if isinstance(head, Missing) else head.management_address
    address = shown if wanted.bind in EVERYWHERE else wanted.bind
    endpoint = f"http://{f'[{address}]' if ':' in address else address}:{wanted.recipe.port}"
    screen.good(f"ready: {wanted.served_name} at {endpoint}/v1 ({sizes(wanted)})")
    if wanted.bind in EVERYWHERE:
        screen.line(f"the API listens on all addresses of {wanted.names[0]}" + key_note(wanted))
    if simulated:
        screen.warn(f"simulated hosts: {simulated}")
    if wanted.random_weights:
        said = "recipe says weights" if wanted.recipe.weights == "dummy" else "vLLM is given load-format"
        screen.warn(f"weights are random ({said}: dummy): answers mean nothing")
    if proof.nodes:
        screen.line(f"Ray: {len(proof.nodes)} nodes: {', '.join(proof.nodes)}")
    screen.line(f"one completion: {done.tokens} tokens in {done.seconds:.1f} s: {done.text[:60]!r}")
    if proof.transport:
        moved = ", ".join(f"{host} {value / 1e6:.1f} MB" for host, value in proof.transport.grown.items())
        why = "; ".join(filter(None, (proof.transport.why, moved)))
        screen.line(f"between the ranks: {way(wanted, proof.transport)} ({why})")
    rows = [[stage, f"{seconds:.1f}"] for stage, seconds in clock.stages.items() if seconds >= 0.05]
    own = sum(seconds for stage, seconds in clock.stages.items() if stage != ENGINE)
    screen.table("", ["stage", ">s"], [*rows, ["cluster's own share", f"{own:.1f}"]])
    print_memory(wanted, proof, screen)
    screen.line(f"try:  {curl(wanted, endpoint)}")
    screen.line("next: cluster bench --depth 0 4096 16384")
    transport = proof.transport
    return {
        "endpoint": f"{endpoint}/v1",
        "model": wanted.served_name,
        "hosts": list(wanted.names),
        "tp": wanted.tp,
        "pp": wanted.pp,
        "backend": wanted.backend,
        "changed": changed,
        "simulated": simulated,
        "weights": wanted.recipe.weights,
        "ray_nodes": list(proof.nodes),
        "transport": {"verdict": transport.verdict, "why": transport.why, "bytes": dict(transport.grown)}
        if transport
        else None,
        "completion": {"text": done.text, "tokens": done.tokens, "seconds": done.seconds},
        "stages_s": {stage: round(seconds, 3) for stage, seconds in clock.stages.items()},
        "memory_bytes": {
            moment: {host: {"available": held.available, "gpu": held.gpu} for host, held in hosts.items()}
            for moment, hosts in proof.memory.items()
        },
    }


def way(wanted: Wanted, transport: Transport) -> str:
    """What carried the traffic; counters that grow prove RDMA only where RDMA was asked for."""
    if transport.verdict == "rdma" and wanted.recipe.transport == "socket":
        return "over the fabric, by TCP as the recipe says"
    return transport.verdict


def sizes(wanted: Wanted) -> str:
    """`TP=2 on spark1, spark2, Ray`."""
    pipeline = f" PP={wanted.pp}" if wanted.pp > 1 else ""
    how = {"ray": ", Ray", "mp": ", mp", "none": ""}[wanted.backend]
    return f"TP={wanted.tp}{pipeline} on {', '.join(wanted.names)}{how}"


def key_note(wanted: Wanted) -> str:
    """Whether a key is asked for."""
    return "" if API_KEY in wanted.secrets else " and asks for no key (--api-key-file, --bind)"


def print_memory(wanted: Wanted, proof: Proof, screen: Screen) -> None:
    """Memory of each host at each moment."""
    moments = {moment: name for moment, name in moment_names(wanted.backend).items() if moment in proof.memory}
    columns = ["GiB available / GPU processes", *(f">{name}" for name in moments.values())]
    hosts = proof.memory["ready"]
    screen.table("", columns, [[host, *(cell(proof.memory[one].get(host)) for one in moments)] for host in hosts])


def cell(held: Held | None) -> str:
    """`101.2 / 18.5`, with `?` for what is unknown."""
    if held is None:
        return "?"
    return " / ".join("?" if value is None else f"{value / GIB:.1f}" for value in (held.available, held.gpu))


def curl(wanted: Wanted, endpoint: str) -> str:
    """A command that asks the server something."""
    key = ' -H "Authorization: Bearer $KEY"' if API_KEY in wanted.secrets else ""
    body = f'{{"model": "{wanted.served_name}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    return f"curl {endpoint}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'"


def simulated_products(seens: Iterable[Seen]) -> str:
    """The product names of the hosts that are simulated; empty when none is."""
    products = {seen.identity.product for seen in seens if not isinstance(seen.identity, Missing)}
    return ", ".join(sorted(product for product in products if "simulated" in product.lower()))
