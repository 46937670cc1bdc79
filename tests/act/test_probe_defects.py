"""The cases of `cluster probe` against servers that are right in many forms, and wrong in every way that we know.

Of each server exactly the cases fail that look at what it does wrong, and say what it is. Those that are right, the
known defects and what is wrong on the wire are asked by the real load client on loopback; all others, and those again,
by a client that hands the server's bytes over without a socket.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from bench_live import Child, load_client

from cluster.bench.endpoint import find_model
from cluster.bench.loader import Ask, ClientLoad, How, Loader, ProcessLoader, Record, Round, RoundRecord
from cluster.errors import UsageError
from cluster.lab.scripted.behaviour import MODEL
from cluster.lab.scripted.reply import BEHAVIOURS, reply
from cluster.lab.scripted.right import RIGHT
from cluster.lab.scripted.wrong import WRONG
from cluster.probe.case import Case, Subject, subject_of
from cluster.probe.run import CASES, QUICK, Probed, run_probe

RECIPE: dict[str, Any] = {
    "vllm": {
        "max-model-len": 65536,
        "enable-auto-tool-choice": True,
        "tool-call-parser": "gemma4",
        "reasoning-parser": "gemma4",
    },
    "architecture": "Gemma4ForConditionalGeneration",
    "weights": "auto",
}
BEHAVING = tuple(case for case in CASES if case.group != "reasoning-check")

TOOLS = [case.id for case in CASES if case.group == "tools" and case.id != "tools-auto"]
STREAMED = ["tools-single-streamed", "tools-agent-streamed", "tools-html", "tools-loop"]
STREAMS = ["text-echo", "stream-order", "stream-same", *STREAMED, "reasoning-channel-streamed"]
TEXTS = ["text-fact", "text-essay", "text-echo", "reasoning-channel", "reasoning-channel-streamed", "vision-shapes"]
CHANNELS = ["reasoning-channel", "reasoning-channel-streamed"]
VISION = ["vision-tokens", "vision-shapes"]
PARALLEL = ["tools-parallel", "tools-loop"]

Expected = dict[str, str]
"""Cases that fail, each with a part of what is said then."""


def each(cases: Iterable[str], words: str) -> Expected:
    return dict.fromkeys(cases, words)


def garbage(words: str) -> Expected:
    """A model that goes on and on."""
    return each(TEXTS, words) | each(TOOLS, "did not come to an end") | {"stop-string": "the reason is 'length'"}


DOUBLED, BROKEN, LOOP_ENDS = "vLLM issue 38910 (PR 38909)", "vLLM issue 38946", "vLLM issue 39043"
ANY = [case.id for case in BEHAVING]

EXPECTED: dict[str, Expected] = {
    # the defects of the write-ups
    "auto-refused": {"tools-auto": "HTTP 400"},
    "failover": {"tools-auto": "silent failover"},
    "other-model": {"served-name": "answered by qwen3.6-35b-a3b"},
    "any-name": {"served-unknown": f"{MODEL} answered", "context-limit": "is taken"},
    "html-doubled": {"tools-html": DOUBLED},
    "html-brackets": {"tools-html": DOUBLED},
    "html-names": {"tools-html": DOUBLED},
    "marks-in-json": each(STREAMED, BROKEN),
    "marks-in-texts": each(STREAMED, BROKEN),
    "call-leaks": {},
    "call-leaks-bare": {},
    "loop-ends": {},
    "mark-behind": {"tools-agent": LOOP_ENDS},
    "stop-beside-calls": each(set(TOOLS) - {"tools-steps"}, "finish_reason is 'stop' beside tool calls"),
    "thoughts-aloud": {"reasoning-channel": "vLLM issue 38855"},
    "thoughts-lost": {"reasoning-channel": "vLLM issue 38855"},
    "first-arguments-lost": {"tools-loop": "vLLM issue 41967"},
    # calls
    "no-tools": {},
    "html-lost": {"tools-html": "missing <p"},
    "cut-json": each(STREAMED, "not JSON"),
    "json-twice": each(STREAMED, "come twice"),
    "no-parser": each(TOOLS, "the call stands in the text ('<tool_call>')"),
    "merged": each(PARALLEL, "two calls come as one"),
    "one-index": {"tools-loop": "two calls come as one, 'count_stockget_price'"},
    "objects": each(TOOLS, "are an object, where the API has a text"),
    "no-ids": each(TOOLS, "has no id"),
    "one-id": each(PARALLEL, "two calls have the id 'call_0'"),
    "other-tool": {
        "tools-parallel": "allowed is celsius",
        "tools-choice": "others were",
        **each(["tools-loop", "tools-steps"], "it calls tools for 6 steps"),
    },
    "number-as-text": each(["tools-choice", "tools-steps"], "not of type integer"),
    # texts
    "channel-leaks": each(CHANNELS, "it has '<|channel>'"),
    "think-leaks": each(CHANNELS, "it has '<think>'"),
    "think-half": each(CHANNELS, "it has '</think>'"),
    "thoughts-twice": each(CHANNELS, "the reasoning stands in the answer, too"),
    "never-answers": {"reasoning-channel-streamed": "all of it is in the reasoning channel"},
    "no-thoughts": each(CHANNELS, "the reasoning channel is empty"),
    "always-thinks": {},
    "exclamation": garbage("repeats one character: '!!!!"),
    "a-a-a": garbage("repeats one word: ' a a a a"),
    "loops": garbage("repeats 'The sky is blue because it is.'"),
    "pads": garbage("<pad> stands in the text"),
    "empty": each(TEXTS, "the answer is empty")
    | each(TOOLS, "no tool was called")
    | {
        "stream-order": "no text came",
        "stop-length": "the reason is 'stop'",
        "stop-string": "it ends before",
    },
    "broken-characters": {"text-echo": "characters that are no text"},
    "blind": each(VISION, "taken and not looked at"),
    "guesses": {"vision-shapes": "shown a red square and a green circle, it says something else"},
    "text-only": each(VISION, "the recipe's model takes pictures, the server does not"),
    # the API
    "short-context": {"context-limit": "asks for a context of 65,536 tokens, the server says 16,384"},
    "clips": {"context-limit": "it cuts without a word"},
    "too-long": {"stop-length": "8 tokens were asked for"},
    "stop-for-length": {"stop-length": "the reason is 'stop'"},
    "no-reason": {
        "stream-order": "no reason for the end",
        "stop-length": "the reason is ''",
        "stop-string": "the reason is ''",
    },
    "eos": {"stop-string": "the reason is 'eos_token'"},
    "stop-stays": {"stop-string": "it says it"},
    "stop-ignored": {"stop-string": "it says it"},
    # the wire
    "usage-first": {"stream-order": "usage comes before the reason"},
    "no-usage": {"stream-order": "no usage came"},
    "no-finish": {"stream-order": "no reason for the end came"} | each(STREAMED, "finish_reason is missing"),
    "finish-twice": {"stream-order": "two reasons for the end"},
    "finish-early": {"stream-order": "text comes after the reason"},
    "role-late": {"stream-order": "the role comes within the text"},
    "no-done": {"stream-order": "no [DONE] came"},
    "done-early": {"stream-order": "something comes after [DONE]"},
    "end-lost": {"text-echo": "leaves out", "stream-same": "lost its end", "tools-agent-streamed": "4719"},
    "begin-lost": {"text-echo": "leaves out Größe", "stream-same": "lost its beginning: 'Hello, '"},
    "nothing-streamed": each(STREAMED, "no tool was called")
    | {
        "text-echo": "the answer is empty",
        "stream-order": "no text came",
        "reasoning-channel-streamed": "is empty",
    },
    "dies-in-stream": each(STREAMS, "EngineCore encountered an issue"),
    "cut": each([name for name in ANY if name not in ("served-unknown", "context-limit")], "closed the connection")
    | each(VISION, "a request with a picture ends in an error | the server closed the connection"),
    "closes": each(ANY, "closed the connection") | each(VISION, "a request with a picture ends in an error"),
}

REPORTED = {
    "failover",
    "html-doubled",
    "html-brackets",
    "html-names",
    "marks-in-json",
    "marks-in-texts",
    "call-leaks",
    "call-leaks-bare",
    "loop-ends",
    "mark-behind",
    "stop-beside-calls",
    "thoughts-aloud",
    "thoughts-lost",
    "no-thoughts",
    "first-arguments-lost",
}
"""What is taken for a defect that somebody reported. All else is told without a name."""

UNPROMISED: dict[str, Expected] = {"thoughts-lost": {}, "no-thoughts": {}, "text-only": {}, "short-context": {}}
"""Where a server has promised nothing, these are no faults."""

ON_THE_WIRE = (
    "auto-refused",
    "failover",
    "html-doubled",
    "marks-in-json",
    "mark-behind",
    "thoughts-aloud",
    "no-done",
    "dies-in-stream",
    "cut",
    "closes",
)


@pytest.fixture(scope="module")
def load() -> Iterator[ProcessLoader]:
    server = Child([sys.executable, "-m", "cluster.lab.scripted"], b"")
    try:
        with load_client(f"http://127.0.0.1:{json.loads(next(server.lines()))['port']}") as client:
            yield client
    finally:
        server.close()


@dataclass(frozen=True)
class At:
    """A client whose server, on loopback, has one behaviour."""

    loader: Loader
    name: str
    where: str = "here"

    def send(self, wanted: Round) -> RoundRecord:
        asks = tuple(replace(ask, path=f"/{self.name}{ask.path}") for ask in wanted.asks)
        return self.loader.send(replace(wanted, asks=asks, warm=None))


@dataclass(frozen=True)
class Beside:
    """A client that hears a server's bytes without a socket."""

    name: str
    where: str = "here"

    def send(self, wanted: Round) -> RoundRecord:
        records = tuple(map(self.hear, wanted.asks))
        return RoundRecord(wanted.id, records, ClientLoad())

    def hear(self, ask: Ask) -> Record:
        given = reply(BEHAVIOURS[self.name], ask.path, json.loads(json.dumps(ask.body)))
        how: How = "timeout" if not given.portions else "closed" if given.closes else "done"
        return Record(0.0, 1.0, how, "", tuple((0.5, portion) for portion in given.portions))


