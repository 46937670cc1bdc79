"""Is a deployment on its way, ready, or lost: judged from its ranks' own words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cluster.spark.fact import Missing
from cluster.spark.ranks import RankState
from cluster.spark.ray_nodes import RayNode


@dataclass(frozen=True, slots=True)
class Waiting:
    """Not yet; `moment` is what was reached so far (empty, ray_up, loaded)."""

    what: str
    moment: str = ""


@dataclass(frozen=True, slots=True)
class Ready:
    """The server answers."""


@dataclass(frozen=True, slots=True)
class Failed:
    """It will not come: which host, why, in the rank's own words, and the last lines it printed.

    `by_peer`: it lost a peer, and a rank that may still say why is running yet.
    """

    host: str
    why: str
    tail: tuple[str, ...] = ()
    by_peer: bool = False


State = Waiting | Ready | Failed

PEER_LOST = {75: 1, 76: 2}
"""Exit codes of far/rank: peers did not join, a cord ended."""


def judge_ranks(states: Mapping[str, RankState | Missing | None], healthy: bool) -> State:
    """One verdict for all ranks; `states` is by host in rank order, None for a container that is not there.

    The rank that ended for a reason of its own is named before those that only lost a peer.
    """
    gone = {host: _failure(host, state) for host, state in states.items()}
    failures = [failure for failure in gone.values() if failure is not None]
    if failures:
        first = min(failures, key=lambda failure: _blame(states[failure.host]))
        return replace(first, by_peer=_blame(states[first.host]) > 0 and None in gone.values())
    if healthy:
        return Ready()
    known = [state for state in states.values() if isinstance(state, RankState)]
    if any(state.loaded for state in known):
        return Waiting("the engine: weights loaded, getting ready", "loaded")
    head = next(iter(states.values()), None)
    if not isinstance(head, RankState):
        return Waiting(f"{len(states)} ranks to join (rank 0: unknown)" if known else "containers")
    if head.stage == "engine_started":
        return Waiting("the engine: loading the model", "ray_up")
    if head.stage in ("started", "ray_started", "ray_restarted", "secrets", "before_serve", ""):
        again = [host for host, one in states.items() if isinstance(one, RankState) and one.told("ray_restarted")]
        more = f"; Ray was started again on {', '.join(again)}" if again else ""
        return Waiting(f"{len(states)} ranks to join (rank 0: {head.stage or 'starting'}{more})")
    return Waiting(f"rank 0: {head.stage}", "ray_up")


def _blame(state: RankState | Missing | None) -> int:
    """Low for a rank that ended for a reason of its own, high for one that lost a peer (far/rank's exit codes)."""
    return PEER_LOST.get(state.exit_code, 0) if isinstance(state, RankState) else 0


def _failure(host: str, state: RankState | Missing | None) -> Failed | None:
    if state is None:
        return Failed(host, "its container is gone")
    if isinstance(state, Missing) or state.state in ("running", "created", "restarting"):
        return None
    why = state.ended or ("killed for memory" if state.oom else f"container {state.state}, exit {state.exit_code}")
    return Failed(host, why, state.tail[-15:])


def judge_nodes(nodes: Sequence[RayNode], addresses: Sequence[str]) -> list[str]:
    """What is wrong with Ray's nodes: exactly our addresses alive, one GPU each. Empty when all is well."""
    alive = {node.address: node for node in nodes if node.alive}
    wrong = [f"{address} is not an alive node" for address in addresses if address not in alive]
    wrong += [f"{address} is a node that we did not start" for address in alive if address not in addresses]
    wrong += [f"{address} has {node.gpus:g} GPUs" for address, node in alive.items() if node.gpus != 1]
    return wrong
