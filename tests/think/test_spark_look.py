"""A whole look, and answers that mean harm: whatever a host says, reading it never raises."""

import random
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import orjson
from fact_samples import samples
from facts_tools import ask
from loops import each
from plan_tools import seen as host

import cluster
from cluster.argv.far import source
from cluster.argv.question import Answer
from cluster.spark import (
    clock,
    deployments,
    disk,
    docker,
    gpu,
    image,
    links,
    memory,
    ranks,
    weights,
)
from cluster.spark.deployments import Kept
from cluster.spark.fact import NOT_ASKED, Fact, Missing, plain, read_section
from cluster.spark.identity import Identity
from cluster.spark.look import FACTS, Look, Seen, questions, read
from cluster.spark.processes import OTHER_PROGRAMS, EngineProcess, Listener
from cluster.spark.request import Model

PARSES: dict[str, Callable[[Answer], Any]] = {
    "identity": lambda answer: read_section(answer, "identity", Identity),
    "memory": memory.parse,
    "listening": lambda answer: read_section(answer, "listening", tuple[Listener, ...]),
    "processes": lambda answer: read_section(answer, "processes", tuple[EngineProcess, ...]),
    "links": links.parse,
    "disk": disk.parse,
    "deployments": lambda answer: read_section(answer, "deployments", tuple[Kept, ...]),
    "lock": deployments.parse_lock,
    "weights": weights.parse,
    "gpu": gpu.parse,
    "apps": gpu.parse_processes,
    "docker": docker.parse,
    "clock": lambda answer: clock.parse(answer, (1.0, 2.0)),
    "containers": deployments.parse_containers,
    "image": lambda answer: image.parse("x:1", answer),
    "ray": ranks.parse_nodes,
    **{fact.name: fact.parse for fact in FACTS},
}
MODELS = (Model("org/name", "main"),)
PROGRAMS = sorted(path.stem for path in Path(cluster.__file__).with_name("far").glob("*.py"))
HOSTILE = [
    b"",
    b"\0" * 5000,
    b"\xff\xfe\x00[",
    b"null",
    b"[]",
    b"{}",
    b"7",
    b'"x"',
    b"\x1b[2J\x1b]0;own\x07",
    b"[" * 100_000,
    b'{"identity": ' * 500,
    "１２３ ünïcode \u202e".encode(),
    b"Welcome to DGX OS!\n{}",
    b'{"a": 1e999}',
    b"NaN",
]


def test_a_look_is_one_question_a_program() -> None:
    asked = questions(Look(image="x:1", models=MODELS))
    assert len(asked) == 8
    assert len(questions(Look())) == 6
    assert len(questions(Look(image="x:1", models=MODELS, thorough=True))) == 8 + len(FACTS)
    assert not any(question.changes for question in asked)


def test_this_machine_is_seen() -> None:
    look = Look(models=MODELS, hf_home="/nowhere", data_dir="/nowhere", thorough=True)
    began = time.time()
    answers = [ask(one) if one.argv[0] == "python3" else Answer(127) for one in questions(look)]
    seen = read("here", look, answers, (began, time.time()))
    assert (seen.host, seen.image) == ("here", NOT_ASKED)
    assert isinstance(seen.identity, Identity)
    assert isinstance(seen.docker, Missing)
    told = "memory links listening disk processes deployments lock clock"
    assert not [name for name in told.split(" ") if isinstance(getattr(seen, name), Missing)]
    assert seen.facts.keys() == {fact.name for fact in FACTS}
    assert not isinstance(seen.of(OTHER_PROGRAMS), Missing)
    assert isinstance(seen.weights, Missing)
    assert seen.weights.kind == "absent"


def test_one_section_that_fails_or_hangs_leaves_the_others() -> None:
    refused = {"missing": "/proc/net/tcp: permission denied", "kind": "refused"}
    answer = Answer(0, orjson.dumps({"memory": {"value": "MemFree: 1 kB\n"}, "listening": refused}))
    assert not isinstance(memory.parse(answer), Missing)
    assert PARSES["listening"](answer) == Missing("/proc/net/tcp: permission denied", "refused")
    answer = Answer(None, b'{"memory": {"value": "MemFree: 1 kB\\n"}}\n{"listening": {"val', cut=True)
    assert not isinstance(memory.parse(answer), Missing)
    assert PARSES["listening"](answer) == Missing("python3 did not answer in time", "timeout")


