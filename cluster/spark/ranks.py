"""The ranks of a deployment: their containers, Ray's nodes, and whether they are on their way, ready or failed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cluster.argv.far import far
from cluster.spark.fact import Missing, as_shape, last_words, load_json, refuse

if TYPE_CHECKING:
    from cluster.argv.question import Answer, Question
    from cluster.config.recipe import ExpectLog

TAIL = 30
"""Lines kept of the end of a log."""


@dataclass(frozen=True, slots=True)
class Found:
    """The first line of a log with a pattern, else None and the line with most of its words."""

    line: str | None
    near: str


@dataclass(frozen=True, slots=True)
class RankState:
    """One rank's container. `stages` are the rank program's own lines, `phases` those of PHASES that its engine
    reached, `progress` how far the last one is ("47%" or empty), `net` NCCL's lines on its transport, `found` is by
    pattern in the order asked. `until`: docker's time of the last line, and how many lines have it; `whole`: the log
    was read from the container's start on."""

    name: str
    state: str
    exit_code: int
    oom: bool
    stages: tuple[dict[str, Any], ...]
    phases: tuple[str, ...]
    tail: tuple[str, ...]
    net: tuple[str, ...]
    progress: str = ""
    found: tuple[Found, ...] = ()
    until: tuple[str, int] = ("", 0)
    whole: bool = True

    def after(self, earlier: RankState | None) -> RankState:
        """What is known together with an earlier answer, when this one has only what came since."""
        if earlier is None or self.whole:
            return self
        (time, count), (before, known) = self.until, earlier.until
        return replace(
            self,
            stages=(*earlier.stages, *(stage for stage in self.stages if stage not in earlier.stages)),
            phases=tuple(dict.fromkeys((*earlier.phases, *self.phases))),
            progress=self.progress or (earlier.progress if not self.phases else ""),
            tail=(*earlier.tail, *self.tail)[-TAIL:],
            net=tuple(dict.fromkeys((*earlier.net, *self.net))),
            until=(time, count + known) if time == before else max(self.until, earlier.until),
        )

    @property
    def stage(self) -> str:
        return str(self.stages[-1].get("stage", "")) if self.stages else ""

    def line_of(self, stage: str) -> dict[str, Any] | None:
        """The line of a stage since the last `started`."""
        for line in reversed(self.stages):
            if line.get("stage") == stage:
                return dict(line)
            if line.get("stage") == "started":
                return None
        return None

    @property
    def ended(self) -> str:
        line = self.line_of("ended")
        return str(line.get("why", "")) if line else ""


def question(
    names: Sequence[str],
    *,
    workers: bool = False,
    patterns: Sequence[str] = (),
    known: Mapping[str, RankState] = MappingProxyType({}),
) -> Question:
    """The ranks in these containers; with `workers`, Ray's worker logs are searched for phases and NCCL's lines too.
    `patterns` are regular expressions to look for in their logs. Of those that are `known` only what came since is
    read."""
    since = {name: known[name].until for name in names if name in known}
    given = {"names": list(names), "tail": TAIL, "workers": workers, "patterns": list(patterns), "since": since}
    return far("ranks", given, timeout_s=20, limit=4 << 20)


def parse(answer: Answer) -> dict[str, RankState] | Missing:
    """By container name; a container that is not there is not in it."""
    if answer.exit != 0:
        why = answer.error_text.strip()[-200:] or "no answer"
        return Missing(why, "timeout" if answer.exit is None else "unreadable")
    try:
        rows = {name: {"name": name, **row} for name, row in json.loads(answer.text).items()}
    except (ValueError, TypeError, AttributeError) as error:
        return Missing(f"not what far/ranks prints: {error}")
    return as_shape(rows, "far/ranks", dict[str, RankState])


ENDED_LATE = (124, 137, 142)
"""Exit codes of `timeout`, of SIGKILL, and of the program's own alarm."""

