"""Prove that a deployment serves: ranks, Ray, one real completion, which transport its traffic used; and print that."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from cluster.argv.clients import client_notes, client_words
from cluster.argv.docker import docker_exec
from cluster.argv.question import Answer
from cluster.argv.vllm import serve_flags
from cluster.config.inventory import ResolvedHost
from cluster.config.recipe import Recipe
from cluster.config.secrets import API_KEY
from cluster.deploy.rank import container_name
from cluster.deploy.session import Session, Stopwatch
from cluster.errors import ClusterError, RefusedError, UnreachableError
from cluster.hosts.fleet import Fleet, Say
from cluster.screen import Screen
from cluster.spark import clock_limit, gpu, links, memory, ranks, server
from cluster.spark.deployments import Deployment
from cluster.spark.fabric import ROCE_ALLREDUCE, Fabric, Transport, judge_transport, moved_bytes, recorded
from cluster.spark.fact import Missing, known
from cluster.spark.gpu import GpuProcess
from cluster.spark.links import Links
from cluster.spark.look import Seen
from cluster.spark.memory import GIB, Memory, moment_names, more_room
from cluster.spark.request import Wanted
from cluster.spark.server import EVERYWHERE, Completion, Server

POLL_S = 1.0
WORKERS_EVERY = 5
"""So many polls for one that reads the logs of Ray's workers, by a program in the container."""
CAUSE_S = 10.0
"""A rank that failed reports it to its peers at once; its own container ends up to 8 s later (far/rank: SETTLE_S,
GRACE_S)."""
COMPLETION_TIMEOUT_S = 300.0
COUNTERS_SETTLE_S = 0.3
ENGINE = "wait for Ray and vLLM"
FIRST_BENCH = ("--depth", "0", "4096", "16384")


@dataclass(frozen=True, slots=True)
class Held:
    """Memory of one host at one moment, in bytes; None where it is not known."""

    available: int | None
    gpu: int | None


@dataclass(frozen=True, slots=True)
class Subject:
    """What is to be proven: a deployment of `wanted` over `fabric`; `limited`: MHz of hosts with a GPU clock limit."""

    deployment: str
    spec: Mapping[str, Any]
    wanted: Wanted
    fabric: Fabric
    server: Server
    idle: Mapping[str, Held] = field(default_factory=dict)
    limited: Mapping[str, int] = field(default_factory=dict)

    @property
    def bypasses_nccl(self) -> bool:
        """Whether a variable makes a rank send small messages over RoCE by itself."""
        wanted = self.wanted
        envs = [{**wanted.recipe.env, **host.env, **wanted.env} for host in wanted.hosts]
        return any(env.get(ROCE_ALLREDUCE, "0").lower() not in ("", "0", "false") for env in envs)

    def container(self, host: str) -> str:
        return container_name(self.deployment, self.wanted.names.index(host))

    def rank(self, host: str, answer: Answer) -> ranks.RankState | Missing | None:
        """The rank of a host in its answer, None when its container is not there."""
        found = ranks.parse(answer)
        return found if isinstance(found, Missing) else found.get(self.container(host))


@dataclass(frozen=True, slots=True)
class Proof:
    """What was proven. `memory` is by moment, then host; `clocks_mhz`: of hosts with a limit, read after the
    completion, None where it is not known."""

    completion: Completion
    transport: Transport | None
    memory: Mapping[str, Mapping[str, Held]]
    nodes: tuple[str, ...]
    clocks_mhz: Mapping[str, int | None] = field(default_factory=dict)