@each("name", PARSES)
@each("data", HOSTILE)
def test_hostile_output(name: str, data: bytes) -> None:
    for answer in (Answer(0, data), Answer(1, data, data), Answer(0, data, cut=True), Answer(None, data)):
        found = PARSES[name](answer)
        assert plain(found.why) == found.why
        assert 0 < len(found.why) < 1000
    assert PARSES[name](Answer(None, data)).kind == "timeout"


def test_twenty_megabytes_cut_off() -> None:
    data = b"x" * 20_000_000
    for parse in PARSES.values():
        assert isinstance(parse(Answer(0, data, cut=True)), Missing)
        assert isinstance(parse(Answer(1, b"", data, cut=True)), Missing)


READ = "value missing kind failed exit said fields containers links netdevs nodes Config RootFS Layers Id Os"
READ += " Architecture ServerVersion ServerErrors Runtimes"
SHAPED = [*READ.split(), *PARSES]


def shaped(rolled: random.Random, depth: int = 0) -> Any:
    """Any JSON value, with the names that readers look for."""
    kind = rolled.randrange(9 if depth < 4 else 6)
    if kind < 6:
        number = rolled.choice([0, 1, -1, 2**63, 2**64 - 1, 1e308, 0.5])
        text = rolled.choice(["", "x", "192.168.1.1/24", "running", "\x1b[31m", "absent", "0x4"])
        return [None, True, number, text, [], {}][kind]
    if kind == 6:
        return [shaped(rolled, depth + 1) for _ in range(rolled.randrange(4))]
    return {rolled.choice(SHAPED): shaped(rolled, depth + 1) for _ in range(rolled.randrange(6))}


@each("name", PARSES)
def test_json_of_other_shapes(name: str) -> None:
    """Never an exception; what is read all the same is the fact or Missing."""
    rolled = random.Random(name)
    for _ in range(500):
        document = shaped(rolled) if rolled.random() < 0.3 else {name: {"value": shaped(rolled)}}
        PARSES[name](Answer(rolled.choice([0, 0, 0, 1]), orjson.dumps(document), b""))


def test_mutated_answers_of_this_machine() -> None:
    """Real answers with bytes changed, cut or doubled: every field of Seen is a fact or Missing."""
    look, rolled = Look(image="x:1", models=MODELS, thorough=True), random.Random(7)
    real = [ask(one) if one.argv[0] == "python3" else Answer(0, b"{}") for one in questions(look)]
    for _ in range(300):
        seen = read("x", look, [Answer(0, mutate(rolled, answer.out)) for answer in real], (1.0, 2.0))
        kinds = get_type_hints(Seen)
        assert kinds.pop("facts")
        kinds |= {fact.name: get_type_hints(fact.parse)["return"] for fact in FACTS}
        for name, kind in kinds.items():
            value = seen.facts[name] if name in seen.facts else getattr(seen, name)
            assert is_of(value, kind), (name, value)


def is_of(value: Any, kind: Any) -> bool:
    """Whether a value is what an annotation of Seen says."""
    if get_origin(kind) is UnionType:
        return any(is_of(value, one) for one in get_args(kind))
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(is_of(one, get_args(kind)[0]) for one in value)
    return isinstance(value, kind)


def mutate(rolled: random.Random, data: bytes) -> bytes:
    at, length = rolled.randrange(len(data) + 1), rolled.randrange(8)
    return data[:at] + rolled.choice([b"", rolled.randbytes(length), data[at : at + 50] * 2]) + data[at + length :]


@each("fact", FACTS, ids=lambda fact: fact.name)
def test_what_a_host_prints_and_what_is_found(fact: Fact[Any]) -> None:
    [healthy, *others] = [(fact.parse(answer), finds) for answer, finds in samples(fact.name)]
    assert healthy[1] == []
    for value, finds in (healthy, *others):
        found = fact.check(host(1, **{fact.name: value}))
        assert [f"{one.level} {one.check}: {one.evidence}" for one in found] == finds


@each("program", PROGRAMS)
def test_programs_compile_without_a_warning(program: str) -> None:
    """Python prints one on the host's stderr, where the reason of a failure is looked for."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compile(source(program), program, "exec")