_UP = re.compile(r"^(?:Active|Idle):[ \t]*\n((?:[ \t].*\n?)*)", re.MULTILINE)
_COUNT = re.compile(r"^[ \t]+(\d{1,6}) \S", re.MULTILINE | re.ASCII)
_GPUS = re.compile(r"^[ \t]*(\d{1,6}(?:\.\d{1,6})?)/(\d{1,6}(?:\.\d{1,6})?) GPU\b", re.MULTILINE | re.ASCII)
_WAITING = re.compile(r": (\d{1,6})\+? pending placement group", re.ASCII)
_PINNED = re.compile(r"'node:([\d.]+)': [\d.]+.*pending placement group", re.ASCII)
_DEMAND = re.compile(r"^.*pending placement group", re.MULTILINE)
_BUNDLE = re.compile(r"\{[^}]*'GPU': (\d{1,6}(?:\.\d{1,6})?)[^}]*\}(?: \* (\d{1,6}))?", re.ASCII)
_FAILURES = re.compile(r"^Recent failures:[ \t]*\n((?:[ \t].*\n?)*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class RayNode:
    """One node as Ray's GCS knows it, with the address it registered."""

    address: str
    alive: bool
    gpus: float


@dataclass(frozen=True, slots=True)
class RayStatus:
    """`nodes` that are up (under Active or Idle, None without a list of nodes), GPUs (None if not shown), placement
    groups that wait, the node address that one of them asks for, nodes that failed lately, and the GPUs that the
    largest of those groups asks for (0 where none does)."""

    nodes: int | None
    gpus_used: float | None
    gpus_total: float | None
    pending_placement_groups: int
    pinned_to: str = ""
    failures: tuple[str, ...] = ()
    gpus_asked: float = 0.0


def parse_nodes(answer: Answer) -> tuple[RayNode, ...] | Missing:
    """Read what far/ray_nodes prints: {"nodes": [{"address": …, "alive": …, "gpus": …}]} or {"error": …}."""
    if refused := refuse(answer, "python3"):
        return refused
    if answer.exit in ENDED_LATE and not answer.out.strip():
        return Missing("Ray did not answer in time", "timeout")
    try:
        document = load_json(answer.out)
        if "error" in document:
            return Missing(f"Ray: {document['error']}")
        return as_shape(document["nodes"], "Ray", tuple[RayNode, ...])
    except (ValueError, KeyError, TypeError, IndexError):
        return Missing(f"Ray: {last_words(answer) or 'no answer that can be understood'}")


def recognise(text: str) -> RayStatus | None:
    """`ray status`, or a part of it."""
    if not re.search("Usage:|Node status", text) or not re.search("node_|GPU|placement group", text):
        return None
    sections, gpus, waiting = _UP.findall(text), _GPUS.search(text), _WAITING.findall(text)
    nodes = sum(int(count) for section in sections for count in _COUNT.findall(section)) if sections else None
    used, total = map(float, gpus.groups()) if gpus else (None, None)
    lines = [line.strip() for section in _FAILURES.findall(text) for line in section.splitlines()]
    failures = tuple(line for line in lines if line and "(no failures)" not in line)
    demands = (_BUNDLE.findall(line) for line in _DEMAND.findall(text))
    asked = max((sum(float(each) * int(count or 1) for each, count in rows) for rows in demands), default=0.0)
    pinned = (_PINNED.findall(text) or [""])[0]
    status = RayStatus(nodes, used, total, sum(map(int, waiting)), pinned, failures, asked)
    return status if sections or gpus or waiting else None


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
    """Which host, why, in the rank's own words, and the last lines it printed. `by_peer`: it lost a peer, and a rank
    that may still say why is running yet. `end`: the rank program's own line of its end, if it printed one."""

    host: str
    why: str
    tail: tuple[str, ...] = ()
    by_peer: bool = False
    end: Mapping[str, Any] = field(default_factory=dict, compare=False)


State = Waiting | Ready | Failed

PEER_LOST = {75: 1, 76: 2}
"""Exit codes of far/rank: peers did not join, a cord ended. The rank with the lowest number is to blame."""
ENDED_FOR_MEMORY = 77
"""Exit code of far/rank when the guard of its memory ended it: what others lost follows from it."""


PHASES = {
    "loaded": "weights loaded, getting ready",
    "compiling": "compiling the model (torch.compile)",
    "capturing": "capturing CUDA graphs",
}
"""Phases of an engine's start as far/ranks recognizes them, in order, in words."""


def show_progress(state: RankState) -> str:
    return f", {state.progress}" if state.progress else ""


def judge_ranks(states: Mapping[str, RankState | Missing | None], healthy: bool) -> State:
    """One verdict for all ranks; `states` is by host in rank order, None for a container that is not there. The rank
    that ended for a reason of its own is named before those that only lost a peer."""
    known = {host: state for host, state in states.items() if isinstance(state, RankState)}
    ends = {host: state.line_of("ended") or {} for host, state in known.items()}
    codes = {host: ends[host].get("exit", state.exit_code) for host, state in known.items()}
    blame = {host: (PEER_LOST | {ENDED_FOR_MEMORY: -1}).get(code, 0) for host, code in codes.items()}
    failures = []
    for host, state in states.items():
        if state is None:
            failures.append(Failed(host, "its container is gone"))
        elif isinstance(state, RankState) and state.state not in ("running", "created", "restarting"):
            ended = "killed for memory" if state.oom else f"container {state.state}, exit {state.exit_code}"
            failures.append(Failed(host, state.ended or ended, state.tail[-15:], end=ends[host]))
        elif isinstance(state, RankState) and state.ended and is_whole(state):  # its container ends within seconds
            failures.append(Failed(host, state.ended, state.tail[-15:], end=ends[host]))
    if failures:
        first = min(failures, key=lambda failure: blame.get(failure.host, 0))
        return replace(first, by_peer=blame.get(first.host, 0) > 0 and len(failures) < len(states))
    if healthy:
        return Ready()
    reached = [(phase, state) for phase in PHASES for state in known.values() if phase in state.phases]
    if reached:
        phase, state = reached[-1]
        return Waiting(f"the engine: {PHASES[phase]}{show_progress(state)}", "loaded")
    head = next(iter(states.values()), None)
    if not isinstance(head, RankState):
        return Waiting(f"{len(states)} ranks to join (rank 0: unknown)" if known else "containers")
    if head.stage == "engine_started":
        return Waiting(f"the engine: loading the model{show_progress(head)}", "ray_up")
    if head.stage in ("started", "ray_started", "ray_restarted", "secrets", "before_serve", ""):
        restarted = [host for host, state in known.items() if state.line_of("ray_restarted")]
        more = f"; Ray was restarted on {', '.join(restarted)}" if restarted else ""
        return Waiting(f"{len(states)} ranks to join (rank 0: {head.stage or 'starting'}{more})")
    return Waiting(f"rank 0: {head.stage}", "ray_up")


def judge_nodes(nodes: Sequence[RayNode], addresses: Sequence[str]) -> list[str]:
    """What is wrong with Ray's nodes: exactly our addresses alive, one GPU each. Empty when all is well."""
    alive = {node.address: node for node in nodes if node.alive}
    wrong = [f"{address} is not an alive node" for address in addresses if address not in alive]
    wrong += [f"{address} is a node that we did not start" for address in alive if address not in addresses]
    wrong += [f"{address} has {node.gpus:g} GPUs" for address, node in alive.items() if node.gpus != 1]
    return wrong


def patterns_of(expected: ExpectLog) -> tuple[str, ...]:
    """What to look for in every rank's log; `unmet` reads the same order."""
    return (*expected.require, *expected.forbid)


def is_whole(state: RankState) -> bool:
    """Whether the log still has its beginning, where an engine prints what it chose: docker drops the oldest."""
    return state.line_of("started") is not None


def unmet(expected: ExpectLog, states: Mapping[str, RankState]) -> Iterator[str]:
    """What is not as expected, each with the line found instead; `states` is by host. A required line counts wherever
    it is found: with Ray the head's log holds the workers' lines, too."""
    for number, pattern in enumerate(expected.require):
        if all(state.found[number].line is None for state in states.values()):
            near = next((state.found[number].near for state in states.values() if state.found[number].near), "")
            yield f"no log has `{pattern}`" + (f", but: {near}" if near else ", nor a line like it")
    for number, pattern in enumerate(expected.forbid, len(expected.require)):
        for host, state in states.items():
            if state.found[number].line is not None:
                yield f"the log of {host} has `{pattern}`: {state.found[number].line}"