def wait_ready(subject: Subject, fleet: Fleet, screen: Screen, clock: Stopwatch) -> Proof:
    """Wait for all ranks, prove Ray and one completion. Raises the first failure; RefusedError for unused RDMA."""
    wanted = subject.wanted
    moments: dict[str, dict[str, Held]] = {"idle": dict(subject.idle)} if subject.idle else {}
    with clock.stage(ENGINE), screen.waiting("containers") as line:
        wait_serving(subject, fleet, line.update, moments)
    proofs = "Ray's nodes, and one real completion" if wanted.backend == "ray" else "one real completion"
    with clock.stage("prove"), screen.waiting(proofs) as line:
        nodes = check_ray(subject, fleet, line.beside)
        check_log(subject, fleet, screen, line.beside)
        done, transport = complete(subject, fleet, line.beside)
        clocks_mhz = read_clocks(subject, fleet, line.beside)
    moments["ready"] = sample(subject, fleet)
    if transport and transport.verdict != "rdma" and subject.fabric.rdma:
        if not wanted.accepts_sockets:
            unused = transport.verdict == "socket"
            shown = transport if transport.bypass else transport.why
            what = f"RDMA {'was not used' if unused else 'could not be proven'} between the ranks: {shown}"
            where, remedy = ", ".join(wanted.names), "--allow-socket accepts TCP"
            raise RefusedError(what, code="rdma-unused" if unused else "rdma-unproven", where=where, remedy=remedy)
        screen.warn(f"RDMA was not used between the ranks ({transport.verdict}): {wanted.accepts_sockets}")
    return Proof(done, transport, moments, nodes, clocks_mhz)


def wait_serving(
    subject: Subject, fleet: Fleet, update: Callable[[str, str], None], moments: dict[str, dict[str, Held]]
) -> None:
    """Poll every rank and the server until it answers. Raises the first rank's failure, or at the deadline.

    A host that does not answer is unknown and ends nothing, unless it is silent for too long.
    """
    timeout_s, earlier = subject.wanted.recipe.ready_timeout_s, dict[str, ranks.RankState]()
    deadline = fleet.time.monotonic() + timeout_s
    for look in itertools.count():
        state = poll(subject, fleet, earlier, workers=look % WORKERS_EVERY == 0)
        if isinstance(state, ranks.Ready):
            return
        if isinstance(state, ranks.Failed):
            until = fleet.time.monotonic() + CAUSE_S
            while state.by_peer and fleet.time.monotonic() < until:  # the rank that failed by itself may come soon
                fleet.time.sleep(POLL_S / 2)
                with suppress(UnreachableError):
                    later = poll(subject, fleet, earlier)
                    state = later if isinstance(later, ranks.Failed) else state
            raise lost(state, subject.wanted.recipe)
        silent = str(fleet.silence)
        update(state.what, silent)
        if state.moment and state.moment not in moments:
            moments[state.moment] = sample(subject, fleet)
        if fleet.time.monotonic() > deadline:
            where = ", ".join(fleet.silence.hosts) or subject.wanted.names[0]
            what = f"not ready after {timeout_s:.0f} s; last: {silent or state.what}"
            kind = UnreachableError if silent else ClusterError
            raise kind(what, code="ready-timeout", where=where, remedy="--set ready_timeout_s=N waits longer")
        fleet.time.sleep(POLL_S)


def poll(subject: Subject, fleet: Fleet, earlier: dict[str, ranks.RankState], *, workers: bool = False) -> ranks.State:
    """One look at all ranks and the server's health, with `workers` at Ray's own logs too. `earlier`: ranks by
    container. Raises for a host given up."""
    names, asked_at = subject.wanted.names, fleet.time.monotonic()
    workers = workers and subject.wanted.backend == "ray"
    asked = {host: [ranks.question([subject.container(host)], known=earlier, workers=workers)] for host in names}
    asked[names[0]].append(server.question(subject.server, ask=False, timeout_s=5))
    answers = fleet.silence.answered(fleet.ask(asked), asked_at)
    states: dict[str, ranks.RankState | Missing | None] = dict.fromkeys(names, Missing("unreachable"))
    for host, found in answers.items():
        states[host] = state = subject.rank(host, found[0])
        if isinstance(state, ranks.RankState):
            states[host] = earlier[state.name] = state.after(earlier.get(state.name))
    health = server.parse(answers[names[0]][1]) if names[0] in answers else None
    return ranks.judge_ranks(states, healthy=isinstance(health, Completion) and health.healthy)