def subject(loader: Loader, recipe: dict[str, Any] | None) -> Subject:
    return subject_of(find_model(loader, MODEL, "here"), recipe)


def probe(loader: Loader, recipe: dict[str, Any] | None, cases: tuple[Case, ...] = BEHAVING, **how: Any) -> Probed:
    return run_probe(loader, subject(loader, recipe), cases, **how)


def told(probed: Probed) -> Expected:
    """What failed, and all that is said of it."""
    failed = (one for one in probed.told if one.verdict.outcome == "fail")
    return {one.case.id: f"{one.verdict.why} | {one.verdict.said} | {one.verdict.defect}" for one in failed}


def check(said: Expected, expected: Expected) -> None:
    assert said.keys() == expected.keys(), said
    assert not [(name, said[name]) for name, words in expected.items() if words not in said[name]]


def test_every_behaviour_is_tried() -> None:
    assert {one.name for one in WRONG} == {*EXPECTED, "hangs", "listed-otherwise"}


def check_right(probed: Probed, name: str) -> None:
    """Nothing failed, and next to nothing was left out."""
    assert told(probed) == {}
    skipped = {one.case.id for one in probed.told if one.verdict.outcome == "not applicable"}
    assert skipped <= ({*CHANNELS} if name == "strict" else {"context-limit"})


