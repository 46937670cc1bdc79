"""Driving cases: what is sent, what is left out, what stops it; choosing cases; what a recipe promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from config_tools import refusal
from loops import each

from cluster.bench.endpoint import Served
from cluster.bench.loader import Ask, Batch, BatchRecord, RequestRecord
from cluster.errors import ConnectionLostError
from cluster.probe.ask import Case, CaseOver, CaseResult, ProbedServer, Talk, chat, expect, fail, probed_server, skip
from cluster.probe.cases import CASES, QUICK, Limits, Probed, choose, run_probe

SUBJECT = ProbedServer("m", engine="vllm")


def reply(status: int, document: Any) -> bytes:
    body = orjson.dumps(document)
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body


def said(text: str) -> bytes:
    return reply(200, {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]})


@dataclass
class Server:
    """A load client and its server: `answer` gives the bytes of one, or None where there is no connection."""

    answer: Callable[[Ask], bytes | None] = lambda ask: said("hello")
    how: str = "done"
    rounds: list[Batch] = field(default_factory=list)
    where: str = "here"

    def send(self, wanted: Batch) -> BatchRecord:
        self.rounds.append(wanted)
        data = self.answer(wanted.asks[0])
        how, said = ("refused", "nobody listens") if data is None else (self.how, "")
        record = RequestRecord(0.0, 0.1, how, said, ((0.1, data),) if data else ())
        return BatchRecord((record,))


def case(name: str, talk: Callable[[ProbedServer], Talk], **how: Any) -> Case:
    return Case(name, name, talk, "group", **how)


def greet(server: ProbedServer) -> Talk:
    reply = yield chat(server, "hello", thinking=False)
    expect(not reply.error, "no", reply)


def give_up(server: ProbedServer) -> Talk:
    yield chat(server, "hello")
    skip("it has none")


def probe(server: Server, *talks: Callable[[ProbedServer], Talk] | Case, limits: Limits = Limits()) -> Probed:
    """The cases a, b, … asked of a server."""
    cases = [talk if isinstance(talk, Case) else case(name, talk) for name, talk in zip("abcd", talks, strict=False)]
    return run_probe(server, Probed(SUBJECT), cases, limits)


def outcomes(probed: Probed) -> list[str]:
    return [one.verdict.outcome for one in probed.results]


def test_cases_in_their_order() -> None:
    server, shown = Server(), []
    cases = [case("a", greet), case("b", give_up)]
    probed = run_probe(server, Probed(SUBJECT), cases, show=lambda *one: shown.append(one))
    a, b = probed.results
    assert shown == [(cases[0], None), (cases[0], a), (cases[1], None), (cases[1], b)]
    assert outcomes(probed) == ["pass", "not applicable"]
    assert [a.requests, b.requests] == [1, 1]
    assert (probed.count("pass"), probed.failed, probed.left, probed.gone) == (1, [], (), "")
    assert len({one.id for one in server.rounds}) == 2


@each("status", [400, 422])
def test_refused_fields_are_left_out_from_then_on(status: int) -> None:
    def picky(ask: Ask) -> bytes:
        for name in ("seed", "chat_template_kwargs"):
            if name in ask.body:
                return reply(status, {"error": {"message": f"Unrecognized request argument supplied: {name}"}})
        return said("hello")

    probed = probe(Server(picky), greet, greet)
    assert outcomes(probed) == ["pass", "pass"]
    assert probed.refused == ["seed", "chat_template_kwargs"]
    assert [one.requests for one in probed.results] == [3, 1]


@each("status, words", [(400, "messages are wrong"), (500, "seed"), (400, "reseeded")])
def test_other_errors_are_the_cases(status: int, words: str) -> None:
    server = Server(lambda ask: reply(status, {"error": {"message": words}}))
    probed = probe(server, greet)
    assert outcomes(probed) == ["fail"]
    assert words in probed.results[0].verdict.said
    assert len(server.rounds) == 1


def test_a_server_that_goes_away_ends_it() -> None:
    server = Server(lambda ask: said("hello") if len(server.rounds) < 2 else None)
    probed = probe(server, greet, greet, greet, greet)
    assert outcomes(probed) == ["pass", "fail"]
    assert "nobody listens" in probed.gone
    assert probed.left == ("c", "d")
    assert server.rounds[-1].asks[0].path == "/v1/models", "it was asked whether it is there"


def test_one_lost_request_does_not() -> None:
    server = Server(lambda ask: None if len(server.rounds) == 1 else said("hello"))
    assert outcomes(probe(server, greet, greet)) == ["fail", "pass"]


def test_a_case_that_breaks_loses_no_other() -> None:
    def breaks(server: ProbedServer) -> Talk:
        answer = yield chat(server, "hello")
        fail(answer.document["nothing"])

    probed = probe(Server(), breaks, greet)
    assert outcomes(probed) == ["fail", "pass"]
    assert probed.results[0].verdict.said == "hello"


@each("choices", [7, [7], [{"delta": "x"}], [{"message": {"content": ["a"]}}], [{"message": {"tool_calls": [3]}}]])
def test_a_reply_of_another_shape_is_a_failed_case(choices: Any) -> None:
    assert outcomes(probe(Server(lambda ask: reply(200, {"choices": choices})), greet)) == ["fail"]


def test_what_came_before_is_kept_when_the_client_ends() -> None:
    class Ends(Server):
        def send(self, wanted: Batch) -> BatchRecord:
            if self.rounds:
                raise ConnectionLostError("the load client ended", code="load-client-lost")
            return super().send(wanted)

    kept = Probed(SUBJECT)
    with pytest.raises(ConnectionLostError):
        run_probe(Ends(), kept, [case("a", greet), case("b", greet)])
    assert outcomes(kept) == ["pass"]


def test_random_weights_are_asked_what_needs_no_sense() -> None:
    server, dummy = Server(), Probed(ProbedServer("m", dummy=True))
    run_probe(server, dummy, [case("a", greet), case("b", greet, judges_text=False)])
    assert outcomes(dummy) == ["not applicable", "pass"]
    assert [one.requests for one in dummy.results] == [0, 1]
    assert len(server.rounds) == 1


def test_a_budget() -> None:
    probed = probe(Server(), greet, greet, limits=Limits(begin_s=-1))
    assert (probed.results, probed.left) == ([], ("a", "b"))


def test_short_of_time_a_late_answer_is_not_judged() -> None:
    late = Server(lambda ask: b"", how="timeout")
    assert outcomes(probe(late, greet, limits=Limits(40, lenient=True))) == ["not applicable"]
    assert late.rounds[0].timeout_s == 40
    patient = Server(lambda ask: b"" if ask.path != "/v1/models" else said(""), how="timeout")
    assert outcomes(probe(patient, greet)) == ["fail"]


def test_every_case_has_a_name_of_its_own() -> None:
    names = [case.id for case in CASES]
    assert len(set(names)) == len(names)
    assert not set(names) & {case.group for case in CASES}
    assert not any(case.quick and case.long for case in CASES)


def test_choose() -> None:
    assert choose([], full=True) == CASES
    assert choose([], quick=True) == QUICK
    assert 3 <= len(QUICK) <= 9, "a handful"
    plain = choose([])
    assert set(QUICK) <= set(plain)
    assert not [case for case in plain if case.long]
    assert [case.id for case in choose(["tools-html,tools-auto"])] == ["tools-auto", "tools-html"]
    assert {case.group for case in choose(["tools"])} == {"tools"}


def test_choose_a_name_that_is_none() -> None:
    nearest = refusal(choose, ["tools-hmtl"])
    assert (nearest.code, nearest.remedy) == ("case-not-found", "did you mean `tools-html`?")
    assert "groups: " in refusal(choose, ["xyzzy"]).remedy


# what a recipe promises

RECIPE = {
    "vllm": {"max-model-len": 65536, "enable-auto-tool-choice": True, "reasoning-parser": "gemma4"},
    "architecture": "Gemma4ForConditionalGeneration",
    "weights": "real",
}


def test_promises() -> None:
    served = Served("m", 32768, "vllm")
    assert probed_server(served, None) == ProbedServer("m", 32768, engine="vllm")
    assert probed_server(served, RECIPE) == ProbedServer("m", 32768, 65536, True, True, True, "vllm")
    bare = {"vllm": {}, "weights": "dummy"}
    assert probed_server(served, bare) == ProbedServer("m", 32768, None, False, False, None, "vllm", dummy=True)
    assert probed_server(served, RECIPE | {"architecture": "ToyForCausalLM"}).vision is False
    assert probed_server(served, RECIPE | {"architecture": "NemotronForConditionalGeneration"}).vision is None


def test_words_behind_the_recipe_count() -> None:
    words = ["--no-enable-auto-tool-choice", "--max-model-len=1024", "--language-model-only", "--seed", "7"]
    subject = probed_server(Served("m", None), RECIPE, words)
    assert (subject.tools, subject.configured, subject.vision) == (False, 1024, False)
    assert probed_server(Served("m", None), RECIPE, ["--max_model_len", "auto"]).configured is None
    assert probed_server(Served("m", None), RECIPE, ["--max-model-len", "16K"]).configured == 16384
    assert probed_server(Served("m", None), RECIPE | {"vllm": {"max-model-len": -1}}).configured is None


def test_a_result_as_json() -> None:
    with pytest.raises(CaseOver) as caught:
        fail("because", remedy="do this")
    document = CaseResult(case("a", greet), caught.value.verdict, 1.23456, 2).document()
    assert document == dict.fromkeys(("id", "title"), "a") | dict.fromkeys(("said", "defect"), "") | {
        "group": "group",
        "outcome": "fail",
        "why": "because",
        "remedy": "do this",
        "seconds": 1.235,
        "requests": 2,
    }