def lost(state: ranks.Failed, recipe: Recipe) -> ClusterError:
    """The error of a rank that ended; of one that its guard ended, with the flags that give the missing memory."""
    said = next((line.strip() for line in reversed(state.tail) if line.strip()), "")
    # a rank that names its cause after a colon has chosen the line that explains most
    detail = f"; last line: {said[:300]}" if said and ": " not in state.why else ""
    where = f"{state.host}, waiting for the server"
    if state.end.get("exit") == ranks.ENDED_FOR_MEMORY:
        remedy = more_room(recipe, state.end.get("missing_bytes", 0), state.end.get("total_bytes", 0))
        what = f"{state.host}: {state.why}"
        return ClusterError(what, code="memory-guard", where=where, host=state.host, remedy=remedy)
    return ClusterError(f"{state.host}: {state.why}{detail}", code="rank-failed", where=where, host=state.host)


def check_ray(subject: Subject, fleet: Fleet, say: Say) -> tuple[str, ...]:
    """Ask Ray inside the head's container for its nodes: N alive, N GPUs, our addresses. Raises RefusedError."""
    wanted = subject.wanted
    if wanted.backend != "ray":
        return ()
    head = wanted.names[0]
    question = docker_exec(subject.container(head), ("python3", "/cluster/ray_nodes.py"), timeout_s=20)
    nodes = ranks.parse_nodes(fleet.keep_asking({head: [question]}, say)[head][0])
    if isinstance(nodes, Missing):
        raise RefusedError(f"Ray does not report its nodes: {nodes.why}", code="ray-unread", where=head)
    wrong = ranks.judge_nodes(nodes, [subject.fabric.hosts[name].address for name in wanted.names])
    if wrong:
        raise RefusedError(f"Ray is not complete: {'; '.join(wrong)}", code="ray-incomplete", where=head)
    return tuple(f"{node.address} ({node.gpus:g} GPU)" for node in nodes if node.alive)


def check_log(subject: Subject, fleet: Fleet, screen: Screen, say: Say) -> None:
    """The ranks' logs hold what the recipe expects. Raises RefusedError with what they hold instead."""
    expected = subject.wanted.recipe.expect_log
    patterns = ranks.patterns_of(expected)
    if not patterns:
        return
    asked = {host: [ranks.question([subject.container(host)], patterns=patterns)] for host in subject.wanted.names}
    states: dict[str, ranks.RankState] = {}
    for host, [answer] in fleet.keep_asking(asked, say).items():
        state = subject.rank(host, answer)
        if not isinstance(state, ranks.RankState) or not ranks.is_whole(state):
            screen.warn(f"the log of {host} no longer holds the start of its rank: expect_log is not checked")
            return
        states[host] = state
    if wrong := "; ".join(ranks.unmet(expected, states)):
        remedy = "the recipe's problems say why it matters (cluster recipes show); --set expect_log= goes without"
        what = f"the server answers, but not as the recipe expects: {wrong}"
        raise RefusedError(what, code="expect-log", where=", ".join(states), remedy=remedy)


def complete(subject: Subject, fleet: Fleet, say: Say) -> tuple[Completion, Transport | None]:
    """One real completion on the head, with every host's HCA counters before and after. Raises ClusterError."""
    wanted, head = subject.wanted, subject.wanted.names[0]
    before = read_links(fleet, wanted.names, say) if wanted.size > 1 else {}
    question = server.question(subject.server, ask=True, timeout_s=COMPLETION_TIMEOUT_S)
    done = server.parse(fleet.keep_asking({head: [question]}, say)[head][0])
    if isinstance(done, Missing):
        raise ClusterError(f"no completion: {done.why}", code="no-completion", where=head)
    wrong = done.wrong(wanted.served_name, judge_text=not wanted.random_weights)
    if wrong:
        raise ClusterError(f"the server answers, but {wrong}", code="completion-wrong", where=head)
    if wanted.size == 1:
        return done, None
    fleet.time.sleep(COUNTERS_SETTLE_S)
    return done, read_transport(subject, fleet, before, say)


