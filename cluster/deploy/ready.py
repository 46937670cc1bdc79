"""What `up` prints of a proof: the endpoint, how it was proven, time by stage, memory by host; and the same as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from cluster.config.secrets import API_KEY
from cluster.deploy.prove import ENGINE, Held, Proof
from cluster.deploy.session import Session
from cluster.spark.fact import known
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
    stages, screen, done, transport = session.clock.stages, session.screen, proof.completion, proof.transport
    head, simulated = known(seens[wanted.names[0]].identity), simulated_products(seens.values())
    everywhere, key = wanted.bind in EVERYWHERE, API_KEY in wanted.secrets
    address = wanted.bind if not everywhere else head.management_address if head else "?"
    endpoint = f"http://{f'[{address}]' if ':' in address else address}:{wanted.recipe.port}/v1"
    sizes = f"TP={wanted.tp}" + (f" PP={wanted.pp}" if wanted.pp > 1 else "") + f" on {', '.join(wanted.names)}"
    sizes += {"ray": ", Ray", "mp": ", mp", "none": ""}[wanted.backend]
    screen.good(f"ready: {wanted.served_name} at {endpoint} ({sizes})")
    if everywhere:
        open_to_all = "" if key else " and asks for no key (--api-key-file, --bind)"
        screen.line(f"the API listens on all addresses of {wanted.names[0]}{open_to_all}")
    if simulated:
        screen.warn(f"simulated hosts: {simulated}")
    if wanted.random_weights:
        said = "recipe says weights" if wanted.recipe.weights == "dummy" else "vLLM is given load-format"
        screen.warn(f"weights are random ({said}: dummy): answers mean nothing")
    if proof.nodes:
        screen.line(f"Ray: {len(proof.nodes)} nodes: {', '.join(proof.nodes)}")
    screen.line(f"one completion: {done.tokens} tokens in {done.seconds:.1f} s: {done.text[:60]!r}")
    if transport:
        moved = ", ".join(f"{host} {value / 1e6:.1f} MB" for host, value in transport.grown.items())
        why = "; ".join(filter(None, (transport.why, moved)))
        by_tcp = transport.verdict == "rdma" and wanted.recipe.transport == "socket"  # counters grow for TCP, too
        way = "over the fabric, by TCP as the recipe says" if by_tcp else transport.verdict
        screen.line(f"between the ranks: {way} ({why})")
    rows = [[stage, f"{seconds:.1f}"] for stage, seconds in stages.items() if seconds >= 0.05]
    own = sum(seconds for stage, seconds in stages.items() if stage != ENGINE)
    screen.table("", ["stage", ">s"], [*rows, ["cluster's own share", f"{own:.1f}"]])
    moments = {moment: name for moment, name in moment_names(wanted.backend).items() if moment in proof.memory}
    memory = [[host, *(cell(proof.memory[one].get(host)) for one in moments)] for host in proof.memory["ready"]]
    screen.table("", ["GiB available / GPU processes", *(f">{name}" for name in moments.values())], memory)
    header = ' -H "Authorization: Bearer $KEY"' if key else ""
    body = f'{{"model": "{wanted.served_name}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    screen.line(f"try:  curl {endpoint}/chat/completions{header} -H 'Content-Type: application/json' -d '{body}'")
    screen.line("next: cluster bench --depth 0 4096 16384")
    way_taken = transport and {"verdict": transport.verdict, "why": transport.why, "bytes": dict(transport.grown)}
    return {
        "endpoint": endpoint,
        "model": wanted.served_name,
        "hosts": list(wanted.names),
        "tp": wanted.tp,
        "pp": wanted.pp,
        "backend": wanted.backend,
        "changed": changed,
        "simulated": simulated,
        "weights": wanted.recipe.weights,
        "ray_nodes": list(proof.nodes),
        "transport": way_taken,
        "completion": {"text": done.text, "tokens": done.tokens, "seconds": done.seconds},
        "stages_s": {stage: round(seconds, 3) for stage, seconds in stages.items()},
        "memory_bytes": {
            moment: {host: asdict(held) for host, held in hosts.items()} for moment, hosts in proof.memory.items()
        },
    }


def cell(held: Held | None) -> str:
    """`101.2 / 18.5`, with `?` for what is unknown."""
    values = (held.available, held.gpu) if held else (None, None)
    return " / ".join("?" if value is None else f"{value / GIB:.1f}" for value in values)


def simulated_products(seens: Iterable[Seen]) -> str:
    """The product names of the hosts that are simulated; empty when none is."""
    products = {identity.product for seen in seens if (identity := known(seen.identity))}
    return ", ".join(sorted(product for product in products if "simulated" in product.lower()))