@pytest.mark.parametrize("name", [one.name for one in RIGHT])
def test_whoever_is_right_fails_nothing(load: ProcessLoader, name: str) -> None:
    check_right(probe(At(load, name), RECIPE), name)


@pytest.mark.parametrize("name", [one.name for one in RIGHT])
def test_whoever_is_right_and_promised_nothing_fails_nothing(name: str) -> None:
    probed = probe(Beside(name), None, CASES)
    check_right(probed, name)
    assert probed.score()["right"] == 7


@pytest.mark.parametrize("name", EXPECTED)
def test_whoever_is_wrong_is_told_what_is_wrong(name: str) -> None:
    probed = probe(Beside(name), RECIPE)
    check(told(probed), EXPECTED[name])
    assert any(one.verdict.defect for one in probed.told) == (name in REPORTED)


@pytest.mark.parametrize("name", ON_THE_WIRE)
def test_the_same_on_the_wire(load: ProcessLoader, name: str) -> None:
    check(told(probe(At(load, name), RECIPE)), EXPECTED[name])


@pytest.mark.parametrize("name", EXPECTED)
def test_what_nobody_promised_is_no_fault(name: str) -> None:
    expected = UNPROMISED.get(name, EXPECTED[name])
    failed = told(probe(Beside(name), None))
    assert failed.keys() <= expected.keys()
    assert expected.keys() - failed.keys() <= {*CHANNELS}, "that no thoughts come is no fault of a model that has none"


@pytest.mark.parametrize("name", ["call-leaks", "call-leaks-bare", "loop-ends", "mark-behind"])
def test_the_known_limitation_is_named(name: str) -> None:
    [steps] = [one for one in probe(Beside(name), RECIPE).told if one.case.id == "tools-steps"]
    assert steps.verdict.outcome == "not applicable"
    assert steps.verdict.defect.startswith(LOOP_ENDS)


def test_the_few_questions_after_up_catch_the_worst() -> None:
    for name in ("auto-refused", "failover", "marks-in-json", "exclamation", "a-a-a", "loops", "empty", "no-parser"):
        assert told(probe(Beside(name), RECIPE, QUICK)), name


def test_no_answer_at_all(load: ProcessLoader) -> None:
    probed = probe(At(load, "hangs"), RECIPE, QUICK[:2], timeout_s=0.2)
    check(told(probed), each((case.id for case in QUICK[:2]), "time-out: no complete answer in 0.2 s"))


def test_a_model_under_another_name_is_not_asked() -> None:
    with pytest.raises(UsageError, match=f"does not serve '{MODEL}'"):
        subject(Beside("listed-otherwise"), RECIPE)


def test_fields_that_are_refused_are_left_out_and_told() -> None:
    assert {*probe(Beside("strict"), RECIPE, CASES).refused} == {"seed", "stream_options", "chat_template_kwargs"}


@pytest.mark.parametrize(
    "name", ["auto-refused", "failover", "html-doubled", "marks-in-json", "call-leaks", "thoughts-aloud", "no-parser"]
)
def test_a_known_defect_brings_its_remedy(name: str) -> None:
    concerned = [one.verdict for one in probe(Beside(name), RECIPE).told if one.verdict.outcome != "pass"]
    assert concerned[0].remedy