def read_clocks(subject: Subject, fleet: Fleet, say: Say) -> dict[str, int | None]:
    """The SM clocks of hosts with a limit, while they are still at work. Raises RefusedError when one is above it."""
    if not subject.limited:
        return {}
    found: dict[str, int | None] = {}
    for host, [answer] in fleet.keep_asking({host: [gpu.question()] for host in subject.limited}, say).items():
        gpus, limit = known(gpu.parse(answer)) or (), subject.limited[host]
        found[host] = gpus[0].sm_clock_mhz if gpus else None
        if (above := clock_limit.exceeds(gpus, limit)) is not None:
            what = f"the GPU clock limit does not hold: {above} MHz, set were at most {limit} MHz"
            remedy = f"on {host}: nvidia-smi -q -d CLOCK; does another program set clocks?"
            raise RefusedError(what, code="clock-limit-unmet", where=host, remedy=remedy)
    return found


def read_links(fleet: Fleet, names: Sequence[str], say: Say = None) -> dict[str, Links | Missing]:
    answers = fleet.keep_asking({name: [links.question()] for name in names}, say)
    return {name: links.parse(answer) for name, [answer] in answers.items()}


def read_transport(subject: Subject, fleet: Fleet, before: Mapping[str, Links | Missing], say: Say = None) -> Transport:
    """Judge the transport by counters and NCCL's lines. Raises ClusterError when a rank has ended."""
    names = subject.wanted.names
    asked = {host: [links.question(), ranks.question([subject.container(host)], workers=True)] for host in names}
    answers = fleet.keep_asking(asked, say)
    states = {host: subject.rank(host, answers[host][1]) for host in names}
    if isinstance(ended := ranks.judge_ranks(states, healthy=True), ranks.Failed):
        raise lost(ended, subject.wanted.recipe)
    hcas = {host: subject.fabric.hosts[host].hcas for host in names}
    after = {host: links.parse(answers[host][0]) for host in names}
    moved = {host: moved_bytes(before[host], after[host], hcas[host]) if hcas[host] else None for host in names}
    said = {host: getattr(state, "net", ()) for host, state in states.items()}
    return judge_transport(moved, said, bypass=subject.bypasses_nccl)


def sample(subject: Subject, fleet: Fleet) -> dict[str, Held]:
    outcomes = fleet.ask({name: [memory.question(), gpu.question()] for name in subject.wanted.names})
    return {
        name: held_of(memory.parse(outcome.value[0]), gpu.parse_processes(outcome.value[1]))
        for name, outcome in outcomes.items()
        if outcome.value is not None
    }


def held_of(found: Memory | Missing, rows: tuple[GpuProcess, ...] | Missing) -> Held:
    memory = known(found)
    return Held(memory.available if memory else None, gpu_bytes(rows))


def gpu_bytes(rows: tuple[GpuProcess, ...] | Missing) -> int | None:
    """Bytes of all GPU processes; None when one of them does not report it."""
    used = [row.used_mib for row in known(rows) or ()]
    return None if isinstance(rows, Missing) or None in used else sum(filter(None, used)) << 20


