"""The cases of `cluster probe`, each against recorded answers of servers: right in many forms, wrong in known ways.

What is right fails nothing; of what is wrong the case that looks at it fails, and says what it is. One of each kind is
also asked by the real load client on loopback.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from bench_live import load_client
from loops import each
from recorded_server import MODEL, Answer, Recorded, read_all, serving, whole

from cluster.bench.endpoint import find_model
from cluster.bench.loader import Ask, Batch, BatchRecord, How, Loader, RequestRecord
from cluster.errors import UsageError
from cluster.probe.ask import Verdict, probed_server
from cluster.probe.cases import CASES, QUICK, Probed, run_probe

FLAGS = {"enable-auto-tool-choice": True, "tool-call-parser": "gemma4", "reasoning-parser": "gemma4"}
RECIPE: dict[str, Any] = {
    "vllm": FLAGS | {"max-model-len": 65536},
    "architecture": "Gemma4ForConditionalGeneration",
    "weights": "auto",
}
ALL = read_all()
BY_ID = {case.id: case for case in CASES}
PROMISED = ("reasoning-channel", "reasoning-channel-streamed")
REMEDIED = ("auto-refused", "failover", "html-doubled", "marks-in-json", "call-leaks", "thoughts-aloud", "no-parser")
ON_THE_WIRE = ("right", "crlf", "until-close", "no-done", "dies-in-stream", "cut", "closes")
WORST = ("auto-refused", "failover", "marks-in-json", "exclamation", "a-a-a", "loops", "empty", "no-parser")


@dataclass
class Replay:
    """A load client that hears recorded answers without a socket, in portions of `size` bytes."""

    listed: str
    answers: list[Answer]
    size: int = 1 << 20
    where: str = "here"

    def send(self, wanted: Batch) -> BatchRecord:
        return BatchRecord(tuple(map(self.hear, wanted.asks)))

    def hear(self, ask: Ask) -> RequestRecord:
        answer = self.listed if ask.body is None else self.answers.pop(0)
        how: How = "done" if isinstance(answer, str) else "closed"
        data = (answer if isinstance(answer, str) else answer["cut"]).encode()
        parts = [data[at : at + self.size] for at in range(0, len(data), self.size)]
        return RequestRecord(0.0, 1.0, how, "", tuple((0.5, part) for part in parts))


def probe(loader: Loader, recipe: Mapping[str, Any] | None, case: str) -> Probed:
    return run_probe(loader, Probed(probed_server(find_model(loader, MODEL, "here"), recipe)), (BY_ID[case],))


def replayed(one: Recorded, recipe: Mapping[str, Any] | None, size: int = 1 << 20) -> Verdict:
    return probe(Replay(one.listed, list(one.answers), size), recipe, one.case).results[0].verdict


def check(one: Recorded, verdict: Verdict) -> None:
    assert verdict.outcome == one.outcome, verdict
    assert one.says in f"{verdict.why} | {verdict.said} | {verdict.defect}", verdict
    assert bool(verdict.defect) == one.reported, verdict
    assert verdict.remedy or one.server not in REMEDIED


def test_all_cases_and_all_defects_were_recorded() -> None:
    assert {one.case for one in ALL if one.server == "right"} == {*BY_ID}
    judged = {case.id for case in CASES if case.group != "reasoning-check"} - {"tools-steps"}
    assert {one.case for one in ALL if one.outcome == "fail"} >= judged
    words = " ".join(one.says for one in ALL)
    for reported in ("38855", "38909", "38910", "38946", "39043", "41967", "HTTP 400", "silent failover"):
        assert reported in words, reported


@each("one", ALL, ids=str)
def test_recorded_answers_are_judged_rightly(one: Recorded) -> None:
    check(one, replayed(one, RECIPE))


@each("one", [one for one in ALL if one.outcome == "pass"], ids=str)
def test_portions_of_seven_bytes_change_nothing(one: Recorded) -> None:
    check(one, replayed(one, RECIPE, size=7))


@each("one", ALL, ids=str)
def test_what_nobody_promised_is_no_fault(one: Recorded) -> None:
    assert replayed(one, None).outcome == (one.unpromised or one.outcome)
    assert not one.unpromised or one.case in (*PROMISED, "vision-tokens", "vision-shapes", "context-limit")


@each("server", ON_THE_WIRE)
def test_the_same_on_the_wire(server: str) -> None:
    one = next(one for one in ALL if one.server == server)
    with serving(one.listed, one.answers) as url, load_client(url) as load:
        check(one, probe(load, RECIPE, one.case).results[0].verdict)


def test_the_few_questions_after_up_catch_the_worst() -> None:
    quick = {case.id for case in QUICK}
    caught = {one.server for one in ALL if one.case in quick and one.outcome == "fail"}
    assert caught >= {*WORST}


def test_a_model_under_another_name_is_not_asked() -> None:
    other = whole({"object": "list", "data": [{"id": "qwen3.6-35b-a3b", "object": "model"}]})
    with pytest.raises(UsageError, match=f"does not serve '{MODEL}'"):
        probe(Replay(other, []), RECIPE, "text-fact")


def test_fields_that_are_refused_are_left_out_and_told() -> None:
    one = next(one for one in ALL if one.server == "strict")
    refused = probe(Replay(one.listed, list(one.answers)), RECIPE, one.case).refused
    assert {*refused} == {"seed", "stream_options", "chat_template_kwargs"}


def test_problems_are_scored() -> None:
    scored = [one for one in ALL if one.server == "right" and BY_ID[one.case].group == "reasoning-check"]
    assert [replayed(one, None).score for one in scored] == ["right"] * 7