def subject_of(deployment: Deployment, hosts: Sequence[ResolvedHost], seens: Mapping[str, Seen]) -> Subject:
    """What is to be proven; `hosts` in rank order. Raises RefusedError for a deployment of another version."""
    spec = deployment.spec
    try:
        recipe = Recipe.model_validate(spec["recipe"])
    except ValueError:
        what = f"{deployment.id} was started by another version of cluster"
        remedy = "run cluster up with this version"
        raise RefusedError(what, code="version-differs", where=deployment.id, remedy=remedy) from None
    wanted = Wanted(
        recipe, tuple(hosts), spec["tp"], spec["pp"], spec["backend"], spec.get("env", {}), bind=spec["bind"]
    )
    server = Server.of_spec(spec, seens[deployment.head].home(deployment.id))
    return Subject(deployment.id, spec, wanted, recorded(deployment.seen), server)


def prove_restarted(subject: Subject, fleet: Fleet, screen: Screen) -> None:
    """Wait until restarted ranks serve: all there, one completion. Raises ClusterError when they do not."""
    with screen.waiting(f"{subject.deployment} to serve again") as line:
        wait_serving(subject, fleet, line.update, {})
        check_ray(subject, fleet, line.beside)
        complete(subject, fleet, line.beside)


def address_of(bind: str, port: int, head: Seen) -> str:
    """Where people's programs reach the API: the address it listens on, or the head's management address."""
    identity = known(head.identity)
    address = bind if bind not in EVERYWHERE else identity.management_address if identity else "?"
    return f"http://{f'[{address}]' if ':' in address else address}:{port}"


def print_clients(spec: Mapping[str, Any], head: Seen, screen: Screen) -> dict[str, Any]:
    """The lines for people's programs, of a deployment's spec. Returns the same as JSON."""
    recipe, flags = spec["recipe"], serve_flags(spec["recipe"]["vllm"], spec.get("words", ()))
    address = address_of(spec["bind"], recipe["port"], head)
    model, key = recipe["served_model_name"] or recipe["model"], API_KEY in spec["secrets"]
    words = client_words(address, model, key=key)
    notes = client_notes(model, tools=bool(flags.get("enable-auto-tool-choice")), bind=spec["bind"], head=head.host)
    for program, lines in words.items():
        screen.line(f"# {program}")
        for line in lines:
            screen.line(line)
    for note in notes:
        screen.warn(note)
    if key:
        screen.note(f"the server asks for a key: first set {API_KEY} in your shell")
    return {"address": address, "model": model, "words": words, "notes": notes}


def print_ready(wanted: Wanted, proof: Proof, seens: Mapping[str, Seen], session: Session, aim: Sequence[str]) -> None:
    """Endpoint, model, time by stage, memory by host, a line to try, and the next command, with the options in `aim`.

    The endpoint is at the head's management address.
    """
    screen, done, transport, key = session.screen, proof.completion, proof.transport, API_KEY in wanted.secrets
    endpoint = endpoint_of(wanted, seens)
    sizes = f"TP={wanted.tp}" + (f" PP={wanted.pp}" if wanted.pp > 1 else "") + f" on {', '.join(wanted.names)}"
    sizes += {"ray": ", Ray", "mp": ", mp", "none": ""}[wanted.backend]
    screen.good(f"ready: {wanted.served_name} at {endpoint} ({sizes})")
    if wanted.bind in EVERYWHERE:
        open_to_all = "" if key else " and asks for no key (--api-key-file, --bind)"
        screen.line(f"the API listens on all addresses of {wanted.names[0]}{open_to_all}")
    if simulated := simulated_products(seens.values()):
        screen.warn(f"simulated hosts: {simulated}")
    if wanted.random_weights:
        said = "recipe says weights" if wanted.recipe.weights == "dummy" else "vLLM is given load-format"
        screen.warn(f"weights are random ({said}: dummy): answers mean nothing")
    if proof.nodes:
        screen.line(f"Ray: {len(proof.nodes)} nodes: {', '.join(proof.nodes)}")
    screen.line(f"one completion: {done.tokens} tokens in {done.seconds:.1f} s: {done.text[:60]!r}")
    if transport:
        by_tcp = transport.verdict == "rdma" and wanted.recipe.transport == "socket"  # counters grow for TCP, too
        way = "over the fabric, by TCP as the recipe says" if by_tcp else transport.verdict
        screen.line(f"between the ranks: {way} ({transport})")
    if proof.clocks_mhz:
        limit = {host.name: host.sm_max_mhz for host in wanted.hosts}
        now = {host: "?" if mhz is None else str(mhz) for host, mhz in proof.clocks_mhz.items()}
        clocks = ", ".join(f"{host} {mhz} of at most {limit[host]} MHz" for host, mhz in now.items())
        screen.line(f"GPU clocks: {clocks}")
    print_costs(wanted, proof, session)
    header = ' -H "Authorization: Bearer $KEY"' if key else ""
    body = f'{{"model": "{wanted.served_name}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    screen.line(f"try:  curl {endpoint}/chat/completions{header} -H 'Content-Type: application/json' -d '{body}'")
    screen.line(f"next: {shlex.join(['cluster', 'bench', *aim, *FIRST_BENCH])}")


def print_costs(wanted: Wanted, proof: Proof, session: Session) -> None:
    """Seconds by stage, memory by host and moment."""
    stages = session.clock.stages
    rows = [[stage, f"{seconds:.1f}"] for stage, seconds in stages.items() if seconds >= 0.05]
    own = sum(seconds for stage, seconds in stages.items() if stage != ENGINE)
    session.screen.table("", ["stage", ">s"], [*rows, ["cluster's own share", f"{own:.1f}"]])
    moments = {moment: name for moment, name in moment_names(wanted.backend).items() if moment in proof.memory}
    memory = [[host, *(cell(proof.memory[one].get(host)) for one in moments)] for host in proof.memory["ready"]]
    columns = ["GiB available / GPU processes", *(f">{name}" for name in moments.values())]
    session.screen.table("", columns, memory)


def as_document(wanted: Wanted, proof: Proof, seens: Mapping[str, Seen], session: Session) -> dict[str, Any]:
    """What `--json` shows of a deployment that serves, as one that was started now."""
    done, transport = proof.completion, proof.transport
    way_taken = transport and {
        "verdict": transport.verdict,
        "why": transport.why,
        "bytes": transport.grown,
        "hca_bytes": {host: dict(hcas) for host, hcas in transport.moved.items()},
    }
    return {
        "endpoint": endpoint_of(wanted, seens),
        "model": wanted.served_name,
        "hosts": list(wanted.names),
        "tp": wanted.tp,
        "pp": wanted.pp,
        "backend": wanted.backend,
        "changed": True,
        "simulated": simulated_products(seens.values()),
        "weights": wanted.recipe.weights,
        "ray_nodes": list(proof.nodes),
        "transport": way_taken,
        "clocks_mhz": dict(proof.clocks_mhz),
        "completion": {"text": done.text, "tokens": done.tokens, "seconds": done.seconds},
        "stages_s": {stage: round(seconds, 3) for stage, seconds in session.clock.stages.items()},
        "memory_bytes": {
            moment: {host: asdict(held) for host, held in hosts.items()} for moment, hosts in proof.memory.items()
        },
    }


def endpoint_of(wanted: Wanted, seens: Mapping[str, Seen]) -> str:
    return f"{address_of(wanted.bind, wanted.recipe.port, seens[wanted.names[0]])}/v1"


def cell(held: Held | None) -> str:
    """`101.2 / 18.5`, with `?` for what is unknown."""
    values = (held.available, held.gpu) if held else (None, None)
    return " / ".join("?" if value is None else f"{value / GIB:.1f}" for value in values)


def simulated_products(seens: Iterable[Seen]) -> str:
    """The product names of the hosts that are simulated; empty when none is."""
    products = {identity.product for seen in seens if (identity := known(seen.identity))}
    return ", ".join(sorted(product for product in products if "simulated" in product.lower()))
